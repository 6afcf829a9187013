// List of runs, from new to old. More runs will be loaded when you scroll down.

import { ask, read } from "./api.js";
import { announce, every, fill, guarded, h } from "./dom.js";
import { LAYERS, digits, instant, known, percent, rate } from "./format.js";
import { RECEIVED } from "./words.js";

const PAGE = 50;
const REFRESH_MS = 5000;

export function verdictBadge(verdict, cancelled = false) {
  if (!verdict) return h("span.badge.going", "in progress");
  const sign = { pass: "✓", fail: "✕", inconclusive: "?", measured: "=" }[verdict] ?? "";
  return h(
    "span",
    { class: `badge ${verdict}` },
    h("span", { "aria-hidden": "true" }, sign),
    ` ${verdict}${cancelled ? ", aborted" : ""}`,
  );
}

function nothingYet(operator) {
  const how = operator
    ? "Launch the loopback scenario. It needs one client and one server, which can be on one host."
    : "Operators can launch runs.";
  const link = h("a.button.primary", { href: "#/launch/loopback" }, "Launch loopback");
  return h("div.empty", h("h2", "No run yet"), h("p", how), operator ? link : null);
}

function runLink({ run_id: id, scenario, outcome, ...run }) {
  const created = instant(run.created_at);
  const isImported = Date.parse(run.traffic_from_at) < Date.parse(run.created_at);
  const when = isImported
    ? `${instant(run.traffic_from_at)}, imported ${created.slice(0, 10)} by ${run.created_by}`
    : `${created} by ${run.created_by}`;
  const labels = Object.entries(run.labels).map(([name, value]) =>
    h("span.tag", `${name}=${value}`),
  );
  return h(
    "a.run",
    { href: `#/run/${id}`, id: `run-${id}` },
    h("span.name", h("strong", scenario), h("span.mono", id)),
    h("span.facts", when, labels.length ? h("span.labels", labels) : null),
    h("span.figures", figures(outcome)),
    verdictBadge(outcome?.verdict, outcome?.cancelled),
  );
}

// Get the rate at the layer of the objective, as measured. A run of an older version has only
// the payload rate.
function figures(outcome) {
  if (!known(outcome?.[RECEIVED])) return h("span.quiet", outcome ? "no data received" : "");
  const atIp = outcome.target_layer === "ip" && known(outcome.fleet_ip_bits_per_second);
  const value = atIp ? outcome.fleet_ip_bits_per_second : outcome[RECEIVED];
  const lab = outcome.scale === 1 ? "" : `, lab at 1:${digits(outcome.scale)}`;
  return [
    h("span.rate", rate(value)),
    h(
      "span.quiet",
      `${atIp ? LAYERS.ip : LAYERS.payload}${lab}; ${percent(outcome.completeness_ratio)} complete`,
    ),
  ];
}

export function runsView(main, _, { operator }) {
  let cursor = null;
  let runs = [];
  let paged = false;
  const chosen = new Set();
  const filter = h("input", {
    id: "filter",
    type: "search",
    "aria-label": "Filter",
    placeholder: "Scenario, id, label or user",
    oninput: draw,
  });
  const verdicts = h(
    "select",
    { id: "verdict", "aria-label": "Outcome", onchange: draw },
    [
      ["", "Any outcome"],
      ["going", "In progress"],
      ["pass", "Pass"],
      ["fail", "Fail"],
      ["inconclusive", "Inconclusive"],
      ["measured", "Measured"],
    ].map(([value, name]) => h("option", { value }, name)),
  );
  const list = h("div");
  const more = h(
    "button",
    { type: "button", hidden: true, onclick: () => load(true) },
    "Older runs",
  );
  const compare = h("a.button", { hidden: true }, "Compare selected runs");
  main.append(
    h(
      "div.title",
      h("h1", "Runs"),
      h("span.spacer"),
      compare,
      operator ? h("a.button.primary", { href: "#/launch" }, "Launch a run") : null,
    ),
    h(
      "div.filters",
      h("label", { for: "filter" }, "Filter"),
      filter,
      h("label.unseen", { for: "verdict" }, "Outcome"),
      verdicts,
    ),
    list,
    h("p.more", more),
  );

  const load = guarded(list, async (older = false) => {
    const at = older && cursor ? `&cursor=${encodeURIComponent(cursor)}` : "";
    const answer = await ask(`/v1/runs?limit=${PAGE}${at}`);
    const got = await answer.json();
    const next = answer.headers.get("Next-Cursor");
    const mine = got.map((each) => each.run_id);
    runs = older
      ? [...runs, ...got]
      : paged
        ? [...got, ...runs.filter((each) => !mine.includes(each.run_id))]
        : got;
    if (older || !paged) cursor = next;
    paged ||= older;
    more.hidden = !cursor;
    draw();
  });

  function fits(run) {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const labels = Object.entries(run.labels).map(([name, value]) => `${name}=${value}`);
    const text = [run.run_id, run.scenario, run.created_by, ...labels].join(" ").toLowerCase();
    const outcome = run.outcome?.verdict ?? "going";
    return (
      words.every((word) => text.includes(word)) && (!verdicts.value || verdicts.value === outcome)
    );
  }

  function choose(run, box) {
    if (box.checked) chosen.add(run);
    else chosen.delete(run);
    compare.hidden = chosen.size !== 2;
    const [a, b] = [...chosen].sort();
    compare.href = `#/compare?a=${a}&b=${b}`;
    if (chosen.size === 2) announce("Two runs selected. The link above compares them");
  }

  function draw() {
    const shown = runs.filter(fits);
    const focused = document.activeElement?.id;
    if (!runs.length) fill(list, nothingYet(operator));
    else if (!shown.length)
      fill(list, h("p.empty", `None of the ${runs.length} loaded runs matches the filter.`));
    else fill(list, h("ul.runs", shown.map(item)));
    if (focused) document.getElementById(focused)?.focus();
  }

  function item(run) {
    const box = h("input", {
      type: "checkbox",
      id: `choose-${run.run_id}`,
      "aria-label": `Compare ${run.run_id}`,
      disabled: !run.outcome,
      checked: chosen.has(run.run_id),
      onchange: () => choose(run.run_id, box),
    });
    return h("li", h("span.pick", box), runLink(run));
  }

  fill(list, h("p.quiet", "Loading."));
  return every(REFRESH_MS, load);
}

export const loadRuns = (limit = 100) => read(`/v1/runs?limit=${limit}`);
