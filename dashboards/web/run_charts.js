// Charts of a run: throughput, range of the pairs, CPU, round-trip time and retransmits.

import { h } from "./dom.js";
import { count, digits } from "./format.js";
import { LineChart } from "./lines.js";
import { throughputSeries, throughputUnit } from "./throughput.js";

// If the coverage is below this value, the second will be marked.
const THIN_RATIO = 0.98;

const plain = (value) => digits(value);

export class RunCharts {
  constructor(cursor) {
    const chart = (more) =>
      new LineChart({ unit: "", format: plain, cursor, height: 120, ...more });
    this.throughput = chart({ title: "Throughput of the fleet", height: 230 });
    this.band = chart({ title: "Rates of the pairs", height: 150 });
    this.cpu = chart({
      title: "CPU utilization",
      unit: "% of all cores, mean",
      format: (v) => `${digits(v)} %`,
      minTop: 100 / 1.06,
    });
    this.rtt = chart({
      title: "Round-trip time",
      unit: "ms, mean over pairs",
      format: (v) => `${digits(v)} ms`,
    });
    this.retransmits = chart({
      title: "Retransmits",
      unit: "segments per second, fleet",
      format: (v) => count(v),
    });
  }

  get all() {
    return [this.throughput, this.band, this.cpu, this.rtt, this.retransmits];
  }

  // Charts of the hosts and the path, which are shown in the same card.
  get small() {
    const charts = [this.cpu, this.rtt, this.retransmits];
    return h("section.card.small", ...charts.map((chart) => chart.element));
  }

  draw(state) {
    const { data } = state;
    const unit = throughputUnit(state);
    this.#showThroughput(state, unit);
    this.#showBand(data, unit.pair);
    const points = (name, factor) => data.series(name, factor);
    this.cpu.show(data, {
      series: [
        { name: "clients", colour: "fleet", points: points("client_cpu_ratio", 100) },
        { name: "servers", colour: "other", dash: [6, 3], points: points("server_cpu_ratio", 100) },
      ],
    });
    this.rtt.show(data, {
      series: [{ name: "RTT", colour: "fleet", points: points("rtt_mean_s", 1000) }],
    });
    this.retransmits.show(data, {
      series: [{ name: "retransmissions", colour: "fleet", points: points("retransmits_count") }],
    });
  }

  #showThroughput({ status, data, figures, deviceCounter }, unit) {
    this.throughput.unitLabel.textContent = this.throughput.unit = unit.label;
    const thin = [];
    for (let second = 0; second < Math.min(data.knownS, data.stop); second++)
      if ((data.value("coverage_ratio", second) ?? 0) < THIN_RATIO) thin.push(second);
    const series = throughputSeries(data, status, figures, deviceCounter, unit);
    this.throughput.show(data, { ...series, thin });
  }

  #showBand(data, [name, size]) {
    const layer = data.layer === "link" ? "link layer" : "payload";
    this.band.unitLabel.textContent = this.band.unit = `${name} per pair, ${layer}`;
    const points = (quantile) => data.series(`pair_${quantile}_bits_per_second`, 1 / size);
    this.band.show(data, {
      series: [
        { name: "p5 to p95", colour: "band", low: points("p5"), high: points("p95") },
        { name: "p50", colour: "fleet", points: points("p50") },
      ],
    });
  }
}
