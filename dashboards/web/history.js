// One burst over the newest runs of a scenario: the rate with its 95 % interval; and the devices
// that were under test.

import { read } from "./api.js";
import { ticks } from "./canvas.js";
import { fill, h, notice, table } from "./dom.js";
import { digits, instant, known, niceAbove, rate, rateUnit } from "./format.js";
import { loadRuns, verdictBadge } from "./runs.js";
import { RECEIVED } from "./words.js";

const RUNS_MAX = 20;
const HEIGHT = 260;
const LEFT = 44;
const BOTTOM = 34;
const TOP = 14;
const NAMES = "http://www.w3.org/2000/svg";

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
      svg(
        "text",
        { x: LEFT - 8, y: y(tick) + 4, "text-anchor": "end" },
        digits(tick / each),
      ),
    ),
  );
  const marks = points.map(({ value, half, verdict, name }, index) =>
    svg(
      "g",
      { class: `mark ${verdict}` },
      svg("title", {}, `${name}: ${rate(value)}${known(half) ? ` ± ${rate(half)}` : ""}`),
      ...(known(half)
        ? [
            svg("line", { x1: x(index), x2: x(index), y1: y(value - half), y2: y(value + half) }),
            svg("line", {
              x1: x(index) - 6,
              x2: x(index) + 6,
              y1: y(value - half),
              y2: y(value - half),
            }),
            svg("line", {
              x1: x(index) - 6,
              x2: x(index) + 6,
              y1: y(value + half),
              y2: y(value + half),
            }),
          ]
        : []),
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

// As wide as what it stands in, also when that changes.
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
  const result = h("div", { class: "stack" });
  const devices = h("div", { class: "stack" });
  main.append(
    h("div", { class: "title" }, h("h1", {}, "History")),
    h(
      "form",
      { class: "card pickers", onsubmit: (event) => event.preventDefault() },
      h("div", {}, h("label", { for: "history-scenario" }, "Scenario"), scenario),
      h("div", {}, h("label", { for: "history-burst" }, "Burst"), burst),
    ),
    result,
    devices,
  );
  let runs = [];
  let asked = 0;

  async function begin() {
    try {
      runs = (await loadRuns()).filter((run) => run.outcome !== null);
      const names = [...new Set(runs.map((run) => run.scenario))];
      scenario.append(...names.map((name) => h("option", { value: name }, name)));
      showDevices();
      await show();
    } catch (problem) {
      if (problem.status !== 401) fill(result, notice("bad", problem.title, problem.message));
    }
  }

  async function show() {
    const number = ++asked;
    const index = Math.max(0, Number(burst.value) - 1);
    const chosen = runs.filter((run) => run.scenario === scenario.value).slice(0, RUNS_MAX);
    if (!chosen.length) {
      fill(result, h("p", { class: "empty" }, "No run is over yet."));
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
        .map(({ run, summary }) => ({
          run,
          name: instant(summary.planned_start_at),
          value: summary[RECEIVED] * run.outcome.scale,
          half: known(summary.fleet_received_half_width_bits_per_second)
            ? summary.fleet_received_half_width_bits_per_second * run.outcome.scale
            : null,
          verdict: summary.verdict,
        }));
      if (!points.length) {
        fill(result, h("p", { class: "empty" }, `None of the runs has a burst ${index + 1}.`));
        return;
      }
      const title = `Burst ${index + 1} of ${points.length === 1 ? "the one run" : `the newest ${points.length} runs`} of ${scenario.value}`;
      fill(
        result,
        h(
          "section",
          { class: "card" },
          h("h2", {}, title),
          h(
            "p",
            { class: "quiet" },
            `Payload received at real scale, ${rateUnit(most(points))[0]}, with its 95 % interval.`,
          ),
          fitted([...points].reverse()),
        ),
        table(
          title,
          ["Start", "Run", "Received", "± at 95 %", "Verdict"],
          points.map(({ run, name, value, half, verdict }) => [
            name,
            h("a", { class: "mono", href: `#/run/${run.run_id}/burst/${index + 1}` }, run.run_id),
            rate(value),
            known(half) ? rate(half) : "unknown",
            verdictBadge(verdict),
          ]),
          { numeric: [2, 3], wide: true },
        ),
      );
    } catch (problem) {
      if (number === asked && problem.status !== 401)
        fill(result, notice("bad", problem.title, problem.message));
    }
  }

  function showDevices() {
    const groups = new Map();
    for (const run of runs) {
      const said = Object.entries(run.device ?? {}).map(([name, value]) => `${name} ${value}`);
      const key = said.join(", ") || "not said";
      groups.set(key, [...(groups.get(key) ?? []), run]);
    }
    if (!groups.size) return;
    fill(
      devices,
      h("h2", {}, "Devices under test"),
      table(
        "Devices under test",
        ["Device, as launches said", "Runs", "Pass", "Newest run", "Its verdict"],
        [...groups].map(([name, of]) => [
          name,
          of.length,
          of.filter((run) => run.outcome.verdict === "pass").length,
          h("a", { class: "mono", href: `#/run/${of[0].run_id}` }, of[0].run_id),
          verdictBadge(of[0].outcome.verdict, of[0].outcome.cancelled),
        ]),
        { numeric: [1, 2], wide: true },
      ),
    );
  }

  begin();
}
