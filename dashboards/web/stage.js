// Text for the current state of a burst, for example the time until it will start.

import { clock, span } from "./format.js";

// Get the text and the progress (from 0 to 1, or null). If there is a verdict, return null.
export function stageOf({ status, summary, data }, now) {
  const { burst } = status;
  const until = (instant) => (new Date(instant) - now) / 1000;
  const armed = `armed ${burst.armed_count} of ${burst.pairs_planned}`;
  if (burst.phase === "over") {
    if (summary) return null;
    const next =
      status.state === "waiting" && status.next_start_at
        ? `next burst in ${span(until(status.next_start_at))}`
        : "waiting for the device counter and the verdict";
    return { big: "Over", small: next, share: null };
  }
  const total = status.duration_s + status.omit_s;
  const wait = until(burst.planned_start_at);
  if (burst.phase === "collecting" || -wait >= total) {
    const small = `reported ${burst.reported_count} of ${burst.claimed_count}`;
    return {
      big: "Collecting",
      small,
      share: burst.reported_count / Math.max(1, burst.claimed_count),
    };
  }
  if (wait > 0) {
    const left = wait < 100 ? `${Math.ceil(wait)} s` : span(wait);
    const fires = `starts at ${clock(burst.planned_start_at)}; agents arm 20 s before`;
    const small = burst.phase === "planned" ? fires : armed;
    return { big: `T−${left}`, small, share: burst.armed_count / burst.pairs_planned };
  }
  const second = Math.floor(-wait) + 1;
  const phase = status.load_phase ? `, ${status.load_phase}` : "";
  const big = `Second ${second} of ${total}${phase}`;
  if (status.early_end_reason) {
    const small = `ends early: ${status.early_end_reason}`;
    return { big, small, share: second / total };
  }
  const small = data?.stop
    ? `data until second ${data.knownS}; ${armed}`
    : `${armed}; data has a delay of a few seconds`;
  return { big, small, share: second / total };
}
