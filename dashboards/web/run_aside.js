// Information about a run: findings, clocks, start times and cost. The pairs that have problems
// are shown below the heat map.

import { fact, fill, h, refill } from "./dom.js";
import { clock, counted, instant, known, seconds } from "./format.js";
import { findingItems, troubleList } from "./lists.js";
import { priceLines } from "./price.js";
import { isOver } from "./run_head.js";

// If there are more pairs than this, you can open the list to see them.
const TROUBLE_OPEN_COUNT = 5;

const card = (name, ...children) => h("section.card", h("h2", name), ...children);

const dated = (at) => [clock(at), instant(at).slice(0, 10)];

const SEVERITIES = ["problem", "warning", "note"];

// Problems, warnings and notes.
function inOrder(findings) {
  const rank = ({ severity }) => SEVERITIES.indexOf(severity);
  return findings.toSorted((a, b) => rank(a) - rank(b) || b.weight - a.weight);
}

export class RunAside {
  constructor(burst) {
    this.burst = burst;
    this.findings = h("ul.findings");
    this.facts = h("dl.facts-list");
    this.untold = h(
      "p.quiet",
      { hidden: true },
      "The imported data does not contain clocks and start times.",
    );
    this.price = h("div.price", h("p.quiet", "Not yet known."));
    this.trouble = h("div");
    this.element = h(
      "aside",
      { "aria-label": "Findings, clocks and cost" },
      card("Findings", this.findings),
      card("Clocks and starts", this.untold, this.facts),
      card("Cost", this.price),
    );
  }

  showFindings(state) {
    const { summary, findings } = state;
    const whole = summary && this.burst === null;
    const reason = whole ? summary.reason : state.figures?.reason;
    const all = whole ? summary.findings : inOrder([...findings.values()]);
    // The reason is shown above the figures.
    const list = all.filter(({ sentence }) => sentence !== reason);
    refill(this.findings, list, () => {
      const first = list.filter(({ severity }) => severity !== "note");
      const notes = list.filter(({ severity }) => severity === "note");
      const none = isOver(state) ? "No problem and no warning." : "None yet.";
      return [
        first.length ? findingItems(first) : h("li.quiet", none),
        notes.length
          ? h(
              "li",
              h(
                "details.alternative",
                h("summary", counted(notes.length, "note")),
                h("ul.findings", findingItems(notes)),
              ),
            )
          : null,
      ];
    });
  }

  showTrouble({ figures }) {
    const list = figures?.unmeasured_pairs ?? [];
    refill(this.trouble, list, () => {
      const open = this.trouble.querySelector("details")?.open ?? list.length <= TROUBLE_OPEN_COUNT;
      return [list.length ? troubleList(list, open) : null];
    });
  }

  showFacts({ status, figures }) {
    const of = figures?.summary;
    if (!status) return;
    const gate = `worst of client and server; limit ${seconds(status.clock_bound_max_s)}`;
    const measured = [
      ["Start spread", of?.start_spread_s, "first data, pairs on time"],
      ["Largest start error", of?.start_error_max_s, "relative to the planned start"],
      ["Clock uncertainty", of?.clock_bound_max_s, gate],
    ].filter(([, value]) => known(value) || !status.imported);
    fill(
      this.facts,
      ...measured.map(([name, value, note]) => fact(name, seconds(value), note)),
      fact("Planned start", ...dated(status.burst.planned_start_at)),
      fact(status.imported ? "Imported" : "Launched", ...dated(status.created_at)),
    );
    this.untold.hidden = measured.length > 0;
  }

  showPrice(price) {
    fill(this.price, ...priceLines(price));
  }
}
