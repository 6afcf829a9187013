// The fleet: who is there, whose clock is good, what keeps one from working.

import { coordinatorNow, read } from "./api.js";
import { fill, h, notice, say, table } from "./dom.js";
import { known, seconds, span } from "./format.js";

const REFRESH_MS = 5000;
const SILENT_S = 15; // as the planner counts
const GATE_S = 0.05; // s, a job's usual clock gate

const COLUMNS = ["Agent", "Role", "State", "What is wrong", "Heard", "Clock", "Address", "Engines"];

function clockOf({ clock }) {
  if (!clock || clock.source === "unknown") return "unknown";
  if (!clock.synchronised || !known(clock.bound_s)) return `${clock.source}, not synchronised`;
  const over = clock.bound_s > GATE_S ? ", over the usual gate" : "";
  return `${clock.source}, within ${seconds(clock.bound_s)}${over}`;
}

function enginesOf({ engine_version: own, engines, gate, role }) {
  const others = engines.filter((each) => !each.problem).map((each) => each.name);
  const gated = role === "client" && !gate ? ["no start gate"] : [];
  return [own ? `iperf3 ${own}` : "no iperf3", ...others, ...gated].join(", ");
}

function stateOf(presence, heard_s) {
  if (heard_s > SILENT_S) return "silent";
  return presence.problem ? "cannot work" : presence.state;
}

export function agentsView(main) {
  const count = h("span", { class: "quiet" });
  const list = h("div", {}, h("p", { class: "quiet" }, "Reading who is there."));
  main.append(h("div", { class: "title" }, h("h1", {}, "Agents"), count), list);

  async function load() {
    try {
      const presences = await read("/v1/presences?limit=5000");
      const now = coordinatorNow();
      const rows = presences.map((each) => {
        const heard_s = Math.max(0, (now - Date.parse(each.beat_at)) / 1000);
        return { each, heard_s, state: stateOf(each, heard_s) };
      });
      const live = rows.filter(({ state }) => ["idle", "busy"].includes(state)).length;
      say(count, `${live} of ${rows.length} can work`);
      if (!rows.length) {
        fill(
          list,
          h(
            "div",
            { class: "empty" },
            h("h2", {}, "Nobody yet"),
            h("p", {}, "Start one: ", h("code", {}, "broadside agent --role client")),
          ),
        );
        return;
      }
      const shown = rows.map(({ each, heard_s, state }) => [
        h("span", { class: "mono" }, each.agent_id),
        each.role,
        h("span", { class: `badge ${["idle", "busy"].includes(state) ? "" : "fail"}` }, state),
        each.problem ?? (state === "silent" ? "no word from it; is it running?" : "nothing"),
        `${span(Math.round(heard_s))} ago`,
        clockOf(each),
        h("span", { class: "mono" }, each.address),
        enginesOf(each),
      ]);
      const at = list.querySelector(".scroll")?.scrollLeft ?? 0;
      fill(list, table("Agents", COLUMNS, shown, { wide: true }));
      list.querySelector(".scroll").scrollLeft = at;
    } catch (problem) {
      if (problem.status !== 401) fill(list, notice("bad", problem.title, problem.message));
    }
  }

  load();
  const timer = setInterval(() => document.hidden || load(), REFRESH_MS);
  return () => clearInterval(timer);
}
