// Two runs side by side.

import { send } from "./api.js";
import { fill, h, notice, table } from "./dom.js";
import { figureCalled, instant, known, percent } from "./format.js";
import { loadRuns } from "./runs.js";

export function compareView(main, [query]) {
  const asked = new URLSearchParams(query ?? "");
  const pick = { a: h("select", { id: "run-a" }), b: h("select", { id: "run-b" }) };
  const result = h("div", { class: "stack" });
  main.append(
    h("div", { class: "title" }, h("h1", {}, "Compare")),
    h(
      "form",
      {
        class: "card pickers",
        onsubmit: (event) => {
          event.preventDefault();
          compare();
        },
      },
      h("div", {}, h("label", { for: "run-a" }, "Run A"), pick.a),
      h("div", {}, h("label", { for: "run-b" }, "Run B"), pick.b),
      h("button", { class: "primary" }, "Compare"),
    ),
    result,
  );

  async function begin() {
    try {
      const runs = (await loadRuns()).filter((run) => run.outcome !== null);
      for (const side of ["a", "b"]) {
        const wanted = asked.get(side);
        const all =
          wanted && !runs.some((run) => run.run_id === wanted)
            ? [{ run_id: wanted }, ...runs]
            : runs;
        pick[side].append(
          ...all.map((run) =>
            h(
              "option",
              { value: run.run_id },
              run.created_at ? `${run.scenario}, ${instant(run.created_at)}` : run.run_id,
            ),
          ),
        );
        pick[side].value = wanted ?? runs[side === "a" ? 1 : 0]?.run_id ?? "";
      }
      if (runs.length < 2)
        fill(
          result,
          h("p", { class: "empty" }, "Two runs that are over are needed; there are fewer."),
        );
      else if (asked.get("a") && asked.get("b")) compare();
    } catch (problem) {
      if (problem.status !== 401) fill(result, notice("bad", problem.title, problem.message));
    }
  }

  async function compare() {
    const [a, b] = [pick.a.value, pick.b.value];
    if (!a || !b) return;
    history.replaceState(null, "", `#/compare?a=${a}&b=${b}`);
    fill(result, h("p", { class: "quiet" }, "Comparing."));
    try {
      const found = await send("POST", "/v1/comparisons", {
        a: { run_ids: [a] },
        b: { run_ids: [b] },
      });
      fill(result, shown(found, a, b));
    } catch (problem) {
      fill(result, notice("bad", problem.title, problem.message));
    }
  }
  begin();
}

function shown(found, a, b) {
  const half = (say, value) => (known(value) ? ` ± ${say(value)}` : "");
  const rows = found.metrics.map((metric) => {
    const [name, say] = figureCalled(metric.name);
    const change = known(metric.ratio) ? percent(metric.ratio - 1, 2, true) : "unknown";
    return [
      name,
      `${say(metric.a_mean)}${half(say, metric.a_half_width)}`,
      `${say(metric.b_mean)}${half(say, metric.b_half_width)}`,
      change,
      metric.apart ? "apart at 95 %" : "not told apart",
    ];
  });
  return [
    h("p", { class: "sentence" }, found.sentence),
    found.thin
      ? notice(
          "note",
          "Thin",
          "A run has fewer than three bursts: the intervals rest on single seconds.",
        )
      : null,
    found.conditions_differ.length
      ? notice(
          "note",
          "Not only the run differs",
          null,
          h(
            "ul",
            {},
            found.conditions_differ.map((each) => h("li", {}, each)),
          ),
        )
      : null,
    h(
      "div",
      { class: "card" },
      table("Comparison of B with A", ["Mean over bursts", "A", "B", "B against A", "95 % intervals"], rows, {
        numeric: [1, 2, 3],
      }),
    ),
    h(
      "p",
      { class: "links" },
      h("a", { href: `#/run/${a}` }, `A: ${found.a}`),
      h("a", { href: `#/run/${b}` }, `B: ${found.b}`),
    ),
  ];
}
