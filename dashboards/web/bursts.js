// The bursts of a run that is over, one a line.

import { h, table } from "./dom.js";
import { count, instant, known, percent, rate } from "./format.js";
import { verdictBadge } from "./runs.js";
import { RECEIVED } from "./words.js";

const BURSTS_MAX = 100;

export function burstsTable(runId, bursts) {
  const held = bursts.some(({ reconciliation }) => reconciliation);
  const said = (value, text) => (known(value) ? text(value) : "unknown");
  const rows = bursts.slice(0, BURSTS_MAX).map((burst) => {
    const { index, planned_start_at, pairs_measured, pairs_planned, verdict } = burst;
    const ledgers = [
      said(burst.firewall_bits_per_second, rate),
      said(burst.reconciliation?.residual_ratio, (value) => percent(value, 2, true)),
    ];
    return [
      h("a", { href: `#/run/${runId}/burst/${index + 1}` }, String(index + 1)),
      instant(planned_start_at).slice(0, 19),
      rate(burst[RECEIVED]),
      ...(held ? ledgers : []),
      `${count(pairs_measured)} of ${count(pairs_planned)}`,
      percent(burst.completeness_ratio),
      verdictBadge(verdict),
    ];
  });
  const columns = ["Burst", "Planned start (UTC)", "Received, payload"];
  if (held) columns.push("Firewall ledger", "Residual");
  columns.push("Pairs", "Complete", "Verdict");
  const more = bursts.length - BURSTS_MAX;
  const numeric = columns.slice(0, -1).map((_, place) => place);
  return h(
    "section",
    { class: "card" },
    h("h2", {}, "Bursts"),
    table("Bursts", columns, rows, { numeric: numeric.filter((place) => place !== 1), wide: true }),
    more > 0 ? h("p", { class: "quiet" }, `and ${count(more)} more; all are in the workbook`) : null,
  );
}
