// Times, sizes and counts with units, in the form that the command `topics` reads and writes.
import { bytes, count, duration, mistake } from "./ui.js";

// `steps` are the units in ascending order. A number without a unit has the unit `plain`. `show`
// formats a value for display, possibly rounded.
export const TIME = { plain: "ms", show: duration, noun: "time", examples: "500ms, 30s, 10m or 7d",
  steps: { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 } };
export const SIZE = { plain: "B", show: bytes, noun: "size", examples: "5000, 64KiB, 64MiB or 2GiB",
  steps: { B: 1, KiB: 1024, MiB: 1024 ** 2, GiB: 1024 ** 3, TiB: 1024 ** 4 } };
export const COUNT = { plain: "", show: count, noun: "count", examples: "5000, 10k or 1M",
  steps: { "": 1, k: 1000, M: 1e6, G: 1e9, T: 1e12 } };
const ALIASES = { w: 7 * TIME.steps.d }; // accepted as input, but never written

/** The steps of a kind by every name of a unit: KiB is also KB and K, in any case. */
const stepsOf = ({ steps, noun }) => (noun === "time" ? { ...steps, ...ALIASES }
  : Object.fromEntries(Object.entries(steps).map(([unit, step]) => [shortened(unit), step])));
const shortened = (unit) => unit.toLowerCase().replace(/i?b$/, "");

/** Return the number that a text represents. Throws an Error with a message for the user. */
export function read(kind, text) {
  const [, digits, unit = ""] = text.trim().match(/^(\d+(?:\.\d+)?)\s*([a-z]*)$/i) ?? [];
  const name = unit || kind.plain;
  const step = stepsOf(kind)[kind === TIME ? name : shortened(name)];
  const value = Math.round(Number(digits) * step);
  if (!Number.isSafeInteger(value))
    throw mistake(`“${text.trim()}” is not a ${kind.noun}. Write for example ${kind.examples}.`);
  return value;
}

/** Write a number in the largest unit that divides it: 7d, 64MiB. */
export function exact(kind, value) {
  const [unit, step] = Object.entries(kind.steps).findLast(([, each]) => value % each === 0);
  return value === 0 || unit === "B" ? String(value) : `${value / step}${unit}`;
}
