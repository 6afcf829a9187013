// View to select a scenario, see the estimated cost and launch a run.

import { coordinatorNow, read, send } from "./api.js";
import { announce, fact, fill, guarded, h, notice, refused } from "./dom.js";
import { counted, fieldsOf, known, LAYERS, percent, rate, span, told } from "./format.js";
import { THRESHOLDS } from "./words.js";
import { priceLines } from "./price.js";

const TARGET = "objective.target_bits_per_second";
const FIELDS = [
  ["pairs_count", "Pairs", "client and server", (spec) => spec.pairs_count],
  ["bursts_count", "Bursts", "", (spec) => spec.bursts_count],
  ["burst_s", "Burst duration", "s", (spec) => spec.burst_s],
  ["period_s", "Burst interval", "s", (spec) => spec.period_s],
  ["traffic.streams_count", "Streams per pair", "", (spec) => spec.traffic.streams_count],
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

// The scenario to select by default, because it needs only one client and one server.
const FIRST = "loopback";

// Return the number of pairs of each part of a mixed run.
function mixText({ traffic, mix }, pairsCount) {
  const others = mix.reduce((sum, share) => sum + share.pairs_count, 0);
  const parts = mix.map((share) => `${share.pairs_count} ${share.name ?? share.traffic.engine}`);
  return [`${Math.max(0, pairsCount - others)} ${traffic.engine}`, ...parts].join(", ");
}

export function launchView(main, [wanted], { operator }) {
  if (!operator) {
    main.append(
      notice("note", "Operators only", "Only operators can launch runs. You can watch them."),
    );
    return null;
  }
  const scenario = h("select", { id: "scenario", onchange: () => choose(scenario.value) });
  const about = h("p.quiet");
  const fields = new Map();
  const units = new Map();
  const grid = h("div.fields");
  const more = h("textarea", {
    id: "more",
    rows: "3",
    spellcheck: "false",
    placeholder: "traffic.direction=bidirectional\nlabels.idps=off",
    oninput: lookSoon,
  });
  const answer = h("div.answer", { "aria-live": "polite" });
  const problems = h("div");
  const launch = h("button.primary", "Launch");
  let scenarios = {};
  let fleet = [];
  let timer = null;
  let asked = 0;
  // Use the same idempotency key until you open the view again. If a request is sent twice, it
  // will not start another run.
  let key = newKey();

  for (const [name, label, unit] of FIELDS) {
    const id = `field-${name.replaceAll(".", "-")}`;
    const input = h("input", { id, type: "number", min: "0", step: "any", oninput: lookSoon });
    fields.set(name, input);
    units.set(name, h("span.quiet", unit ? ` ${unit}` : ""));
    grid.append(h("div", h("label", { for: id }, label, units.get(name)), input));
  }
  main.append(
    h("div.title", h("h1", "Launch")),
    h(
      "div.columns.launch",
      h(
        "form.card",
        { onsubmit: go },
        h("label", { for: "scenario" }, "Scenario"),
        scenario,
        about,
        grid,
        h(
          "details",
          h("summary", "More fields"),
          h("label", { for: "more" }, "One FIELD=VALUE per line"),
          more,
        ),
        problems,
        h("div.actions", launch),
      ),
      h("aside.card", h("h2", "Estimate"), answer),
    ),
  );

  const begin = guarded(main, async () => {
    [scenarios, fleet] = await Promise.all([read("/v1/scenarios"), read("/v1/agents")]);
    scenario.append(...Object.keys(scenarios).map((name) => h("option", { value: name }, name)));
    choose(wanted in scenarios ? wanted : FIRST in scenarios ? FIRST : Object.keys(scenarios)[0]);
  });

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
    for (const line of more.value.split("\n").filter((each) => each.trim())) {
      const [field, ...rest] = line.split("=");
      const text = rest.join("=").trim();
      let value = text;
      try {
        // Fields of the device and labels are always text. For example, 1.10 should not be
        // changed to 1.1.
        if (!/^(device|labels)\./.test(field.trim())) value = JSON.parse(text);
      } catch {
        // If this is not JSON, send it as a string. For example, the coordinator can parse 30s.
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
    const live = fleet.filter(
      (each) => each.problem === null && coordinatorNow() - new Date(each.beat_at) < 60_000,
    );
    const clients = live.filter((each) => each.role === "client").length;
    const ports = live
      .filter((each) => each.role === "server")
      .reduce((sum, each) => sum + each.ports.length, 0);
    const target = value(TARGET);
    const facts = [
      h(
        "dl.facts-list",
        fact("Traffic", `${bursts} × ${span(burst)}`, `${span(takes)} in total`),
        fact(
          "Available agents",
          `${counted(clients, "client")}, ${counted(ports, "port")}`,
          `for ${counted(value("pairs_count"), "pair")}`,
        ),
        spec.mix?.length ? fact("Mixed traffic", mixText(spec, value("pairs_count"))) : null,
        fact(
          "Target",
          target ? rate(target * 1e9) : "none",
          target ? LAYERS[spec.objective.layer] : "no target: the run is measured, but neither passes nor fails",
        ),
        fact(
          "Minimum completeness",
          percent(spec.objective.coverage_floor_ratio, 0),
          "of the pair-seconds; below it, the verdict is not a pass",
        ),
        Object.entries(THRESHOLDS)
          .filter(([bound]) => known(spec.objective[bound]))
          .flatMap(([bound, threshold]) =>
            fact(
              "Threshold",
              `${threshold.isFloor ? "at least" : "at most"} ${told(threshold.unit, spec.objective[bound], 3)}`,
              threshold.words,
            ),
          ),
      ),
      everyField(spec),
    ];
    try {
      const estimated = await send("POST", "/v1/estimate", body);
      if (number !== asked) return;
      fill(
        answer,
        feasibility(estimated),
        facts,
        h("div.price", h("h3", "Estimated cost"), priceLines(estimated.price)),
      );
    } catch (problem) {
      if (number !== asked || problem.status === 401) return;
      fill(answer, refused(problem), facts);
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
      key = newKey();
      const fixes = problem.errors
        .filter((each) => each.fix)
        .map((each) => h("li", `${each.field}: ${each.fix}`));
      fill(problems, refused(problem, fixes.length ? h("ul", fixes) : null));
      launch.disabled = false;
    }
  }

  begin();
  return () => clearTimeout(timer);
}

const newKey = () => crypto.randomUUID?.() ?? String(Math.random()).slice(2);

// List all fields of the scenario, including any that you cannot change using the form.
function everyField(spec) {
  return h(
    "details",
    h("summary", "All fields of the scenario"),
    h(
      "dl.facts-list",
      fieldsOf(spec).flatMap(([name, value]) =>
        fact(name, known(value) ? String(value) : "not set"),
      ),
    ),
  );
}

function feasibility({ problems, warnings }) {
  const wrong = problems.map((each) => h("li", `${each.field}: ${each.message}; ${each.fix}`));
  return [
    wrong.length
      ? notice("bad", "Not feasible", null, h("ul", wrong))
      : notice("good", "Feasible", "The available agents are sufficient."),
    warnings.map((each) => notice("note", "Warning", each)),
  ];
}
