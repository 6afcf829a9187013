// A burst in all recent runs of a scenario, with the 95 % interval of the rate. You can also see
// the devices that have been tested.

import { read } from "./api.js";
import { ticks } from "./canvas.js";
import { FIGURE, field, fill, guarded, h, refused, table } from "./dom.js";
import { LAYERS, digits, instant, known, niceAbove, rate, rateUnit } from "./format.js";
import { loadRuns, verdictBadge } from "./runs.js";
import { RECEIVED } from "./words.js";

const RUNS_MAX = 20;
const HEIGHT = 260;
const LEFT = 44;
const BOTTOM = 34;
const TOP = 14;
const NAMES = "http://www.w3.org/2000/svg";

const DEVICES = [
  ["Device, as stated at launch", ([name]) => name],
  ["Runs", ([, runs]) => runs.length, FIGURE],
  ["Pass", ([, runs]) => runs.filter((run) => run.outcome.verdict === "pass").length, FIGURE],
  ["Latest run", ([, [{ run_id: id }]]) => h("a.mono", { href: `#/run/${id}` }, id)],
  ["Verdict", ([, [{ outcome }]]) => verdictBadge(outcome.verdict, outcome.cancelled)],
];

function svg(tag, attributes, ...children) {
  const element = document.createElementNS(NAMES, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const most = (points) =>
  niceAbove(Math.max(...points.map(({ value, half }) => value + (half ?? 0))));

function drawn(points, width) {
  const top = most(points);
  const [, each] = rateUnit(top);
  const y = (value) => HEIGHT - BOTTOM - (Math.max(0, value) / top) * (HEIGHT - BOTTOM - TOP);
  const step = (width - LEFT - 12) / Math.max(1, points.length);
  const x = (index) => LEFT + step * (index + 0.5);
  const grid = ticks(0, top, 5).map((tick) =>
    svg(
      "g",
      {},
      svg("line", { class: "grid", x1: LEFT, x2: width, y1: y(tick), y2: y(tick) }),
      svg("text", { x: LEFT - 8, y: y(tick) + 4, "text-anchor": "end" }, digits(tick / each)),
    ),
  );
  const marks = points.map(({ value, half, verdict, name }, index) =>
    svg(
      "g",
      { class: `mark ${verdict}` },
      svg("title", {}, `${name}: ${rate(value)}${known(half) ? ` ± ${rate(half)}` : ""}`),
      ...(known(half) ? whisker(x(index), y(value - half), y(value + half)) : []),
      svg("circle", { cx: x(index), cy: y(value), r: 4.5 }),
    ),
  );
  return svg(
    "svg",
    { viewBox: `0 0 ${width} ${HEIGHT}`, class: "history", role: "img", "aria-label": "History" },
    ...grid,
    ...(points.length > 1 ? ["older", "newer"] : []).map((word, place) => {
      const at = x(place ? points.length - 1 : 0);
      return svg("text", { x: at, y: HEIGHT - 10, "text-anchor": "middle" }, word);
    }),
    ...marks,
  );
}

// Draw a line from the low to the high value, with a bar at both ends.
function whisker(x, low, high) {
  const across = [low, high].map((y) => ({ x1: x - 6, x2: x + 6, y1: y, y2: y }));
  return [{ x1: x, x2: x, y1: low, y2: high }, ...across].map((ends) => svg("line", ends));
}

// Draw a chart that uses the full width of its parent, and draw it again if the width changes.
function fitted(points) {
  const place = h("div");
  new ResizeObserver(() => {
    const width = Math.max(200, place.clientWidth);
    if (place.firstChild?.viewBox.baseVal.width !== width) fill(place, drawn(points, width));
  }).observe(place);
  return place;
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
      fill(
        result,
        h(
          "section.card",
          h("h2", title),
          h(
            "p.quiet",
            `Received rate at real scale, ${layers.join(" or ")}, ${rateUnit(most(points))[0]}, with its 95 % interval.`,
          ),
          fitted([...points].reverse()),
        ),
        table(title, columns, points, { wide: true }),
      );
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
}
