// The list of runs, newest first, as far as one scrolls.

import { ask, read } from "./api.js";
import { announce, fill, h, notice } from "./dom.js";
import { instant, known, percent, rate } from "./format.js";
import { RECEIVED } from "./words.js";

const PAGE = 50;
const REFRESH_MS = 5000;

export function verdictBadge(verdict, cancelled = false) {
  if (!verdict) return h("span", { class: "badge going" }, "under way");
  const sign = { pass: "✓", fail: "✕", inconclusive: "?", measured: "=" }[verdict] ?? "";
  return h(
    "span",
    { class: `badge ${verdict}` },
    h("span", { "aria-hidden": "true" }, sign),
    ` ${verdict}${cancelled ? ", aborted" : ""}`,
  );
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
    placeholder: "Scenario, id, label or who",
    oninput: draw,
  });
  const verdicts = h(
    "select",
    { id: "verdict", "aria-label": "Outcome", onchange: draw },
    [
      ["", "Any outcome"],
      ["going", "Under way"],
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
  const compare = h("a", { class: "button", hidden: true }, "Compare the two");
  main.append(
    h(
      "div",
      { class: "title" },
      h("h1", {}, "Runs"),
      h("span", { class: "spacer" }),
      compare,
      operator ? h("a", { class: "button primary", href: "#/launch" }, "Launch a run") : null,
    ),
    h(
      "div",
      { class: "filters" },
      h("label", { for: "filter" }, "Filter"),
      filter,
      h("label", { for: "verdict", class: "unseen" }, "Outcome"),
      verdicts,
    ),
    list,
    h("p", { class: "more" }, more),
  );

  async function load(older = false) {
    try {
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
    } catch (problem) {
      if (problem.status === 401) return;
      fill(list, notice("bad", problem.title, problem.message));
    }
  }

  function fits(run) {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const labels = Object.entries(run.labels ?? {}).map(([name, value]) => `${name}=${value}`);
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
    if (chosen.size === 2) announce("Two runs chosen: compare them with the link above");
  }

  function draw() {
    const shown = runs.filter(fits);
    if (!runs.length) {
      fill(
        list,
        h(
          "div",
          { class: "empty" },
          h("h2", {}, "No run yet"),
          h(
            "p",
            {},
            operator
              ? "Launch the loopback scenario: one client and one server carry it, on one host if need be."
              : "An operator can launch one.",
          ),
          operator
            ? h("a", { class: "button primary", href: "#/launch/loopback" }, "Launch loopback")
            : null,
        ),
      );
      return;
    }
    if (!shown.length) {
      fill(
        list,
        h(
          "p",
          { class: "empty" },
          `None of the ${runs.length} runs that are loaded fits the filter.`,
        ),
      );
      return;
    }
    const focused = document.activeElement?.id;
    fill(
      list,
      h(
        "ul",
        { class: "runs" },
        shown.map((run) => {
          const over = run.outcome;
          const labels = Object.entries(run.labels ?? {});
          const box = h("input", {
            type: "checkbox",
            id: `choose-${run.run_id}`,
            "aria-label": `Compare ${run.run_id}`,
            disabled: !over,
            checked: chosen.has(run.run_id),
          });
          box.addEventListener("change", () => choose(run.run_id, box));
          return h(
            "li",
            {},
            h("span", { class: "pick" }, box),
            h(
              "a",
              { href: `#/run/${run.run_id}`, class: "run", id: `run-${run.run_id}` },
              h(
                "span",
                { class: "name" },
                h("strong", {}, run.scenario),
                h("span", { class: "mono" }, run.run_id),
              ),
              h(
                "span",
                { class: "facts" },
                Date.parse(run.traffic_from_at) < Date.parse(run.created_at)
                  ? `${instant(run.traffic_from_at)}, imported ${instant(run.created_at).slice(0, 10)} by ${run.created_by}`
                  : `${instant(run.created_at)} by ${run.created_by}`,
                labels.length
                  ? h(
                      "span",
                      { class: "labels" },
                      labels.map(([name, value]) =>
                        h("span", { class: "tag" }, `${name}=${value}`),
                      ),
                    )
                  : null,
              ),
              h(
                "span",
                { class: "figures" },
                over && known(over[RECEIVED])
                  ? [
                      h(
                        "span",
                        { class: "rate" },
                        rate(over[RECEIVED] * (over.scale ?? 1)),
                      ),
                      h(
                        "span",
                        { class: "quiet" },
                        `payload${over.scale !== 1 ? ", real scale" : ""}; ${percent(over.completeness_ratio)} complete`,
                      ),
                    ]
                  : h("span", { class: "quiet" }, over ? "nothing received" : ""),
              ),
              verdictBadge(over?.verdict, over?.cancelled),
            ),
          );
        }),
      ),
    );
    if (focused) document.getElementById(focused)?.focus();
  }

  fill(list, h("p", { class: "quiet" }, "Reading the list of runs."));
  load();
  const timer = setInterval(() => document.hidden || load(), REFRESH_MS);
  return () => clearInterval(timer);
}

export const loadRuns = (limit = 100) => read(`/v1/runs?limit=${limit}`);
