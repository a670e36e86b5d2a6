// Three moving plots of the last minutes: records per second by instance, lag, time of a commit.

import { attribute, h, svg, text } from "./dom.js";
import { duration, rate, short } from "./format.js";

const KEPT_MS = 300_000;
const FIRST_MS = 60_000;
const WIDTH = 300;
const HEIGHT = 64;

export class Plots {
  #names;
  #history = [];
  #plots;

  constructor(root, names) {
    this.#names = names;
    this.#plots = {
      rate: plot("Records per second"),
      lag: plot("Lag in records"),
      commit: plot("Time of a commit"),
    };
    root.append(...Object.values(this.#plots).map((one) => one.figure));
  }

  show(figures) {
    this.#history.push(figures);
    while (this.#history[0].at < figures.at - KEPT_MS) this.#history.shift();
    const history = this.#history;
    const owners = [...new Set(history.flatMap(({ rates }) => [...rates.keys()]))];
    const layers = owners.map((id) => ({ colour: this.#names.of(id).colour, values: history.map(({ rates }) => rates.get(id) ?? 0) }));
    const totals = history.map((_, index) => layers.reduce((all, { values }) => all + values[index], 0));
    draw(this.#plots.rate, history, layers, totals, rate);
    const lags = history.map(({ lag }) => lag);
    draw(this.#plots.lag, history, [{ colour: "ink", values: lags }], lags, (value) => (figures.bound && value ? `≤${short(value)}` : short(value)));
    const commits = history.map(({ commitMs }) => commitMs);
    draw(this.#plots.commit, history, [{ colour: "ink", values: commits }], commits, duration);
  }
}

function plot(title) {
  const value = h("strong");
  const most = h("span", { class: "most" });
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  const figure = h("figure", {}, h("figcaption", {}, h("span", {}, title), value), h("div", { class: "plot" }, drawing, most),
    h("div", { class: "axis", "aria-hidden": "true" }, h("span"), h("span", {}, "now")));
  return { title, figure, value, most, drawing, since: figure.lastChild.firstChild };
}

function draw(plot, history, layers, totals, format) {
  const known = totals.filter((value) => value !== null);
  const now = known.at(-1) ?? null;
  const top = Math.max(...known, 0);
  text(plot.value, now === null ? "–" : format(now));
  text(plot.most, top ? format(top) : "");
  attribute(plot.drawing, "aria-label", now === null ? `${plot.title}: none yet`
    : `${plot.title}: ${format(now)} now, from ${format(Math.min(...known))} to ${format(top)} in the last minutes`);
  const end = history.at(-1).at;
  // A minute until there is more: a page that was just opened has little to show.
  const span = end - history[0].at > FIRST_MS ? KEPT_MS : FIRST_MS;
  text(plot.since, span === KEPT_MS ? "5 min ago" : "1 min ago");
  const x = (index) => WIDTH * (1 - (end - history[index].at) / span);
  const y = (value) => HEIGHT - 1 - (top ? ((HEIGHT - 6) * value) / top : 0);
  while (plot.drawing.children.length < layers.length + 1) plot.drawing.append(svg("path"));
  while (plot.drawing.children.length > layers.length + 1) plot.drawing.lastChild.remove();
  const below = history.map(() => 0);
  layers.forEach(({ colour, values }, layer) => {
    const bottom = below.map((value, index) => `${x(index).toFixed(1)},${y(value).toFixed(1)}`);
    values.forEach((value, index) => (below[index] += value ?? 0));
    const upper = below.map((value, index) => `${x(index).toFixed(1)},${y(value).toFixed(1)}`);
    attribute(plot.drawing.children[layer], "class", `area ${colour}`);
    attribute(plot.drawing.children[layer], "d", `M${upper.join("L")}L${bottom.reverse().join("L")}Z`);
  });
  const line = totals.flatMap((value, index) => (value === null ? [] : [`${x(index).toFixed(1)},${y(value).toFixed(1)}`]));
  attribute(plot.drawing.lastChild, "class", "line");
  attribute(plot.drawing.lastChild, "d", line.length ? `M${line.join("L")}` : "");
}
