// Card with the canaries of a burst: what the device still blocked, and when it did not.

import { FIGURE, LONG, h, table } from "./dom.js";
import { clock, known, percent, rate, seconds } from "./format.js";
import { svg } from "./units.js";

const [WIDTH, HEIGHT] = [600, 48];
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

// Draw the received rate over the burst as an area, and the leaked share of each step as a bar.
function lane(canary) {
  const { steps } = canary;
  const top = Math.max(0, ...steps.map((step) => step.received_bits_per_second ?? 0));
  const x = (step) => (WIDTH * step) / Math.max(1, steps.length);
  const y = (value, most) => HEIGHT - (HEIGHT - 2) * (most ? value / most : 0);
  const points = steps.flatMap(({ received_bits_per_second: value }, step) => [
    `${x(step).toFixed(1)},${y(value ?? 0, top).toFixed(1)}`,
    `${x(step + 1).toFixed(1)},${y(value ?? 0, top).toFixed(1)}`,
  ]);
  const bars = steps.flatMap((step, number) => {
    if (!step.leaked_count) return [];
    const height = HEIGHT - y(step.leaked_count / step.tested_count, 1);
    const bar = svg("rect", {
      class: "leak",
      x: x(number),
      y: HEIGHT - height,
      width: x(1),
      height,
    });
    const cpu = known(step.device_cpu_ratio) ? `, CPU ${percent(step.device_cpu_ratio, 0)}` : "";
    const text = `${clock(step.at)}: ${step.leaked_count} of ${step.tested_count} leaked`;
    bar.append(svg("title", {}, `${text}, ${rate(step.received_bits_per_second)}${cpu}`));
    return [bar];
  });
  return svg(
    "svg",
    {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      preserveAspectRatio: "none",
      class: "lane tall",
      role: "img",
      "aria-label": "Received rate and leaked share of the canaries over the burst",
    },
    svg("polygon", { points: `0,${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}` }),
    ...bars,
  );
}

// Return what the lane shows, with its first and last time.
function legendOf({ steps, every_s: length }) {
  const text = "Area: received payload. Bars: leaked share of the forbidden canaries.";
  if (!steps.length) return text;
  const end = new Date(new Date(steps.at(-1).at).getTime() + length * 1000).toISOString();
  return `${clock(steps[0].at)} to ${clock(end)}. ${text}`;
}

function sentenceOf({ during, first_leak_at: first }) {
  if (!during.tested_count) return "No canary was tested during the burst.";
  if (!during.leaked_count) return "The device blocked all forbidden canaries during the burst.";
  return `Forbidden canaries passed the device, first at ${clock(first)}.`;
}

// Return a card with the share that leaked in each phase and for each signature.
export function canaryCard(canary) {
  const rows = [
    ...Object.entries(PHASES).map(([name, label]) => [label, canary[name]]),
    ...canary.signatures.map(({ name, during }) => [`${name}, during`, during]),
  ];
  return h(
    "section.card",
    h("h2", "Canary: blocked, leaked"),
    h("p.quiet", `${sentenceOf(canary)} Consent: ${canary.consent}.`),
    lane(canary),
    h("p.quiet", legendOf(canary)),
    table(
      "Canaries",
      [
        ["Phase", ([label]) => label],
        [`Leaked (${percent(canary.during.confidence_ratio ?? 0.95, 0)} interval)`, ([, phase]) => leaks(phase), LONG],
        [
          "Allowed, blocked",
          ([, phase]) => `${phase.allowed_blocked_count} of ${phase.allowed_count}`,
          FIGURE,
        ],
        ["Blocked late", ([, phase]) => String(phase.late_count), FIGURE],
        ["Time until the block", ([, phase]) => seconds(phase.decision_p50_s), FIGURE],
      ],
      rows,
    ),
  );
}
