// Makes elements. Text enters the page only as text, so that no text of a model or a user becomes HTML.

export const byId = id => document.getElementById(id);

// Returns an element with these properties (`on...` are listeners, names with a dash are attributes) and this content.
export function make(tag, properties = {}, ...content) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...content);
  return element;
}

export const button = (label, onclick, properties = {}) =>
  make("button", { type: "button", onclick, className: "quiet", ...properties }, label);

export function svg(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// Returns a picture of 16 by 16 that is drawn with one line.
export function icon(line) {
  const picture = svg("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" });
  picture.append(svg("path", { d: line }));
  return picture;
}

// Copies a text, also on pages without HTTPS, where browsers have no clipboard. Shows on the button whether it worked.
export async function copy(text, button) {
  const said = button.textContent;
  button.textContent = (await copied(text)) ? "Copied" : "Not copied";
  setTimeout(() => (button.textContent = said), 1500);
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const focus = document.activeElement, box = make("textarea", { value: text, className: "unseen" });
    document.body.append(box);
    box.select();
    const worked = document.execCommand("copy");
    box.remove();
    focus?.focus();
    return worked;
  }
}
