// Conversations, and where the browser keeps them.
//
// A conversation is {id, title, system, updated, dropped, turns}; its turns are questions {role, text} and
// answers {role, runs, thought, cut, figures, samples, rival}. `runs` are pieces of the text, each with whether it was
// drafted. `cut` is null for a complete answer, else "length", "stopped" or "lost". `rival` is the same answer without
// drafts. The oldest `dropped` pairs of turns are no longer sent to the model.

const LONGEST_TITLE = 60;

export const newQuestion = text => ({ role: "user", text });
export const newAnswer = () => ({
  role: "assistant", runs: [], thought: "", cut: null, figures: null, samples: [], rival: null,
});
export const textOf = turn => (turn.role === "user" ? turn.text : turn.runs.map(run => run[0]).join(""));

export function newConversation(system) {
  const id = Array.from(crypto.getRandomValues(new Uint8Array(8)), byte => byte.toString(16).padStart(2, "0")).join("");
  return { id, title: "", system, updated: Date.now(), dropped: 0, turns: [] };
}

export function titleOf(conversation) {
  if (conversation.title) return conversation.title;
  const first = (conversation.turns[0]?.text ?? "").trim().split("\n")[0];
  const cut = first.length > LONGEST_TITLE ? `${first.slice(0, LONGEST_TITLE).trimEnd()}…` : first;
  return cut || "New conversation";
}

// What the browser keeps, each conversation under a key of its own. If it keeps nothing, so does this tab, and `problem`
// says why.
export class BrowserStore {
  constructor() {
    this._prefix = `peagle-compile ${new URL(".", document.baseURI).pathname} `;
    this._unsaved = new Map();  // text by key, of what could not be stored
    this.problem = "";
    try {
      this._kept = window.localStorage;
      this._kept.getItem(this._prefix);
    } catch {
      this._kept = null;
    }
    if (!this._kept) this.problem = "This browser does not store conversations. They are lost when you close this tab.";
  }

  conversations() {
    const found = this._keys().map(key => conversationFrom(this._read(key))).filter(each => each !== null);
    return found.sort((one, other) => other.updated - one.updated);
  }

  conversation(id) {
    return conversationFrom(this._read(this._key(id)));
  }

  save(conversation) {
    this._write(this._key(conversation.id), conversation);
  }

  delete(conversation) {
    const key = this._key(conversation.id);
    this._unsaved.delete(key);
    this._kept?.removeItem(key);
    if (this._kept && !this._unsaved.size) this.problem = "";
  }

  settings() {
    const found = this._read(`${this._prefix}settings`);
    return found && typeof found === "object" ? found : {};
  }

  saveSettings(settings) {
    this._write(`${this._prefix}settings`, settings);
  }

  // Returns the id of the conversation of which another tab changed this key; undefined if it is none.
  changed(key) {
    return key?.startsWith(`${this._prefix}chat `) ? key.slice(this._key("").length) : undefined;
  }

  _key(id) {
    return `${this._prefix}chat ${id}`;
  }

  _keys() {
    const kept = this._kept ? Object.keys(this._kept) : [];
    return [...new Set([...kept, ...this._unsaved.keys()])].filter(key => key.startsWith(this._key("")));
  }

  _read(key) {
    try {
      return JSON.parse(this._unsaved.get(key) ?? this._kept?.getItem(key) ?? "null");
    } catch {
      return null;
    }
  }

  _write(key, value) {
    const text = JSON.stringify(value);
    try {
      if (!this._kept) throw new Error("nothing is stored");
      this._kept.setItem(key, text);
      this._unsaved.delete(key);
      if (!this._unsaved.size) this.problem = "";
    } catch {
      this._unsaved.set(key, text);
      if (this._kept) this.problem = "The browser's storage is full: this conversation ends when you close this tab. Delete older conversations.";
    }
  }
}

// Returns a conversation from what was stored, or null if it is none: another version may have stored it.
function conversationFrom(found) {
  if (typeof found?.id !== "string" || !Array.isArray(found.turns)) return null;
  const turns = found.turns.map(turnFrom);
  const alternate = turns.every((turn, at) => turn?.role === (at % 2 ? "assistant" : "user"));
  if (!alternate) return null;
  const { id, title, system, updated, dropped } = found;
  return {
    id, turns, title: String(title ?? ""), system: String(system ?? ""),
    updated: Number(updated) || 0, dropped: Math.max(0, Math.min(Math.floor(Number(dropped) || 0), turns.length >> 1)),
  };
}

function turnFrom(found) {
  if (found?.role === "user" && typeof found.text === "string") return newQuestion(found.text);
  if (found?.role !== "assistant" || !Array.isArray(found.runs)) return null;
  if (!found.runs.every(run => Array.isArray(run) && typeof run[0] === "string")) return null;
  const cut = ["length", "stopped", "lost"].includes(found.cut) ? found.cut : null;
  const rival = found.rival ? turnFrom({ ...found.rival, role: "assistant", rival: null }) : null;
  const samples = Array.isArray(found.samples) ? found.samples.filter(each => Array.isArray(each)) : [];
  const isWhole = Number.isFinite(found.figures?.tokens) && Array.isArray(found.figures.positions);
  const figures = isWhole ? found.figures : null;
  return { ...newAnswer(), runs: found.runs, thought: String(found.thought ?? ""), cut, figures, samples, rival };
}
