// Card with the canaries of a burst: what the device still blocked, and when it did not.

import { FIGURE, LONG, h, refill, say, table } from "./dom.js";
import { clock, digits, known, percent, rateUnit, seconds } from "./format.js";
import { LineChart } from "./lines.js";

const PHASES = { before: "before", during: "during the burst", after: "after" };

function leaks(phase) {
  if (!phase.tested_count) return "no canary was tested";
  const places = phase.leak_high_ratio < 0.1 ? 2 : 1;
  const [share, low, high] = [phase.leak_ratio, phase.leak_low_ratio, phase.leak_high_ratio].map(
    (value) => percent(value, places),
  );
  const text = `${share} (${phase.leaked_count} of ${phase.tested_count}; ${low} to ${high})`;
  return text.replaceAll(" %", "\u00a0%");
}

function sentenceOf({ during, first_leak_at: first }) {
  if (!during.tested_count) return "No canary was tested during the burst.";
  if (!during.leaked_count) return "The device blocked all forbidden canaries during the burst.";
  return `Forbidden canaries passed the device, first at ${clock(first)}.`;
}

// Share that leaked in each phase and for each signature, and by second.
export class CanaryCard {
  constructor(cursor) {
    this.chart = new LineChart({
      title: "Canaries by second",
      unit: "the unit of each lane",
      format: digits,
      cursor,
      lanes: true,
    });
    this.text = h("p.quiet");
    this.rows = h("div");
    this.element = h(
      "section.card",
      { hidden: true },
      h("h2", "Canary: blocked, leaked"),
      this.text,
      this.rows,
      this.chart.element,
    );
  }

  draw({ data }, burst) {
    const canary = burst?.canary;
    this.element.hidden = !canary;
    if (!canary) return;
    say(this.text, `${sentenceOf(canary)} Consent: ${canary.consent}.`);
    refill(this.rows, canary, () => [phases(canary)]);
    const { steps, every_s: length } = canary;
    const lane = (name, colour, value) => ({
      name,
      colour,
      bins: steps.map((step) => {
        const from = (new Date(step.at) - new Date(burst.planned_start_at)) / 1000;
        return { from, before: from + length, value: value(step) };
      }),
    });
    const times = (value, factor) => (known(value) ? value * factor : null);
    const rates = steps.map((step) => step.received_bits_per_second ?? 0);
    const [unit, size] = rateUnit(Math.max(0, ...rates));
    const series = [
      lane("leaked canaries (%)", "fail", (step) =>
        step.tested_count ? (100 * step.leaked_count) / step.tested_count : null,
      ),
      lane(`received payload (${unit})`, "fleet", (step) =>
        times(step.received_bits_per_second, 1 / size),
      ),
      lane("CPU of the device (%)", "other", (step) => times(step.device_cpu_ratio, 100)),
    ].filter(({ bins }) => bins.some(({ value }) => known(value)));
    this.chart.show(data, { series });
  }
}

function phases(canary) {
  const confidence = percent(canary.during.confidence_ratio ?? 0.95, 0);
  const rows = [
    ...Object.entries(PHASES).map(([name, label]) => [label, canary[name]]),
    ...canary.signatures.map(({ name, during }) => [`${name}, during`, during]),
  ];
  return table(
    "Canaries",
    [
      ["Phase", ([label]) => label],
      [`Leaked (${confidence} interval)`, ([, phase]) => leaks(phase), LONG],
      [
        "Allowed, blocked",
        ([, phase]) => `${phase.allowed_blocked_count} of ${phase.allowed_count}`,
        FIGURE,
      ],
      ["Blocked late", ([, phase]) => String(phase.late_count), FIGURE],
      ["Time until the block", ([, phase]) => seconds(phase.decision_p50_s), FIGURE],
    ],
    rows,
  );
}
