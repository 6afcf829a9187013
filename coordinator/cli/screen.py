"""Text display of a run, as a full screen of any size or as one line. Pure."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final

from rich.text import Text

from broadside.coordinator.cli.run_event_state import RunEventState
from broadside.coordinator.core import formatting
from broadside.coordinator.core.live.live_view import LiveStatus
from broadside.coordinator.core.live.status import BurstPhase, RunState
from broadside.coordinator.core.metrics import layer_label

_EIGHTHS: Final = " ▁▂▃▄▅▆▇█"
_STYLES: Final = {"problem": "bold red", "warning": "yellow", "note": "dim"}
_BAR_WIDTH: Final = 20
FOOTER: Final = "press q to leave; the run continues"
_WAITING: Final = "waiting for the coordinator"


def render_screen(
    state: RunEventState, width: int, height: int, now: datetime, problem: str | None
) -> Text:
    """Return a screen that fits into ``width`` and ``height``.

    Args:
        state: The run state.
        width: Width in columns.
        height: Height in lines.
        now: Current time of the coordinator.
        problem: Reason why there is no new data. None if there is no problem.
    """
    status = state.status
    if status is None:
        return Text(problem or _WAITING, no_wrap=True, overflow="ellipsis")
    lines = [_title(state, status), _phase_line(status, now), _counts(status)]
    if problem or status.problem:
        lines.append(Text(f"no new data: {problem or status.problem}", style="bold red"))
    lines += [Text(), _sparkline(state, width), Text(), *_metrics(state, width)]
    lines += [*_parts(state, width), Text()]
    lines += _findings(state, max(1, height - len(lines) - 2))
    lines = lines[: height - 1]
    lines += [Text()] * (height - 1 - len(lines))
    lines.append(Text(FOOTER, style="dim"))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n").join(lines)


def render_line(state: RunEventState, now: datetime, width: int = 60) -> str:
    """Return the run state as one line.

    Args:
        state: The run state.
        now: Current time of the coordinator.
        width: Maximum number of seconds in the sparkline.
    """
    status = state.status
    if status is None:
        return _WAITING
    burst = status.burst
    text = f"{status.run_id}: {status.state}, burst {burst.index + 1}/{status.bursts_count}"
    rates = _complete_rates(state)
    match burst.phase:
        case BurstPhase.PLANNED | BurstPhase.ARMING:
            wait_s = (burst.planned_start_at - now).total_seconds()
            text += f", armed {burst.armed_count}/{status.pairs_count}, starts in {wait_s:.0f} s"
        case BurstPhase.RUNNING if rates:
            newest = max(rates)
            phase = f" ({status.load_phase})" if status.load_phase else ""
            text += f", second {newest + 1}{phase}: {_blocks(rates, width)} "
            text += f"{formatting.rate(rates[newest])} {state.shown_layer}"
            text += "".join(f"; {name} {rate}" for name, rate, _ in _part_rates(state))
        case BurstPhase.COLLECTING | BurstPhase.OVER:
            text += f", reported {burst.reported_count}/{burst.claimed_count}"
    if status.state not in (RunState.FINISHED, RunState.CANCELLED):
        text += f", ends within {_left_s(status, now):.0f} s"
    return f"{text}; no new data: {status.problem}" if status.problem else text


def progress_key(state: RunEventState) -> object:
    """Return a value that changes when a new line should be printed."""
    if state.status is None:
        return None
    status, burst = state.status, state.status.burst
    progress = (burst.index, burst.phase, burst.armed_count, burst.reported_count)
    return status.state, status.problem, *progress, len(_complete_rates(state))


def _complete_rates(state: RunEventState) -> Mapping[int, float]:
    """Return the fleet rate in bit/s for each complete second."""
    return {
        second: value
        for second, value in state.rates().items()
        if value is not None and second < state.known_s
    }


def _blocks(rates: Mapping[int, float], width: int) -> str:
    """Return the rates of the newest seconds as block characters. A second without data is `·`."""
    highest = max(rates.values()) or 1.0
    seconds = range(max(min(rates), max(rates) - width + 1), max(rates) + 1)
    return "".join(
        _EIGHTHS[round(rates[second] / highest * 8)] if second in rates else "·"
        for second in seconds
    )


def _sparkline(state: RunEventState, width: int) -> Text:
    rates = _complete_rates(state)
    if not rates:
        return Text("no complete second yet", style="dim")
    title = f"rate, up to {formatting.rate(max(rates.values()))}  "
    return Text(title, style="dim").append(_blocks(rates, max(1, width - len(title))), style="cyan")


def _title(state: RunEventState, status: LiveStatus) -> Text:
    text = Text(f"{status.run_id}  burst {state.burst_index + 1} of {status.bursts_count}", "bold")
    if status.scale != 1:
        text.append(f"  {formatting.lab(status.scale)}", style="dim")
    return text


def _left_s(status: LiveStatus, now: datetime) -> float:
    return max(0.0, (status.ends_at - now).total_seconds())


def _phase_line(status: LiveStatus, now: datetime) -> Text:
    """Return the countdown before a burst, a progress bar during it, and when the run ends."""
    burst, state = status.burst, status.state
    text = Text(f"{state.value:<11}", style="bold cyan")
    if state is RunState.CANCELLED:
        return text.append(f"by {status.cancelled_by}: {status.cancel_reason}")
    end = f"   ends within {_duration(_left_s(status, now))}, at {status.ends_at:%H:%M:%S}Z"
    match burst.phase:
        case BurstPhase.PLANNED | BurstPhase.ARMING:
            wait_s = max(0.0, (burst.planned_start_at - now).total_seconds())
            return text.append(f"starts in {wait_s:.0f} s", style="bold").append(end)
        case BurstPhase.RUNNING:
            total_s = status.duration_s + status.omit_s
            done_s = min(total_s, max(0.0, (now - burst.planned_start_at).total_seconds()))
            filled = round(_BAR_WIDTH * done_s / max(1, total_s))
            bar = "█" * filled + "░" * (_BAR_WIDTH - filled)
            why = f"   ends early: {status.early_end_reason}" if status.early_end_reason else ""
            phase = f", {status.load_phase}" if status.load_phase else ""
            return text.append(f"{bar} {done_s:.0f} of {total_s} s{phase}{why}").append(end)
    if status.next_start_at is None:
        return text.append("waiting for reports and the device counter")
    wait_s = max(0.0, (status.next_start_at - now).total_seconds())
    return text.append(f"next burst in {_duration(wait_s)}").append(end)


def _counts(status: LiveStatus) -> Text:
    burst, planned = status.burst, status.pairs_count
    text = Text()
    for name, number in (
        ("claimed", burst.claimed_count),
        ("armed", burst.armed_count),
        ("reported", burst.reported_count),
    ):
        style = "green" if number >= planned else "bold"
        text.append(f"{name} ").append(f"{number}/{planned}   ", style=style)
    outcomes = ", ".join(f"{n} {outcome.value}" for outcome, n in burst.outcomes.items())
    return text.append(outcomes, style="dim")


def _metrics(state: RunEventState, width: int) -> list[Text]:
    """Return the current metrics, as many on a line as fit."""
    status, figures, newest = state.status, state.figures, state.newest_second
    rate, coverage, rtt = (
        None if newest is None else values.get(newest)
        for values in (state.rates(), state.coverage, state.rtt)
    )
    now = _with_state(state, "seconds", f"{formatting.rate(rate)} {state.shown_layer}")
    metrics = [("now", now)]
    if status is not None and status.target_bits_per_second:
        target = status.target_bits_per_second
        # A provisional rate, or one of another layer, is not compared with the target.
        is_final = state.shown_layer == layer_label(status.target_layer) and not now.startswith("(")
        share = f" ({formatting.ratio(rate / target, 0)})" if is_final and rate is not None else ""
        metrics.append(
            ("target", f"{formatting.rate(target)} {layer_label(status.target_layer)}{share}")
        )
    if state.device_counter is not None and state.device_counter.bins:
        text = formatting.rate(state.firewall_bits_per_second())
        layer = layer_label(state.device_counter.layer)
        metrics.append(("firewall", _with_state(state, "device_counter", f"{text} {layer}")))
    metrics.append(("pairs with data", formatting.ratio(coverage, 0)))
    if figures is not None:
        summary = figures.summary
        cpu = (summary.client.cpu_mean_ratio, summary.server.cpu_mean_ratio)
        counts = [f.retransmits_count for f in summary.flows if f.retransmits_count is not None]
        metrics += [
            (
                "complete",
                _with_state(state, "completeness", formatting.ratio(summary.completeness_ratio, 1)),
            ),
            ("start spread", formatting.time(summary.start_spread_s)),
            ("RTT", formatting.time(rtt)),
            ("retransmits", formatting.count(sum(counts) if counts else None)),
            ("CPU", f"{formatting.ratio(cpu[0], 0)} / {formatting.ratio(cpu[1], 0)}"),
        ]
    lines = [Text()]
    for name, value in metrics:
        if lines[-1].cell_len + len(name) + len(value) + 3 > width and lines[-1].cell_len:
            lines.append(Text())
        style = "dim italic" if value.startswith("(") else ""
        lines[-1].append(f"{name} ", style="dim").append(value, style=style).append("   ")
    return lines


def _part_rates(state: RunEventState) -> Iterator[tuple[str, str, tuple[float | None, ...]]]:
    """Yield the name of each other part of a mixed run, its newest payload rate, and all rates."""
    if state.figures is None:
        return
    for part in state.figures.summary.parts:
        rates = part.received_bits_per_second
        newest = next((rate for rate in reversed(rates) if rate is not None), None)
        yield part.name, formatting.rate(newest), rates


def _parts(state: RunEventState, width: int) -> list[Text]:
    """Return a line for each other part of a mixed run."""
    lines = []
    for name, rate, rates in _part_rates(state):
        known = {second: value for second, value in enumerate(rates) if value is not None}
        text = Text(f"{name} ", style="dim").append(f"{rate} payload  ")
        if known and max(known.values()) > 0:
            text.append(_blocks(known, max(1, width - text.cell_len)), style="cyan")
        lines.append(text)
    return lines


def _with_state(state: RunEventState, name: str, text: str) -> str:
    """Return the text of a metric, marked if its value can still change."""
    figure = None if state.figures is None else state.figures.states.get(name)
    if figure is None or figure.state == "known":
        return text
    wait = "" if figure.wait_s is None else f", known in {_duration(figure.wait_s)}"
    return f"({text}: {figure.state}{wait})"


def _findings(state: RunEventState, count: int) -> list[Text]:
    """Return the pairs with problems and the most severe findings, one line each."""
    lines = []
    unmeasured_pairs = state.figures.unmeasured_pairs if state.figures else ()
    if unmeasured_pairs:
        pairs = ", ".join(f"{pair.pair} {pair.state.value}" for pair in unmeasured_pairs[:4])
        more = f" and {len(unmeasured_pairs) - 4} more" if len(unmeasured_pairs) > 4 else ""
        lines.append(Text(f"{len(unmeasured_pairs)} pairs: {pairs}{more}", style="yellow"))
    findings = sorted(state.findings.values(), key=lambda finding: -finding.weight)
    for finding in findings[:count]:
        text = Text(f"{finding.severity}: ", style=_STYLES[finding.severity])
        lines.append(text.append(finding.sentence))
    if len(findings) > count:
        lines.append(Text(f"and {len(findings) - count} more findings", style="dim"))
    return lines


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
