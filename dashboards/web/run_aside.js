// Beside one run's charts: findings, clocks and starts, price; and below the heat map the pairs in
// trouble.

import { fill, h } from "./dom.js";
import { clock, instant, seconds } from "./format.js";
import { findingItems, troubleList } from "./lists.js";
import { priceLines } from "./price.js";
import { isOver } from "./run_head.js";

const TROUBLE_OPEN_COUNT = 5; // more pairs than that are folded away

const card = (name, child) => h("section", { class: "card" }, h("h2", {}, name), child);

const fact = (name, value, note) => [
  h("dt", {}, name, note ? h("span", {}, note) : null),
  h("dd", {}, value),
];

const dated = (at) => [clock(at), instant(at).slice(0, 10)];

export class RunAside {
  #shown = {}; // lists as they were last drawn

  constructor(burstIndex) {
    this.burstIndex = burstIndex;
    this.findings = h("ul", { class: "findings" });
    this.facts = h("dl", { class: "facts-list" });
    this.price = h("div", { class: "price" }, h("p", { class: "quiet" }, "Not known yet."));
    this.trouble = h("div");
    this.element = h(
      "aside",
      { "aria-label": "Findings, clocks and price" },
      card("Findings", this.findings),
      card("Clocks and starts", this.facts),
      card("Price", this.price),
    );
  }

  showFindings(state) {
    const { summary, findings } = state;
    const whole = summary && this.burstIndex === null;
    const list = (whole ? summary.findings : [...findings.values()]).toSorted(
      (a, b) => b.weight - a.weight,
    );
    if (!this.#isNew("findings", list)) return;
    const none = h("li", { class: "quiet" }, isOver(state) ? "None." : "None so far.");
    fill(this.findings, list.length ? findingItems(list) : none);
  }

  showTrouble({ figures }) {
    const list = figures?.trouble ?? [];
    if (!this.#isNew("trouble", list)) return;
    const open =
      this.trouble.querySelector("details")?.open ?? list.length <= TROUBLE_OPEN_COUNT;
    fill(this.trouble, list.length ? troubleList(list, open) : null);
  }

  showFacts({ status, figures }) {
    const of = figures?.summary;
    if (!status) return;
    const gate = `worst of both ends; gate ${seconds(status.clock_bound_max_s)}`;
    fill(
      this.facts,
      fact("Start spread", seconds(of?.start_spread_s), "first data, pairs on time"),
      fact("Largest start error", seconds(of?.start_error_max_s), "against the planned instant"),
      fact("Clock bound", seconds(of?.clock_bound_max_s), gate),
      fact("Planned start", ...dated(status.burst.planned_start_at)),
      fact("Launched", ...dated(status.created_at)),
    );
  }

  showPrice(price) {
    fill(this.price, ...priceLines(price));
  }

  #isNew(name, list) {
    const text = JSON.stringify(list);
    if (this.#shown[name] === text) return false;
    this.#shown[name] = text;
    return true;
  }
}
