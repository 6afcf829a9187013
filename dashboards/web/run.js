// View of a run, during the run and after it. It sends the events from the stream to the parts of
// the page.

import { readIfThere, send } from "./api.js";
import { abortRunDialog } from "./abort.js";
import { BurstData } from "./burst.js";
import { burstsTable } from "./bursts.js";
import { CanaryCard } from "./canary.js";
import { announce, fill, h, say, refused } from "./dom.js";
import { reportCharts } from "./report_charts.js";
import { Headline } from "./headline.js";
import { HeatMap } from "./heatmap.js";
import { Cursor } from "./lines.js";
import { PartsCard } from "./parts.js";
import { RunAside } from "./run_aside.js";
import { RunCharts } from "./run_charts.js";
import { RunHead, isOver } from "./run_head.js";
import { Stream } from "./stream.js";
import { UnitsCard } from "./units.js";

const PRICE_MS = 5000;
const MEASURES_KEPT = 2000;
const IMPORTED = {
  original:
    "The imported table has one mean for each pair and burst. Charts by second show this mean.",
  iperf3: "The imported files do not contain it.",
};

export function runView(main, [runId, burstNumber], { operator }) {
  const burst = burstNumber === undefined ? null : Number(burstNumber);
  const view = new RunView(main, { runId, burst, operator });
  return () => view.close();
}

class RunView {
  #state = {
    status: null,
    figures: null,
    deviceCounter: null,
    summary: null,
    findings: new Map(),
    data: null,
    price: null,
  };
  // Time to add to the clock of the browser to get the clock of the coordinator.
  #clockShiftMs = 0;
  #frame = null;
  // Time used to process events since the page was last drawn.
  #appliedMs = 0;
  #reportCharts = null;

  constructor(main, { runId, burst, operator }) {
    Object.assign(this, { runId, burst });
    const cursor = new Cursor(() => this.#drawSoon());
    this.head = new RunHead({ runId, burst, operator, onabort: () => this.#abort() });
    this.headline = new Headline();
    this.heat = new HeatMap(cursor);
    this.charts = new RunCharts(cursor);
    this.parts = new PartsCard(cursor);
    this.aside = new RunAside(burst);
    this.report = h("div");
    this.units = new UnitsCard(cursor);
    this.canary = new CanaryCard(cursor);
    this.lineCharts = [...this.charts.all, this.parts.chart, this.units.chart, this.canary.chart];
    this.#lay(main);
    this.#watch(main);
    this.#listen();
  }

  close() {
    this.stream.close();
    clearInterval(this.pricing);
    this.sized.disconnect();
    this.sight.disconnect();
    removeEventListener("theme", this.redraw);
    removeEventListener("beforeprint", this.print);
    this.#reportCharts?.close();
    cancelAnimationFrame(this.#frame);
  }

  #lay(main) {
    const card = (...children) => h("section.card", ...children);
    const { head, charts, aside } = this;
    this.absent = h("p.card.quiet", { hidden: true });
    this.bursts = h("div", { hidden: true });
    const drawn = h(
      "div.charts",
      card(charts.throughput.element),
      this.parts.element,
      card(this.heat.element, aside.trouble),
      this.units.element,
      this.canary.element,
      card(charts.band.element),
      charts.small,
      this.absent,
      this.bursts,
      this.report,
    );
    const own = [this.parts, this.units, this.canary].map(({ element }) => element);
    this.cards = [...drawn.querySelectorAll("section")].filter((card) => !own.includes(card));
    this.columns = h("div.columns", drawn, aside.element);
    main.append(
      head.title,
      head.stale,
      head.reason,
      head.problem,
      head.stage,
      this.headline.element,
      head.warnings,
      head.bursts,
      this.columns,
    );
  }

  // Draw again if the size, the visible part, the theme or the time has changed.
  #watch(main) {
    this.redraw = () => {
      this.heat.touch([], true);
      this.#drawSoon();
    };
    this.sized = new ResizeObserver(() => this.#drawSoon());
    this.sized.observe(main);
    const tell = (list) => {
      for (const { target, isIntersecting: detail } of list) {
        target.dispatchEvent(new CustomEvent("sight", { detail }));
      }
    };
    this.sight = new IntersectionObserver(tell, { rootMargin: "100% 0px" });
    for (const chart of this.lineCharts) chart.observe(this.sight);
    addEventListener("theme", this.redraw);
    this.print = () => {
      for (const chart of this.lineCharts) chart.visible = true;
      this.#draw();
    };
    addEventListener("beforeprint", this.print);
    // If the run could not be loaded, do not request a price for it.
    const isGoing = () => this.#state.status !== null && !isOver(this.#state);
    this.pricing = setInterval(() => {
      if (!document.hidden && isGoing()) this.#readPrice();
    }, PRICE_MS);
  }

  // Events from the stream ----------------------------------------------------------------------

  #listen() {
    const query = this.burst === null ? "" : `?burst=${this.burst}`;
    this.stream = new Stream(`/v1/runs/${this.runId}/events${query}`, {
      onevent: (name, message) => {
        const began = performance.now();
        this.#take[name]?.(message);
        this.#appliedMs += performance.now() - began;
        this.#drawSoon();
      },
      onstate: (live) => {
        this.head.showLine(live, this.stream?.silentSeconds ?? 0);
        if (!isOver(this.#state)) this.head.showStage(this.#state, this.#now());
      },
      onend: () => {
        this.head.stale.hidden = true;
        this.#readPrice();
      },
      onproblem: (problem) => {
        this.head.refuse(problem);
        this.headline.element.hidden = this.columns.hidden = this.#state.status === null;
      },
    });
  }

  #take = {
    begin: () => {
      this.#state.status = null;
    },
    status: (message) => {
      const before = this.#state.status;
      this.#clockShiftMs = new Date(message.now) - Date.now();
      this.#state.status = message;
      if (before?.burst.burst !== message.burst.burst) this.#beginBurst(message);
      if (!before) this.#readPrice();
      if (before && before.state !== message.state) announce(`The run is ${message.state}`);
      this.head.show(this.#state, this.#now());
    },
    seconds: (message) => {
      const { data } = this.#state;
      if (data?.burst !== message.burst) return;
      const wasKnown = data.knownS;
      this.heat.touch(data.apply(message));
      // Cells that were pending can be missing now, so these need to be drawn again.
      for (let second = wasKnown; second < message.known_s; second++) this.heat.touch([second]);
    },
    figures: (message) => {
      this.#state.figures = message;
      if (message.final && this.#state.data) this.#state.data.over = true;
      const changed = this.#state.data?.setTrouble(message.unmeasured_pairs) ?? new Set();
      if (changed.size) this.heat.touch([], true);
      this.head.showReason(this.#state);
      this.aside.showTrouble(this.#state);
      this.aside.showFacts(this.#state);
    },
    counter: (message) => {
      this.#state.deviceCounter = message;
    },
    finding: ({ id, finding }) => {
      const { findings } = this.#state;
      if (finding?.severity === "problem" && !findings.has(id))
        announce(`Finding: ${finding.sentence}`);
      if (finding) findings.set(id, finding);
      else findings.delete(id);
      this.aside.showFindings(this.#state);
    },
    summary: (message) => {
      this.#state.summary = message;
      if (this.#state.data) this.#state.data.over = true;
      announce(`Verdict: ${message.verdict}`);
      this.head.show(this.#state, this.#now());
      this.aside.showFindings(this.#state);
      this.#showReport();
    },
  };

  #beginBurst({ burst, pairs_count, duration_s, omit_s }) {
    const state = this.#state;
    state.data = new BurstData(burst.burst, pairs_count, duration_s + omit_s);
    state.figures = null;
    state.deviceCounter = null;
    state.findings.clear();
    this.heat.setData(state.data);
    this.aside.showTrouble(state);
    this.aside.showFindings(state);
    this.aside.showFacts(state);
  }

  #showReport() {
    if (this.#reportCharts) return;
    this.#reportCharts = reportCharts(this.runId, this.burst, this.#state);
    fill(this.report, this.#reportCharts.element);
    const { bursts, target_layer: layer } = this.#state.summary;
    this.bursts.hidden = bursts.length < 2 || this.burst !== null;
    if (!this.bursts.hidden) fill(this.bursts, burstsTable(this.runId, bursts, layer));
  }

  #now() {
    return Date.now() + this.#clockShiftMs;
  }

  // Drawing -------------------------------------------------------------------------------------

  #drawSoon() {
    this.#frame ??= requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    this.#frame = null;
    const state = this.#state;
    if (!state.status || !state.data) return;
    const began = performance.now();
    this.headline.draw({ ...state, burst: this.burst });
    this.charts.draw(state);
    this.parts.draw(state);
    const shown = state.summary?.bursts.find(({ burst }) => burst === state.data.burst);
    this.units.draw(state, shown);
    this.canary.draw(state, shown);
    this.heat.draw();
    this.#sayAbsent(state);
    this.#measure(performance.now() - began + this.#appliedMs);
  }

  // Hide a card if it has no data. If no more data will be received, use a message instead.
  #sayAbsent({ status, data }) {
    for (const card of this.cards)
      card.hidden = [...card.children].every((child) => child.hidden || !child.hasChildNodes());
    this.absent.hidden = true;
    if (!data.over) return;
    const gone = [this.heat, ...this.charts.all].filter(({ element }) => element.hidden);
    this.absent.hidden = gone.length === 0;
    const names = gone.map(({ title }) => title.toLowerCase()).join(", ");
    const why = IMPORTED[status.imported] ?? "";
    say(this.absent, `No data for this burst: ${names.replace(/cpu/, "CPU")}. ${why}`);
  }

  #measure(duration) {
    if (this.#appliedMs)
      performance.measure("live-update", { start: performance.now() - duration, duration });
    this.#appliedMs = 0;
    if (performance.getEntriesByName("live-update").length > MEASURES_KEPT)
      performance.clearMeasures("live-update");
  }

  // Price and abort -----------------------------------------------------------------------------

  async #readPrice() {
    try {
      this.#state.price = await readIfThere(`/v1/runs/${this.runId}/price`);
    } catch {
      return;
    }
    this.aside.showPrice(this.#state.price);
  }

  async #abort() {
    await this.#readPrice();
    const reason = await abortRunDialog(this.runId, this.#state.status, this.#state.price);
    if (reason === null) return;
    try {
      await send("POST", `/v1/runs/${this.runId}/abort`, { by: "page", reason });
      announce("Abort requested; agents stop within seconds");
    } catch (problem) {
      this.head.problem.append(refused(problem));
    }
  }
}
