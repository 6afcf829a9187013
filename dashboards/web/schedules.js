// List of schedules and the time of the next run.

import { read, send } from "./api.js";
import { announce, every, fill, guarded, h, refused } from "./dom.js";
import { counted, instant, span } from "./format.js";
import { scheduleForm } from "./schedule_form.js";

// Get the time in the time zone of the schedule if it is not using UTC.
function local(at, timeZone) {
  if (!timeZone || timeZone === "UTC") return null;
  const words = {
    timeZone,
    weekday: "short",
    hour: "2-digit",
    minute: "2-digit",
    hourCycle: "h23",
  };
  const there = new Intl.DateTimeFormat("en-GB", words).format(new Date(at));
  return h("span.quiet", ` ${there} there`);
}

export function schedulesView(main, _, { operator }) {
  const list = h("div");
  const making = h("div");
  const add = h("button.primary", { type: "button", onclick: () => edit() }, "Add schedule");
  main.append(
    h("div.title", h("h1", "Schedules"), h("span.spacer"), operator ? add : null),
    making,
    list,
  );

  function edit(schedule = null) {
    const done = () => {
      fill(making);
      add.focus();
      load();
    };
    fill(making, scheduleForm(schedule, done));
    making.querySelector("input:not([readonly])").focus();
  }

  const load = guarded(list, async () => {
    const views = await read("/v1/schedules");
    const how = 'broadside schedule add nightly --scenario smoke --cron "0 2 * * *"';
    const where = operator ? "Add one above, or on the command line: " : "On the command line: ";
    fill(
      list,
      views.length
        ? h("ul.schedules", views.map(shown))
        : h("div.empty", h("h2", "No schedule yet"), h("p", where, h("code", how))),
    );
  });

  function shown({ schedule, state, next_at: next }) {
    const [paused, last] = [state === "paused", schedule.last_run_id];
    const change = h(
      "button",
      {
        type: "button",
        async onclick() {
          change.disabled = true;
          try {
            const what = paused ? "resume" : "pause";
            await send("POST", `/v1/schedules/${encodeURIComponent(schedule.name)}/${what}`);
            announce(`${schedule.name} ${paused ? "resumed" : "paused"}`);
            await load();
          } catch (problem) {
            change.disabled = false;
            change.after(refused(problem));
          }
        },
      },
      paused ? "Resume" : "Pause",
    );
    const edited = h("button", { type: "button", onclick: () => edit(schedule) }, "Change");
    const when = schedule.cron
      ? [h("code", schedule.cron), ` in ${schedule.timezone}`]
      : [`once, at ${instant(schedule.at)}`];
    return h(
      "li.card",
      h(
        "div.title",
        h("h2", schedule.name),
        h("span", { class: `badge ${state}` }, state),
        h("span.spacer"),
        operator && state !== "ended" ? h("div.actions", edited, change) : null,
      ),
      h(
        "p.facts",
        h("strong", schedule.spec.scenario),
        ", ",
        when,
        `, ${counted(schedule.spec.pairs_count, "pair")}, ${schedule.spec.bursts_count} × ${span(schedule.spec.burst_s)}`,
        schedule.runs_max_count ? `, at most ${schedule.runs_max_count} runs` : "",
      ),
      h("h3", "Next"),
      next.length
        ? h(
            "ol.next",
            next.map((at) => h("li", instant(at), local(at, schedule.timezone))),
          )
        : h("p.quiet", paused ? "None while paused." : "None: the schedule has ended."),
      last ? h("p", "Last run: ", h("a.mono", { href: `#/run/${last}` }, last)) : null,
    );
  }

  return every(15_000, () => list.contains(document.activeElement) || load());
}
