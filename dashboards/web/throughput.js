// The fleet's rate at the objective's layer, beside the target and the firewall's own bins: the
// live counterpart of the report's chart `throughput`, with the same layers and the same lag.

import { LAYERS, known, rateUnit, seconds } from "./format.js";

const SLIVER_S = 0.5; // a bin that reaches no further into the burst would be a line up its edge

export function throughputUnit({ data, status, figures }) {
  const factor = layerFactor(data, status, figures);
  let top = status.target_bits_per_second ?? 0;
  for (const value of data.series("fleet_bits_per_second", factor)) if (value > top) top = value;
  const [unit, size] = rateUnit(top || 1e6);
  const layer = data.layer === "link" ? "link layer, senders' NICs" : LAYERS[status.target_layer];
  const pair = rateUnit(data.topBitsPerSecond || 1e6);
  return {
    size,
    unit,
    factor,
    label: `${unit}, ${layer}, received`.replace(", senders' NICs, received", ", senders' NICs"),
    pair,
  };
}

// Payload times the burst's header ratio is what crosses at the IP layer.
function layerFactor(data, status, figures) {
  if (data.layer === "link" || status.target_layer === "payload") return 1;
  return figures?.summary.header_ratio ?? 1;
}

export function throughputSeries(data, status, figures, ledger, { size, factor }) {
  const series = [];
  const held = figures?.summary.reconciliation ?? null;
  if (ledger?.bins.length) {
    const lag = held?.lag_s ?? 0;
    const scale = (held ? factor / held.overhead_ratio : 1) / size;
    series.push({
      name: `device counter${known(held?.lag_s) ? `, lag ${seconds(held.lag_s)} subtracted` : ""}`,
      colour: "counter",
      width: 5,
      bins: ledger.bins
        .map((bin) => ({
          from: bin.from_s - lag,
          before: bin.before_s - lag,
          value: bin.bits_per_second === null ? null : bin.bits_per_second * scale,
        }))
        .filter(({ from, before }) => before > SLIVER_S && from < data.totalSeconds - SLIVER_S),
    });
  }
  series.push({
    name: "fleet",
    colour: "fleet",
    points: data.series("fleet_bits_per_second", factor / size),
  });
  const target = status.target_bits_per_second;
  return { series, target: known(target) ? { name: "target", value: target / size } : null };
}
