// Header of a run: name, state, actions, and a list to select a burst.

import { fill, h, notice, prose, refill, refused, say } from "./dom.js";
import { downloads } from "./downloads.js";
import { count, span } from "./format.js";
import { verdictBadge } from "./runs.js";
import { stageOf } from "./stage.js";

const STALE_S = 3;
const OVER = ["finished", "cancelled"];

export const isOver = ({ summary, status }) =>
  summary !== null || (status !== null && OVER.includes(status.state));

export class RunHead {
  constructor({ runId, burst, operator, onabort }) {
    Object.assign(this, { runId, burst, operator, onabort });
    this.stale = h("p.stale", { hidden: true, role: "status" });
    this.problem = h("div");
    // Warnings of the launch. They are below the figures.
    this.warnings = h("div");
    this.scenario = h("h1", "Run");
    this.badge = h("span.badge.going", "connecting");
    this.actions = h("div.actions");
    this.stage = h("section.stage", { "aria-label": "Progress of the run" });
    this.reason = h("section.reason", { "aria-label": "Reason and next step", hidden: true });
    this.bursts = h("nav.bursts", { "aria-label": "Bursts" });
    this.title = h(
      "div.title.run-title",
      h("div", this.scenario, h("p.mono.quiet", runId)),
      this.badge,
      h("span.spacer"),
      this.actions,
    );
  }

  show(state, now) {
    say(this.scenario, state.status.scenario);
    this.#showBadge(state);
    this.#showProblem(state.status);
    this.showReason(state);
    this.#showActions(state);
    this.#showBursts(state);
    this.showStage(state, now);
  }

  // Update the text for the state, for example the time until the start. This is called when the
  // time has changed.
  showStage(state, now) {
    if (!state.status) return;
    const stage = stageOf(state, now);
    this.stage.hidden = stage === null;
    if (stage === null) return;
    refill(this.stage, stage, () => {
      const { big, small, share } = stage;
      const words = h("p.stage-figures", h("strong", big), h("span", small));
      const value = String(Math.min(1, share));
      const label = `${big}: ${small}`;
      const bar = share === null ? null : h("progress", { max: "1", value, "aria-label": label });
      return [words, bar];
    });
  }

  // Show why the run, or the burst that is shown, has its verdict, and what to do.
  showReason({ summary, figures }) {
    const of = this.burst === null ? summary : figures;
    this.reason.hidden = !of?.reason;
    if (this.reason.hidden) return;
    refill(this.reason, [of.reason, of.next_step], () => [
      h("p", prose(of.reason)),
      h("p.step", h("strong", "Next: "), h("span", `${of.next_step}.`)),
    ]);
  }

  showLine(live, silentSeconds) {
    this.stale.hidden = live || silentSeconds < STALE_S;
    if (!live)
      say(
        this.stale,
        `No data from the coordinator for ${span(silentSeconds)}. Reconnecting.`,
      );
  }

  // Set an error message, in case the run cannot be loaded.
  refuse(problem) {
    const back = h("p", h("a", { href: "#/runs" }, "All runs"));
    fill(this.problem, refused(problem, back));
    say(this.badge, "not available");
  }

  #showBadge({ status, summary }) {
    const going = OVER.includes(status.state) ? `${status.state}, no verdict yet` : status.state;
    const badge = summary
      ? verdictBadge(summary.verdict, status.state === "cancelled")
      : h("span.badge.going", going);
    if (badge.textContent === this.badge.textContent) return;
    this.badge.replaceWith(badge);
    this.badge = badge;
  }

  #showProblem({ cancelled_by: by, cancel_reason: reason, warnings, problem }) {
    refill(this.problem, [by, reason, problem], () => [
      problem ? notice("bad", "New data cannot be read", problem) : null,
      by ? notice("note", `Aborted by ${by}`, reason) : null,
    ]);
    refill(this.warnings, warnings, () => warnings.map((each) => notice("note", "Warning", each)));
  }

  #showActions(state) {
    const over = isOver(state);
    const judged = Boolean(state.summary);
    const link = (kind, href, words) => h("a", { class: `button${kind}`, href }, words);
    refill(this.actions, [over, judged], () => [
      judged ? link("", `#/compare?b=${this.runId}`, "Compare") : null,
      judged ? downloads(this.runId) : null,
      judged ? link(" primary", `/report.html#${this.runId}`, "Open the report") : null,
      this.operator && !over
        ? h("button.danger", { type: "button", onclick: this.onabort }, "Abort the run")
        : null,
    ]);
  }

  #showBursts(state) {
    const { status } = state;
    if (status.bursts_count < 2) return;
    const { burst } = status.burst;
    const to = (number, name) =>
      number >= 1 && number <= status.bursts_count
        ? h("a.button", { href: `#/run/${this.runId}/burst/${number}` }, name)
        : h("span.button.off", { "aria-disabled": "true" }, name);
    const whole = isOver(state) ? "Complete run" : "Watch the run";
    refill(this.bursts, [burst, status.bursts_over_count, whole], () => [
      to(burst - 1, "Previous"),
      h("strong", `Burst ${burst} of ${count(status.bursts_count)}`),
      to(burst + 1, "Next"),
      h("span.quiet", `${count(status.bursts_over_count)} of ${count(status.bursts_count)} finished`),
      this.burst === null ? null : h("a", { href: `#/run/${this.runId}` }, whole),
    ]);
  }
}
