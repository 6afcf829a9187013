// Card with the units of a device that translates source addresses: their rates over a burst.

import { FIGURE, LONG, h, refill, say, table } from "./dom.js";
import { clock, counted, digits, known, percent, rate, rateUnit } from "./format.js";
import { LineChart } from "./lines.js";

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
  return texts.join("; ") || "none";
}

const columns = (units) => [
  ["Unit", ({ address }) => address],
  ["Received, payload", rateOf, FIGURE],
  ["Traffic", streams, FIGURE],
  ["Changes", (unit) => notes(unit, units), LONG],
];

const SENTENCES = {
  none: "Not translated: servers received the clients' own addresses.",
  "one-to-one": "Translated one to one: each client has its own address.",
};

function sentenceOf(units) {
  if (!known(units)) return "Unknown: the records have no source addresses.";
  return SENTENCES[units.translation] ?? `${counted(units.count, "unit")} carried this burst.`;
}

// Text and rows of a burst, with a lane for each unit if there are any.
export class UnitsCard {
  constructor(cursor) {
    this.chart = new LineChart({ title: "Units by second", unit: "", format: digits, cursor, lanes: true });
    this.text = h("p.quiet");
    this.rows = h("div");
    this.element = h(
      "section.card",
      { hidden: true },
      h("h2", "Units of the device"),
      this.text,
      this.rows,
      this.chart.element,
    );
  }

  draw({ data }, burst) {
    this.element.hidden = !burst;
    if (!burst) return;
    const { units } = burst;
    const shown = units?.units ?? [];
    const spread =
      shown.length > 1
        ? ` Busiest to mean ${percent(units.imbalance_ratio, 0)}, Jain's index ${digits(units.jain_ratio)}.`
        : "";
    say(this.text, sentenceOf(units) + spread);
    refill(this.rows, units, () => [
      shown.length ? table("Units of the device", columns(units), shown) : null,
    ]);
    this.#showChart(data, burst, shown);
  }

  // Draw the rates of the units. Without payload, draw their new connections.
  #showChart(data, { units, planned_start_at: start }, shown) {
    const highest = (field) => Math.max(0, ...shown.flatMap((unit) => unit[field]));
    const top = highest("bits_per_second");
    const field = top ? "bits_per_second" : "flows";
    const [name, size] = top ? rateUnit(top) : ["starts or streams", 1];
    const lead = (new Date(start) - new Date(units?.start_at)) / 1000;
    const at = (step) => step * units.every_s - lead;
    this.chart.unitLabel.textContent = this.chart.unit = name;
    this.chart.show(data, {
      minTop: highest(field) / size,
      series: shown.map((unit) => ({
        name: unit.address,
        colour: units.slow === unit.address ? "other" : "fleet",
        bins: unit[field].map((value, step) => ({
          from: at(step),
          before: at(step + 1),
          value: value / size,
        })),
      })),
    });
  }
}
