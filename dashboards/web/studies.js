// Studies: series of runs that answer one question. Their list, and one with its curve.

import { abortStudyDialog } from "./abort.js";
import { read, send } from "./api.js";
import { announce, fill, h, notice, table } from "./dom.js";
import { drawOne } from "./figures.js";
import { digits, instant, known, rate, seconds } from "./format.js";
import { verdictBadge } from "./runs.js";
import { printing, theme } from "./theme.js";

const REFRESH_MS = 5000;
const ASKS = {
  sweep: "Sweep",
  search: "Search for the most",
  ab: "A/B",
  matrix: "Matrix of modes",
  scaleout: "Scale-out",
  drill: "Drill",
};
const CHARTS = { ab: "modes", matrix: "modes" }; // the others' have the question's own name

function stands(study) {
  if (!study.ended_at && study.cancelled_at) return "being cancelled";
  if (!study.ended_at) return study.waits_for ? `waits for ${study.waits_for}` : "going on";
  if (study.problem) return `ended: ${study.problem}`;
  if (study.cancelled_at) return `cancelled by ${study.cancelled_by}: ${study.cancel_reason}`;
  return "done";
}

// What is special about a trial. The order of trials is the question's own.
function what(question, { index, offered_bits_per_second: offered }) {
  const { kind, axes, a, b, modes } = question;
  if (kind === "search") return known(offered) ? `offered ${rate(offered)}` : "offered unknown";
  if (kind === "scaleout") return known(offered) ? `offered ${rate(offered)}` : "all there is";
  if (kind === "drill") return "the event's burst, and one after it";
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
  if (kind === "scaleout")
    return `${bounds.offers_bits_per_second.map(rate).join(", ") || "all there is"}, held ${seconds(bounds.hold_s)} at a time`;
  if (kind === "drill")
    return `${bounds.switch ? `${bounds.switch} to ${bounds.state}` : "own command"}, ${seconds(bounds.at_s)} into a burst`;
  if (kind === "ab") return `${mode(a)} against ${mode(b)}`;
  if (kind === "matrix") return modes.map(mode).join("; ");
  return `between ${rate(bounds.min_bits_per_second)} and ${rate(bounds.max_bits_per_second)} of payload`;
}

export function studiesView(main) {
  const list = h("div", {}, h("p", { class: "quiet" }, "Reading the list of studies."));
  main.append(h("div", { class: "title" }, h("h1", {}, "Studies")), list);

  async function load() {
    try {
      const studies = await read("/v1/studies?limit=100");
      if (!studies.length) {
        fill(
          list,
          h(
            "div",
            { class: "empty" },
            h("h2", {}, "No study yet"),
            h(
              "p",
              {},
              "Start one on the command line: ",
              h("code", {}, "broadside study sweep smoke --over traffic.streams_count=1,4,16,64"),
            ),
          ),
        );
        return;
      }
      fill(
        list,
        h(
          "ul",
          { class: "schedules" },
          studies.map((study) =>
            h(
              "li",
              { class: "card" },
              h(
                "h2",
                {},
                h("a", { href: `#/study/${study.study_id}` }, ASKS[study.spec.question.kind]),
              ),
              h("p", { class: "mono quiet" }, study.study_id),
              h("p", { class: "facts" }, asks(study.spec.question)),
              h("p", {}, study.conclusion?.sentence ?? stands(study)),
              h("p", { class: "quiet" }, `${instant(study.created_at)} by ${study.created_by}`),
            ),
          ),
        ),
      );
    } catch (problem) {
      if (problem.status !== 401) fill(list, notice("bad", problem.title, problem.message));
    }
  }

  load();
  const timer = setInterval(
    () => document.hidden || list.contains(document.activeElement) || load(),
    REFRESH_MS,
  );
  return () => clearInterval(timer);
}

export function studyView(main, [studyId], { operator }) {
  const path = `/v1/studies/${studyId}`;
  const parts = {
    title: h("h1", {}, "Study"),
    stands: h("span", { class: "badge going", hidden: true }),
    abort: h("button", { type: "button", class: "danger", hidden: true, onclick: abort }, "Abort the study"),
    problem: h("div"),
    conclusion: h("div", { class: "stack" }),
    chart: h("section", { class: "card", hidden: true }),
    closeUp: h("div"),
    trials: h("div"),
  };
  let study = null;
  let drawn = null; // what the chart shows
  main.append(
    h(
      "div",
      { class: "title" },
      h("div", {}, parts.title, h("p", { class: "mono quiet" }, studyId)),
      parts.stands,
      h("span", { class: "spacer" }),
      h("a", { class: "button", href: `/report.html#study/${studyId}` }, "Open the report"),
      parts.abort,
    ),
    h("div", { class: "stack" }, parts.problem, parts.conclusion, parts.chart, parts.closeUp, parts.trials),
  );

  async function load() {
    try {
      study = await read(path);
    } catch (problem) {
      if (problem.status === 401) return;
      if (problem.status === 404) clearInterval(timer);
      fill(parts.problem, notice("bad", problem.title, problem.message));
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
      h("p", { class: "sentence" }, conclusion?.sentence ?? asks(spec.question)),
      conclusion?.notes.map((note) => notice("note", "Note", note)),
    );
    const knees = conclusion?.knees.map((knee) => knee.received_bits_per_second) ?? [];
    const rows = results.map((result) => {
      const said = what(spec.question, result);
      const isKnee = knees.includes(result.received_bits_per_second);
      return [
        result.run_id
          ? h("a", { href: `#/run/${result.run_id}` }, String(result.index + 1))
          : String(result.index + 1),
        isKnee ? [said, " ", h("span", { class: "tag" }, "knee")] : said,
        rate(result.received_bits_per_second),
        rate(result.firewall_bits_per_second),
        seconds(result.rtt_mean_s),
        [result.client_cpu_s_per_gigabyte, result.server_cpu_s_per_gigabyte]
          .map((cost) => digits(cost))
          .join(" / "),
        `${result.reset_pairs_count} / ${result.stalled_pairs_count}`,
        result.limiter,
        result.problem ?? (result.verdict ? verdictBadge(result.verdict) : "unknown"),
      ];
    });
    closeUp(conclusion);
    const { scale } = spec.spec;
    const title = scale === 1 ? "Trials" : `Trials, rates at real scale (lab at 1:${scale})`;
    const columns = [
      "Trial",
      "What",
      "Received, payload",
      "Firewall, IP",
      "RTT",
      "CPU-s/GB, client / server",
      "Pairs reset / stalled",
      "Limiter",
      "Verdict",
    ];
    fill(
      parts.trials,
      rows.length
        ? h("div", { class: "card" }, table(title, columns, rows, { numeric: [2, 3, 4, 5, 6] }))
        : h("p", { class: "empty" }, "No trial is over yet."),
    );
  }

  // What the device did within the bursts: its steps, or each pair's outage.
  function closeUp(conclusion) {
    const steps = conclusion?.scale_out?.steps ?? [];
    const outages = conclusion?.drilled?.outages ?? [];
    if (steps.length) {
      const columns = ["After overload", "From", "To", "Step", "Firewall, IP", "Retransmits", "RTT", "Pairs reset"];
      const rows = steps.map((step) => [
        seconds(step.after_overload_s),
        rate(step.before_bits_per_second),
        rate(step.after_bits_per_second),
        `${rate(step.size_bits_per_second)} ± ${rate(step.half_width_bits_per_second)}`,
        rate(step.ledger_size_bits_per_second),
        digits(step.retransmits_count),
        seconds(step.rtt_max_s),
        String(step.broken_pairs_count),
      ]);
      const numeric = columns.map((_, at) => at);
      fill(parts.closeUp, h("div", { class: "card" }, table("Steps", columns, rows, { numeric })));
    }
    if (outages.length) {
      const columns = ["Pair", "From, UTC", "Out", "Probes lost"];
      const rows = outages.map((outage) => [
        outage.pair,
        outage.from_at.slice(11, 23).replace("Z", ""),
        `${Math.round(1e3 * outage.outage_s)} ms ± ${Math.round(1e3 * outage.resolution_s)}`,
        String(outage.lost_count),
      ]);
      fill(
        parts.closeUp,
        h("div", { class: "card" }, table("Outages by probes", columns, rows, { numeric: [2, 3] })),
      );
    }
  }

  async function draw() {
    const key = `${study.results.length} ${study.ended_at} ${theme()}`;
    const { scale_out: grown, drilled } = study.conclusion ?? {};
    const waits = ["scaleout", "drill"].includes(study.spec.question.kind) && !(grown ?? drilled);
    if (drawn === key || waits || !study.results.some((each) => known(each.received_bits_per_second))) return;
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
      announce("Abort asked for; the trial under way stops within seconds");
      await load();
    } catch (problem) {
      fill(parts.problem, notice("bad", problem.title, problem.message));
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
