// The topology as a graph, with what passes its arrows. Where things are is the instance's answer; this moves the figures.

import { attribute, become, h, svg, table, text } from "./dom.js";
import { rate, short, whole } from "./format.js";
import { lags, Flows } from "./model.js";
import { ask } from "./stream.js";

const THICK = 3;

export class Topology {
  #root;
  #wantToken;
  #figure = h("div", { class: "graph" });
  #table = h("details", {}, h("summary", {}, "The same as a table"), h("div"));
  #flows = new Flows();
  #drawing = null;
  #generation = null;
  #latest = null;
  #labels = [];

  constructor(root, wantToken) {
    this.#root = root;
    this.#wantToken = wantToken;
    root.append(
      h("h2", {}, "Topology"),
      h("p", { class: "note" }, "Records per second of all processes, on the arrows whose records are counted, and the lag at topics. ",
        "An operator that passes on one record for each has the rate of its neighbour."),
      this.#figure, this.#table);
    this.#table.addEventListener("toggle", () => this.#move());
  }

  // Takes in a status; draws only what is looked at.
  async show(status) {
    this.#flows.take(status);
    this.#latest = status;
    if (this.#root.hidden) return;
    // A new assignment may have come with topics that a pattern matches now.
    if (this.#generation !== status.generation) {
      this.#generation = status.generation;
      const drawing = await this.#ask();
      if (drawing) this.#draw(drawing);
      else this.#generation = null;
    }
    if (this.#drawing) this.#move();
  }

  open() {
    if (this.#latest) this.show(this.#latest);
  }

  async #ask() {
    try {
      return await ask("v1/topology");
    } catch (error) {
      if (error.wantsToken) await this.#wantToken(error);
      else this.#figure.replaceChildren(h("p", { class: "bad", role: "alert" }, error.message));
      return null;
    }
  }

  #draw(drawing) {
    this.#drawing = drawing;
    this.#labels = [];
    const into = new Map();
    for (const { end } of drawing.arrows) into.set(end, (into.get(end) ?? 0) + 1);
    const label = (kind, x, y, anchor, tell) => {
      const element = svg("text", { class: kind, x, y, "text-anchor": anchor });
      this.#labels.push([element, tell]);
      return element;
    };
    const frames = drawing.frames.map((one) => rectangle("frame", one, 8));
    const titles = drawing.frames.map((one) => label("soft title", one.x + 12, one.y + 20, "start", (now) => {
      const letters = now.letters.get(String(one.subtopology));
      return letters ? `${one.title} · ${short(letters)} dead letters` : one.title;
    }));
    const arrows = drawing.arrows.map((one) => {
      const path = svg("path", { d: curve(one.points), "marker-end": "url(#tip)" });
      const [from, to] = into.get(one.end) > 1 ? one.points.slice(0, 2) : one.points.slice(-2);
      const figure = label("rate", (from[0] + to[0]) / 2 + 7, (from[1] + to[1]) / 2 + 4, "start", (now) => {
        const passes = now.flow(one.counts);
        path.style.strokeWidth = 1.25 + (now.most && passes ? (THICK * passes) / now.most : 0);
        return says(one, passes, now);
      });
      return [path, figure];
    });
    const boxes = drawing.boxes.map((one) => {
      const lines = [[one.title, ""], ...(one.subtitle ? [[one.subtitle, "soft"]] : [])];
      const middle = one.x + one.width / 2;
      const y = (index) => one.y + 18 + 17 * index;
      const name = svg("title");
      name.textContent = one.id.slice(one.id.indexOf(":") + 1);
      const texts = lines.map(([words, kind], index) => {
        const element = svg("text", { class: kind, x: middle, y: y(index), "text-anchor": "middle" });
        element.textContent = words;
        return element;
      });
      const stores = one.lines.map((line, index) => label("soft", middle, y(lines.length + index), "middle", (now) => {
        const written = now.flow(line.counts);
        return `${line.reads ? "reads " : ""}${line.store}${written ? ` ${rate(written)}` : ""}`;
      }));
      const drops = label("drops", one.x + one.width + 6, one.y + one.height / 2 + 4, "start", (now) => {
        const records = one.names.reduce((all, node) => all + (now.dropped.get(node) ?? 0), 0);
        return records ? `${short(records)} dropped` : "";
      });
      return svg("g", {}, name, rectangle(one.kind, one, one.kind === "topic" ? one.height / 2 : 5), ...texts, ...stores, drops);
    });
    const tip = svg("marker", { id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 9, markerHeight: 9, markerUnits: "userSpaceOnUse", orient: "auto" },
      svg("path", { d: "M0 0.5L8 4L0 7.5Z" }));
    const [width, height] = [drawing.width + 90, drawing.height + 24];
    this.#figure.replaceChildren(svg("svg", { viewBox: `-4 -4 ${width} ${height}`, width, height, role: "img", "aria-label": "The topology; the table below has the same" },
      svg("defs", {}, tip), ...frames, ...arrows.map(([path]) => path), ...titles, ...boxes, ...arrows.map(([, figure]) => figure)));
  }

  #move() {
    const now = this.#now();
    for (const [element, tell] of this.#labels) text(element, tell(now));
    attribute(this.#figure, "data-at", String(this.#latest.at));
    if (this.#table.open) become(this.#table.lastChild, this.#asTable(now));
  }

  #now() {
    const dropped = new Map();
    const letters = new Map();
    for (const { totals } of this.#latest.instances) {
      for (const one of totals?.dropped ?? []) dropped.set(one.node, (dropped.get(one.node) ?? 0) + one.records);
      for (const one of totals?.dead_letters ?? []) letters.set(one.subtopology, (letters.get(one.subtopology) ?? 0) + one.records);
    }
    const flow = (counts) => this.#flows.perSecond(counts);
    const most = Math.max(0, ...this.#drawing.arrows.map(({ counts }) => flow(counts) ?? 0));
    return { dropped, letters, flow, most, lags: lags(this.#latest) };
  }

  #asTable(now) {
    const titles = new Map(this.#drawing.boxes.map((box) => [box.id, [box.title, box.subtitle || box.names[0] || ""]]));
    const cell = (id) => [titles.get(id)[0], " ", h("span", { class: "note" }, id.startsWith("topic:") ? "topic" : titles.get(id)[1])];
    const rows = this.#drawing.arrows.map((one) => [
      h("span", {}, cell(one.start)), h("span", {}, cell(one.end)), one.counts.length ? rate(now.flow(one.counts)) : "not counted", whole(lagAt(one, now))]);
    return table("Topology", ["from", "to", "#records/s", "#lag"], rows);
  }
}

function says(arrow, passes, now) {
  const lag = lagAt(arrow, now);
  return [passes === null ? "" : rate(passes), lag ? `lag ${short(lag)}` : ""].filter(Boolean).join(" · ");
}

// The lag of a sub-topology in a topic stands at the arrow from there.
function lagAt({ start, counts }, now) {
  if (!start.startsWith("topic:") || !counts.length) return null;
  const known = counts.map(([, subtopology, topic]) => now.lags.get(`${subtopology} ${topic}`)).filter((lag) => lag !== undefined);
  return known.length ? known.reduce((all, lag) => all + lag, 0) : null;
}

const rectangle = (kind, { x, y, width, height }, rx) => svg("rect", { class: kind, x, y, width, height, rx });

// Through these points, each of them passed vertically.
function curve([[x, y], ...rest]) {
  let path = `M${x} ${y}`;
  for (const [toX, toY] of rest) {
    const middle = (y + toY) / 2;
    path += `C${x} ${middle} ${toX} ${middle} ${toX} ${toY}`;
    [x, y] = [toX, toY];
  }
  return path;
}
