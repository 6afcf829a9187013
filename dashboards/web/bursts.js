// Table of the bursts of a completed run.

import { FIGURE, h, table } from "./dom.js";
import { LAYERS, count, instant, percent, rate } from "./format.js";
import { verdictBadge } from "./runs.js";
import { RECEIVED } from "./words.js";

const BURSTS_MAX = 100;

// The rate is at the layer of the objective, as in the headline.
export function burstsTable(runId, bursts, targetLayer) {
  const isIp = targetLayer === "ip";
  const received = isIp ? "fleet_ip_bits_per_second" : RECEIVED;
  const layer = isIp ? LAYERS.ip : LAYERS.payload;
  const held = bursts.some(({ reconciliation }) => reconciliation);
  const counters = [
    ["Device counter", (burst) => rate(burst.firewall_bits_per_second), FIGURE],
    ["Residual", (burst) => percent(burst.reconciliation?.residual_ratio, 2, true), FIGURE],
  ];
  const link = ({ burst }) =>
    h("a", { href: `#/run/${runId}/burst/${burst}` }, String(burst));
  const pairs = (burst) => `${count(burst.pairs_measured)} of ${count(burst.pairs_planned)}`;
  const columns = [
    ["Burst", link, FIGURE],
    ["Planned start (UTC)", (burst) => instant(burst.planned_start_at).slice(0, 19)],
    [`Received, ${layer}`, (burst) => rate(burst[received]), FIGURE],
    ...(held ? counters : []),
    ["Pairs", pairs, FIGURE],
    ["Complete", (burst) => percent(burst.completeness_ratio), FIGURE],
    ["Verdict", (burst) => verdictBadge(burst.verdict)],
  ];
  const more = bursts.length - BURSTS_MAX;
  return h(
    "section.card",
    h("h2", "Bursts"),
    table("Bursts", columns, bursts.slice(0, BURSTS_MAX), { wide: true }),
    more > 0 ? h("p.quiet", `and ${count(more)} more; see the workbook`) : null,
  );
}
