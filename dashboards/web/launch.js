// Choose a scenario, see what it would take and cost, launch it.

import { coordinatorNow, read, readIfThere, send } from "./api.js";
import { announce, fill, h, notice } from "./dom.js";
import { counted, fieldsOf, known, LAYERS, percent, rate, span, told } from "./format.js";
import { GOALS } from "./words.js";
import { priceLines } from "./price.js";

const TARGET = "objective.target_bits_per_second";
const FIELDS = [
  ["pairs_count", "Pairs", "client and server", (spec) => spec.pairs_count],
  ["bursts_count", "Bursts", "", (spec) => spec.bursts_count],
  ["burst_s", "Length of a burst", "s", (spec) => spec.burst_s],
  ["period_s", "From start to start", "s", (spec) => spec.period_s],
  ["traffic.streams_count", "Streams a pair", "", (spec) => spec.traffic.streams_count],
  [
    TARGET,
    "Target",
    "Gbit/s",
    (spec) =>
      known(spec.objective.target_bits_per_second)
        ? spec.objective.target_bits_per_second / 1e9
        : "",
  ],
];

const FIRST = "loopback"; // one client and one server carry it

export function launchView(main, [wanted], { operator }) {
  if (!operator) {
    main.append(
      notice("note", "Not for viewers", "An operator launches runs; you may follow them."),
    );
    return null;
  }
  const scenario = h("select", { id: "scenario", onchange: () => choose(scenario.value) });
  const about = h("p", { class: "quiet" });
  const fields = new Map();
  const units = new Map();
  const grid = h("div", { class: "fields" });
  const more = h("textarea", {
    id: "more",
    rows: "3",
    spellcheck: "false",
    placeholder: "traffic.direction=bidirectional\nlabels.idps=off",
    oninput: lookSoon,
  });
  const answer = h("div", { class: "answer", "aria-live": "polite" });
  const problems = h("div");
  const launch = h("button", { class: "primary" }, "Launch");
  let scenarios = {};
  let fleet = [];
  let timer = null;
  let asked = 0;
  // One key a visit: a second click, or a retry after a lost answer, is the same launch.
  let key = crypto.randomUUID?.() ?? String(Math.random()).slice(2);

  for (const [name, label, unit] of FIELDS) {
    const id = `field-${name.replaceAll(".", "-")}`;
    const input = h("input", { id, type: "number", min: "0", step: "any", oninput: lookSoon });
    fields.set(name, input);
    units.set(name, h("span", { class: "quiet" }, unit ? ` ${unit}` : ""));
    grid.append(h("div", {}, h("label", { for: id }, label, units.get(name)), input));
  }
  main.append(
    h("div", { class: "title" }, h("h1", {}, "Launch")),
    h(
      "div",
      { class: "columns launch" },
      h(
        "form",
        { class: "card", onsubmit: go },
        h("label", { for: "scenario" }, "Scenario"),
        scenario,
        about,
        grid,
        h(
          "details",
          {},
          h("summary", {}, "More fields"),
          h("label", { for: "more" }, "One FIELD=VALUE a line"),
          more,
        ),
        problems,
        h("div", { class: "actions" }, launch),
      ),
      h("aside", { class: "card" }, h("h2", {}, "What it takes"), answer),
    ),
  );

  async function begin() {
    try {
      [scenarios, fleet] = await Promise.all([read("/v1/scenarios"), readIfThere("/v1/presences")]);
      scenario.append(...Object.keys(scenarios).map((name) => h("option", { value: name }, name)));
      choose(
        wanted in scenarios
          ? wanted
          : FIRST in scenarios
            ? FIRST
            : Object.keys(scenarios)[0],
      );
    } catch (problem) {
      if (problem.status !== 401) fill(main, notice("bad", problem.title, problem.message));
    }
  }

  function choose(name) {
    scenario.value = name;
    const spec = scenarios[name];
    about.textContent = spec.description;
    for (const [field, , , readOf] of FIELDS) fields.get(field).value = readOf(spec);
    units.get(TARGET).textContent = ` Gbit/s, ${LAYERS[spec.objective.layer]}`;
    look();
  }

  function overrides() {
    const spec = scenarios[scenario.value];
    const changed = {};
    for (const [field, , unit, readOf] of FIELDS) {
      const text = fields.get(field).value;
      if (String(readOf(spec)) === text) continue;
      if (text === "") changed[field] = null;
      else changed[field] = unit === "Gbit/s" ? Number(text) * 1e9 : Number(text);
    }
    for (const line of more.value
      .split("\n")
      .map((each) => each.trim())
      .filter(Boolean)) {
      const [field, ...rest] = line.split("=");
      const text = rest.join("=").trim();
      let value = text;
      try {
        // Of the device and of labels all is text, and 1.10 stays 1.10.
        if (!/^(device|labels)\./.test(field.trim())) value = JSON.parse(text);
      } catch {
        // A bare word is a string, and 30s is read where it is launched.
      }
      changed[field.trim()] = value;
    }
    return changed;
  }

  function lookSoon() {
    clearTimeout(timer);
    timer = setTimeout(look, 300);
  }

  async function look() {
    const number = ++asked;
    const spec = scenarios[scenario.value];
    const body = { scenario: scenario.value, overrides: overrides() };
    const value = (name) => Number(fields.get(name).value) || 0;
    const [bursts, burst, period] = [value("bursts_count"), value("burst_s"), value("period_s")];
    const takes = bursts > 1 ? (bursts - 1) * period + burst : burst;
    const live = (fleet ?? []).filter(
      (each) => each.problem === null && coordinatorNow() - new Date(each.beat_at) < 60_000,
    );
    const clients = live.filter((each) => each.role === "client").length;
    const ports = live
      .filter((each) => each.role === "server")
      .reduce((sum, each) => sum + each.ports.length, 0);
    const target = value(TARGET);
    const facts = [
      h(
        "dl",
        { class: "facts-list" },
        fact("Traffic", `${bursts} × ${span(burst)}`, `${span(takes)} from first to last second`),
        fact(
          "Fleet now",
          `${counted(clients, "client")}, ${counted(ports, "port")}`,
          `for ${counted(value("pairs_count"), "pair")}`,
        ),
        fact(
          "Target",
          target ? rate(target * 1e9) : "none",
          target ? LAYERS[scenarios[scenario.value].objective.layer] : "shows what passed, not whether it is enough",
        ),
        spec
          ? fact(
              "Coverage floor",
              percent(spec.objective.coverage_floor_ratio, 0),
              "of pair-seconds; below it nothing is a pass",
            )
          : null,
        Object.entries(GOALS)
          .filter(([bound]) => known(spec?.objective[bound]))
          .flatMap(([bound, goal]) =>
            fact(
              "Goal",
              `${goal.isFloor ? "at least" : "at most"} ${told(goal.unit, spec.objective[bound], 3)}`,
              goal.words,
            ),
          ),
      ),
      everyField(spec),
    ];
    try {
      const appraisal = await readIfThere("/v1/estimate", { method: "POST", body });
      if (number !== asked) return;
      fill(
        answer,
        feasibility(appraisal, clients, ports, value("pairs_count")),
        facts,
        h("div", { class: "price" }, h("h3", {}, "Price, estimated"), priceLines(appraisal?.price)),
      );
    } catch (problem) {
      if (number !== asked || problem.status === 401) return;
      fill(answer, notice("bad", problem.title, problem.message), facts);
    }
  }

  async function go(event) {
    event.preventDefault();
    launch.disabled = true;
    fill(problems);
    try {
      const body = { scenario: scenario.value, overrides: overrides(), by: "page" };
      const status = await send("POST", "/v1/runs", body, { "Idempotency-Key": key });
      announce(`Launched ${status.run_id}`);
      location.hash = `#/run/${status.run_id}`;
    } catch (problem) {
      key = crypto.randomUUID?.() ?? String(Math.random()).slice(2);
      const fixes = problem.errors
        .filter((each) => each.fix)
        .map((each) => h("li", {}, `${each.field}: ${each.fix}`));
      fill(
        problems,
        notice("bad", problem.title, problem.message, fixes.length ? h("ul", {}, fixes) : null),
      );
      launch.disabled = false;
    }
  }

  begin();
  return () => clearTimeout(timer);
}

const fact = (name, value, note) => [h("dt", {}, name, h("span", {}, note)), h("dd", {}, value)];

// Whatever the scenario says, also what no field of the form changes.
function everyField(spec) {
  if (!spec) return null;
  return h(
    "details",
    {},
    h("summary", {}, "Every field of the scenario"),
    h(
      "dl",
      { class: "facts-list" },
      fieldsOf(spec).flatMap(([name, value]) => [
        h("dt", {}, name),
        h("dd", {}, known(value) ? String(value) : "not set"),
      ]),
    ),
  );
}

function feasibility(appraisal, clients, ports, pairs) {
  const said = (appraisal?.warnings ?? []).map((each) => notice("note", "Warning", each));
  if (appraisal?.problems.length) {
    return [
      notice(
        "bad",
        "Not feasible now",
        null,
        h(
          "ul",
          {},
          appraisal.problems.map((each) =>
            h("li", {}, `${each.field}: ${each.message}; ${each.fix}`),
          ),
        ),
      ),
      said,
    ];
  }
  if (!appraisal && (clients < pairs || ports < pairs)) {
    return [
      notice(
        "bad",
        "Not feasible now",
        `${counted(pairs, "pair")} asked; there are ${counted(clients, "client")} and ${counted(ports, "free port")}.`,
      ),
    ];
  }
  return [notice("good", "Feasible", "The fleet that is there can carry it."), said];
}
