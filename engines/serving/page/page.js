// Connects the parts of the page.

import { modelName, setKey } from "./api.js";
import { Chat } from "./chat.js";
import { Composer } from "./composer.js";
import { BrowserStore, newConversation, textOf } from "./conversations.js";
import { DialogueView } from "./dialogue.js";
import { byId } from "./elements.js";
import { SpeedChart, inWords, showAcceptance } from "./figures.js";
import { History } from "./history.js";
import { readSettings } from "./settings.js";
import { Panels } from "./panels.js";

const LONGEST_SPOKEN = 1000;  // characters of an answer that a screen reader says by itself

const storage = new BrowserStore();
const settings = readSettings(storage);
const chat = new Chat(storage, settings, { grown: turn => dialogue.grown(turn), redrawn, failed, returned, waiting });
const dialogue = new DialogueView(chat, say, showSpeed);
const composer = new Composer(chat, send, editLast);
const history = new History(storage, { open, rename, delete: remove, restore });
const panels = new Panels();
const chart = new SpeedChart("Tokens per second of the last answer", ["with drafts"]);

function say(text) {
  byId("status").textContent = text;
}

function tell(problem) {
  byId("problem-text").textContent = problem;
  byId("problem").hidden = !problem;
}

// ---------------------------------------------------------------------------------------------- what the chat tells

function redrawn(conversation) {
  if (conversation === dialogue.conversation) dialogue.show(conversation);
  history.update(dialogue.conversation);
}

function failed(error) {
  if (error?.status === 401) askForKey();
  else tell(error?.message ?? "");
}

function returned(conversation, text) {
  if (conversation === dialogue.conversation) composer.restore(text);
  else chat.queue.unshift({ conversation, text });
}

function waiting() {
  composer.update();
  const turn = dialogue.conversation.turns.at(-1);
  if (chat.run) say("The answer is being written.");
  else if (turn) {
    showSpeed(turn);
    say(turn.figures ? `Answer: ${textOf(turn).slice(0, LONGEST_SPOKEN)} (${inWords(turn.figures)})` : "");
  }
}

function showSpeed(turn) {
  byId("speed").hidden = !turn?.figures;
  if (!turn?.figures) return;
  chart.draw([turn.samples]);
  byId("last").textContent = inWords(turn.figures);
  byId("positions").hidden = turn.figures.positions.length === 0;
  showAcceptance(byId("bars"), turn.figures.positions);
}

// ----------------------------------------------------------------------------------------------- what the reader does

function send(text) {
  dialogue.follow();
  chat.ask(dialogue.conversation, text);
}

function editLast() {
  if (!chat.run) dialogue.edit(dialogue.conversation.turns.length - 2);
}

function open(conversation) {
  const running = chat.run?.conversation.id === conversation.id ? chat.run.conversation : null;
  const waits = chat.queue.find(each => each.conversation.id === conversation.id)?.conversation;
  show(running ?? waits ?? storage.conversation(conversation.id) ?? conversation);
  panels.closeOverlay();
  byId("text").focus();
}

function show(conversation) {
  tell("");
  dialogue.show(conversation);
  byId("system").value = conversation.system;
  history.update(conversation);
  showSpeed(conversation.turns.at(-1));
}

function begin() {
  show(newConversation(dialogue.conversation?.system ?? settings.system));
}

function rename(conversation, title) {
  const { conversation: shown } = dialogue;
  const kept = shown.id === conversation.id ? shown : storage.conversation(conversation.id) ?? conversation;
  kept.title = title;
  storage.save(kept);
}

function remove(conversation) {
  const { conversation: shown } = dialogue;
  chat.forget(chat.run?.conversation.id === conversation.id ? chat.run.conversation : shown.id === conversation.id ? shown : conversation);
  storage.delete(conversation);
  if (shown.id === conversation.id) begin();
  else history.update(shown);
}

function restore(conversation) {
  storage.save(conversation);
  open(conversation);
}

function askForKey() {
  tell(byId("key").value ? "The API key is not valid." : "This server needs an API key.");
  byId("key-form").hidden = false;
  byId("key").focus();
}

async function readModelName() {
  try {
    byId("model").textContent = document.title = await modelName();
    byId("key-form").hidden = true;
    byId("text").focus();
  } catch (error) {
    failed(error);
  }
}

byId("new").addEventListener("click", () => {
  begin();
  panels.closeOverlay();
  byId("text").focus();
});
byId("send-queue").addEventListener("click", () => chat.proceedWithQueue());
byId("system").addEventListener("input", event => {
  const { conversation } = dialogue;
  conversation.system = settings.system = event.target.value.trim();
  storage.saveSettings(settings);
  if (chat.run?.conversation !== conversation) chat.save(conversation);
});
byId("key-form").addEventListener("submit", event => {
  event.preventDefault();
  setKey(byId("key").value);
  tell("");
  readModelName();
});
document.addEventListener("keydown", event => {
  if (event.key !== "Escape") return;
  if (!panels.closeOverlay()) chat.stop();
});
window.addEventListener("storage", event => {
  const id = storage.changed(event.key), { conversation } = dialogue;
  if (id === undefined) return;
  const changed = id === conversation.id && !chat.run ? storage.conversation(id) : null;
  if (changed) show(changed);
  else history.update(conversation);
});
window.addEventListener("pagehide", () => chat.run && chat.save(chat.run.conversation));

byId("speed").prepend(chart.element);
begin();
readModelName();
