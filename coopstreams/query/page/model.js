// What a status says, in the form in which it is shown. Pure: values in, values out.

const GROUPS = 256;
const HASHES = 2 ** 63;

// The part of the hash space that a key range has, as two fractions. It is printed in key groups if it is cut at them.
export function span(keyRange) {
  const [first, last] = keyRange.split("..").map(Number);
  const of = last < GROUPS ? GROUPS : HASHES;
  return [first / of, Math.min(1, (last + 1) / of)];
}

// A letter and a colour for each instance, kept while the page is open. One that was started again at the address of
// one that has gone gets what that had; both have it then, because plots and earlier statuses still name the other one.
export class Names {
  #known = new Map();

  meet(instances) {
    const present = new Set(instances.map((instance) => instance.id));
    for (const { id, url } of instances) {
      if (this.#known.has(id)) {
        this.#known.get(id).url ??= url; // it may have told its address since
        continue;
      }
      const before = [...this.#known].find(([other, one]) => !present.has(other) && url && one.url === url);
      const taken = new Set([...this.#known.values()].map((one) => one.number));
      let number = 0;
      while (taken.has(number)) number += 1;
      this.#known.set(id, { number: before ? before[1].number : number, url });
    }
  }

  of(id) {
    const { number, url } = this.#known.get(id);
    const round = Math.floor(number / 26);
    return {
      id,
      letter: String.fromCharCode(65 + (number % 26)) + (round || ""),
      colour: `owner-${number % 8}`,
      address: url ? url.replace(/^https?:\/\//, "") : id,
      url,
    };
  }
}

// The partitions of each sub-topology with their ranges in order, and what no instance has.
export function partitionsOf(status) {
  const found = new Map();
  for (const instance of status.instances) {
    for (const task of instance.tasks) {
      const key = `${task.subtopology}_${task.partition}`;
      if (!found.has(key)) found.set(key, { key, subtopology: task.subtopology, partition: task.partition, ranges: [] });
      const [start, end] = span(task.key_range);
      found.get(key).ranges.push({ task, start, end, owner: instance.id, gone: instance.state === "unreachable" });
    }
  }
  const partitions = [...found.values()].sort((a, b) => a.subtopology - b.subtopology || a.partition - b.partition);
  for (const partition of partitions) {
    partition.ranges.sort((a, b) => a.start - b.start || a.end - b.end);
    partition.gaps = gapsOf(partition.ranges);
    partition.rate = sum(partition.ranges.map(({ task }) => task.rate));
    partition.lag = lagOf(partition.ranges.map(({ task }) => task));
    partition.bound = partition.ranges.length > 1 && partition.lag > 0;
  }
  return partitions;
}

function gapsOf(ranges) {
  const gaps = [];
  let at = 0;
  for (const { start, end } of ranges) {
    if (start > at) gaps.push([at, start]);
    at = Math.max(at, end);
  }
  if (at < 1) gaps.push([at, 1]);
  return gaps;
}

// The records of a partition that wait. Siblings count each other's, so the most that one of them counts is a bound, and
// their sum would count records several times.
function lagOf(tasks) {
  const lags = new Map();
  for (const task of tasks)
    for (const source of task.sources ?? [])
      if (source.lag !== null) lags.set(source.topic, Math.max(lags.get(source.topic) ?? 0, source.lag));
  return lags.size ? sum([...lags.values()]) : null;
}

export function sum(values) {
  let total = 0;
  for (const value of values) total += value ?? 0;
  return total;
}

// What the whole application does; `before` is the status before, for what is counted.
export function figures(status, partitions, before) {
  const commits = commitsSince(status, before);
  return {
    at: status.at,
    rates: new Map(status.instances.map((instance) => [instance.id, sum(instance.tasks.map((task) => task.rate))])),
    lag: sum(partitions.map((partition) => partition.lag)),
    bound: partitions.some((partition) => partition.bound),
    commitMs: commits.count ? (1000 * commits.seconds) / commits.count : null,
  };
}

function commitsSince(status, before) {
  const earlier = new Map((before?.instances ?? []).map((instance) => [instance.id, instance.totals]));
  let count = 0;
  let seconds = 0;
  for (const { id, totals } of status.instances) {
    const then = earlier.get(id);
    if (!totals || !then) continue;
    count += totals.commits - then.commits;
    seconds += totals.commit_seconds - then.commit_seconds;
  }
  return { count, seconds };
}

// Sentences on what differs between two statuses.
export function changes(before, status, name) {
  const said = [];
  const then = new Map(before.instances.map((instance) => [instance.id, instance]));
  const now = new Map(status.instances.map((instance) => [instance.id, instance]));
  for (const [id, instance] of now) {
    const was = then.get(id);
    const gone = instance.state === "unreachable";
    if (!was) said.push([gone ? "bad" : "", `${name(id)} has joined`]);
    else if (gone && was.state !== "unreachable") said.push(["bad", `${name(id)} does not answer any more`]);
    else if (!gone && was.state === "unreachable") said.push(["good", `${name(id)} answers again`]);
  }
  for (const id of then.keys()) if (!now.has(id)) said.push(["", `${name(id)} has left`]);
  return [...said, ...moves(tasksOf(before), tasksOf(status), name), ...reasonsSince(before, status, name)];
}

function moves(were, are, name) {
  const said = [];
  for (const [id, [task, owner]] of are) {
    const was = were.get(id);
    const state = task.state ?? "not known";
    if (!was) said.push(["", `${id} is ${state} at ${name(owner)}`]);
    else if (was[1] !== owner) said.push(["", `${id} went from ${name(was[1])} to ${name(owner)}`]);
    else if (was[0].state !== task.state && was[0].state && task.state)
      said.push([task.state === "running" ? "good" : "", `${id} is ${state} at ${name(owner)}`]);
  }
  for (const [id, [, owner]] of were) if (!are.has(id)) said.push(["", `${id} was given up by ${name(owner)}`]);
  return said.length > 12 ? [["", `${said.length} tasks were opened, moved or given up`]] : said;
}

function tasksOf(status) {
  const tasks = new Map();
  for (const instance of status.instances) for (const task of instance.tasks) tasks.set(task.id, [task, instance.id]);
  return tasks;
}

function reasonsSince(before, status, name) {
  const known = new Set(before.instances.flatMap(({ id, reasons }) => reasons.map(({ code, task }) => `${id} ${code} ${task}`)));
  return status.instances.flatMap(({ id, live, reasons }) =>
    reasons
      .filter(({ code, task }) => !["unreachable", "restoring", "waiting", "closing"].includes(code) && !known.has(`${id} ${code} ${task}`))
      .map(({ code, message }) => [live ? "" : "bad", `${name(id)}, ${code}: ${message}`]));
}

// The records of each sub-topology that wait in each topic.
export function lags(status) {
  const most = new Map();
  for (const { tasks } of status.instances)
    for (const { subtopology, partition, sources } of tasks)
      for (const { topic, lag } of sources ?? []) {
        const key = `${subtopology} ${topic} ${partition}`;
        if (lag !== null) most.set(key, Math.max(most.get(key) ?? 0, lag));
      }
  const found = new Map();
  for (const [key, lag] of most) {
    const where = key.slice(0, key.lastIndexOf(" "));
    found.set(where, (found.get(where) ?? 0) + lag);
  }
  return found;
}

// Rates of the counters in the totals of processes, over the last seconds: processes count once a second, in bursts.
const FLOW_MS = 5000;
export class Flows {
  #history = [];

  take(status) {
    const counts = new Map();
    for (const { id, totals } of status.instances) {
      if (!totals) continue;
      const own = new Map();
      for (const name of ["consumed", "produced"])
        for (const { subtopology, topic, records } of totals[name]) own.set(`${name} ${subtopology} ${topic}`, records);
      counts.set(id, own);
    }
    this.#history.push({ at: status.at, counts });
    while (this.#history.length > 2 && this.#history[0].at < status.at - FLOW_MS) this.#history.shift();
  }

  // The sum of some counters, per second; null: they are not counted, or not known yet.
  perSecond(counters) {
    const [first, last] = [this.#history[0], this.#history.at(-1)];
    if (!counters.length || !last || last.at === first.at) return null;
    const keys = counters.map((parts) => parts.join(" "));
    let more = 0;
    for (const [id, now] of last.counts) {
      const then = first.counts.get(id);
      if (then) for (const key of keys) more += Math.max(0, (now.get(key) ?? 0) - (then.get(key) ?? 0));
    }
    return (1000 * more) / (last.at - first.at);
  }
}

// The key groups that have much of their task's records, those with the most first.
export function hotGroups(partitions) {
  return partitions
    .flatMap((partition) => partition.ranges.flatMap(({ task, owner }) => (task.hot ?? []).map(({ key_group: group, share }) => (
      { partition, task, owner, group, share, rate: share * (task.rate ?? 0) }))))
    .sort((a, b) => b.rate - a.rate);
}
