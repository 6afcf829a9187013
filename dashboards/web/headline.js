// The main results of a run, with their units and layers.

import { fact, fill, h, say } from "./dom.js";
import {
  LAYERS,
  count,
  figureOf,
  known,
  percent,
  rate,
  rateParts,
  seconds,
  span,
  told,
} from "./format.js";
import { FIGURES, RECEIVED } from "./words.js";

// Metrics that you can see if you open the list of all metrics.
const MORE = FIGURES.filter(
  ({ shown, unit, name }) => shown && unit !== "bit/s" && name !== "completeness_ratio",
);

const WHOLE_BURST = "available when it covers the complete burst; see the chart for its samples";
const NO_COUNTER = ({ imported }) => (imported ? "none was imported" : "none configured");

class Tile {
  constructor(name) {
    this.value = h("span.value");
    this.unit = h("span.tile-unit");
    this.notes = [h("p.quiet"), h("p.quiet"), h("p.quiet")];
    this.element = h(
      "div.tile",
      h("h2", name),
      h("p.figure", this.value, this.unit),
      ...this.notes,
    );
  }

  // A state of "waiting" or "provisional" looks different, because the value can still change.
  set([value, unit], first = "", second = "", kind = "", state = null) {
    say(this.value, value);
    say(this.unit, unit);
    say(this.notes[0], first);
    say(this.notes[1], second);
    say(this.notes[2], stateText(state));
    const vague = value === "unknown" || value === "none" || value === "waiting";
    const open = state && state.state !== "known" ? ` ${state.state}` : "";
    const name = `tile ${kind}${vague ? " vague" : ""}${open}`.trim();
    if (this.element.className !== name) this.element.className = name;
  }
}

const isOpen = (state) => Boolean(state) && state.state !== "known";

function stateText(state) {
  if (!isOpen(state)) return "";
  const wait = known(state.wait_s) ? `, known in ${span(state.wait_s)}` : "";
  return `${state.state}${wait}`;
}

export class Headline {
  constructor() {
    this.tiles = {
      target: new Tile("Target"),
      fleet: new Tile("Fleet received"),
      firewall: new Tile("Device counter"),
      residual: new Tile("Residual"),
      completeness: new Tile("Completeness"),
      verdict: new Tile("Verdict"),
    };
    this.element = h(
      "section.headline",
      { "aria-label": "Headline" },
      Object.values(this.tiles).map((tile) => tile.element),
    );
    this.list = h("dl.facts-list");
    this.moreTitle = h("summary", "All metrics");
    this.more = h("details.card", this.moreTitle, this.list);
    this.element.append(this.more);
  }

  draw({ status, figures, summary, deviceCounter, data, burst }) {
    const whole = summary && burst === null;
    const of = whole ? summary : (figures?.summary ?? null);
    const scale = status.scale;
    const states = whole || figures?.final ? {} : (figures?.states ?? {});
    const real = (value, state = null) =>
      scale !== 1 && known(value) && !isOpen(state) ? `${rate(value * scale)} at real scale` : "";
    const { tiles } = this;
    const target = status.target_bits_per_second;
    tiles.target.set(
      known(target) ? rateParts(target) : ["none", ""],
      known(target) ? LAYERS[status.target_layer] : "no target",
      real(target),
    );

    // The large number is at the layer of the objective, as the target is.
    const payload = of?.[RECEIVED] ?? newest(data);
    const ip = of?.fleet_ip_bits_per_second;
    const atIp = status.target_layer === "ip" && known(ip);
    const fleet = atIp ? ip : payload;
    // The rate of the newest second is shown until there are figures of the burst.
    const received = known(of?.[RECEIVED]) ? states.received : { state: "provisional" };
    const half = isOpen(states.interval) ? null : of?.fleet_received_half_width_bits_per_second;
    const mean =
      whole && summary.bursts.length > 1 ? `, mean of ${summary.bursts.length} bursts` : "";
    const own = atIp ? LAYERS.ip : LAYERS.payload;
    const layer =
      data?.layer === "link"
        ? "link layer, at the senders"
        : `${own}${known(half) ? ` ± ${percent(half / payload)}` : ""}${mean}`;
    const other = atIp ? payload : ip;
    const otherText = known(other)
      ? `${rate(other)} ${atIp ? LAYERS.payload : LAYERS.ip}`
      : "";
    tiles.fleet.set(
      rateParts(fleet),
      known(fleet) ? layer : "no data yet",
      [otherText, real(fleet, received)].filter(Boolean).join("; "),
      "",
      known(fleet) ? received : null,
    );

    const held = of?.reconciliation ?? null;
    const counter = states.device_counter;
    const firewall = of?.firewall_bits_per_second ?? held?.firewall_bits_per_second ?? null;
    const some = deviceCounter?.bins.length ? WHOLE_BURST : "no complete sample yet";
    const none = deviceCounter?.source === "none" ? NO_COUNTER(status) : some;
    const counterText = deviceCounter ? (deviceCounter.problem ?? none) : "not yet read";
    const waits = (value, state) => known(value) || state?.state !== "waiting" ? null : ["waiting", ""];
    tiles.firewall.set(
      (deviceCounter?.source === "none" ? null : waits(firewall, counter)) ?? rateParts(firewall),
      known(firewall)
        ? `${LAYERS[held?.layer] ?? ""}, ${held?.source ?? deviceCounter?.source}`
        : counterText,
      real(firewall, counter),
      "",
      deviceCounter?.source === "none" ? null : counter,
    );

    const residual = held?.residual_ratio;
    tiles.residual.set(
      known(residual)
        ? [percent(residual, 2, true).replace(" %", ""), "%"]
        : ((held && waits(residual, states.residual)) ?? ["unknown", ""]),
      known(residual)
        ? `± ${percent(held.residual_uncertainty_ratio)}, counter relative to fleet`
        : held && !figures?.final && !whole
          ? "available when fleet and counter cover the complete burst"
          : "requires counter data",
      known(held?.lag_s) && !isOpen(states.lag) ? `lag ${seconds(held.lag_s)}` : "",
      "",
      held ? states.residual : null,
    );

    const seen = of?.completeness;
    const below =
      seen &&
      !isOpen(states.completeness) &&
      seen.completeness_ratio < status.coverage_floor_ratio;
    tiles.completeness.set(
      seen ? [percent(seen.completeness_ratio).replace(" %", ""), "%"] : ["unknown", ""],
      seen
        ? `${count(seen.measured_s)} of ${count(seen.planned_s)} pair-seconds${figures?.final || whole ? "" : " so far"}`
        : "no data yet",
      below ? `below the minimum of ${percent(status.coverage_floor_ratio, 0)}` : "",
      below ? "warn" : "",
      seen ? states.completeness : null,
    );

    this.more.hidden = !of;
    const soFar = !whole && !figures?.final;
    say(this.moreTitle, soFar ? "All metrics, provisional" : "All metrics");
    this.list.classList.toggle("provisional", soFar);
    fill(
      this.list,
      ...MORE.map((figure) => [figure, of ? figureOf(figure, of) : null])
        .filter(([, value]) => known(value))
        .map(([{ words, unit, decimals }, value]) => fact(words, told(unit, value, decimals))),
    );

    const verdict = whole ? summary.verdict : summary ? figures?.summary.verdict : null;
    const sign = { pass: "✓ ", fail: "✕ ", inconclusive: "? ", measured: "= " }[verdict] ?? "";
    const isNamed = of?.bottleneck && of.bottleneck !== "unknown" && !isOpen(states.bottleneck);
    const bottleneck = isNamed ? `bottleneck: ${of.bottleneck}` : "";
    tiles.verdict.set(
      verdict ? [`${sign}${verdict}`, ""] : ["none yet", ""],
      verdict ? bottleneck : `the run is ${status.state}`,
      verdict || !bottleneck ? "" : `${bottleneck}, so far`,
      verdict ?? "open",
    );
  }
}

// If the run has no result yet, use the last complete second.
function newest(data) {
  if (!data) return null;
  for (let second = data.knownS - 1; second >= 0; second--) {
    const value = data.value("fleet_bits_per_second", second);
    if (known(value)) return value;
  }
  return null;
}
