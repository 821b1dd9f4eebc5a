// Runs answers, one at a time, and the messages that wait for them. It shows nothing itself.

import { Refusal } from "./api.js";
import { newAnswer, newQuestion, textOf } from "./conversations.js";
import { fit, generate } from "./generate.js";

const SAVE_EVERY = 2000;  // milliseconds, while an answer streams

export class Chat {
  // `view` is told of all changes: grown(turn), redrawn(conversation), failed(error), returned(conversation, text),
  // and waiting(), when the queue or the running answer has changed.
  constructor(storage, settings, view) {
    this._storage = storage;
    this._settings = settings;
    this._view = view;
    this.run = null;  // {conversation, turn, lane, stop, began} of the answer that runs
    this.queue = [];  // {conversation, text}
    this.isPaused = false;  // after an error, until the reader sends the queue on
  }

  // Sends a message now, or after what runs and waits.
  ask(conversation, text) {
    if (this.run) {
      this.queue.push({ conversation, text });
      this._view.waiting();
      return;
    }
    const undo = () => this._view.returned(conversation, text);
    this._respond(conversation, [...conversation.turns, newQuestion(text), newAnswer()], undo);
  }

  // Replaces a question; what followed it is gone. `undo` is called if no answer comes.
  edit(conversation, at, text, undo) {
    this._respond(conversation, [...conversation.turns.slice(0, at), newQuestion(text), newAnswer()], undo);
  }

  regenerate(conversation) {
    this._respond(conversation, [...conversation.turns.slice(0, -1), newAnswer()], () => {});
  }

  // Lets the model go on with an answer that was cut.
  proceed(conversation) {
    this._respond(conversation, conversation.turns, () => {}, true);
  }

  stop() {
    this.run?.stop.abort();
  }

  // Ends the answer of a conversation that is deleted, and forgets its messages.
  forget(conversation) {
    this.queue = this.queue.filter(each => each.conversation !== conversation);
    if (this.run?.conversation === conversation) {
      this.run.isForgotten = true;
      this.stop();
    }
    this._view.waiting();
  }

  // Takes a message out of the queue.
  withdraw(waiting) {
    this.queue = this.queue.filter(each => each !== waiting);
    this._view.waiting();
  }

  // Sends the next message of the queue, unless an answer runs.
  proceedWithQueue() {
    this.isPaused = false;
    const next = this.run ? undefined : this.queue.shift();
    this._view.waiting();
    if (next) this.ask(next.conversation, next.text);
  }

  // Stores a conversation that has an answer, also an unfinished one.
  save(conversation) {
    const isForgotten = this.run?.isForgotten && this.run.conversation === conversation;
    if (isForgotten || !conversation.turns.length) return;
    conversation.updated = Date.now();
    this._storage.save(conversation);
  }

  async _respond(conversation, turns, undo, continues = false) {
    const { turns: turnsBefore, dropped } = conversation, turn = turns.at(-1), turnBefore = structuredClone(turn);
    const run = { conversation, turn, lane: turn, stop: new AbortController(), began: performance.now() };
    this.run = run;
    this._view.failed(null);
    conversation.turns = turns;
    conversation.dropped = Math.min(dropped, (turns.length - 1) >> 1);
    this._view.redrawn(conversation);
    this._view.waiting();
    const failure = await this._generate(run, continues).then(() => null, error => error);
    if (!textOf(turn) && turn.rival) Object.assign(turn, turn.rival, { rival: null });  // only that one had begun
    const hasGrown = textOf(turn) !== textOf(turnBefore) || turn.thought !== turnBefore.thought;
    if (!hasGrown) {
      conversation.turns = turnsBefore;
      conversation.dropped = dropped;
      Object.assign(turn, turnBefore);
    }
    if (hasGrown || turnsBefore.length) this.save(conversation);
    this.run = null;
    if (run.isForgotten) {
      this._finish(null);
      return;
    }
    this._view.redrawn(conversation);
    if (!hasGrown) undo();
    this._finish(failure?.name === "AbortError" ? null : failure ?? (hasGrown ? null : new Refusal("The model returned an empty answer.")));
  }

  _finish(failure) {
    this._view.failed(failure);
    this.isPaused = failure !== null && this.queue.length > 0;
    this._view.waiting();
    if (!this.isPaused && this.queue.length) this.proceedWithQueue();
  }

  async _generate(run, continues) {
    const { conversation, turn, stop } = run, { temperature, drafts, compares, isAtOnce } = this._settings;
    const turns = continues ? conversation.turns : conversation.turns.slice(0, -1), dropped = conversation.dropped;
    const prompt = await fit(conversation, turns, this._settings, continues, stop.signal);
    if (conversation.dropped !== dropped) this._view.redrawn(conversation);
    let saved = performance.now();
    const changed = () => {
      if (performance.now() - saved > SAVE_EVERY) {
        saved = performance.now();
        this.save(conversation);
      }
      this._view.grown(turn);
    };
    if (continues || !compares) {
      turn.rival = null;
      await generate(turn, prompt, { temperature, drafts, seed: null }, stop.signal, changed);
      return;
    }
    // With one seed, the text does not depend on the drafts.
    const seed = temperature > 0 ? Math.floor(Math.random() * 2 ** 31) : null;
    turn.rival = newAnswer();
    run.lane = isAtOnce ? null : turn.rival;
    this._view.redrawn(conversation);
    const lane = (each, hasDrafts) => {
      run.began = performance.now();
      return generate(each, prompt, { temperature, drafts: hasDrafts, seed }, stop.signal, changed);
    };
    if (isAtOnce) {
      const stopBoth = error => {
        stop.abort();
        throw error;
      };
      const ends = await Promise.allSettled([lane(turn.rival, false), lane(turn, true)].map(each => each.catch(stopBoth)));
      const failures = ends.filter(end => end.status === "rejected").map(end => end.reason);
      if (failures.length) throw failures.find(each => each.name !== "AbortError") ?? failures[0];
    } else {
      await lane(turn.rival, false);
      run.lane = turn;
      this._view.grown(turn);
      await lane(turn, true);
    }
  }
}
