// Numbers and times for people.

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 3 });

export const whole = (value) => (value === null || value === undefined ? "–" : WHOLE.format(value));

export function short(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 10_000) return SHORT.format(value);
  return value !== 0 && value < 10 ? String(Math.round(value * 10) / 10) : WHOLE.format(value);
}

export const rate = (value) => `${short(value)}/s`;

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  const sign = ms < 0 ? "−" : "";
  const size = Math.abs(ms);
  if (size < 1) return `${sign}${size.toFixed(1)} ms`;
  if (size < 1000) return `${sign}${Math.round(size)} ms`;
  const units = [[86_400_000, "d"], [3_600_000, "h"], [60_000, "min"]];
  for (const [unit, name] of units) if (size >= 2 * unit) return `${sign}${WHOLE.format(Math.floor(size / unit))} ${name}`;
  return `${sign}${(size / 1000).toFixed(size < 10_000 ? 1 : 0)} s`;
}

export const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");

const LAST_MS = 8.64e15; // the last moment that a Date can be: one in nanoseconds is behind it

export function moment(ms) {
  if (ms === null || ms === undefined) return "–";
  if (!(Math.abs(ms) <= LAST_MS)) return String(ms);
  return new Date(ms).toISOString().replace("T", " ").replace(".000Z", " UTC").replace("Z", " UTC");
}

export const plural = (count, word) => `${whole(count)} ${word}${count === 1 ? "" : "s"}`;
