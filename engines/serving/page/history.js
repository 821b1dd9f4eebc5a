// The list of conversations that the browser keeps.

import { titleOf } from "./conversations.js";
import { byId, button, icon, make } from "./elements.js";

const PENCIL = "M3 13l1-4 7-7 3 3-7 7z", CROSS = "M4 4l8 8M12 4l-8 8";

export class History {
  // `actions` are open(conversation), rename(conversation, title), delete(conversation) and restore(conversation).
  constructor(storage, actions) {
    this._storage = storage;
    this._actions = actions;
    this._renamed = null;  // id of the conversation whose title is edited
    this._deleted = null;  // conversation that can be restored
    byId("undo").addEventListener("click", () => {
      actions.restore(this._deleted);
      this._forget();
    });
  }

  // Shows the list; `shown` is the conversation in the middle of the page.
  update(shown) {
    if (this._renamed && byId("list").contains(document.activeElement)) return;  // the reader types
    byId("list").replaceChildren(...this._storage.conversations().map(each => this._item(each, each.id === shown.id)));
    byId("kept").textContent = this._storage.problem;
    byId("kept").hidden = !this._storage.problem;
  }

  _item(conversation, isShown) {
    const title = titleOf(conversation);
    if (this._renamed === conversation.id) return make("li", {}, this._title(conversation, title, isShown));
    const open = button(title, () => this._actions.open(conversation), { className: "quiet open", title });
    if (isShown) open.setAttribute("aria-current", "true");
    const rename = () => {
      this._renamed = conversation.id;
      this._show(item, this._item(conversation, isShown)).querySelector("input").select();
    };
    const item = make(
      "li", {}, open,
      button(icon(PENCIL), rename, { "aria-label": `Rename ${title}`, title: "Rename" }),
      button(icon(CROSS), () => this._delete(conversation), { "aria-label": `Delete ${title}`, title: "Delete" }),
    );
    return item;
  }

  _title(conversation, title, isShown) {
    const input = make("input", { value: title, maxLength: 200, "aria-label": "Title of the conversation" });
    const close = isKept => {
      if (this._renamed !== conversation.id) return;
      this._renamed = null;
      const given = input.value.trim();
      if (isKept && given && given !== title) {
        conversation.title = given;
        this._actions.rename(conversation, given);
      }
      const old = input.closest("li");
      if (old?.isConnected) this._show(old, this._item(conversation, isShown)).querySelector("button").focus();
    };
    input.addEventListener("keydown", event => {
      if (event.key === "Enter") close(true);
      if (event.key === "Escape") {
        event.stopPropagation();
        close(false);
      }
    });
    input.addEventListener("blur", () => close(true));
    return input;
  }

  _show(old, item) {
    old.replaceWith(item);
    return item;
  }

  _delete(conversation) {
    this._deleted = this._storage.conversation(conversation.id) ?? conversation;
    this._actions.delete(conversation);
    byId("deleted").hidden = false;
    byId("deleted-title").textContent = `Deleted: ${titleOf(conversation)}`;
    byId("undo").focus();
    clearTimeout(this._timer);
    this._timer = setTimeout(() => this._forget(), 10_000);
  }

  _forget() {
    this._deleted = null;
    byId("deleted").hidden = true;
  }
}
