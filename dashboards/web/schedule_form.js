// Form to create a new schedule or to change a schedule.

import { read, send } from "./api.js";
import { announce, field, fill, h, refused } from "./dom.js";

// Format a time in a given time zone for use in a date field.
function onClock(at, timeZone) {
  return new Date(at).toLocaleString("sv-SE", { timeZone }).slice(0, 16).replace(" ", "T");
}

export function scheduleForm(schedule, done) {
  const own = Intl.DateTimeFormat().resolvedOptions().timeZone ?? "UTC";
  const shownAt = schedule?.at ? onClock(schedule.at, schedule.timezone) : "";
  const input = (name, value, more = {}) =>
    h("input", { id: `schedule-${name}`, value: value ?? "", ...more });
  const name = input("name", schedule?.name, {
    required: true,
    readonly: Boolean(schedule),
    pattern: "[a-z0-9]([a-z0-9\\-]{0,34}[a-z0-9])?",
    title: "lower-case letters, digits and hyphens, at most 36 characters",
  });
  const scenario = h("select", { id: "schedule-scenario" });
  const cron = input("cron", schedule?.cron, { placeholder: "0 2 * * 6" });
  const at = input("at", shownAt, { type: "datetime-local" });
  const zone = input("zone", schedule?.timezone ?? own, { required: true });
  const most = input("most", schedule?.runs_max_count, { type: "number", min: "1" });
  const overlap = h(
    "select",
    { id: "schedule-overlap" },
    ["skip", "queue", "cancel"].map((value) => h("option", { value }, value)),
  );
  overlap.value = schedule?.overlap ?? "skip";
  const problems = h("div");
  const save = h("button.primary", schedule ? "Save" : "Add");

  read("/v1/scenarios")
    .then((found) => {
      // The schedule can have a scenario with fields that are not on this form. We should not
      // change it unless the user selects another one.
      const kept = schedule
        ? [h("option", { value: "" }, `${schedule.spec.scenario}, unchanged`)]
        : [];
      fill(
        scenario,
        kept,
        Object.keys(found).map((each) => h("option", { value: each }, each)),
      );
    })
    .catch((problem) => fill(problems, refused(problem)));

  async function go(event) {
    event.preventDefault();
    save.disabled = true;
    const what = scenario.value ? { scenario: scenario.value } : { spec: schedule.spec };
    // If both are set, the coordinator will return an error, so we send both.
    const when = { cron: cron.value || null, at: at.value || null };
    // Fields that are not on this form, or that do not have any seconds on it.
    const kept = {};
    if (schedule) {
      kept.until_at = schedule.until_at;
      kept.missed_limit_s = schedule.missed_limit_s;
      if (at.value && at.value === shownAt && zone.value === schedule.timezone)
        kept.at = schedule.at;
    }
    const body = {
      ...what,
      ...when,
      ...kept,
      name: name.value,
      timezone: zone.value,
      overlap: overlap.value,
      runs_max_count: most.value ? Number(most.value) : null,
      missed: schedule?.missed ?? "skip",
      by: schedule?.created_by ?? "page",
    };
    try {
      const to = `/v1/schedules${schedule ? `/${encodeURIComponent(schedule.name)}` : ""}`;
      await send(schedule ? "PUT" : "POST", to, body);
      announce(`${name.value} saved`);
      done();
    } catch (problem) {
      save.disabled = false;
      fill(problems, refused(problem));
    }
  }

  return h(
    "form.card",
    { onsubmit: go },
    h("h2", schedule ? `Change ${schedule.name}` : "New schedule"),
    h(
      "div.fields",
      field("Name", name),
      field("Scenario", scenario),
      field("Cron", cron, " minute hour day month weekday"),
      field("or once at", at),
      field("Time zone", zone),
      field("If the previous run is in progress", overlap),
      field("Maximum number of runs", most, " empty: no limit"),
    ),
    problems,
    h("div.actions", h("button", { type: "button", onclick: done }, "Cancel"), save),
  );
}
