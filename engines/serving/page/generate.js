// Generates one answer: leaves out turns that do not fit the context, asks the server, and fills in the turn.

import { Refusal, countTokens, stream } from "./api.js";
import { textOf } from "./conversations.js";

const PER_ANSWER = 240;  // points of a chart that are kept

// Fields that make the model continue its last message.
const CONTINUES = { add_generation_prompt: false, continue_final_message: true };

// Returns the messages for the model, and the number of tokens that the answer may have. The oldest turns are left out
// until there is room, like in the terminal's chat: for the maximum number of tokens, or for a quarter of the context if
// that is less. Sets the conversation's `dropped`.
export async function fit(conversation, turns, settings, continues, signal) {
  const system = conversation.system ? [{ role: "system", content: conversation.system }] : [];
  const more = continues ? CONTINUES : {};
  for (let dropped = conversation.dropped; ; dropped += 1) {
    const left = turns.slice(2 * dropped), isLast = left.length < 3;
    const messages = [...system, ...left.map(turn => ({ role: turn.role, content: textOf(turn) }))];
    const { count, context, error } = await countTokens({ messages, ...more }, signal);
    if (isLast && error) throw error;
    if (isLast && count >= context) {
      throw new Refusal(
        `The message is too long: the conversation has ${count} tokens, and the context length is ${context}.`,
      );
    }
    if (!isLast && count + Math.min(settings.most, Math.floor(context / 4)) > context) continue;
    conversation.dropped = dropped;
    return { messages, max_tokens: Math.max(1, Math.min(settings.most, context - count)), ...more };
  }
}

// Adds an answer to `turn`, and calls `changed` with each piece. Whatever happens, the turn says how it ended.
export async function generate(turn, prompt, { temperature, drafts, seed }, signal, changed) {
  const began = performance.now(), before = turn.figures?.tokens ?? 0, samples = [];
  let usage = null;
  turn.cut = "lost";  // until it has ended
  turn.samples = samples;
  try {
    const body = {
      ...prompt, temperature, return_drafted: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
      ...(seed === null ? {} : { seed }), ...(drafts ? {} : { num_speculative_tokens: 0 }),
    };
    for await (const piece of stream(body, signal)) {
      if (piece.usage?.speculation) usage = piece.usage;
      for (const choice of piece.choices) {
        turn.thought += choice.delta.reasoning_content ?? "";
        for (const [text, drafted] of choice.drafted ?? []) append(turn.runs, text, drafted);
        if (piece.usage?.completion_tokens) samples.push([performance.now() - began, piece.usage.completion_tokens]);
        if (choice.finish_reason) turn.cut = cutOf(choice.finish_reason, samples, prompt);
        turn.figures = figures(samples, null, drafts, before);
      }
      changed();
    }
  } catch (error) {
    turn.cut = error.name === "AbortError" ? "stopped" : "lost";
    throw error;
  } finally {
    if (samples.length) turn.figures = figures(samples, usage, drafts, before);
    turn.samples = thinned(samples);
  }
}

// Returns how an answer was cut. A server that shuts down ends answers before they have all their tokens.
function cutOf(reason, samples, prompt) {
  if (reason !== "length") return null;
  return (samples.at(-1)?.[1] ?? 0) < prompt.max_tokens ? "lost" : "length";
}

function append(runs, text, drafted) {
  if (!text) return;
  const last = runs.at(-1);
  if (last && Boolean(last[1]) === drafted) last[0] += text;
  else runs.push([text, drafted ? 1 : 0]);
}

// `before` is the number of tokens of the part that this answer continues.
function figures(samples, usage, drafts, before) {
  if (!samples.length) return null;
  const [first, early] = samples[0], [last, count] = samples.at(-1), told = usage?.speculation;
  return {
    tokens: before + count,
    speed: last > first ? (1000 * (count - early)) / (last - first) : null,
    first,
    drafts,
    perRound: told?.tokens_per_round || null,
    positions: told?.rounds ? told.accepted_per_position.map(accepted => accepted / told.rounds) : [],
    tolerance: told?.lossy ? told.acceptance_tolerance : 0,
  };
}

function thinned(samples) {
  const step = Math.ceil(samples.length / PER_ANSWER);
  return samples.filter((_, at) => at % step === 0 || at === samples.length - 1).map(([ms, count]) => [Math.round(10 * ms) / 10, count]);
}
