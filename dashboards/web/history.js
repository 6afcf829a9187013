// A burst in all recent runs of a scenario, with the 95 % interval of the rate. You can also see
// the devices that have been tested.

import { read } from "./api.js";
import { FIGURE, field, fill, guarded, h, refused, table } from "./dom.js";
import { LAYERS, digits, instant, known, rate, rateUnit } from "./format.js";
import { Cursor, LineChart } from "./lines.js";
import { loadRuns, verdictBadge } from "./runs.js";
import { RECEIVED } from "./words.js";

const RUNS_MAX = 20;

const DEVICES = [
  ["Device, as stated at launch", ([name]) => name],
  ["Runs", ([, runs]) => runs.length, FIGURE],
  ["Pass", ([, runs]) => runs.filter((run) => run.outcome.verdict === "pass").length, FIGURE],
  ["Latest run", ([, [{ run_id: id }]]) => h("a.mono", { href: `#/run/${id}` }, id)],
  ["Verdict", ([, [{ outcome }]]) => verdictBadge(outcome.verdict, outcome.cancelled)],
];

// Chart of the rates, the oldest first.
function chartOf(points, layers) {
  const [unit, size] = rateUnit(Math.max(...points.map(({ value, half }) => value + (half ?? 0))));
  const side = (sign) =>
    points.map(({ value, half }) =>
      known(half) ? Math.max(0, value + sign * half) / size : null,
    );
  const chart = new LineChart({
    title: "Received rate",
    height: 260,
    unit: `${unit}, ${layers.join(" or ")}, at real scale`,
    format: digits,
    cursor: new Cursor(() => chart.draw()),
    axis: {
      row: "Run of",
      name: (place) => points[place].name,
      ticks: (total) => (total > 1 ? [0, total] : []),
      label: (place) => (place ? "newer" : "older"),
    },
  });
  const verdicts = points.map(({ verdict }) => verdict);
  chart.show(
    { total: points.length, over: true },
    {
      series: [
        { name: "95 % interval", low: side(-1), high: side(1) },
        { name: "received", points: points.map(({ value }) => value / size), dots: verdicts },
      ],
    },
  );
  return chart;
}

export function historyView(main) {
  const scenario = h("select", { id: "history-scenario", onchange: show });
  const burst = h("input", {
    id: "history-burst",
    type: "number",
    min: "1",
    value: "1",
    onchange: show,
  });
  const result = h("div.stack");
  const devices = h("div.stack");
  main.append(
    h("div.title", h("h1", "History")),
    h(
      "form.card.pickers",
      { onsubmit: (event) => event.preventDefault() },
      field("Scenario", scenario),
      field("Burst", burst),
    ),
    result,
    devices,
  );
  let runs = [];
  let asked = 0;
  let chart = null;
  const redraw = () => chart?.draw();
  const sized = new ResizeObserver(() => requestAnimationFrame(redraw));
  sized.observe(main);
  addEventListener("theme", redraw);

  const begin = guarded(result, async () => {
    runs = (await loadRuns()).filter((run) => run.outcome !== null);
    const names = [...new Set(runs.map((run) => run.scenario))];
    scenario.append(...names.map((name) => h("option", { value: name }, name)));
    showDevices();
    await show();
  });

  async function show() {
    const number = ++asked;
    const index = Math.max(0, Number(burst.value) - 1);
    const chosen = runs.filter((run) => run.scenario === scenario.value).slice(0, RUNS_MAX);
    if (!chosen.length) {
      fill(result, h("p.empty", "No finished runs."));
      return;
    }
    try {
      const bursts = await Promise.all(
        chosen.map((run) => read(`/v1/runs/${run.run_id}/bursts?limit=${index + 1}`)),
      );
      if (number !== asked) return;
      const points = chosen
        .map((run, i) => ({ run, summary: bursts[i][index]?.summary }))
        .filter(({ summary }) => known(summary?.[RECEIVED]))
        .map(({ run, summary }) => {
          // As in the list of runs, the rate is at the layer of the objective.
          const ip = summary.fleet_ip_bits_per_second;
          const atIp = run.outcome.target_layer === "ip" && known(ip);
          const factor = run.outcome.scale * (atIp ? summary.header_ratio : 1);
          const half = summary.fleet_received_half_width_bits_per_second;
          return {
            run,
            name: instant(summary.planned_start_at),
            layer: atIp ? LAYERS.ip : LAYERS.payload,
            value: (atIp ? ip : summary[RECEIVED]) * run.outcome.scale,
            half: known(half) ? half * factor : null,
            verdict: summary.verdict,
          };
        });
      if (!points.length) {
        fill(result, h("p.empty", `No run has a burst ${index + 1}.`));
        return;
      }
      const layers = [...new Set(points.map(({ layer }) => layer))];
      const run = ({ run_id: id }) => h("a.mono", { href: `#/run/${id}/burst/${index + 1}` }, id);
      const columns = [
        ["Start", ({ name }) => name],
        ["Run", (point) => run(point.run)],
        ["Received", ({ value, layer }) => `${rate(value)}, ${layer}`, FIGURE],
        ["± at 95 %", ({ half }) => rate(half), FIGURE],
        ["Verdict", ({ verdict }) => verdictBadge(verdict)],
      ];
      const title = `Burst ${index + 1} of ${points.length === 1 ? "the only run" : `the latest ${points.length} runs`} of ${scenario.value}`;
      chart = chartOf(points.toReversed(), layers);
      fill(
        result,
        h("section.card", h("h2", title), chart.element),
        table(title, columns, points, { wide: true }),
      );
      redraw();
    } catch (problem) {
      if (number === asked && problem.status !== 401) fill(result, refused(problem));
    }
  }

  function showDevices() {
    const groups = new Map();
    for (const run of runs) {
      const said = Object.entries(run.device).map(([name, value]) => `${name} ${value}`);
      const key = said.join(", ") || "not stated";
      groups.set(key, [...(groups.get(key) ?? []), run]);
    }
    if (!groups.size) return;
    fill(
      devices,
      h("h2", "Devices under test"),
      table("Devices under test", DEVICES, [...groups], { wide: true }),
    );
  }

  begin();
  return () => {
    sized.disconnect();
    removeEventListener("theme", redraw);
  };
}
