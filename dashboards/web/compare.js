// View to compare two runs.

import { send } from "./api.js";
import { FIGURE, field, fill, guarded, h, notice, refused, table } from "./dom.js";
import { figureCalled, instant, known, percent } from "./format.js";
import { loadRuns } from "./runs.js";

export function compareView(main, [query]) {
  const asked = new URLSearchParams(query ?? "");
  const pick = { a: h("select", { id: "run-a" }), b: h("select", { id: "run-b" }) };
  const result = h("div.stack");
  main.append(
    h("div.title", h("h1", "Compare")),
    h(
      "form.card.pickers",
      {
        onsubmit: (event) => {
          event.preventDefault();
          compare();
        },
      },
      field("Run A", pick.a),
      field("Run B", pick.b),
      h("button.primary", "Compare"),
    ),
    result,
  );

  const begin = guarded(result, async () => {
    const runs = (await loadRuns()).filter((run) => run.outcome !== null);
    for (const side of ["a", "b"]) {
      const wanted = asked.get(side);
      const all =
        wanted && !runs.some((run) => run.run_id === wanted) ? [{ run_id: wanted }, ...runs] : runs;
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
      fill(result, h("p.empty", "At least two finished runs are required."));
    else if (asked.get("a") && asked.get("b")) compare();
  });

  async function compare() {
    const [a, b] = [pick.a.value, pick.b.value];
    if (!a || !b) return;
    history.replaceState(null, "", `#/compare?a=${a}&b=${b}`);
    fill(result, h("p.quiet", "Comparing."));
    try {
      const found = await send("POST", "/v1/comparisons", {
        a: { run_ids: [a] },
        b: { run_ids: [b] },
      });
      fill(result, shown(found, a, b));
    } catch (problem) {
      fill(result, refused(problem));
    }
  }
  begin();
}

function shown(found, a, b) {
  const mean = (side) => (metric) => {
    const [, say] = figureCalled(metric.name);
    const half = metric[`${side}_half_width`];
    return `${say(metric[`${side}_mean`])}${known(half) ? ` ± ${say(half)}` : ""}`;
  };
  const columns = [
    ["Mean over bursts", ({ name }) => figureCalled(name)[0]],
    ["A", mean("a"), FIGURE],
    ["B", mean("b"), FIGURE],
    ["B relative to A", ({ ratio }) => percent(known(ratio) ? ratio - 1 : null, 2, true), FIGURE],
    ["Difference (95 %)", ({ significant }) => (significant ? "significant" : "not significant")],
  ];
  const differing = found.conditions_differ.map((each) => h("li", each));
  return [
    h("p.sentence", found.sentence),
    found.few_bursts
      ? notice(
          "note",
          "Thin",
          "A run has fewer than three bursts. The intervals are based on single seconds.",
        )
      : null,
    found.conditions_differ.length
      ? notice("note", "Other conditions differ", null, h("ul", differing))
      : null,
    h("div.card", table("Comparison of B with A", columns, found.metrics)),
    h(
      "p.links",
      h("a", { href: `#/run/${a}` }, `A: ${found.a}`),
      h("a", { href: `#/run/${b}` }, `B: ${found.b}`),
    ),
  ];
}
