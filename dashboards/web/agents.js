// View of the agents: their state, their clocks and the problems that should be fixed before a
// run.

import { coordinatorNow, read, readPages } from "./api.js";
import { LONG, every, fill, guarded, h, say, table } from "./dom.js";
import { known, seconds, span } from "./format.js";

const REFRESH_MS = 5000;
// Seconds without a heartbeat. The planner uses the same limit.
const SILENT_S = 15;
const WORKS = ["idle", "busy"];
// Clock gate that a job uses by default, in seconds.
const GATE_S = 0.05;

function clockOf({ clock }) {
  if (!clock || clock.source === "unknown") return "unknown";
  if (!clock.synchronised || !known(clock.bound_s)) return `${clock.source}, not synchronised`;
  const over = clock.bound_s > GATE_S ? ", above the default limit" : "";
  return `${clock.source}, ± ${seconds(clock.bound_s)}${over}`;
}

function enginesOf({ engine_version: own, engines, gate, role }) {
  const others = engines.filter((each) => !each.problem).map((each) => each.name);
  const gated = role === "client" && !gate ? ["no start gate"] : [];
  return [own ? `iperf3 ${own}` : "no iperf3", ...others, ...gated].join(", ");
}

function stateOf(presence, heard_s) {
  if (heard_s > SILENT_S) return "silent";
  return presence.problem ? "not ready" : presence.state;
}

const COLUMNS = [
  ["Agent", ({ each }) => h("span.mono", each.agent_id)],
  ["Role", ({ each }) => each.role],
  [
    "State",
    ({ state }) => h("span", { class: `badge ${WORKS.includes(state) ? "" : "fail"}` }, state),
  ],
  [
    "Problem",
    ({ each, state }) =>
      each.problem ?? (state === "silent" ? "no heartbeat; check that it is running" : "none"),
    LONG,
  ],
  ["Last heartbeat", ({ heard_s }) => `${span(Math.round(heard_s))} ago`],
  ["Clock", ({ each }) => clockOf(each)],
  ["Address", ({ each }) => h("span.mono", each.address)],
  ["Engines", ({ each }) => enginesOf(each), LONG],
];

const PLACES = [
  ["Place", ({ place }) => h("span.mono", place)],
  [
    "State",
    ({ state }) => h("span", { class: `badge ${state === "failing" ? "fail" : ""}` }, state),
  ],
  ["Waiting", ({ waiting_count: count }) => `${count} ${count === 1 ? "run" : "runs"}`],
  ["Last notice", ({ last_delivered_at: at }) => ago(at) ?? "none yet"],
  ["Last error", ({ last_error: error }) => error ?? "none", LONG],
  [
    "Failed",
    ({ last_error_at: at, failures_count: count }) =>
      at ? `${ago(at)}, ${count} ${count === 1 ? "try" : "tries"} since the last notice` : "never",
    LONG,
  ],
];

function ago(at) {
  if (!at) return null;
  return `${span(Math.max(0, Math.round((coordinatorNow() - Date.parse(at)) / 1000)))} ago`;
}

// Get the state of the webhook and the OTLP collector. If you do not use any of
// these services, the box will be empty.
async function readPlaces(box) {
  const places = await read("/v1/notices");
  if (!places.length) return;
  // A problem should be seen without scrolling below all agents.
  const title = box.parentElement.firstElementChild;
  if (places.some(({ state }) => state === "failing")) title.after(box);
  fill(box, h("h2", "Notices of finished runs"), table("Places", PLACES, places, { wide: true }));
}

export function agentsView(main) {
  const count = h("span.quiet");
  const list = h("div", h("p.quiet", "Loading."));
  const places = h("section.places");
  main.append(h("div.title", h("h1", "Agents"), count), list, places);

  const load = guarded(list, async () => {
    const [presences] = await Promise.all([
      readPages("/v1/agents?limit=1000"),
      readPlaces(places),
    ]);
    const now = coordinatorNow();
    const rows = presences.map((each) => {
      const heard_s = Math.max(0, (now - Date.parse(each.beat_at)) / 1000);
      return { each, heard_s, state: stateOf(each, heard_s) };
    });
    const works = ({ state }) => WORKS.includes(state);
    const live = rows.filter(works).length;
    // Agents with a problem are first.
    rows.sort((a, b) => works(a) - works(b));
    say(count, `${live} of ${rows.length} ready`);
    if (!rows.length) {
      const how = h("p", "Start one: ", h("code", "broadside agent --role client"));
      fill(list, h("div.empty", h("h2", "No agent yet"), how));
      return;
    }
    const at = list.querySelector(".scroll")?.scrollLeft ?? 0;
    fill(list, table("Agents", COLUMNS, rows, { wide: true }));
    list.querySelector(".scroll").scrollLeft = at;
  });

  return every(REFRESH_MS, load);
}
