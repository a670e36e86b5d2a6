// The hash space of each partition as a bar of ranges.

import { attribute, h, keyed, text } from "./dom.js";
import { duration, rate, short, whole } from "./format.js";

const ROOMY = 16;
const LAST_DATE = 8.64e15;

export class Ranges {
  #root;
  #chosen;
  #names;
  #groups = new Map();
  #rows = new Map();
  #buttons = new Map();
  #selected = null;
  #latest = new Map();

  constructor(root, chosen, names) {
    this.#root = root;
    this.#chosen = chosen;
    this.#names = names;
    root.addEventListener("keydown", (event) => this.#moved(event));
    // The tooltip is written when it is wanted: a thousand of them a second would take as long as all else.
    root.addEventListener("pointerover", ({ target: { parentElement: button } }) => button?.ariaLabel && (button.title = button.ariaLabel));
    root.addEventListener("click", (event) => this.#choose(event.target.closest("button")));
  }

  show(partitions) {
    const subtopologies = new Map();
    for (const partition of partitions) {
      if (!subtopologies.has(partition.subtopology)) subtopologies.set(partition.subtopology, []);
      subtopologies.get(partition.subtopology).push(partition);
    }
    if (!partitions.length) this.#root.replaceChildren(h("p", { class: "empty" }, "No task is assigned yet."));
    else this.#root.querySelector(".empty")?.remove();
    keyed(this.#root, this.#groups, [...subtopologies.keys()], (number) => this.#group(number));
    this.#latest = new Map();
    for (const [number, own] of subtopologies) this.#showGroup(number, own);
    this.#tell();
  }

  #group(number) {
    const title = h("h3", { id: `sub-${number}` });
    return h("section", { class: "subtopology", "aria-labelledby": `sub-${number}` }, title, h("div", { class: "rows" }));
  }

  #showGroup(number, partitions) {
    const group = this.#groups.get(number);
    const most = Math.max(1e-9, ...partitions.flatMap(({ ranges }) => ranges.map(density)));
    const tasks = partitions.reduce((count, { ranges }) => count + ranges.length, 0);
    text(group.firstChild, `Sub-topology ${number}`);
    attribute(group, "data-note", `${whole(partitions.length)} × ${whole(tasks / partitions.length)} · ${rate(partitions.reduce((all, one) => all + one.rate, 0))}`);
    group.classList.toggle("dense", partitions.length > ROOMY);
    const rows = this.#rows.get(number) ?? new Map();
    this.#rows.set(number, rows);
    keyed(group.lastChild, rows, partitions.map(({ key }) => key), (key) => row(key));
    for (const partition of partitions) this.#showRow(rows.get(partition.key), partition, most);
  }

  #showRow(element, partition, most) {
    const [name, bar, figures] = element.children;
    text(name, String(partition.partition));
    text(figures.children[0], rate(partition.rate));
    text(figures.children[1], `${partition.bound ? "≤" : ""}${short(partition.lag)}`);
    const known = this.#buttons.get(partition.key) ?? new Map();
    this.#buttons.set(partition.key, known);
    // Two claims for one range are seen while a task moves: each is shown.
    const hot = partition.ranges.flatMap(({ task }) => task.hot ?? []);
    const keys = [...partition.ranges.map(({ task, owner }) => `${task.id} ${owner}`), ...partition.gaps.map(([start]) => `gap ${start}`),
      ...new Set(hot.map(({ key_group: group }) => `hot ${group}`))];
    keyed(bar, known, keys, (key) => (/^(gap|hot)/.test(key) ? h("span", { class: key.slice(0, 3) }) : range()));
    partition.ranges.forEach((one, index) => this.#showRange(known.get(keys[index]), one, most));
    for (const { key_group: group, share } of hot)
      place(known.get(`hot ${group}`), group / 256, (group + 1) / 256, `key group ${group}: ${Math.round(100 * share)} % of its task's records`);
    partition.gaps.forEach(([start, end]) => place(known.get(`gap ${start}`), start, end, "no instance has this part"));
  }

  #showRange(button, one, most) {
    const { task, owner, gone } = one;
    const name = this.#names.of(owner);
    const state = gone ? "unreachable" : task.state ?? "unknown";
    attribute(button, "class", `range ${name.colour} ${state}`);
    attribute(button, "data-task", task.id);
    attribute(button, "data-owner", owner);
    place(button, one.start, one.end, `${task.id}, ${name.letter} ${name.address}, ${state}${state === "running" ? `, ${rate(task.rate)}, lag ${short(task.lag)}` : ""}`);
    const height = state === "running" ? Math.round((1000 * density(one)) / most) / 1000 : progress(task);
    if (button.shown !== height) button.firstChild.style.transform = `scaleY(${(button.shown = height)})`;
    text(button.lastChild, one.end - one.start >= 0.05 ? name.letter : "");
    this.#latest.set(`${task.id} ${owner}`, one);
    if (!this.#selected && !this.#root.querySelector('button[tabindex="0"]')) button.tabIndex = 0;
  }

  #choose(button) {
    if (!button) return;
    for (const other of this.#root.querySelectorAll('button[tabindex="0"]')) other.tabIndex = -1;
    this.#root.querySelector('[aria-pressed="true"]')?.setAttribute("aria-pressed", "false");
    button.tabIndex = 0;
    button.setAttribute("aria-pressed", "true");
    button.focus();
    this.#selected = `${button.dataset.task} ${button.dataset.owner}`;
    this.#tell();
  }

  #moved(event) {
    const button = event.target.closest("button");
    const row = button?.closest(".partition");
    if (!row) return;
    const rows = [...this.#root.querySelectorAll(".partition")];
    const buttons = (where) => [...(where?.querySelectorAll("button") ?? [])];
    const beside = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const below = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (beside) this.#choose(buttons(row)[buttons(row).indexOf(button) + beside]);
    else if (below) {
      const others = buttons(rows[rows.indexOf(row) + below]);
      this.#choose(others.findLast((other) => other.start <= button.start) ?? others[0]);
    } else return;
    event.preventDefault();
  }

  #tell() {
    const one = this.#latest.get(this.#selected);
    if (!one) return this.#chosen.replaceChildren();
    const { task, owner } = one;
    const name = this.#names.of(owner);
    const source = (each) => `${each.topic}: committed ${whole(each.committed)} of ${whole(each.end)}`;
    const parts = [
      ["task", task.id],
      ["owner", `${name.letter} ${name.address}`],
      ["state", one.gone ? "the instance does not answer" : task.state ?? "not known"],
      ...(task.rate === undefined ? [] : [
        ["records", rate(task.rate)],
        ["processed", whole(task.processed)],
        ["lag", `${task.shared && task.lag ? "≤" : ""}${whole(task.lag)}`],
        ["stream time behind", duration(task.behind_ms)],
        ...(task.time ? [[task.time.held_back ? "held back at" : "clock", timeOf(task.time)]] : []),
        ["sources", task.sources.map(source).join("; ")],
        ["dead letters", whole(task.dead_letters)],
        ...(task.hot.length ? [["hot key groups", task.hot.map((one) => `${one.key_group} (${Math.round(100 * one.share)} %)`).join(", ")]] : []),
      ]),
    ];
    this.#chosen.replaceChildren(h("dl", {}, parts.map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value)))));
  }
}

const density = ({ task, start, end }) => (task.rate ?? 0) / (end - start);

// The clock of a task, and who is waited for.
function timeOf({ time, waits_for: waits }) {
  const at = time === null ? "not known" : Math.abs(time) > LAST_DATE ? `${time} ms` : new Date(time).toISOString();
  if (!waits) return at;
  if (waits.topic) return `${at}; for ${duration(1000 * waits.since_s)} no later record of ${waits.topic}-${waits.partition}`;
  const whom = `${waits.subtopology}_${waits.partition}, key groups ${waits.key_groups}, of ${waits.owner ?? "no instance"}`;
  return `${at}; for ${duration(1000 * waits.since_s)} no later time of ${whom}`;
}

// How much of a task's state has come.
function progress(task) {
  let done = 0;
  let all = 0;
  for (const one of task.restore ?? []) ((done += one.restored), (all += one.restored + one.remaining));
  for (const one of task.download ?? []) ((done += one.fetched_bytes), (all += one.total_bytes));
  return all ? Math.round((1000 * done) / all) / 1000 : 0;
}

function row(key) {
  const figures = h("span", { class: "figures" }, h("span"), h("span", { title: "lag in records" }));
  return h("div", { class: "partition", role: "group", "aria-label": `partition ${key}`, "data-partition": key },
    h("span", { class: "name" }), h("div", { class: "bar" }), figures);
}

function range() {
  return h("button", { type: "button", tabindex: "-1", "aria-pressed": "false" }, h("i"), h("b"));
}

function place(element, start, end, says) {
  if (element.start !== start || element.end !== end) {
    element.start = start;
    element.end = end;
    element.style.left = `${100 * start}%`;
    element.style.width = `${100 * (end - start)}%`;
  }
  attribute(element, "aria-label", says);
}
