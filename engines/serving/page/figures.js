// Shows how fast answers were: a line below each, a chart while they stream, and the acceptance of drafts.

import { make, svg } from "./elements.js";

const SPAN = 1000;  // milliseconds over which the speed of a moment is measured
const HEIGHT = 110, LEFT = 34, BOTTOM = 18, TOP = 8;

const rounded = (number, digits) => (Number.isFinite(number) ? number.toFixed(digits) : "–");

// Returns the figures of an answer in words.
export function inWords(figures) {
  const parts = [`${figures.tokens} ${figures.tokens === 1 ? "token" : "tokens"}`];
  if (figures.speed) parts.push(`${rounded(figures.speed, 1)} per second`);
  if (figures.perRound) parts.push(`${rounded(figures.perRound, 2)} per round`);
  parts.push(`first after ${Math.round(figures.first)} ms`);
  if (!figures.drafts) parts.push("without drafts");
  if (figures.tolerance) parts.push(`lossy drafts (tolerance ${figures.tolerance})`);
  return parts.join(" · ");
}

// Shows which share of drafts was accepted, by their position.
export function showAcceptance(element, positions) {
  element.replaceChildren(...positions.map((share, at) => {
    const percent = Math.round(100 * share), bar = make("i");
    bar.style.width = `${percent}%`;
    return make("li", {}, make("span", {}, String(at + 1)), make("div", { "aria-hidden": "true" }, bar), make("span", {}, `${percent}%`));
  }));
}

// Returns the points of a speed curve, [milliseconds, tokens per second], from those of a count of tokens.
function speeds(samples) {
  const points = [];
  for (let at = 1, from = 0; at < samples.length; at += 1) {
    while (from < at - 1 && samples[at][0] - samples[from][0] > SPAN) from += 1;
    const ms = samples[at][0] - samples[from][0];
    if (ms > 0 && (ms > SPAN / 4 || at === samples.length - 1)) {
      points.push([samples[at][0], (1000 * (samples[at][1] - samples[from][1])) / ms]);
    }
  }
  return points;
}

// A chart of tokens per second over time, with a line for each answer.
export class SpeedChart {
  // `names` are the names of the lines; the first word is their class in the style sheet.
  constructor(label, names) {
    this._label = label;
    this._names = names;
    this._svg = svg("svg", { role: "img", class: "chart", height: HEIGHT });
    this._lines = [];
    this.element = this._svg;
    new ResizeObserver(() => this.draw(this._lines)).observe(this._svg);
  }

  // Draws the lines: for each name, a list of [milliseconds, tokens].
  draw(lines) {
    this._lines = lines;
    const width = Math.max(160, this._svg.clientWidth || 480);
    const curves = lines.map(speeds), all = curves.flat();
    const most = nice(Math.max(1, ...all.map(point => point[1]))), end = Math.max(1000, ...all.map(point => point[0]));
    const x = ms => LEFT + ((width - LEFT - 8) * ms) / end;
    const y = speed => TOP + (HEIGHT - TOP - BOTTOM) * (1 - speed / most);
    this._svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this._svg.setAttribute("aria-label", this._inWords(curves));
    const parts = [0, most / 2, most].flatMap(speed => [
      svg("line", { class: "grid", x1: LEFT, x2: width - 8, y1: y(speed), y2: y(speed) }),
      text(String(speed), { x: LEFT - 6, y: y(speed) + 4, "text-anchor": "end" }),
    ]);
    parts.push(text("0 s", { x: LEFT, y: HEIGHT - 3 }));
    parts.push(text(`${rounded(end / 1000, 1)} s`, { x: width - 8, y: HEIGHT - 3, "text-anchor": "end" }));
    curves.forEach((curve, at) => {
      if (!curve.length) return;
      const points = curve.map(([ms, speed]) => `${x(ms).toFixed(1)},${y(speed).toFixed(1)}`);
      const [ms, speed] = curve.at(-1);
      parts.push(svg("polyline", { class: this._names[at].split(" ")[0], points: points.join(" ") }));
      parts.push(svg("circle", { class: this._names[at].split(" ")[0], cx: x(ms), cy: y(speed), r: 3.5 }));
    });
    this._svg.replaceChildren(...parts);
  }

  _inWords(curves) {
    const lines = curves.map((curve, at) => `${this._names[at]}: ${curve.length ? Math.round(curve.at(-1)[1]) : "no"}`);
    return `${this._label}, ${lines.join(", ")} at the end`;
  }
}

// Returns a round number that is at least this one, and whose half is short too.
function nice(number) {
  const power = 10 ** Math.floor(Math.log10(number));
  return [1, 2, 4, 6, 8, 10].find(each => each * power >= number) * power;
}

function text(content, attributes) {
  const element = svg("text", attributes);
  element.textContent = content;
  return element;
}
