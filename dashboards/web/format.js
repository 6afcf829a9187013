// Functions to format numbers: four significant digits, with the decimal unit that fits. The
// coordinator uses the same rules and provides the units in words.js.

import { DIGITS, FIGURES, LAYERS, SCALES, UNKNOWN } from "./words.js";

export { LAYERS };

export const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);

function unitOf(value, scale) {
  const size = Math.abs(Number((value ?? 0).toPrecision(DIGITS)));
  if (size === 0) return scale.find(([, unit]) => unit === 1);
  return scale.find(([, unit]) => size >= unit) ?? scale.at(-1);
}

export const rateUnit = (bitsPerSecond) => unitOf(bitsPerSecond, SCALES.rate);

export const digits = (value) =>
  known(value) ? String(Number(value.toPrecision(DIGITS))) : UNKNOWN;

function parts(value, scale) {
  if (!known(value)) return [UNKNOWN, ""];
  const [unit, size] = unitOf(value, scale);
  return [digits(value / size), unit];
}

export const rateParts = (bitsPerSecond) => parts(bitsPerSecond, SCALES.rate);
export const rate = (bitsPerSecond) => rateParts(bitsPerSecond).filter(Boolean).join(" ");
export const seconds = (value) => parts(value, SCALES.time).filter(Boolean).join(" ");

export function percent(ratio, places = 2, signed = false) {
  if (!known(ratio)) return UNKNOWN;
  const text = (ratio * 100).toFixed(places);
  return `${signed && ratio >= 0 ? "+" : ""}${text} %`;
}

// Format a value in a registered unit. The coordinator has the same function for its own output.
export function told(unit, value, places = 2) {
  if (unit === "bit/s") return rate(value);
  if (unit === "s") return seconds(value);
  if (unit === "ratio") return percent(value, places);
  if (unit === "count") return count(value);
  return known(value) && unit !== "1" ? `${digits(value)} ${unit}` : digits(value);
}

const FOLDS = {
  mean: (values) => values.reduce((sum, value) => sum + value, 0) / values.length,
  sum: (values) => values.reduce((sum, value) => sum + value, 0),
  max: (values) => Math.max(...values),
  min: (values) => Math.min(...values),
};

// Get the value at a path with dots. For a list, get the values of all members. For null, return
// nothing.
const read = (value, path) =>
  path
    .split(".")
    .reduce((found, name) => found.flatMap((each) => each[name] ?? []), [value].flat());

// Get a registered metric of a run or a burst. If the run does not have the value, compute it
// from the bursts.
export function figureOf(figure, summary) {
  const bursts = summary.bursts ?? [summary];
  const [own] = summary.bursts ? read(summary, figure.stored) : [];
  if (own !== undefined) return own;
  const values = read(bursts, figure.read);
  if (bursts.length === 1 && values.length === 1) return values[0];
  return values.length && FOLDS[figure.fold] ? FOLDS[figure.fold](values) : null;
}

const named = new Map(FIGURES.map((figure) => [figure.called, figure]));

// The name of a metric of a part of a mixed run begins with the part, for example `https/rtt_s`.
const split = (name) => [name.slice(0, name.lastIndexOf("/") + 1), name.split("/").at(-1)];

// Get the label of a metric and the function to format it in a comparison.
export function figureCalled(name) {
  const [part, own] = split(name);
  const { words, layer, unit, decimals } = named.get(own);
  const label = layer ? `${words}, ${LAYERS[layer] ?? layer}` : words;
  return [part.replace("/", ": ") + label, (value) => told(unit, value, decimals)];
}

export const figureUnit = (name) => named.get(split(name)[1]).unit;

export function span(value) {
  const total = Math.max(0, Math.round(value));
  if (total < 100) return `${total} s`;
  const [days, hours] = [Math.floor(total / 86400), Math.floor((total % 86400) / 3600)];
  const [minutes, rest] = [Math.floor((total % 3600) / 60), total % 60];
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return rest ? `${minutes} min ${rest} s` : `${minutes} min`;
}

export function count(value) {
  if (!known(value)) return UNKNOWN;
  // If a mean is below ten, use two significant digits.
  if (Math.abs(value) < 10 && !Number.isInteger(value)) return String(Number(value.toPrecision(2)));
  return Math.round(value).toLocaleString("en").replaceAll(",", "\u202f");
}

export const counted = (number, what) => `${count(number)} ${what}${number === 1 ? "" : "s"}`;

// Format a sum in US dollars. From 100 dollars, cents are not used.
export function dollars(usd) {
  if (!known(usd)) return UNKNOWN;
  return `$${usd >= 100 ? Math.round(usd).toLocaleString("en") : usd.toFixed(2)}`;
}

export function instant(text) {
  if (!text) return UNKNOWN;
  const iso = new Date(text).toISOString();
  return `${iso.slice(0, 10)} ${iso.slice(11, 19)} UTC`;
}

export const clock = (text) =>
  text ? `${new Date(text).toISOString().slice(11, 19)} UTC` : UNKNOWN;

// Get a round number that is not below the value. It is used for a scale that should not change
// often.
export function niceAbove(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return (
    [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].find((step) => step * power >= value * 0.999) * power
  );
}

// Get all fields of a value by their names with dots. A field that is empty or not set will be
// null.
export function fieldsOf(value, name = "") {
  if (!value || typeof value !== "object") return [[name, value]];
  const inner = Object.entries(value);
  return inner.length
    ? inner.flatMap(([key, each]) => fieldsOf(each, name ? `${name}.${key}` : key))
    : [[name, null]];
}
