// A browser of the stores: asks what the HTTP interface answers, in its words.

import { h, table } from "./dom.js";
import { moment, whole } from "./format.js";
import { ask } from "./stream.js";

const PAGE = 100;
const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));
// Browsers resolve these parts of a path, percent-encoded ones too: another key would be asked for.
const DOTS = new Set([".", ".."]);
const piece = (key) => encodeURIComponent(key).replaceAll(".", "%2E");

// What can be asked of each kind of store: the name, the fields, and the path.
const KEY = { key: "Key" };
const TIMES = { key: "Key", from: "From (ms)", to: "To (ms)" };
const RANGE = { from: "From key", to: "To key", prefix: "Prefix" };
const FORMS = {
  keys: ["One key", KEY],
  range: ["Range", RANGE],
  windows: ["Windows of a key", TIMES],
  sessions: ["Sessions of a key", TIMES],
  versions: ["Versions of a key", { ...TIMES, as_of: "As of (ms)" }],
};
const OF_KIND = {
  key_value: ["range", "keys"],
  global: ["range", "keys"],
  window: ["range", "windows"],
  session: ["range", "sessions"],
  versioned: ["range", "keys", "versions"],
};

export class Stores {
  #root;
  #wantToken;
  #list = h("div", { class: "choices", role: "group", "aria-label": "Stores" });
  #form = h("form", { class: "question" });
  #answer = h("div", { "aria-live": "polite" });
  #store = null;
  #asked = 0;

  constructor(root, wantToken) {
    this.#root = root;
    this.#wantToken = wantToken;
    root.append(h("h2", {}, "Stores"), this.#list, this.#form, this.#answer);
    this.#form.addEventListener("submit", (event) => (event.preventDefault(), this.#submit()));
  }

  async open() {
    const answer = await this.#get("v1/stores");
    if (!answer) return;
    const choices = answer.stores.map((store) => h("button", { type: "button", "data-store": store.name, "aria-pressed": "false",
      onclick: () => this.#choose(store) }, h("b", {}, store.name), h("span", {},
      `${store.kind.replace("_", "-")} · ${store.key} → ${store.value} · about ${whole(store.approximate_entries)}`)));
    this.#list.replaceChildren(...choices);
    if (!choices.length) this.#list.replaceChildren(h("p", { class: "empty" }, "This topology keeps no state that can be asked for."));
    const known = answer.stores.find(({ name }) => name === this.#store?.name) ?? largest(answer.stores);
    if (known) this.#choose(known);
  }

  #choose(store) {
    this.#store = store;
    for (const button of this.#list.querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.dataset.store === store.name));
    const kinds = OF_KIND[store.kind];
    const how = h("select", { name: "how", "aria-label": "What to ask", onchange: () => this.#fields(how.value) },
      kinds.map((kind) => h("option", { value: kind }, FORMS[kind][0])));
    this.#form.replaceChildren(how, h("span", { class: "fields" }), h("button", {}, "Ask"));
    this.#fields(kinds[0]);
    this.#submit();
  }

  #fields(how) {
    const prefixed = ["text", "raw"].includes(this.#store.key);
    const fields = Object.entries(FORMS[how][1]).filter(([name]) => name !== "prefix" || prefixed);
    this.#form.querySelector(".fields").replaceChildren(...fields.map(([name, label]) =>
      h("label", {}, label, h("input", { name, autocomplete: "off", spellcheck: "false", inputmode: label.endsWith("(ms)") ? "numeric" : null }))));
  }

  #submit() {
    const { how, key, ...rest } = Object.fromEntries(new FormData(this.#form));
    if (DOTS.has(key)) {
      this.#asked += 1;
      this.#answer.replaceChildren(h("p", { class: "bad", role: "alert" }, `A browser takes the key ${key} in a path for a step to another path. Ask for the range from key ${key} to key ${key}.`));
      return;
    }
    const query = new URLSearchParams(Object.entries(rest).filter(([, value]) => value !== ""));
    if (how !== "keys") query.set("limit", PAGE);
    this.#ask(this.#store, how, `v1/stores/${piece(this.#store.name)}/${how}${how === "range" ? "" : `/${piece(key)}`}`, query);
  }

  // The next page is one of the same question, whatever the form says by then.
  async #ask(store, how, path, query) {
    const answer = await this.#get(query.size ? `${path}?${query}` : path);
    if (!answer) return;
    this.#show(store, how, answer, () => {
      query.set("cursor", answer.cursor);
      this.#ask(store, how, path, query);
    });
  }

  #show(store, how, answer, next) {
    const where = answer.partition === undefined ? "" : `partition ${answer.partition ?? "–"}, key range ${answer.key_range ?? "–"}, owner ${answer.owner}, epoch ${answer.epoch ?? "–"}`;
    const windows = (list) => [["from", "until", "value", "timestamp"], list.map((one) => [moment(one.start), one.end === null ? "for ever" : moment(one.end), h("code", {}, text(one.value)), moment(one.timestamp)])];
    const [heads, rows] = {
      keys: () => [["key", "value", "timestamp"], [[h("code", {}, text(answer.key)), h("code", {}, text(answer.value)), moment(answer.timestamp)]]],
      range: () => [["key", ...(["window", "session"].includes(store.kind) ? ["window"] : []), "value", "timestamp", "#partition"],
        answer.entries.map((one) => [h("code", { title: one.key_error ?? null }, text(one.key)), ...(one.window ? [`${moment(one.window.start)} – ${one.window.end === null ? "for ever" : moment(one.window.end)}`] : []),
          h("code", {}, text(one.value)), moment(one.timestamp), whole(one.partition)])],
      windows: () => windows(answer.windows),
      sessions: () => windows(answer.sessions),
      versions: () => [["since", "until", "value"], answer.versions.map((one) => [moment(one.since), one.until === null ? "now" : moment(one.until), h("code", {}, text(one.value))])],
    }[how]();
    const more = answer.cursor ? h("button", { type: "button", class: "more", onclick: next }, `The next ${PAGE}`) : null;
    this.#answer.replaceChildren(rows.length ? table(`${store.name}: ${FORMS[how][0]}`, heads, rows) : h("p", { class: "empty" }, "Nothing there."),
      ...(more ? [more] : answer.more ? [h("p", { class: "note" }, `The first ${PAGE}; narrow the times for others.`)] : []), h("p", { class: "note" }, where));
  }

  // The answer; null if it was refused, which is shown, or if another question was asked meanwhile.
  async #get(path) {
    const number = (this.#asked += 1);
    for (;;) {
      try {
        const answer = await ask(path);
        return number === this.#asked ? answer : null;
      } catch (error) {
        if (error.wantsToken) await this.#wantToken(error);
        else {
          if (number === this.#asked) this.#answer.replaceChildren(h("p", { class: error.code === "KEY_NOT_FOUND" ? "empty" : "bad", role: "alert" }, error.message));
          return null;
        }
      }
    }
  }
}

const largest = (stores) => stores.toSorted((a, b) => b.approximate_entries - a.approximate_entries)[0];
