// Renders Markdown as elements, and marks the pieces of its source that were drafted.
//
// A library parses the Markdown; of its result, only the elements below are made, with text as text. HTML in the source
// is shown as it was written. Links lead to web and mail addresses only, and images become links, so that a text cannot
// make a reader's browser load anything.

import { piecesOf } from "./code_colours.js";
import { button, copy, make } from "./elements.js";
import { lexer } from "./vendor/marked/marked.esm.js";

const LINKS = new Set(["http:", "https:", "mailto:"]);
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };
const BREAK = /^<br\s*\/?>$/i;

// The Markdown of an element. `update` renders its blocks that have changed since the last call.
export class Markdown {
  constructor(element) {
    this.element = element;
    this._blocks = [];  // {raw, node} of each block that is shown
    this._runs = [];
  }

  // `isWhole` renders all blocks again: a later block can define the links of an earlier one.
  update(runs, isWhole) {
    this._runs = runs.map(([text, drafted]) => [text.replaceAll("\r", ""), drafted]);  // as the library does
    const source = this._runs.map(run => run[0]).join("");
    const tokens = tokensOf(source);
    const writer = new Writer(source, this._runs, () => this.update(this._runs, true));
    let at = 0, same = 0;
    if (!isWhole) {
      while (same < tokens.length - 1 && tokens[same].raw === this._blocks[same]?.raw) at += tokens[same++].raw.length;
    }
    for (const { node } of this._blocks.splice(same)) node?.remove();
    for (const token of tokens.slice(same)) {
      writer.seek(at, at + token.raw.length);
      const node = writer.block(token);
      if (node) this.element.append(node);
      this._blocks.push({ raw: token.raw, node });
      at += token.raw.length;
    }
  }
}

// Returns the parsed blocks; one plain block if the text is nested too deeply to be parsed.
function tokensOf(source) {
  try {
    return lexer(source);
  } catch {
    return [{ type: "plain", raw: source, text: source }];
  }
}

// Makes elements of parsed Markdown, in the order of the source.
class Writer {
  constructor(source, runs, redraw) {
    this._source = source;
    this._redraw = redraw;
    this._at = this._end = 0;  // in the source: up to which it is written, and where the block ends
    this._run = 0;  // the run last looked up
    let end = 0;
    this._runs = runs.map(([text, drafted]) => ({ end: (end += text.length), drafted }));
  }

  // Begins a block of the source.
  seek(at, end) {
    this._at = at;
    this._end = end;
  }

  // Returns the element of a parsed block, or null if it has none.
  block(token) {
    switch (token.type) {
      case "space":
      case "def":
        return null;
      case "heading":
        return this._inline(make(`h${Math.min(6, token.depth + 2)}`), token.tokens);  // below the page's own headings
      case "hr":
        return make("hr");
      case "blockquote":
        return this._blocks(make("blockquote"), token.tokens);
      case "list":
        return this._list(token);
      case "table":
        return this._table(token);
      case "code":
        return this._code(token);
      case "text":
      case "paragraph":
        return this._inline(make("p"), token.tokens ?? [token]);
      default:
        return this._text(make("p", { className: "as-written" }), token.raw.trimEnd());
    }
  }

  _blocks(parent, tokens) {
    for (const token of tokens) {
      const node = this.block(token);
      if (node) parent.append(node);
    }
    return parent;
  }

  _list(token) {
    const list = make(token.ordered ? "ol" : "ul");
    if (token.ordered && token.start !== 1) list.start = token.start;
    for (const item of token.items) {
      const element = make("li", { className: item.task ? "task" : "" });
      for (const part of item.tokens) {
        if (part.type === "checkbox") {
          element.append(make("input", {
            type: "checkbox", checked: part.checked, disabled: true, "aria-label": part.checked ? "done" : "to do",
          }));
        } else if (part.type === "text" && !item.loose) {
          this._inline(element, part.tokens ?? [part]);
        } else {
          this._blocks(element, [part]);
        }
      }
      list.append(element);
    }
    return list;
  }

  _table(token) {
    const cell = (tag, each) => {
      const element = this._inline(make(tag, tag === "th" ? { scope: "col" } : {}), each.tokens);
      if (each.align) element.className = each.align;
      return element;
    };
    const head = make("thead", {}, make("tr", {}, ...token.header.map(each => cell("th", each))));
    const body = make("tbody", {}, ...token.rows.map(row => make("tr", {}, ...row.map(each => cell("td", each)))));
    const table = make("table", {}, head, body);
    return make("div", { className: "wide", tabIndex: 0, role: "group", "aria-label": "Table" }, table);
  }

  _code(token) {
    const language = (token.lang ?? "").trim().split(/[\s{]/)[0].slice(0, 30);
    const fence = this._source.indexOf(token.raw.split("\n", 1)[0], this._at);
    if (fence >= 0 && token.codeBlockStyle !== "indented") this._at = this._source.indexOf("\n", fence) + 1 || this._at;
    const code = make("code");
    this._pieces(code, piecesOf(token.text, language, this._redraw));
    const label = language ? `Code, ${language}` : "Code";
    return make(
      "figure", { className: "code" },
      make("figcaption", {}, make("span", {}, language || "Code"), button("Copy", event => copy(token.text, event.target), {
        "aria-label": "Copy this code",
      })),
      make("pre", { tabIndex: 0, role: "group", "aria-label": label }, code),
    );
  }

  _pieces(parent, tree) {
    for (const child of tree.children) {
      if (typeof child === "string") this._text(parent, child);
      else {
        const kind = (child.scope ?? "").split(".")[0];
        const span = make("span", { className: /^[a-z_-]+$/.test(kind) ? `code-${kind}` : "" });
        parent.append(span);
        this._pieces(span, child);
      }
    }
  }

  _inline(parent, tokens) {
    for (const token of tokens) {
      const start = this._source.indexOf(token.raw, this._at);
      this._span(parent, token);
      if (start >= 0 && token.tokens) this._at = Math.max(this._at, start + token.raw.length);
    }
    return parent;
  }

  _span(parent, token) {
    switch (token.type) {
      case "strong":
      case "em":
      case "del":
        parent.append(this._inline(make(token.type), token.tokens));
        return;
      case "codespan":
        parent.append(this._text(make("code"), token.text));
        return;
      case "br":
        parent.append(make("br"));
        return;
      case "link":
      case "image":
        this._link(parent, token);
        return;
      case "html":
        if (BREAK.test(token.raw)) parent.append(make("br"));
        else this._text(parent, token.raw);
        return;
      case "escape":
        this._text(parent, token.text);
        return;
      case "text":
        if (token.tokens) this._inline(parent, token.tokens);
        else this._prose(parent, token.raw);
        return;
      default:
        this._text(parent, token.raw);
    }
  }

  _link(parent, token) {
    const url = URL.canParse(token.href) ? new URL(token.href) : null;
    if (!url || !LINKS.has(url.protocol)) {
      this._text(parent, token.raw);
      return;
    }
    const link = make("a", { href: url.href, target: "_blank", rel: "noopener noreferrer nofollow" });
    parent.append(link);
    if (token.type === "image") link.append("Image: ");
    this._inline(link, token.tokens);
    if (!link.textContent.trim()) link.append(url.href);
  }

  // Writes text in which the source has entities.
  _prose(parent, raw) {
    for (const part of raw.split(/(&(?:amp|lt|gt|quot|apos|nbsp|#\d{1,7}|#x[\da-f]{1,6});)/i)) {
      if (!/^&.+;$/.test(part)) this._text(parent, part);
      else this._append(parent, characterOf(part), this._runAt(this._reach(part)));
    }
  }

  // Writes text that the source has from here on, but for the indentation of its lines. Marks what was drafted, but no
  // indentation.
  _text(parent, text) {
    for (const line of text.split(/(?<=\n)/)) {
      const start = this._reach(line), indentation = start < 0 ? 0 : this._indentation(line, start);
      for (let at = 0, stop; at < line.length; at = stop) {
        const run = start < 0 || at < indentation ? null : this._runAt(start + at);
        stop = run ? Math.min(line.length, run.end - start) : indentation || line.length;
        this._append(parent, line.slice(at, stop), run);
      }
    }
    return parent;
  }

  _append(parent, text, run) {
    parent.append(run?.drafted ? make("span", { className: "drafted" }, text) : text);
  }

  _indentation(line, start) {
    const before = this._source.slice(this._source.lastIndexOf("\n", start - 1) + 1, start);
    return before.trim() ? 0 : line.length - line.trimStart().length;
  }

  // Returns where a line begins in the source, and moves to its end; -1 if this block does not have it.
  _reach(line) {
    const at = this._source.startsWith(line, this._at) ? this._at : this._source.indexOf(line, this._at);
    if (at < 0 || at + line.length > this._end) return -1;
    this._at = at + line.length;
    return at;
  }

  _runAt(at) {
    if (at < 0) return null;
    while (this._run > 0 && this._runs[this._run - 1].end > at) this._run -= 1;
    while (this._runs[this._run]?.end <= at) this._run += 1;
    return this._runs[this._run];
  }
}

function characterOf(entity) {
  const name = entity.slice(1, -1).toLowerCase();
  if (name[0] !== "#") return ENTITIES[name];
  const code = name[1] === "x" ? parseInt(name.slice(2), 16) : parseInt(name.slice(1), 10);
  return code > 0 && code < 0x110000 ? String.fromCodePoint(code) : "\ufffd";
}
