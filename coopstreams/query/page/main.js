// The page: takes each status from the stream, and shows it.

import { become, h, table, text } from "./dom.js";
import { clock, duration, plural, rate, short, whole } from "./format.js";
import { Names, changes, figures, hotGroups, partitionsOf, sum } from "./model.js";
import { Plots } from "./plots.js";
import { Ranges } from "./ranges.js";
import { Stores } from "./stores.js";
import { addToken, watch } from "./stream.js";
import { Topology } from "./topology.js";

const STALE_MS = 6000;
const MOST_HAPPENED = 200;
const by = (id) => document.getElementById(id);

const names = new Names();
const plots = new Plots(by("plots"), names);
const ranges = new Ranges(by("ranges"), by("chosen"), names);
const stores = new Stores(by("stores"), wantToken);
const topology = new Topology(by("topology"), wantToken);
const VIEWS = ["overview", "topology", "stores", "failures"];
const MOST_HOT = 8;
const MOST_FAILURES = 20;
let latest = null;
let heardAt = 0;
let lastError = "";

function show(status) {
  const began = performance.now();
  heardAt = Date.now();
  lastError = "";
  names.meet(status.instances);
  const partitions = partitionsOf(status);
  document.title = `${status.application} · coopstreams`;
  text(by("application"), status.application);
  text(by("summary"), summaryOf(status, partitions));
  become(by("trouble"), ...troubles(status));
  plots.show(figures(status, partitions, latest));
  become(by("instances"), instancesOf(status));
  ranges.show(partitions);
  become(by("hot"), ...hot(partitions));
  topology.show(status);
  if (by("table").open) become(by("table").lastChild, tasksTable(partitions));
  become(by("failures"), ...failures(status));
  if (latest) happened(status.at, changes(latest, status, nameOf));
  else happened(status.at, [["", `Watching from ${nameOf(status.here)}, generation ${status.generation}`]]);
  latest = status;
  document.body.dataset.at = status.at;
  document.body.dataset.generation = status.generation;
  document.body.dataset.took = (performance.now() - began).toFixed(1);
  connection();
}

const nameOf = (id) => `${names.of(id).letter} ${names.of(id).address}`;
const answers = (instance) => instance.state !== "unreachable";

function summaryOf(status, partitions) {
  const tasks = partitions.flatMap(({ ranges: own }) => own);
  const silent = status.instances.filter((instance) => !answers(instance)).length;
  const { lag, bound } = figures(status, partitions);
  return [
    plural(status.instances.length, "instance") + (silent ? `, ${silent} silent` : ""),
    `${plural(tasks.length, "task")} on ${plural(partitions.length, "partition")}`,
    rate(sum(tasks.map(({ task }) => task.rate))),
    lag ? `lag ${bound ? "≤" : ""}${short(lag)}` : "no lag",
    ...snapshotOf(status),
  ].join(" · ");
}

// The age of the newest snapshot that an instance has seen.
function snapshotOf(status) {
  const seen = status.instances.map(({ snapshot }) => snapshot).filter(Boolean);
  return seen.length ? [`snapshot ${duration(1000 * Math.min(...seen.map(({ age_s }) => age_s)))} old`] : [];
}

// What is not as it should be: restores with how long they take, and reasons for no progress.
function troubles(status) {
  const restoring = status.instances.flatMap((instance) => instance.tasks.flatMap((task) => [
    ...(task.restore ?? []).map((one) => restore(instance.id, task, one, one.restored, one.restored + one.remaining, "records")),
    ...(task.download ?? []).map((one) => restore(instance.id, task, one, one.fetched_bytes, one.total_bytes, "bytes")),
  ]));
  restoring.push(...status.instances.flatMap((instance) => (instance.standbys ?? []).filter((one) => one.warming).map((one) => warmUp(instance.id, one))));
  const reasons = new Map();
  for (const { id, live, reasons: own } of status.instances)
    for (const { code, message } of own)
      reasons.set(`${id} ${message}`, h("li", { class: live ? "" : "bad" }, h("b", {}, code), ` ${message} `, h("span", { class: "note" }, nameOf(id))));
  const said = [...reasons.values()];
  const more = said.length > 8 ? [h("li", { class: "note" }, `and ${said.length - 8} more`)] : [];
  return said.length || restoring.length ? [h("ul", {}, restoring, said.slice(0, 8), more)] : [];
}

function restore(owner, task, one, done, all, unit) {
  const left = one.eta_s === null ? "" : `, ${duration(1000 * one.eta_s)} to go`;
  return h("li", { class: "restore" }, h("b", {}, "restoring"), ` ${one.store} of ${task.id} at ${nameOf(owner)} `,
    h("progress", { max: all || 1, value: done, "aria-label": `${task.id} ${one.store}` }),
    ` ${whole(done)} of ${whole(all)} ${unit}, ${rate(one.rate)}${left}`);
}

function warmUp(owner, one) {
  const left = one.eta_s === null ? "" : `, ${duration(1000 * one.eta_s)} to go`;
  return h("li", { class: "restore" }, h("b", {}, "warming up"), ` ${one.id} to move to ${nameOf(owner)}: ${whole(one.lag)} records behind${left}`);
}

// How many standbys an instance has, and how far the furthest is behind.
function standbysOf(instance) {
  const own = (instance.standbys ?? []).filter((one) => !one.warming);
  return own.length ? `${whole(own.length)}, lag ${short(Math.max(...own.map((one) => one.lag ?? 0)))}` : "–";
}

function instancesOf(status) {
  const rows = status.instances.map((instance) => {
    const name = names.of(instance.id);
    const own = instance.tasks;
    const here = instance.id === status.here ? " (this page)" : "";
    const address = name.url ? h("a", { href: `${name.url}/` }, name.address) : name.address;
    return [
      h("span", { class: "owner" }, h("span", { class: `letter ${name.colour}` }, name.letter), " ", address, h("span", { class: "note" }, here)),
      h("span", { class: answers(instance) ? (instance.live ? "" : "bad") : "bad" },
        answers(instance) ? [instance.state, ...new Set(instance.reasons.map(({ code }) => code))].join(", ") : "does not answer"),
      whole(own.length),
      standbysOf(instance),
      answers(instance) ? rate(sum(own.map((task) => task.rate))) : "–",
      instance.totals ? whole(instance.totals.commits) : "–",
      instance.totals?.commits ? duration((1000 * instance.totals.commit_seconds) / instance.totals.commits) : "–",
      instance.uptime_s === undefined ? "–" : duration(1000 * instance.uptime_s),
    ];
  });
  if (!rows.length) return h("p", { class: "empty" }, "No instance is in the group yet.");
  return table("Instances of the application", ["instance", "state", "#tasks", "#standbys", "#records", "#commits", "#mean commit", "#up"], rows);
}

// Key groups that have much of their task's records. A range of one key group cannot be cut further.
function hot(partitions) {
  const groups = hotGroups(partitions);
  if (!groups.length) return [];
  const rows = groups.slice(0, MOST_HOT).map(({ partition, task, owner, group, share, rate: records }) => [
    String(group), `${partition.subtopology}_${partition.partition}`, task.id, nameOf(owner), rate(records), `${Math.round(100 * share)} %`]);
  return [h("h3", {}, "Hot key groups"),
    h("p", { class: "note" }, "Those with most of their task's records in the last minute, by samples; marked above the bars."),
    table("Hot key groups", ["key group", "partition", "task", "owner", "#records", "#of its task"], rows)];
}

function tasksTable(partitions) {
  const heads = ["task", "owner", "state", "#records/s", "#processed", "#lag", "#behind"];
  const rows = partitions.flatMap(({ ranges: own }) => own).map(({ task, owner, gone }) => [
    task.id, nameOf(owner), gone ? "unreachable" : task.state, short(task.rate), whole(task.processed), whole(task.lag), duration(task.behind_ms)]);
  return table("Tasks", heads, rows);
}

function failures(status) {
  const counted = new Map();
  const add = (key, records) => counted.set(key, (counted.get(key) ?? 0) + records);
  for (const { totals } of status.instances) {
    for (const one of totals?.dropped ?? []) add(`sub-topology ${one.subtopology}\n${one.node}\ndropped: ${one.reason}`, one.records);
    for (const one of totals?.dead_letters ?? []) add(`sub-topology ${one.subtopology}\n–\nto the dead-letter topic`, one.records);
    if (totals?.aborts) add("all\n–\ncommits aborted, their records processed again", totals.aborts);
    if (totals?.failed_stream_threads) add("all\n–\nstream threads that died of an error", totals.failed_stream_threads);
  }
  const rows = [...counted].sort().map(([key, records]) => [...key.split("\n"), whole(records)]);
  const silent = status.instances.filter((instance) => !answers(instance)).map(({ id }) => nameOf(id));
  return [
    h("h2", {}, "Failures"),
    h("p", { class: "note" }, "Counted by each process since it started. ",
      silent.length ? `Not among them, because they do not answer: ${silent.join(", ")}.` : ""),
    rows.length ? table("Failures", ["where", "node", "what", "#count"], rows)
      : h("p", { class: "empty" }, "No record was dropped, none was sent to the dead-letter topic, no commit was aborted."),
    ...latestFailures(status),
    h("p", { class: "note" }, "The dead letters themselves, with their errors: ", h("code", {}, "coopstreams dlq show TOPIC")),
  ];
}

function latestFailures(status) {
  const all = status.instances.flatMap(({ id, failures: own }) => (own ?? []).map((one) => ({ id, ...one })));
  if (!all.length) return [];
  const rows = all.sort((a, b) => b.at - a.at).slice(0, MOST_FAILURES).map((one) => [
    clock(one.at), `${one.topic}-${one.partition}`, whole(one.offset), one.node, `${one.phase}: ${one.error}`,
    { continue: "dropped", "dead-letter": "dead letter" }[one.answer] ?? one.answer, nameOf(one.id)]);
  return [h("h3", {}, "The latest"), table("The latest failures", ["at", "record", "#offset", "node", "error", "then", "instance"], rows)];
}

function happened(at, said) {
  const list = by("happened");
  for (const [kind, sentence] of said) list.prepend(h("li", { class: kind }, h("time", {}, clock(at)), " ", sentence));
  while (list.children.length > MOST_HAPPENED) list.lastChild.remove();
}

function connection() {
  const silentMs = Date.now() - heardAt;
  const stale = latest !== null && (lastError !== "" || silentMs > STALE_MS);
  document.body.classList.toggle("stale", stale);
  if (!stale && !lastError) return by("connection").replaceChildren(latest ? `as of ${clock(latest.at)}` : "");
  const others = (latest?.instances ?? []).filter(({ id, url }) => url && id !== latest.here);
  const said = latest ? `No news from ${nameOf(latest.here)} for ${duration(silentMs)}` : "The instance does not answer";
  by("connection").replaceChildren(`${said}${lastError ? `: ${lastError}` : ""}. `,
    ...(others.length ? ["Ask another: "] : []), ...others.flatMap(({ id, url }) => [h("a", { href: `${url}/` }, nameOf(id)), " "]));
}

// Shows the form for a token, and returns when one was given: to all who want one.
let given = null;
function wantToken(error) {
  const form = by("access");
  text(by("access-why"), error.message);
  form.hidden = false;
  by("token").focus();
  given ??= new Promise((resume) => {
    form.onsubmit = (event) => {
      event.preventDefault();
      addToken(by("token").value.trim());
      by("token").value = "";
      form.hidden = true;
      given = null;
      resume();
    };
  });
  return given;
}

async function lost(error) {
  if (error.wantsToken) return wantToken(error);
  lastError = error.message;
  connection();
}

function view() {
  const wanted = location.hash.slice(1).split("/")[0];
  const shown = VIEWS.includes(wanted) ? wanted : "overview";
  for (const id of VIEWS) {
    by(id).hidden = id !== shown;
    if (id === shown) by(`to-${id}`).setAttribute("aria-current", "page");
    else by(`to-${id}`).removeAttribute("aria-current");
  }
  scrollTo(0, 0);
  if (shown === "stores") stores.open();
  if (shown === "topology") topology.open();
}

const THEMES = ["system", "light", "dark"];
function theme(chosen) {
  document.documentElement.dataset.theme = chosen;
  text(by("theme"), { system: "◐ system", light: "○ light", dark: "● dark" }[chosen]);
  localStorage.setItem("coopstreams-theme", chosen);
}
by("theme").addEventListener("click", () => theme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % 3]));
by("table").addEventListener("toggle", () => latest && by("table").open && become(by("table").lastChild, tasksTable(partitionsOf(latest))));
theme(localStorage.getItem("coopstreams-theme") ?? "system");
addEventListener("hashchange", view);
view();
setInterval(connection, 1000);
watch(show, lost);
