// The conversation that is shown. It follows what is written as long as the reader is at its end.

import { byId, make } from "./elements.js";
import { AnswerView, QuestionView } from "./turns.js";

const AT_END = 48;  // pixels: nearer to the end than this is at the end
const DRAW_EVERY = 60;  // milliseconds: the model may need the processor of this machine

export class DialogueView {
  // `told(text)` lets a screen reader say something; `drawn(turn)` is called when a growing answer has been drawn.
  constructor(chat, told, drawn) {
    this._chat = chat;
    this._told = told;
    this._drawn = drawn;
    this._log = byId("dialogue");
    this._turns = byId("turns");
    this._views = new Map();  // of each turn
    this._follows = true;
    this._top = 0;  // to which the reader had scrolled
    this._isDue = false;
    this.conversation = null;
    this._log.addEventListener("scroll", () => {
      const top = this._log.scrollTop;
      if (this._distance() < AT_END) this._follows = true;
      else if (top < this._top) this._follows = false;  // growth scrolls nothing up
      this._top = top;
      this._showJump();
    });
    byId("to-end").addEventListener("click", () => {
      this.follow();
      byId("text").focus();
    });
    new ResizeObserver(() => this._settle()).observe(this._turns);
    new ResizeObserver(() => this._settle()).observe(this._log);
    setInterval(() => this.grown(), 1000);  // the seconds of the waiting state
  }

  // Shows a conversation, or what has changed in it: turns that remain keep their elements.
  show(conversation) {
    const isOther = conversation !== this.conversation, views = new Map();
    this.conversation = conversation;
    const elements = conversation.turns.map((turn, at) => {
      const view = (!isOther && this._views.get(turn)) || this._view(turn, at);
      views.set(turn, view);
      return view.element;
    });
    if (conversation.dropped) elements.splice(2 * conversation.dropped, 0, dropped(conversation.dropped));
    this._views = views;
    byId("empty").hidden = elements.length > 0;
    const kept = new Set(elements);
    for (const child of [...this._turns.children]) if (!kept.has(child)) child.remove();
    elements.forEach((element, at) => {
      if (this._turns.children[at] !== element) this._turns.insertBefore(element, this._turns.children[at] ?? null);
    });
    for (const turn of conversation.turns) this._update(turn);
    if (isOther) this.follow();
    this._settle();
  }

  // Draws an answer that has grown, soon; without one, the answer that runs.
  grown(turn = this._chat.run?.turn) {
    if (!turn || this._isDue || !this._views.has(turn)) return;
    this._isDue = true;
    setTimeout(() => requestAnimationFrame(() => {
      this._isDue = false;
      if (!this._views.has(turn)) return;
      this._update(turn);
      this._drawn(turn);
    }), DRAW_EVERY);
  }

  edit(at, text) {
    this._views.get(this.conversation.turns[at])?.edit(text);
  }

  // Moves to the end, and stays there.
  follow() {
    this._follows = true;
    this._settle();
  }

  _view(turn, at) {
    const conversation = this.conversation;
    const free = action => () => {
      if (this._chat.run) this._told("Wait until the answer is complete, or stop it.");
      else action();
    };
    if (turn.role === "assistant") {
      return new AnswerView(turn, {
        regenerate: free(() => this._chat.regenerate(conversation)),
        proceed: free(() => this._chat.proceed(conversation)),
      });
    }
    const send = text => this._chat.edit(conversation, at, text, () => this.edit(at, text));
    return new QuestionView(turn, {
      edit: text => free(() => send(text))(),
      hasMore: () => conversation.turns.length > at + 2,
    });
  }

  _update(turn) {
    const run = this._chat.run?.turn === turn ? this._chat.run : null;
    this._views.get(turn).update(run, turn === this.conversation.turns.at(-1) && !this._chat.run);
  }

  _distance() {
    return this._log.scrollHeight - this._log.scrollTop - this._log.clientHeight;
  }

  _settle() {
    if (this._follows) this._log.scrollTop = this._log.scrollHeight;
    this._showJump();
  }

  _showJump() {
    byId("to-end").hidden = this._distance() < AT_END;
  }
}

function dropped(count) {
  const what = count > 1 ? `the oldest ${count} turns are` : "the oldest turn is";
  return make("p", { className: "turn note", role: "note" }, `The context is full: ${what} no longer sent to the model.`);
}
