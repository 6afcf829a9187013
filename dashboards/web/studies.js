// List of studies, and the view of a study. A study uses several runs to answer a question.

import { abortStudyDialog } from "./abort.js";
import { read, send } from "./api.js";
import { FIGURE, announce, every, fill, guarded, h, notice, prose, refused, table } from "./dom.js";
import { drawOne } from "./report_charts.js";
import { LAYERS, digits, instant, known, percent, rate, seconds } from "./format.js";
import { verdictBadge } from "./runs.js";
import { printing, theme } from "./theme.js";

const REFRESH_MS = 5000;
const ASKS = {
  sweep: "Sweep",
  search: "Search for the maximum rate",
  ab: "A/B",
  matrix: "Matrix of modes",
  scaleout: "Scale-out",
  "inspection-under-load": "Inspection under load",
  drill: "Drill",
};
// For these kinds of study, the name of the chart is not the name of the question.
const CHARTS = { ab: "modes", matrix: "modes" };

function stands(study) {
  if (!study.ended_at && study.cancelled_at) return "being cancelled";
  if (!study.ended_at) return study.waits_for ? `waiting for ${study.waits_for}` : "running";
  if (study.problem) return `failed: ${study.problem}`;
  if (study.cancelled_at) return `cancelled by ${study.cancelled_by}: ${study.cancel_reason}`;
  return "done";
}

const connections = ({ max_held_count: held }, count) =>
  `${Math.round(count).toLocaleString("en")} ${known(held) ? "held connections" : "connections/s"}`;

// Text for the settings of a trial. The order of the trials is given by the question.
function what(question, { index, offered_bits_per_second: offered, offered_connections_count: count }) {
  const { kind, axes, a, b, modes } = question;
  if (kind === "search" && known(count)) return `offered ${connections(question, count)}`;
  if (kind === "search") return known(offered) ? `offered ${rate(offered)}` : "offered unknown";
  if (kind === "inspection-under-load") return `offered ${rate(offered)}`;
  if (kind === "scaleout") return known(offered) ? `offered ${rate(offered)}` : "maximum";
  if (kind === "drill") return "burst with the event, and one after it";
  if (kind === "ab") return [a, b, b, a][index % 4].name;
  if (kind === "matrix") return modes[index % modes.length].name;
  const inner = axes[1]?.values.length ?? 1;
  const at = [Math.floor(index / inner), index % inner];
  return axes.map(({ field, values }, axis) => `${field} ${values[at[axis]]}`).join(", ");
}

const mode = ({ name, overrides }) =>
  [name, ...Object.entries(overrides).map(([field, value]) => `${field}=${value}`)].join(" ");

function asks({ kind, axes, a, b, modes, ...bounds }) {
  if (kind === "sweep")
    return axes.map(({ field, values }) => `${field} = ${values.join(", ")}`).join("; ");
  if (kind === "inspection-under-load") return bounds.offers_bits_per_second.map(rate).join(", ");
  if (kind === "scaleout")
    return `${bounds.offers_bits_per_second.map(rate).join(", ") || "maximum"}, ${seconds(bounds.hold_s)} each`;
  if (kind === "drill")
    return `${bounds.switch ? `${bounds.switch} to ${bounds.state}` : "own command"}, ${seconds(bounds.at_s)} into a burst`;
  if (kind === "ab") return `${mode(a)} and ${mode(b)}`;
  if (kind === "matrix") return modes.map(mode).join("; ");
  if (!known(bounds.min_bits_per_second))
    return `between ${connections(bounds, bounds.min_held_count ?? bounds.min_connections_per_second)} and ${connections(bounds, bounds.max_held_count ?? bounds.max_connections_per_second)}`;
  return `between ${rate(bounds.min_bits_per_second)} and ${rate(bounds.max_bits_per_second)} of payload`;
}

export function studiesView(main) {
  const list = h("div", h("p.quiet", "Loading."));
  main.append(h("div.title", h("h1", "Studies")), list);

  const shown = ({ study_id: id, spec, conclusion, ...study }) =>
    h(
      "li.card",
      h(
        "div.title",
        h("h2", h("a", { href: `#/study/${id}` }, ASKS[spec.question.kind])),
        study.ended_at ? null : h("span.badge.going", stands(study)),
      ),
      conclusion || study.ended_at ? h("p", prose(conclusion?.sentence ?? stands(study))) : null,
      h("p.quiet", asks(spec.question)),
      h("p.mono.quiet", id),
      h("p.quiet", `${instant(study.created_at)} by ${study.created_by}`),
    );
  const load = guarded(list, async () => {
    const studies = await read("/v1/studies?limit=100");
    const how = "broadside study sweep smoke --over traffic.streams_count=1,4,16,64";
    const none = h("p", "Start one on the command line: ", h("code", how));
    fill(
      list,
      studies.length
        ? h("ul.schedules", studies.map(shown))
        : h("div.empty", h("h2", "No study yet"), none),
    );
  });

  return every(REFRESH_MS, () => list.contains(document.activeElement) || load());
}

function blocked({ leak_ratio: leaked, leak_high_ratio: most }) {
  if (!known(leaked)) return "unknown";
  return `${percent(1 - leaked, 1)} (≥ ${percent(1 - most, 1)})`;
}

function trialColumns({ spec, results }, knees) {
  const { question } = spec;
  // The rate is at the layer of the objective. Results of older versions have only the payload.
  const isIp =
    spec.spec.objective.layer === "ip" &&
    results.every(
      (trial) =>
        known(trial.fleet_ip_bits_per_second) || !known(trial.received_bits_per_second),
    );
  const received = isIp ? "fleet_ip_bits_per_second" : "received_bits_per_second";
  const number = ({ index, run_id: id }) =>
    id ? h("a", { href: `#/run/${id}` }, index + 1) : index + 1;
  const setting = (trial) =>
    knees.includes(trial.received_bits_per_second)
      ? [what(question, trial), " ", h("span.tag", "knee")]
      : what(question, trial);
  const costs = (trial) => [trial.client_cpu_s_per_gigabyte, trial.server_cpu_s_per_gigabyte];
  const verdict = (trial) => (trial.verdict ? verdictBadge(trial.verdict) : "unknown");
  return [
    ["Trial", number, FIGURE],
    ["Setting", setting],
    [
      `Received, ${isIp ? LAYERS.ip : LAYERS.payload}`,
      (trial) => rate(trial[received]),
      FIGURE,
    ],
    ...(results.some((trial) => known(trial.firewall_bits_per_second))
      ? [["Device counter, at its layer", (t) => rate(t.firewall_bits_per_second), FIGURE]]
      : []),
    ["RTT", (trial) => seconds(trial.rtt_mean_s), FIGURE],
    ["CPU-s/GB, client / server", (trial) => costs(trial).map(digits).join(" / "), FIGURE],
    ["Pairs reset / stalled", (t) => `${t.reset_pairs_count} / ${t.stalled_pairs_count}`, FIGURE],
    ...(results.some((trial) => known(trial.leak_ratio))
      ? [["Still blocked", (trial) => blocked(trial), FIGURE]]
      : []),
    ["Bottleneck", (trial) => trial.bottleneck],
    ["Verdict", (trial) => trial.problem ?? verdict(trial)],
  ];
}

// Tables for the events of the device: the steps of the rate, or an outage for each pair.
const grown = (step) => [step.size_bits_per_second, step.half_width_bits_per_second];
const STEPS = [
  ["After overload", (step) => seconds(step.after_overload_s), FIGURE],
  ["From", (step) => rate(step.before_bits_per_second), FIGURE],
  ["To", (step) => rate(step.after_bits_per_second), FIGURE],
  ["Step", (step) => grown(step).map(rate).join(" ± "), FIGURE],
  ["Device counter, IP", (step) => rate(step.counter_size_bits_per_second), FIGURE],
  ["Retransmits", (step) => digits(step.retransmits_count), FIGURE],
  ["RTT", (step) => seconds(step.rtt_max_s), FIGURE],
  ["Pairs reset", (step) => step.broken_pairs_count, FIGURE],
];
const inMs = ({ outage_s, resolution_s }) =>
  [outage_s, resolution_s].map((time_s) => Math.round(1e3 * time_s));
const OUTAGES = [
  ["Pair", (outage) => outage.pair],
  ["From, UTC", (outage) => outage.from_at.slice(11, 23).replace("Z", "")],
  ["Out", (outage) => inMs(outage).join(" ms ± "), FIGURE],
  ["Probes lost", (outage) => outage.lost_count, FIGURE],
];

export function studyView(main, [studyId], { operator }) {
  const path = `/v1/studies/${studyId}`;
  const parts = {
    title: h("h1", "Study"),
    stands: h("span.badge.going", { hidden: true }),
    abort: h("button.danger", { type: "button", hidden: true, onclick: abort }, "Abort the study"),
    problem: h("div"),
    conclusion: h("div.stack"),
    chart: h("section.card", { hidden: true }),
    closeUp: h("div"),
    trials: h("div"),
  };
  let study = null;
  // Current data of the chart. If this has not changed, we do not need to draw the chart again.
  let drawn = null;
  main.append(
    h(
      "div.title",
      h("div", parts.title, h("p.mono.quiet", studyId)),
      parts.stands,
      h("span.spacer"),
      h("a.button", { href: `/report.html#study/${studyId}` }, "Open the report"),
      parts.abort,
    ),
    h("div.stack", parts.problem, parts.conclusion, parts.chart, parts.closeUp, parts.trials),
  );

  async function load() {
    try {
      study = await read(path);
    } catch (problem) {
      if (problem.status === 401) return;
      if (problem.status === 404) clearInterval(timer);
      fill(parts.problem, refused(problem));
      return;
    }
    fill(parts.problem);
    show();
    await draw();
  }

  function show() {
    const { spec, results, conclusion } = study;
    parts.title.textContent = `${ASKS[spec.question.kind]}: ${spec.spec.scenario}`;
    parts.stands.hidden = Boolean(study.ended_at) && !study.problem && !study.cancelled_at;
    parts.stands.textContent = stands(study);
    parts.abort.hidden = !operator || Boolean(study.ended_at || study.cancelled_at);
    fill(
      parts.conclusion,
      h("p.sentence", prose(conclusion?.sentence ?? asks(spec.question))),
      conclusion?.notes.map((note) => notice("note", "Note", prose(note))),
    );
    const knees = conclusion?.knees.map((knee) => knee.received_bits_per_second) ?? [];
    const { scale } = spec.spec;
    const lab = scale === 1 ? "" : ` (lab at 1:${scale})`;
    const title = `Trials, rates at real scale${lab}`;
    fill(
      parts.trials,
      results.length
        ? h("div.card", table(title, trialColumns(study, knees), results))
        : h("p.empty", "No finished trials."),
    );
    const steps = conclusion?.scale_out?.steps ?? [];
    const outages = conclusion?.drilled?.outages ?? [];
    if (steps.length) fill(parts.closeUp, h("div.card", table("Steps", STEPS, steps)));
    if (outages.length)
      fill(parts.closeUp, h("div.card", table("Outages measured by probes", OUTAGES, outages)));
  }

  async function draw() {
    const key = `${study.results.length} ${study.ended_at} ${theme()}`;
    const { scale_out: grown, drilled } = study.conclusion ?? {};
    const waits = ["scaleout", "drill"].includes(study.spec.question.kind) && !(grown ?? drilled);
    if (
      drawn === key ||
      waits ||
      !study.results.some((each) => known(each.received_bits_per_second))
    )
      return;
    drawn = key;
    const { kind } = study.spec.question;
    const name = CHARTS[kind] ?? kind;
    parts.chart.hidden = false;
    try {
      await drawOne(parts.chart, `${path}/charts/${name}`);
    } catch (error) {
      drawn = null;
      fill(parts.chart, notice("bad", "No chart", error.message));
    }
  }

  async function abort() {
    const reason = await abortStudyDialog(studyId, parts.title.textContent);
    if (reason === null) return;
    try {
      await send("POST", `${path}/abort`, { by: "page", reason });
      announce("Abort requested; the running trial stops within seconds");
      await load();
    } catch (problem) {
      fill(parts.problem, refused(problem));
    }
  }

  const timer = setInterval(() => document.hidden || study?.ended_at || load(), REFRESH_MS);
  const redraw = () => !printing() && study && draw();
  addEventListener("theme", redraw);
  load();
  return () => {
    clearInterval(timer);
    removeEventListener("theme", redraw);
  };
}
