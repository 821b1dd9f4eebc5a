// The panels at both sides: columns of a wide window, sheets over a narrow one.

import { byId } from "./elements.js";

const NAMES = ["chats", "settings"];
const WIDTHS = { chats: 800, settings: 1150 };  // of windows that begin with the panel open
const isNarrow = window.matchMedia("(max-width: 799px)");

export class Panels {
  constructor() {
    for (const name of NAMES) {
      byId(`${name}-button`).addEventListener("click", () => this._show(name, byId(name).hidden));
      byId(`${name}-close`).addEventListener("click", () => this.closeOverlay());
      this._show(name, window.innerWidth >= WIDTHS[name], false);
    }
    isNarrow.addEventListener("change", () => NAMES.forEach(name => this._show(name, !isNarrow.matches && window.innerWidth >= WIDTHS[name], false)));
    byId("shade").addEventListener("click", () => this.closeOverlay());
  }

  // Closes a sheet that lies over the conversation. Returns whether there was one.
  closeOverlay() {
    const open = isNarrow.matches ? NAMES.filter(name => !byId(name).hidden) : [];
    for (const name of open) {
      this._show(name, false);
      byId(`${name}-button`).focus();
    }
    return open.length > 0;
  }

  _show(name, isOpen, focuses = true) {
    byId(name).hidden = !isOpen;
    byId(`${name}-button`).setAttribute("aria-expanded", String(isOpen));
    const covers = isNarrow.matches && NAMES.some(each => !byId(each).hidden);
    byId("shade").hidden = !covers;
    byId("main").inert = byId("top").inert = covers;
    if (covers && isOpen && focuses) byId(`${name}-close`).focus();
  }
}
