"""Text display of a run, as a full screen of any size or as one line. Pure."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import numpy as np
from rich.text import Text

from broadside.coordinator.cli.watched import Watched
from broadside.coordinator.core.formatting import count, rate, ratio, time
from broadside.coordinator.core.live.live_view import LiveStatus
from broadside.coordinator.core.live.status import BurstPhase, RunState

_EIGHTHS: Final = " ▁▂▃▄▅▆▇█"
_STYLES: Final = {"problem": "bold red", "warning": "yellow", "note": "dim"}
# Width of the axis labels of the chart.
_AXIS: Final = 12
FOOTER: Final = "q leaves; the run goes on"


def draw(watched: Watched, width: int, height: int, now: datetime, problem: str | None) -> Text:
    """Return a screen that fits into ``width`` and ``height``.

    Args:
        watched: The run state to show.
        width: Width in columns.
        height: Height in lines.
        now: Current coordinator time.
        problem: Reason why there is no new data. None if there is no problem.
    """
    status = watched.status
    if status is None:
        return Text(problem or "waiting for the coordinator", no_wrap=True, overflow="ellipsis")
    head = [_title(watched, status), _stand(status, now), _counts(status)]
    if problem or status.problem:
        head.append(Text(f"no news: {problem or status.problem}", style="bold red"))
    facts = _facts(watched, width)
    strip = _strip(watched, width, rows_max=2 if height < 30 else 6)
    findings = _findings(watched, width, most=3 if height < 30 else 12)
    taken = len(head) + len(facts) + len(strip) + len(findings) + 2
    chart = _chart(watched, width, max(3, height - taken))
    lines = [*head, *chart, *facts, *strip, *findings][: height - 1]
    lines += [Text()] * (height - 1 - len(lines))
    lines.append(Text(FOOTER, style="dim"))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n").join(lines)


def line(watched: Watched, now: datetime, width: int = 60) -> str:
    """Return the run state as one line.

    Args:
        watched: The run state to show.
        now: Current coordinator time.
        width: Maximum number of seconds to show in the sparkline.
    """
    status = watched.status
    if status is None:
        return "waiting for the coordinator"
    burst = status.burst
    said = f"{status.run_id}: {status.state}, burst {burst.index + 1}/{status.bursts_count}"
    rates = _whole(watched)
    match burst.phase:
        case BurstPhase.PLANNED | BurstPhase.ARMING:
            wait_s = (burst.planned_start_at - now).total_seconds()
            said += f", armed {burst.armed_count}/{status.pairs_count}, fires in {wait_s:.0f} s"
        case BurstPhase.RUNNING if rates:
            newest, top = max(rates), max(rates.values()) or 1.0
            blocks = [_EIGHTHS[round(rates[second] / top * 8)] for second in sorted(rates)[-width:]]
            said += f", second {newest + 1}: {''.join(blocks)} {rate(rates[newest])} "
            said += watched.shown_layer
        case BurstPhase.COLLECTING | BurstPhase.OVER:
            said += f", reported {burst.reported_count}/{burst.claimed_count}"
    if status.state not in (RunState.FINISHED, RunState.CANCELLED):
        left_s = max(0.0, (status.ends_at - now).total_seconds())
        said += f", over in {left_s:.0f} s at most"
    return f"{said}; no news: {status.problem}" if status.problem else said


def stands(watched: Watched) -> object:
    """Return a value that changes when a new line is worth printing."""
    if watched.status is None:
        return None
    status, burst = watched.status, watched.status.burst
    moved = (burst.index, burst.phase, burst.armed_count, burst.reported_count)
    return status.state, status.problem, *moved, len(_whole(watched))


def _whole(watched: Watched) -> Mapping[int, float]:
    """Return the fleet rate in bit/s for each complete second."""
    return {
        second: value
        for second, value in watched.rates().items()
        if value is not None and second < watched.known_s
    }


def _title(watched: Watched, status: LiveStatus) -> Text:
    said = Text(status.run_id, style="bold")
    said.append(f"  burst {watched.burst_index + 1} of {status.bursts_count}", style="bold")
    if status.scale != 1:
        said.append(f"  lab 1:{status.scale:g}", style="dim")
    return said


def _stand(status: LiveStatus, now: datetime) -> Text:
    """Return the countdown before a burst, a progress bar during it, and when the run will end."""
    burst, state = status.burst, status.state
    text = Text(f"{state.value:<11}", style="bold cyan")
    if state is RunState.CANCELLED:
        return text.append(f"by {status.cancelled_by}: {status.cancel_reason}")
    left_s = max(0.0, (status.ends_at - now).total_seconds())
    end = f"   over in {_clock(left_s)} at most, at {status.ends_at:%H:%M:%S}Z"
    match burst.phase:
        case BurstPhase.PLANNED | BurstPhase.ARMING:
            wait_s = (burst.planned_start_at - now).total_seconds()
            return text.append(f"fires in {max(0.0, wait_s):.0f} s", style="bold").append(end)
        case BurstPhase.RUNNING:
            total_s = status.duration_s + status.omit_s
            done_s = min(total_s, max(0.0, (now - burst.planned_start_at).total_seconds()))
            filled = round(20 * done_s / max(1, total_s))
            bar = "█" * filled + "░" * (20 - filled)
            return text.append(f"{bar} {done_s:.0f} of {total_s} s").append(end)
        case _:
            following = status.next_start_at
            if following is not None:
                wait_s = max(0.0, (following - now).total_seconds())
                return text.append(f"next burst in {_clock(wait_s)}").append(end)
            return text.append("waiting for reports and the firewall's figures")


def _counts(status: LiveStatus) -> Text:
    burst, planned = status.burst, status.pairs_count
    text = Text()
    for name, number in (
        ("claimed", burst.claimed_count),
        ("armed", burst.armed_count),
        ("reported", burst.reported_count),
    ):
        whole = number >= planned
        text.append(f"{name} ").append(f"{number}/{planned}", style="green" if whole else "bold")
        text.append("   ")
    outcomes = ", ".join(f"{n} {outcome.value}" for outcome, n in burst.outcomes.items())
    return text.append(outcomes, style="dim")


def _facts(watched: Watched, width: int) -> list[Text]:
    """Return the current metrics, as many on a line as fit."""
    status, figures = watched.status, watched.figures
    newest = watched.newest_second
    now_rate = watched.rates().get(newest) if newest is not None else None
    coverage = watched.coverage.get(newest) if newest is not None else None
    rtt = watched.rtt.get(newest) if newest is not None else None
    summary = None if figures is None else figures.summary
    facts = [("now", f"{rate(now_rate)} {watched.shown_layer}")]
    if status is not None and status.target_bits_per_second:
        target = status.target_bits_per_second
        share = f" ({ratio(now_rate / target, 0)})" if now_rate is not None else ""
        facts.append(("target", f"{rate(target)} {status.target_layer.value}{share}"))
    if watched.ledger is not None and watched.ledger.bins:
        said = rate(watched.firewall_bits_per_second())
        facts.append(("firewall", f"{said} {watched.ledger.layer}"))
    facts.append(("pairs seen", ratio(coverage, 0)))
    if summary is not None:
        cpu = (summary.client.cpu_mean_ratio, summary.server.cpu_mean_ratio)
        resent = [f.retransmits_count for f in summary.flows if f.retransmits_count is not None]
        facts += [
            ("complete", ratio(summary.completeness_ratio, 1)),
            ("start spread", time(summary.start_spread_s)),
            ("RTT", time(rtt)),
            ("resent", count(sum(resent)) if resent else "unknown"),
            ("CPU", f"{ratio(cpu[0], 0)} / {ratio(cpu[1], 0)}"),
        ]
    lines = [Text()]
    for name, value in facts:
        if lines[-1].cell_len + len(name) + len(value) + 3 > width and lines[-1].cell_len:
            lines.append(Text())
        lines[-1].append(f"{name} ", style="dim").append(value).append("   ")
    return lines


def _chart(watched: Watched, width: int, height: int) -> list[Text]:
    """Return the fleet rate as a bar chart with an axis, and the target as a line."""
    rates = watched.rates()
    target = None if watched.status is None else watched.status.target_bits_per_second
    known = [value for value in rates.values() if value is not None]
    if not known:
        waiting = Text(f"{'':>{_AXIS}}no second is known yet", style="dim")
        return [Text()] * (height // 2) + [waiting] + [Text()] * (height - height // 2 - 1)
    rows, columns = height - 1, max(4, width - _AXIS - 1)
    top = max(*known, target or 0.0) * 1.05 or 1.0
    total = 1 if watched.status is None else watched.status.duration_s + watched.status.omit_s
    bins, step_s = _bins(rates, columns, max(total, max(rates) + 1))
    wide = max(1, columns // len(bins))
    line = None if not target else min(rows - 1, int(target / top * rows))
    drawn = []
    for row in range(rows - 1, -1, -1):
        text = Text(_label(row, rows, top), style="dim")
        for value in bins:
            block, style = _cell(value, row, rows, top, target_row=line)
            text.append(block * wide, style)
        drawn.append(text)
    axis = f"{'':>{_AXIS}}0 s"
    end = f"{len(bins) * step_s} s"
    drawn.append(Text(axis + end.rjust(max(1, len(bins) * wide - 3)), style="dim"))
    return drawn


def _bins(
    rates: Mapping[int, float | None], columns: int, total_s: int
) -> tuple[list[float | None], int]:
    """Return means over several seconds, so that the planned burst fits the width.

    Bins without a known second are None.
    """
    step_s = max(1, math.ceil(total_s / columns))
    bins: list[float | None] = []
    for first in range(0, total_s, step_s):
        part = [rates.get(second) for second in range(first, first + step_s)]
        seen = [value for value in part if value is not None]
        bins.append(sum(seen) / len(seen) if seen else None)
    return bins, step_s


def _label(row: int, rows: int, top: float) -> str:
    shown = row in (0, rows // 2, rows - 1)
    return f"{rate(top * (row + 0.5) / rows) if shown else '':>{_AXIS - 1}} "


def _cell(
    value: float | None, row: int, rows: int, top: float, *, target_row: int | None
) -> tuple[str, str]:
    filled = 0 if value is None else round((value / top * rows - row) * 8)
    if filled > 0:
        return _EIGHTHS[min(8, filled)], "cyan"
    if row == target_row:
        return "─", "dim"
    return ("·" if value is None and row == 0 else " "), "dim"


def _strip(watched: Watched, width: int, rows_max: int) -> list[Text]:
    """Return one block for each pair by its newest rate.

    When there is not enough space, a block is the mean for several pairs.
    """
    values = watched.pairs_bits_per_second
    if values is None:
        return []
    trouble = {t.pair_index for t in watched.figures.trouble} if watched.figures else set()
    room = (width - 1) * rows_max
    each = math.ceil(len(values) / room)
    top = float(np.nanmax(values)) if not np.isnan(values).all() else 0.0
    title = f"pairs by rate, second {watched.newest_second}"
    title += f", up to {rate(top)}" + (f", {each} a block" if each > 1 else "")
    text = Text()
    for first in range(0, len(values), each):
        part = values[first : first + each]
        wrong = any(index in trouble for index in range(first, first + len(part)))
        text.append(*_block(part, top, wrong=wrong))
    lines = [
        text[start : start + width - 1] for start in range(0, max(1, text.cell_len), width - 1)
    ]
    return [Text(title, style="dim"), *lines]


def _block(
    part: np.ndarray[tuple[int], np.dtype[np.float64]], top: float, *, wrong: bool
) -> tuple[str, str]:
    if np.isnan(part).all():
        return ("x", "bold red") if wrong else ("·", "dim")
    level = round(float(np.nanmean(part)) / top * 8) if top > 0 else 0
    return _EIGHTHS[max(1, level)], "bold red" if wrong else "green"


def _findings(watched: Watched, width: int, most: int) -> Sequence[Text]:
    """Return the most severe findings, and the pairs with problems, one line each."""
    lines = []
    trouble = watched.figures.trouble if watched.figures else ()
    if trouble:
        named = ", ".join(f"{t.pair} {t.state.value}" for t in trouble[:4])
        more = f" and {len(trouble) - 4} more" if len(trouble) > 4 else ""
        lines.append(Text(f"{len(trouble)} pairs: {named}{more}", style="yellow"))
    heaviest = sorted(watched.findings.values(), key=lambda finding: -finding.weight)
    for finding in heaviest[:most]:
        text = Text(f"{finding.severity}: ", style=_STYLES[finding.severity])
        text.append(finding.sentence)
        text.truncate(width, overflow="ellipsis")
        lines.append(text)
    if len(heaviest) > most:
        lines.append(Text(f"and {len(heaviest) - most} more findings", style="dim"))
    return lines


def _clock(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
