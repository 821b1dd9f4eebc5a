// Highlights code: splits it into pieces, each with the kind of piece it is. Languages are loaded when they are needed.

import highlighter from "./vendor/highlight/core.min.js";

// File of a language by the names that it has in Markdown. TypeScript's grammar reads JavaScript as well, and C++'s C.
const FILES = {
  bash: ["bash", "sh", "shell", "zsh", "console"], cpp: ["cpp", "c", "cc", "c++", "h", "hpp", "cuda", "cu"],
  css: ["css"], diff: ["diff", "patch"], go: ["go", "golang"], java: ["java"], json: ["json", "json5", "jsonc", "jsonl"],
  python: ["python", "py", "python3", "pycon"], rust: ["rust", "rs"], sql: ["sql"],
  typescript: ["typescript", "ts", "tsx", "javascript", "js", "jsx", "mjs"], xml: ["xml", "html", "svg", "xhtml"],
  yaml: ["yaml", "yml"],
};
const fileOf = new Map(Object.entries(FILES).flatMap(([file, names]) => names.map(name => [name, file])));
const LONGEST = 40_000;  // characters: longer code stays plain, so that the page stays quick
const asked = new Map();  // promise of each language that was needed

// Returns a tree, {scope, children}, of which leaves are strings. If the language is unknown, it is one leaf. If it is
// not loaded yet, too; `loaded` is then called when it is.
export function piecesOf(code, language, loaded) {
  const plain = { children: [code] }, file = fileOf.get(language.toLowerCase());
  if (!file || code.length > LONGEST) return plain;
  if (!highlighter.getLanguage(file)) {
    load(file).then(found => found && loaded());
    return plain;
  }
  return highlighter.highlight(code, { language: file, ignoreIllegals: true })._emitter.rootNode;
}

function load(file) {
  if (!asked.has(file)) {
    const read = import(`./vendor/highlight/${file}.min.js`);
    asked.set(file, read.then(found => highlighter.registerLanguage(file, found.default)).then(() => true, () => false));
  }
  return asked.get(file);
}
