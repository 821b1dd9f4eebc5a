// The text box, and the messages that wait for the running answer.

import { byId, button, make } from "./elements.js";

export class Composer {
  // `send(text)` sends a message; `editLast()` edits the last question.
  constructor(chat, send, editLast) {
    this._chat = chat;
    this._box = byId("text");
    byId("ask").addEventListener("submit", event => {
      event.preventDefault();
      const text = this._box.value.trim();
      if (!text) return;
      this.write("");
      send(text);
    });
    this._box.addEventListener("keydown", event => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        byId("ask").requestSubmit();
      }
      if (event.key === "ArrowUp" && !this._box.value) {
        event.preventDefault();
        editLast();
      }
    });
    this._box.addEventListener("input", () => this._fit());
    byId("stop").addEventListener("click", () => {
      chat.stop();
      this._box.focus();
    });
    this.update();
  }

  // Puts a text before what is in the box.
  restore(text) {
    this.write(this._box.value.trim() ? `${text}\n${this._box.value}` : text);
  }

  write(text) {
    this._box.value = text;
    this._fit();
  }

  // Shows what runs and what waits.
  update() {
    const { run, queue, isPaused } = this._chat;
    byId("stop").hidden = !run;
    byId("send").textContent = run ? "Queue" : "Send";
    document.body.classList.toggle("runs", run !== null);
    byId("waiting").hidden = queue.length === 0;
    byId("queue").replaceChildren(...queue.map(each => this._waiting(each)));
    byId("send-queue").hidden = !isPaused;
  }

  _waiting(each) {
    const edit = () => {
      this._chat.withdraw(each);
      this.restore(each.text);
      this._box.focus();
    };
    const remove = () => {
      this._chat.withdraw(each);
      this._box.focus();
    };
    const start = each.text.slice(0, 40);
    return make(
      "li", {}, make("span", {}, each.text),
      button("Edit", edit, { "aria-label": `Edit the waiting message: ${start}` }),
      button("Remove", remove, { "aria-label": `Remove the waiting message: ${start}` }),
    );
  }

  _fit() {
    this._box.style.height = "auto";
    this._box.style.height = `${this._box.scrollHeight + 2}px`;
  }
}
