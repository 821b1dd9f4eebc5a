// Questions and answers as elements.

import { textOf } from "./conversations.js";
import { button, copy, make } from "./elements.js";
import { SpeedChart, inWords } from "./figures.js";
import { Markdown } from "./markdown.js";

const CUTS = {
  length: "Cut at the maximum number of tokens.",
  stopped: "Stopped.",
  lost: "Incomplete: the connection to the server was lost.",
};
const LANES = ["without drafts", "with drafts"];

export class QuestionView {
  // `actions.edit(text)` sends the question again, with this text.
  constructor(turn, actions) {
    this._turn = turn;
    this._actions = actions;
    this.element = make("article", { className: "turn user", "aria-label": "Your message" });
    this._show();
  }

  update() {}

  // Shows a text box in place of the question.
  edit(text = this._turn.text) {
    const box = make("textarea", { value: text, rows: Math.min(12, text.split("\n").length + 1), "aria-label": "Edit your message" });
    const close = () => {
      this._show();
      this._edit.focus();
    };
    const send = () => {
      if (box.value.trim()) this._actions.edit(box.value.trim());
    };
    box.addEventListener("keydown", event => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      }
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      }
    });
    const hint = this._actions.hasMore() ? "The later turns are replaced." : "";
    this.element.replaceChildren(
      box, make("p", { className: "row" }, make("span", { className: "soft" }, hint), button("Cancel", close), button("Send", send, { className: "go" })),
    );
    this.element.classList.add("edited");
    box.focus();
  }

  _show() {
    this.element.classList.remove("edited");
    this._edit = button("Edit", () => this.edit());
    const copies = button("Copy", event => copy(this._turn.text, event.target));
    const row = make("p", { className: "row" }, copies, this._edit);
    this.element.replaceChildren(make("div", { className: "said" }, this._turn.text), row);
  }
}

export class AnswerView {
  // `actions` are regenerate() and proceed(), which goes on with an answer that was cut.
  constructor(turn, actions) {
    this._turn = turn;
    this._actions = actions;
    this._lanes = [];
    this._verdict = make("p", { className: "verdict" });
    this._waiting = make("p", { className: "waiting" }, make("span", { className: "dots", "aria-hidden": "true" }, "●●●"), make("span"));
    this._foot = make("div", { className: "foot" });
    this.element = make("article", { className: "turn answer", "aria-label": "Answer" });
  }

  // `run` is the running answer if it is this one, else null. `isLast` allows to change it.
  update(run, isLast) {
    const { rival } = this._turn, turns = rival ? [rival, this._turn] : [this._turn];
    if (turns.length !== this._lanes.length) this._open(turns.length);
    this._lanes.forEach((lane, at) => lane.update(turns[at], run));
    this.element.setAttribute("aria-busy", String(run !== null));
    if (rival) this._chart.draw(turns.map(each => each.samples));
    const waits = run && !(run.lane ? hasBegun(run.lane) : turns.some(hasBegun));
    this._waiting.hidden = !waits;
    if (waits) this._wait(run);
    this._foot.replaceChildren(...(run ? [] : this._footer(isLast)));
    this._verdict.textContent = rival && !run ? verdict(rival, this._turn) : "";
    this._verdict.hidden = !this._verdict.textContent;
  }

  _open(count) {
    this._lanes = count === 1 ? [new Lane("")] : LANES.map(name => new Lane(name));
    const lanes = this._lanes.map(lane => lane.element), content = [...lanes];
    this.element.classList.toggle("race", count > 1);
    if (count > 1) {
      this._chart = new SpeedChart("Tokens per second", LANES);
      content.splice(0, lanes.length, this._chart.element, make("div", { className: "lanes" }, ...lanes), this._verdict);
    }
    this.element.replaceChildren(...content, this._waiting, this._foot);
  }

  _wait(run) {
    const seconds = Math.floor((performance.now() - run.began) / 1000);
    this._waiting.lastChild.textContent = seconds < 1 ? "" : `Waiting for the first token, ${seconds} s`;
  }

  _footer(isLast) {
    const { cut, figures, rival } = this._turn, parts = [];
    if (cut) parts.push(make("p", { className: "cut" }, CUTS[cut], ...(isLast ? [button("Continue", this._actions.proceed)] : [])));
    const row = make("p", { className: "row" }, button("Copy", event => copy(textOf(this._turn), event.target)));
    if (isLast) row.append(button("Regenerate", this._actions.regenerate));
    if (figures && !rival) row.append(make("span", { className: "figures" }, inWords(figures)));
    return [...parts, row];
  }
}

const hasBegun = turn => turn.runs.length > 0 || turn.thought !== "";

// One text of an answer: two if it was generated with and without drafts.
class Lane {
  constructor(name) {
    this._speed = make("b", {}, "");
    this._figures = make("p", { className: "figures" });
    this._thought = make("div");
    this._reasoning = make("details", { className: "thought", hidden: true }, make("summary", {}, "Reasoning"), this._thought);
    const text = this._text = make("div", { className: "text" });
    this._markdown = new Markdown(text);
    const title = make("h3", {}, make("span", { className: "name" }, name), make("span", {}, this._speed));
    this.element = make("section", { className: `lane ${name.split(" ")[0]}` }, ...(name ? [title] : []), this._reasoning, text, ...(name ? [this._figures] : []));
    if (name) this.element.setAttribute("aria-label", name);
  }

  update(turn, run) {
    const shown = `${turn.runs.length} ${turn.runs.at(-1)?.[0].length} ${run === null}`;
    if (shown !== this._shown) this._markdown.update(turn.runs, run === null);
    this._shown = shown;
    if (run) this._text.scrollTop = this._text.scrollHeight;  // while two answers race, each shows its end
    this._reasoning.hidden = !turn.thought;
    this._thought.textContent = turn.thought;
    this._speed.textContent = turn.figures?.speed ? `${turn.figures.speed.toFixed(1)} tokens/s` : "";
    this._figures.textContent = run === null && turn.figures ? inWords(turn.figures) : "";
  }
}

function verdict(plain, drafted) {
  if (!plain.figures?.speed || !drafted.figures?.speed) return "";
  const ratio = (drafted.figures.speed / plain.figures.speed).toFixed(2);
  const isCut = [plain, drafted].some(each => each.cut === "stopped" || each.cut === "lost");
  if (isCut) return `With drafts, this answer was ${ratio} times as fast.`;
  const isSame = textOf(plain) === textOf(drafted);
  return `With drafts, this answer was ${ratio} times as fast, ${isSame ? "and the text is the same" : "but the texts differ"}.`;
}
