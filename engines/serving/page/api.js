// The server's API, as far as the page uses it.

const UNREACHABLE = "The server cannot be reached. Check that it is running, then send the message again.";
const LOST = "The connection was lost before the answer was complete.";

let key = "";

export function setKey(text) {
  key = text;
}

// An error that the reader is shown. `status` is that of the response, 0 if there was none.
export class Refusal extends Error {
  constructor(message, status = 0, code = null) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function request(path, options) {
  const headers = { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    throw error.name === "AbortError" ? error : new Refusal(UNREACHABLE);
  }
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({}));  // a proxy's error need not be JSON
  throw new Refusal(error?.message ?? `The server answered with status ${response.status}.`, response.status, error?.code);
}

const post = (path, body, signal) => request(path, { method: "POST", body: JSON.stringify(body), signal });

export async function modelName() {
  return (await (await request("v1/models")).json()).data[0].id;
}

// Returns the number of tokens of a conversation and that of the context; more than it holds is infinite.
export async function countTokens(body, signal) {
  try {
    const { count, max_model_len: context } = await (await post("tokenize", body, signal)).json();
    return { count, context };
  } catch (error) {
    if (error.code === "context_length_exceeded") return { count: Infinity, context: 0, error };
    throw error;
  }
}

// Yields the pieces of an answer. Throws if the connection ends before the answer does.
export async function* stream(body, signal) {
  const response = await post("v1/chat/completions", { ...body, stream: true }, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ;) {
    const { value, done } = await reader.read().catch(error => {
      throw error.name === "AbortError" ? error : new Refusal(LOST);
    });
    if (done) throw new Refusal(LOST);
    text += value;
    for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
      if (text.startsWith(":")) continue; // a comment while the answer waits
      const data = text.slice(0, end).replace(/^data: /, "");
      if (data === "[DONE]") return;
      const piece = JSON.parse(data);
      if (piece.error) throw new Refusal(piece.error.message, 0, piece.error.code);
      yield piece;
    }
  }
}
