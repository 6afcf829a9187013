// Card with the traffic of a mixed run: results and seconds of each part, also while it runs.

import { FIGURE, LONG, h, refill, say, table } from "./dom.js";
import { count, known, percent, rate, seconds, told } from "./format.js";
import { LineChart } from "./lines.js";
import { verdictBadge } from "./runs.js";
import { PART_MEASURES, RECEIVED } from "./words.js";

const COLOURS = ["other", "missing", "target", "ink", "quiet"];

function otherMetrics({ measures, latency }) {
  const named = new Map(measures.map((measure) => [measure.name, measure]));
  if (named.has("held_count")) named.delete("established_per_second");
  const texts = Object.entries(PART_MEASURES)
    .filter(([name]) => named.has(name))
    .map(([name, label]) => `${label} ${told(named.get(name).unit, named.get(name).value, 1)}`);
  const probes = latency?.fleet.during;
  if (probes?.sent_count)
    texts.push(`probes p99 ${seconds(probes.p99_s)}, lost ${percent(probes.loss_ratio)}`);
  return texts.join("; ");
}

const highest = (points) => Math.max(0, ...points.filter(known));

function line(name, text, points, look) {
  const top = highest(points);
  const share = points.map((value) => (known(value) && top ? (value / top) * 100 : null));
  return { name: `${name} (100 %: ${text(top)})`, points: share, ...look };
}

export class PartsCard {
  constructor(cursor) {
    this.chart = new LineChart({
      title: "Parts by second",
      unit: "% of the highest second",
      format: (value) => percent(value / 100, 0),
      cursor,
      minTop: 100 / 1.06,
    });
    this.text = h("p.quiet");
    this.rows = h("div");
    this.element = h(
      "section.card",
      { hidden: true },
      h("h2", "Mixed traffic"),
      this.text,
      this.rows,
      this.chart.element,
    );
  }

  // Return true if the run is mixed. Its parts are those of the burst that is shown.
  draw({ status, figures, data }) {
    const names = status.part_names;
    this.element.hidden = names.length === 0;
    if (!names.length) return;
    const first = figures?.summary ?? null;
    const parts = first?.parts ?? [];
    const state = figures?.final ? "" : " Values are provisional.";
    say(
      this.text,
      `All pairs start together, with one verdict. Other charts and figures are of ${names[0]}.${state}`,
    );
    const rows = [
      ...(first ? [[names[0], first]] : []),
      ...parts.map(({ name, summary }) => [name, summary]),
    ];
    refill(this.rows, [rows, figures?.final], () => [rows.length ? this.#table(rows, figures) : null]);
    this.chart.show(data, { series: this.#series(names[0], parts, data) });
  }

  #table(rows, { final }) {
    const columns = [
      ["Traffic", ([name]) => name],
      ["Pairs", ([, burst]) => `${burst.pairs_measured} of ${burst.pairs_planned}`, FIGURE],
      ["Complete", ([, burst]) => percent(burst.completeness_ratio), FIGURE],
      ["Received, payload", ([, burst]) => rate(burst[RECEIVED]), FIGURE],
      ["Metrics", ([, burst]) => otherMetrics(burst) || (final ? "none" : "after the burst"), LONG],
      ...(final
        ? [["Verdict", ([, of]) => verdictBadge(of.first_part_verdict ?? of.verdict)]]
        : []),
    ];
    return table("Traffic of the pairs", columns, rows, { wide: true });
  }

  #series(name, parts, data) {
    const series = [line(name, rate, data.series("fleet_bits_per_second"), { colour: "fleet" })];
    parts.forEach((part, number) => {
      const colour = COLOURS[number % COLOURS.length];
      const offset = Math.round((new Date(part.start_at) - new Date(data.start)) / 1000);
      const shift = (points) =>
        (offset < 0 ? points.slice(-offset) : [...Array(offset).fill(null), ...points]).slice(
          0,
          data.total,
        );
      const own = part.name;
      const rates = shift(part.received_bits_per_second);
      if (highest(rates)) series.push(line(own, rate, rates, { colour }));
      const [opened, open] = [part.connections_per_second, part.open_count].map(shift);
      const isHeld = highest(open) > highest(opened);
      const counts = isHeld ? open : opened;
      if (highest(counts) > 1) {
        const label = `${own}, ${isHeld ? "open" : "established per second"}`;
        series.push(line(label, count, counts, { colour, dash: [3, 3] }));
      }
    });
    return series;
  }
}
