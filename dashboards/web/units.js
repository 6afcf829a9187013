// Lanes of the units of a device that translates source addresses, below the map of the pairs.

import { h } from "./dom.js";
import { clock, counted, digits, known, percent, rate } from "./format.js";

const NAMES = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT] = [600, 28];

// Create an element of a drawing.
export function svg(tag, attributes, ...children) {
  const element = document.createElementNS(NAMES, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Draw the rate of a unit over the burst, with a line where it joined or left. Without payload, draw
// its new connections.
function lane(unit, burst, field, top) {
  const { units } = burst;
  const rates = unit[field];
  const start = new Date(units.start_at) / 1000;
  const lead = new Date(burst.planned_start_at) / 1000 - start;
  const x = (step) => (WIDTH * (step * units.every_s - lead)) / burst.duration_s;
  const y = (value) => HEIGHT - (HEIGHT - 2) * (top ? value / top : 0);
  const points = rates.flatMap((value, step) => [
    `${x(step).toFixed(1)},${y(value).toFixed(1)}`,
    `${x(step + 1).toFixed(1)},${y(value).toFixed(1)}`,
  ]);
  const marks = units.changes
    .filter(({ address }) => address === unit.address)
    .map(({ at, change }) => {
      const place = x((new Date(at) / 1000 - start) / units.every_s);
      const line = svg("line", { class: "change", x1: place, x2: place, y1: 0, y2: HEIGHT });
      line.append(svg("title", {}, `${change} at ${clock(at)} UTC`));
      return line;
    });
  const label = `Rate of unit ${unit.address} over the burst`;
  return svg(
    "svg",
    {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      preserveAspectRatio: "none",
      class: "lane",
      role: "img",
      "aria-label": label,
    },
    svg("polygon", { points: `${x(0)},${HEIGHT} ${points.join(" ")} ${x(rates.length)},${HEIGHT}` }),
    ...marks,
  );
}

function streams(unit) {
  if (known(unit.flows_mean_count)) return `${digits(unit.flows_mean_count)} streams`;
  return unit.starts_per_second ? `${digits(unit.starts_per_second)} starts/s` : "";
}

function rateOf(unit) {
  const half = unit.received_half_width_bits_per_second;
  const mean = unit.received_bits_per_second;
  return `${rate(mean)}${known(half) && mean ? ` ± ${percent(half / mean, 1)}` : ""}`;
}

function notes(unit, units) {
  const texts = units.changes
    .filter(({ address }) => address === unit.address)
    .map(({ change, at, flows_cut }) => `${change} ${clock(at)}${flows_cut ? ", streams cut" : ""}`);
  if (units.slow === unit.address) texts.unshift("slow");
  return texts.join("; ");
}

const SENTENCES = {
  none: "Not translated: servers received the clients' own addresses.",
  "one-to-one": "Translated one to one: each client has its own address.",
};

function sentenceOf(units) {
  if (!known(units)) return "Unknown: the records have no source addresses.";
  return SENTENCES[units.translation] ?? `${counted(units.count, "unit")} carried this burst.`;
}

// Return a sentence, and a lane for each unit of a burst if there are any.
export function unitLanes(burst) {
  const { units } = burst;
  const shown = units?.units ?? [];
  const most = (field) => Math.max(0, ...shown.flatMap((unit) => unit[field]));
  const field = most("bits_per_second") ? "bits_per_second" : "flows";
  const top = most(field);
  const rows = shown.map((unit) =>
    h(
      "div",
      { class: units.slow === unit.address ? "device-unit slow" : "device-unit" },
      h("span", unit.address),
      lane(unit, burst, field, top),
      h("span.number", rateOf(unit)),
      h("span.quiet", [streams(unit), notes(unit, units)].filter(Boolean).join(", ")),
    ),
  );
  const spread =
    rows.length > 1
      ? `Busiest to mean ${percent(units.imbalance_ratio, 0)}, Jain's index ${digits(units.jain_ratio)}.`
      : "";
  return h(
    "section.card",
    h("h2", "Units of the device"),
    h("p.quiet", `${sentenceOf(units)} ${spread}`.trim()),
    h("div.units", ...rows),
  );
}
