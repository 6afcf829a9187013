// One run, live and afterwards: headline, charts, heat map, findings, price, abort.

import { readIfThere, send } from "./api.js";
import { abortRunDialog } from "./abort.js";
import { BurstData } from "./burst.js";
import { announce, fill, h, notice, say } from "./dom.js";
import { reportFigures } from "./figures.js";
import { clock, count, digits, instant, known, seconds, span } from "./format.js";
import { Headline } from "./headline.js";
import { HeatMap } from "./heatmap.js";
import { Cursor, LineChart } from "./lines.js";
import { findingItems, troubleList } from "./lists.js";
import { priceLines } from "./price.js";
import { stageOf } from "./stage.js";
import { Stream } from "./stream.js";
import { verdictBadge } from "./runs.js";
import { throughputSeries, throughputUnit } from "./throughput.js";

const OVER = ["finished", "cancelled"];
const PRICE_MS = 5000;
const STALE_S = 3;

export function runView(main, [runId, burstNumber], { operator }) {
  const burstIndex = burstNumber === undefined ? null : Number(burstNumber) - 1;
  const state = {
    status: null,
    figures: null,
    ledger: null,
    summary: null,
    findings: new Map(),
    data: null,
    price: null,
  };
  const clockShift = { ms: 0 }; // of the coordinator's clock against this one
  let frame = null;
  let applied = 0; // ms spent on events since the last drawing
  let figuresOfReport = null;

  // The parts of the view -----------------------------------------------------------------------
  const parts = {
    stale: h("p", { class: "stale", hidden: true, role: "status" }),
    problem: h("div"),
    scenario: h("h1", {}, "Run"),
    id: h("p", { class: "mono quiet" }, runId),
    badge: h("span", { class: "badge going" }, "connecting"),
    actions: h("div", { class: "actions" }),
    stage: h("section", { class: "stage", "aria-label": "Where the run stands" }),
    bursts: h("nav", { class: "bursts", "aria-label": "Bursts" }),
    findings: h("ul", { class: "findings" }),
    facts: h("dl", { class: "facts-list" }),
    price: h("div", { class: "price" }, h("p", { class: "quiet" }, "Not known yet.")),
    trouble: h("div"),
    report: h("div"),
  };
  const cursor = new Cursor(() => drawSoon());
  const headline = new Headline();
  const heat = new HeatMap(cursor);
  const plain = (value) => digits(value);
  const charts = {
    throughput: new LineChart({
      title: "Fleet throughput",
      unit: "",
      format: plain,
      cursor,
      height: 230,
    }),
    band: new LineChart({
      title: "Spread over pairs",
      unit: "",
      format: plain,
      cursor,
      height: 150,
    }),
    cpu: new LineChart({
      title: "CPU of the hosts",
      unit: "% of all cores, mean",
      format: (v) => `${digits(v)} %`,
      cursor,
      height: 120,
      minTop: 100 / 1.06,
    }),
    rtt: new LineChart({
      title: "Round-trip time",
      unit: "ms, mean over pairs",
      format: (v) => `${digits(v)} ms`,
      cursor,
      height: 120,
    }),
    retransmits: new LineChart({
      title: "Retransmits",
      unit: "segments a second, fleet",
      format: (v) => count(v),
      cursor,
      height: 120,
    }),
  };
  const card = (name, ...children) =>
    h("section", { class: "card" }, h("h2", {}, name), ...children);
  main.append(
    h(
      "div",
      { class: "title run-title" },
      h("div", {}, parts.scenario, parts.id),
      parts.badge,
      h("span", { class: "spacer" }),
      parts.actions,
    ),
    parts.stale,
    parts.problem,
    parts.stage,
    headline.element,
    parts.bursts,
    h(
      "div",
      { class: "columns" },
      h(
        "div",
        { class: "charts" },
        h("section", { class: "card" }, charts.throughput.element),
        h("section", { class: "card" }, heat.element, parts.trouble),
        h("section", { class: "card" }, charts.band.element),
        h(
          "section",
          { class: "card small" },
          charts.cpu.element,
          charts.rtt.element,
          charts.retransmits.element,
        ),
        parts.report,
      ),
      h(
        "aside",
        { "aria-label": "Findings, clocks and price" },
        card("Findings", parts.findings),
        card("Clocks and starts", parts.facts),
        card("Price", parts.price),
      ),
    ),
  );

  // What the stream says ------------------------------------------------------------------------
  const take = {
    begin() {
      state.status = null;
    },
    status(message) {
      const before = state.status;
      clockShift.ms = new Date(message.now) - Date.now();
      state.status = message;
      if (!before || before.burst.index !== message.burst.index) beginBurst(message);
      if (!before) readPrice();
      if (before && before.state !== message.state) announce(`The run is ${message.state}`);
      showStatus();
    },
    seconds(message) {
      if (!state.data || state.data.burstIndex !== message.burst_index) return;
      const wasKnown = state.data.knownS;
      const changed = state.data.apply(message);
      heat.touch(changed);
      // What was still to come may count as missing now.
      for (let second = wasKnown; second < message.known_s; second++) heat.touch([second]);
    },
    figures(message) {
      state.figures = message;
      const changed = state.data?.setTrouble(message.trouble) ?? new Set();
      if (changed.size) heat.touch([], true);
      showTrouble();
      showFacts();
    },
    ledger(message) {
      state.ledger = message;
    },
    finding(message) {
      if (message.finding) {
        const isNew = !state.findings.has(message.id);
        state.findings.set(message.id, message.finding);
        if (isNew && message.finding.severity === "problem")
          announce(`Finding: ${message.finding.sentence}`);
      } else state.findings.delete(message.id);
      showFindings();
    },
    summary(message) {
      state.summary = message;
      announce(`Verdict: ${message.verdict}`);
      showStatus();
      showFindings();
      showReport();
    },
  };

  function beginBurst(status) {
    state.data = new BurstData(
      status.burst.index,
      status.pairs_count,
      status.duration_s + status.omit_s,
    );
    state.figures = null;
    state.ledger = null;
    state.findings.clear();
    heat.setData(state.data);
    showTrouble();
    showFindings();
    showFacts();
  }

  const isOver = () =>
    state.summary !== null || (state.status !== null && OVER.includes(state.status.state));

  // Words ---------------------------------------------------------------------------------------
  function showStatus() {
    const { status, summary } = state;
    say(parts.scenario, status.scenario);
    const badge = summary
      ? verdictBadge(summary.verdict, status.state === "cancelled")
      : h(
          "span",
          { class: "badge going" },
          OVER.includes(status.state) ? `${status.state}, no verdict yet` : status.state,
        );
    if (badge.textContent !== parts.badge.textContent) {
      parts.badge.replaceWith(badge);
      parts.badge = badge;
    }
    const cancelled = status.cancelled_by
      ? notice("note", `Aborted by ${status.cancelled_by}`, status.cancel_reason)
      : null;
    const warnings = status.warnings.map((each) => notice("note", "Warning", each));
    const problem = status.problem
      ? notice("bad", "Nothing new can be read just now", status.problem)
      : null;
    const key = JSON.stringify([status.cancelled_by, status.warnings, status.problem]);
    if (parts.problem.dataset.key !== key) {
      parts.problem.dataset.key = key;
      fill(parts.problem, problem, cancelled, warnings);
    }
    showActions();
    showBursts();
    showStage();
  }

  function showActions() {
    const over = isOver();
    const key = `${over}/${Boolean(state.summary)}`;
    if (parts.actions.dataset.key === key) return;
    parts.actions.dataset.key = key;
    fill(
      parts.actions,
      state.summary ? h("a", { class: "button", href: `#/compare?b=${runId}` }, "Compare") : null,
      state.summary
        ? h("a", { class: "button primary", href: `/report.html#${runId}` }, "Open the report")
        : null,
      operator && !over
        ? h("button", { type: "button", class: "danger", onclick: abort }, "Abort the run")
        : null,
    );
  }

  function showBursts() {
    const { status } = state;
    if (status.bursts_count < 2) return;
    const index = status.burst.index;
    const key = `${index}/${status.bursts_over_count}/${burstIndex}`;
    if (parts.bursts.dataset.key === key) return;
    parts.bursts.dataset.key = key;
    const to = (number, name) =>
      number >= 1 && number <= status.bursts_count
        ? h("a", { class: "button", href: `#/run/${runId}/burst/${number}` }, name)
        : h("span", { class: "button off", "aria-disabled": "true" }, name);
    fill(
      parts.bursts,
      to(index, "Previous"),
      h("strong", {}, `Burst ${index + 1} of ${count(status.bursts_count)}`),
      to(index + 2, "Next"),
      h("span", { class: "quiet" }, `${count(status.bursts_over_count)} over`),
      burstIndex === null
        ? null
        : h("a", { href: `#/run/${runId}` }, isOver() ? "The whole run" : "Follow the run"),
    );
  }

  const now = () => Date.now() + clockShift.ms;

  // Counting down, arming, running: the part that moves each second.
  function showStage() {
    if (!state.status) return;
    const stage = stageOf(state, now());
    parts.stage.hidden = stage === null;
    if (stage === null) return;
    const { big, small, share } = stage;
    const words = h("p", { class: "stage-figures" }, h("strong", {}, big), h("span", {}, small));
    const value = String(Math.min(1, share));
    const label = `${big}: ${small}`;
    const bar = share === null ? null : h("progress", { max: "1", value, "aria-label": label });
    fill(parts.stage, words, bar);
  }

  function showFindings() {
    const list = (
      state.summary && burstIndex === null ? state.summary.findings : [...state.findings.values()]
    ).toSorted((a, b) => b.weight - a.weight);
    const key = JSON.stringify(list);
    if (parts.findings.dataset.key === key) return;
    parts.findings.dataset.key = key;
    const none = h("li", { class: "quiet" }, isOver() ? "None." : "None so far.");
    fill(parts.findings, list.length ? findingItems(list) : none);
  }

  function showTrouble() {
    const list = state.figures?.trouble ?? [];
    const key = JSON.stringify(list);
    if (parts.trouble.dataset.key === key) return;
    parts.trouble.dataset.key = key;
    const open = parts.trouble.querySelector("details")?.open ?? list.length <= 5;
    fill(parts.trouble, list.length ? troubleList(list, open) : null);
  }

  function showFacts() {
    const { status, figures } = state;
    const of = figures?.summary;
    if (!status) return;
    const dated = (at) => [clock(at), instant(at).slice(0, 10)];
    const fact = (name, value, note) => [
      h("dt", {}, name, note ? h("span", {}, note) : null),
      h("dd", {}, value),
    ];
    fill(
      parts.facts,
      fact("Start spread", seconds(of?.start_spread_s), "first data, pairs on time"),
      fact("Largest start error", seconds(of?.start_error_max_s), "against the planned instant"),
      fact(
        "Clock bound",
        seconds(of?.clock_bound_max_s),
        `worst of both ends; gate ${seconds(status.clock_bound_max_s)}`,
      ),
      fact("Planned start", ...dated(status.burst.planned_start_at)),
      fact("Launched", ...dated(status.created_at)),
    );
  }

  function showReport() {
    if (figuresOfReport || !state.summary) return;
    figuresOfReport = reportFigures(runId, burstIndex, state.summary);
    fill(parts.report, figuresOfReport.element);
  }

  // Drawing -------------------------------------------------------------------------------------
  function drawSoon() {
    frame ??= requestAnimationFrame(draw);
  }

  function draw() {
    frame = null;
    if (!state.status || !state.data) return;
    const began = performance.now();
    headline.draw({ ...state, burstIndex });
    drawCharts();
    heat.draw();
    const took = performance.now() - began + applied;
    if (applied)
      performance.measure("live-update", { start: performance.now() - took, duration: took });
    applied = 0;
    if (performance.getEntriesByName("live-update").length > 2000)
      performance.clearMeasures("live-update");
  }

  function drawCharts() {
    const { status, data, figures, ledger } = state;
    const total = Math.max(status.duration_s + status.omit_s, data.stop);
    const ratios = (name, factor) => data.series(name, factor);
    const unit = throughputUnit(state);
    charts.throughput.unitLabel.textContent = charts.throughput.unit = unit.label;
    const thin = [];
    for (let second = 0; second < Math.min(data.knownS, data.stop); second++)
      if ((data.value("coverage_ratio", second) ?? 0) < 0.98) thin.push(second);
    charts.throughput.set({
      total,
      ...throughputSeries(data, status, figures, ledger, unit),
      thin,
    });
    const [size, name] = unit.pair;
    charts.band.unitLabel.textContent =
      charts.band.unit = `${name} a pair, ${data.layer === "link" ? "link layer" : "payload"}`;
    charts.band.set({
      total,
      series: [
        {
          name: "p5 to p95",
          colour: "band",
          low: ratios("pair_p5_bits_per_second", 1 / size),
          high: ratios("pair_p95_bits_per_second", 1 / size),
        },
        { name: "p50", colour: "fleet", points: ratios("pair_p50_bits_per_second", 1 / size) },
      ],
    });
    charts.cpu.set({
      total,
      series: [
        { name: "clients", colour: "fleet", points: ratios("client_cpu_ratio", 100) },
        { name: "servers", colour: "other", dash: [6, 3], points: ratios("server_cpu_ratio", 100) },
      ],
    });
    charts.rtt.set({
      total,
      series: [{ name: "RTT", colour: "fleet", points: ratios("rtt_mean_s", 1000) }],
    });
    charts.retransmits.set({
      total,
      series: [{ name: "sent again", colour: "fleet", points: ratios("retransmits_count") }],
    });
    for (const chart of Object.values(charts)) chart.draw();
  }

  // Price and abort -----------------------------------------------------------------------------
  async function readPrice() {
    try {
      state.price = await readIfThere(`/v1/runs/${runId}/price`);
    } catch {
      return;
    }
    fill(parts.price, ...priceLines(state.price));
  }

  async function abort() {
    await readPrice();
    const reason = await abortRunDialog(runId, state.status, state.price);
    if (reason === null) return;
    try {
      await send("DELETE", `/v1/runs/${runId}`, { by: "page", reason });
      announce("Abort asked for; agents stop within seconds");
    } catch (problem) {
      parts.problem.append(notice("bad", problem.title, problem.message));
    }
  }

  // The line ------------------------------------------------------------------------------------
  const path = `/v1/runs/${runId}/events${burstIndex === null ? "" : `?burst_index=${burstIndex}`}`;
  const stream = new Stream(path, {
    onevent(name, message) {
      const began = performance.now();
      take[name]?.(message);
      applied += performance.now() - began;
      drawSoon();
    },
    onstate(live) {
      const silent = stream?.silentSeconds ?? 0;
      parts.stale.hidden = live || silent < STALE_S;
      if (!live)
        say(
          parts.stale,
          `Stale since ${span(silent)}: no word from the coordinator; trying again.`,
        );
      if (!isOver()) showStage();
    },
    onend() {
      parts.stale.hidden = true;
      readPrice();
    },
    onproblem(problem) {
      fill(
        parts.problem,
        notice(
          "bad",
          problem.title,
          problem.message,
          h("p", {}, h("a", { href: "#/runs" }, "All runs")),
        ),
      );
      say(parts.badge, "not shown");
    },
  });
  // A run that is not there has no price to ask for.
  const isGoing = () => state.status !== null && !isOver();
  const pricing = setInterval(() => document.hidden || !isGoing() || readPrice(), PRICE_MS);
  const redraw = () => {
    heat.touch([], true);
    drawSoon();
  };
  const sized = new ResizeObserver(drawSoon);
  sized.observe(main);
  const tell = (list) => {
    for (const { target, isIntersecting: detail } of list) {
      target.dispatchEvent(new CustomEvent("sight", { detail }));
    }
  };
  const sight = new IntersectionObserver(tell, { rootMargin: "100% 0px" });
  for (const chart of Object.values(charts)) chart.observe(sight);
  addEventListener("theme", redraw);
  return () => {
    stream.close();
    clearInterval(pricing);
    sized.disconnect();
    sight.disconnect();
    removeEventListener("theme", redraw);
    figuresOfReport?.close();
    cancelAnimationFrame(frame);
  };
}
