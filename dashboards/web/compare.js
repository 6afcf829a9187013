// View to compare two runs.

import { send } from "./api.js";
import { FIGURE, field, fill, guarded, h, notice, prose, refused, table } from "./dom.js";
import { counted, figureCalled, figureUnit, instant, known, percent } from "./format.js";
import { loadRuns } from "./runs.js";

// If there are more conditions than this, you can open the list to see them.
const CONDITIONS_OPEN_COUNT = 5;

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

// Get the change from A to B. For a ratio it is in percentage points.
function change({ name, ratio, difference }) {
  if (figureUnit(name) === "ratio") return `${percent(difference, 2, true).replace(" %", "")} points`;
  return percent(known(ratio) ? ratio - 1 : null, 2, true);
}

const isSignificant = ({ significant }) => (significant ? "significant" : "not significant");

function mean(side, metric) {
  const [, say] = figureCalled(metric.name);
  const half = metric[`${side}_half_width`];
  return `${say(metric[`${side}_mean`])}${known(half) ? ` ± ${say(half)}` : ""}`;
}

// The first metric as large figures. The coordinator puts the received rate first.
function figures([metric]) {
  if (!metric) return null;
  const [name, say] = figureCalled(metric.name);
  const tile = (title, value, ...notes) =>
    h(
      "div.tile",
      h("h2", title),
      h("p.figure", h("span.value", value)),
      notes.map((note) => h("p.quiet", note)),
    );
  const interval = (half) => (known(half) ? `± ${say(half)}` : "interval unknown");
  return h(
    "section.headline.three",
    { "aria-label": "Comparison" },
    tile("A", say(metric.a_mean), interval(metric.a_half_width), name),
    tile("B", say(metric.b_mean), interval(metric.b_half_width), name),
    tile("B relative to A", change(metric), `${isSignificant(metric)} at 95 %`),
  );
}

// A long list is closed, because the figures are more important.
function conditions(found) {
  const differing = found.conditions_differ.map((each) => h("li", each));
  if (!differing.length) return null;
  const title = counted(differing.length, "other condition");
  return h(
    "details.notice.note",
    { open: differing.length <= CONDITIONS_OPEN_COUNT },
    h("summary", h("strong", `${title} ${differing.length === 1 ? "differs" : "differ"}`)),
    h("ul", differing),
  );
}

function shown(found, a, b) {
  const columns = [
    ["Mean over bursts", ({ name }) => figureCalled(name)[0]],
    ["A", (metric) => mean("a", metric), FIGURE],
    ["B", (metric) => mean("b", metric), FIGURE],
    ["B relative to A", change, FIGURE],
    ["Difference (95 %)", isSignificant],
  ];
  return [
    figures(found.metrics),
    h("p.sentence", prose(found.sentence)),
    found.few_bursts
      ? notice(
          "note",
          "Few bursts",
          "A run has fewer than three bursts. The intervals are based on single seconds.",
        )
      : null,
    h("div.card", table("Comparison of B with A", columns, found.metrics)),
    conditions(found),
    h(
      "p.links",
      h("a", { href: `#/run/${a}` }, `A: ${found.a}`),
      h("a", { href: `#/run/${b}` }, `B: ${found.b}`),
    ),
  ];
}
