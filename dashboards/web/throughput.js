// Chart of the throughput: the rate of the fleet, the target and the device counter. It has the
// same layers and the same lag as the chart `throughput` in the report.

import { LAYERS, known, rateUnit, seconds } from "./format.js";

// Do not draw a bin if only a small part of it is in the burst, because it would look like a
// vertical line.
const SLIVER_S = 0.5;

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

// Factor to convert the payload to the IP layer. It includes the headers.
function layerFactor(data, status, figures) {
  if (data.layer === "link" || status.target_layer === "payload") return 1;
  return figures?.summary.header_ratio ?? 1;
}

export function throughputSeries(data, status, figures, deviceCounter, { size, factor }) {
  const series = [];
  const held = figures?.summary.reconciliation ?? null;
  if (deviceCounter?.bins.length) {
    // A lag that can still change is not subtracted, and the bins are not scaled.
    const isOpen = (figures?.states?.lag?.state ?? "known") !== "known";
    const lag = isOpen ? 0 : (held?.lag_s ?? 0);
    const scale = (held && !isOpen ? factor / held.overhead_ratio : 1) / size;
    const text = isOpen
      ? `, provisional, ${LAYERS[deviceCounter.layer] ?? deviceCounter.layer}`
      : known(held?.lag_s)
        ? `, lag ${seconds(held.lag_s)} subtracted`
        : "";
    series.push({
      name: `device counter${text}`,
      colour: "counter",
      width: 5,
      bins: deviceCounter.bins
        .map((bin) => ({
          from: bin.from_s - lag,
          before: bin.before_s - lag,
          value: bin.bits_per_second === null ? null : bin.bits_per_second * scale,
        }))
        .filter(({ from, before }) => before > SLIVER_S && from < data.totalSeconds - SLIVER_S),
    });
  }
  // Seconds can change until the end of a burst.
  const isProvisional = figures
    ? (figures.states?.seconds?.state ?? "known") !== "known"
    : !data.over && data.layer === "payload";
  series.push({
    name: isProvisional ? "fleet, provisional" : "fleet",
    colour: "fleet",
    points: data.series("fleet_bits_per_second", factor / size),
  });
  const target = status.target_bits_per_second;
  return { series, target: known(target) ? { name: "target", value: target / size } : null };
}
