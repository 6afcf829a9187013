// What is launched by the clock, and when next.

import { readIfThere, send } from "./api.js";
import { announce, fill, h, notice } from "./dom.js";
import { counted, instant, span } from "./format.js";
import { scheduleForm } from "./schedule_form.js";

// The same instant by the schedule's own clock, where that is another.
function local(at, timeZone) {
  if (!timeZone || timeZone === "UTC") return null;
  const words = { timeZone, weekday: "short", hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  const there = new Intl.DateTimeFormat("en-GB", words).format(new Date(at));
  return h("span", { class: "quiet" }, ` ${there} there`);
}

export function schedulesView(main, _, { operator }) {
  const list = h("div");
  const making = h("div");
  const add = h("button", { type: "button", class: "primary", onclick: () => edit() }, "Add one");
  main.append(
    h(
      "div",
      { class: "title" },
      h("h1", {}, "Schedules"),
      h("span", { class: "spacer" }),
      operator ? add : null,
    ),
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

  async function load() {
    try {
      const answer = await readIfThere("/v1/schedules");
      if (answer === null) {
        fill(list, notice("note", "Not here", "This coordinator keeps no schedules."));
        return;
      }
      const views = Array.isArray(answer) ? answer : (answer.schedules ?? []);
      if (!views.length) {
        fill(
          list,
          h(
            "div",
            { class: "empty" },
            h("h2", {}, "No schedule yet"),
            h(
              "p",
              {},
              operator ? "Add one above, or on the command line: " : "On the command line: ",
              h("code", {}, 'broadside schedule add nightly --scenario smoke --cron "0 2 * * *"'),
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
          views.map((view) => shown(view)),
        ),
      );
    } catch (problem) {
      if (problem.status !== 401) fill(list, notice("bad", problem.title, problem.message));
    }
  }

  function shown({ schedule, state, next_at: next }) {
    const paused = state === "paused";
    const change = h(
      "button",
      {
        type: "button",
        async onclick() {
          change.disabled = true;
          try {
            await send(
              "POST",
              `/v1/schedules/${encodeURIComponent(schedule.name)}/${paused ? "resume" : "pause"}`,
            );
            announce(`${schedule.name} ${paused ? "resumed" : "paused"}`);
            await load();
          } catch (problem) {
            change.disabled = false;
            change.after(notice("bad", problem.title, problem.message));
          }
        },
      },
      paused ? "Resume" : "Pause",
    );
    const when = schedule.cron
      ? [h("code", {}, schedule.cron), ` in ${schedule.timezone}`]
      : [`once, at ${instant(schedule.at)}`];
    return h(
      "li",
      { class: "card" },
      h(
        "div",
        { class: "title" },
        h("h2", {}, schedule.name),
        h("span", { class: `badge ${state}` }, state),
        h("span", { class: "spacer" }),
        operator && state !== "ended"
          ? h(
              "div",
              { class: "actions" },
              h("button", { type: "button", onclick: () => edit(schedule) }, "Change"),
              change,
            )
          : null,
      ),
      h(
        "p",
        { class: "facts" },
        h("strong", {}, schedule.spec.scenario),
        ", ",
        when,
        `, ${counted(schedule.spec.pairs_count, "pair")}, ${schedule.spec.bursts_count} × ${span(schedule.spec.burst_s)}`,
        schedule.runs_max_count ? `, at most ${schedule.runs_max_count} runs` : "",
      ),
      h("h3", {}, "Next"),
      next?.length
        ? h(
            "ol",
            { class: "next" },
            next
              .slice(0, 5)
              .map((at) => h("li", {}, instant(at), local(at, schedule.timezone))),
          )
        : h("p", { class: "quiet" }, paused ? "None while it is paused." : "None: it has ended."),
      schedule.last_run_id
        ? h(
            "p",
            {},
            "Last run: ",
            h("a", { class: "mono", href: `#/run/${schedule.last_run_id}` }, schedule.last_run_id),
          )
        : null,
    );
  }

  load();
  const timer = setInterval(
    () => document.hidden || list.contains(document.activeElement) || load(),
    15_000,
  );
  return () => clearInterval(timer);
}
