"""Report section about probe round-trip times before, under and after load. Pure."""

from collections.abc import Iterator
from typing import Final

from broadside.coordinator.core.formatting import count, instant, ratio, time
from broadside.coordinator.core.summary import BurstSummary, Latency, PhaseLatency
from broadside.coordinator.views.report.document import Section, Table
from broadside.coordinator.views.report.stored_source import Source

# Row limit, because a long run can have thousands of spikes.
SPIKES_MAX: Final = 100
_PROBES: Final = (
    "Beside the traffic each pair sent small UDP datagrams that its server's agent sent back: "
    "before the burst on the idle path, under its load, and after it. One without an answer within "
    "a second is lost. Buffer delay is that of RFC 6349, section 4.3: how much longer the mean "
    "round trip is under load than before it. A round trip holds the wake-ups of both agents, so "
    "on busy hosts it says as much of the host as of the path."
)


def latency_sections(source: Source) -> tuple[Section, ...]:
    """Return a section with the probe results of each burst. Empty without probes."""
    probed = [(burst, burst.latency) for burst in source.summary.bursts if burst.latency]
    if not probed:
        return ()
    shown = {view.summary.index for view in source.views}
    spikes = [row for burst, seen in probed for row in _spikes(burst, seen)]
    missed = sum(seen.spikes_count for _, seen in probed) - len(spikes[:SPIKES_MAX])
    return (
        Section(
            id="latency",
            title="Latency under load",
            paragraphs=(_PROBES,),
            tables=(
                Table(
                    title="Bursts",
                    columns=(
                        *("burst", "pairs probed", "idle p50", "loaded p50", "loaded p99"),
                        *("lost under load", "buffer delay", "worst pair", "its p99", "spikes"),
                    ),
                    rows=tuple(_burst_cells(burst, seen) for burst, seen in probed),
                ),
                *(_phases(burst, seen) for burst, seen in probed if burst.index in shown),
                *(
                    (
                        Table(
                            title="Spikes: a second or more without a good answer",
                            columns=("burst", "from", "lasted", "pairs", "slowest answer", "lost"),
                            rows=tuple(spikes[:SPIKES_MAX]),
                            numeric_from=2,
                            note=f"{missed} more are not listed." if missed else None,
                        ),
                    )
                    if spikes
                    else ()
                ),
            ),
        ),
    )


def _burst_cells(burst: BurstSummary, seen: Latency) -> tuple[str, ...]:
    fleet = seen.fleet
    return (
        str(burst.index + 1),
        f"{seen.pairs_count} ({seen.whole_pairs_count} whole)",
        time(fleet.before.p50_s),
        time(fleet.during.p50_s),
        time(fleet.during.p99_s),
        ratio(fleet.during.loss_ratio),
        ratio(fleet.buffer_delay_ratio, 0),
        seen.worst_pair or "unknown",
        time(seen.worst_p99_s),
        count(seen.spikes_count),
    )


def _phases(burst: BurstSummary, seen: Latency) -> Table:
    def cells(name: str, phase: PhaseLatency) -> tuple[str, ...]:
        times = (phase.p50_s, phase.p90_s, phase.p95_s, phase.p99_s, phase.max_s)
        return (
            name,
            count(phase.sent_count),
            ratio(phase.loss_ratio),
            *(time(time_s) for time_s in times),
        )

    fleet = seen.fleet
    return Table(
        title=f"Burst {burst.index + 1}: round trips of all pairs",
        columns=("phase", "sent", "lost", "p50", "p90", "p95", "p99", "largest"),
        rows=(
            cells("before", fleet.before),
            cells("under load", fleet.during),
            cells("after", fleet.after),
        ),
    )


def _spikes(burst: BurstSummary, seen: Latency) -> Iterator[tuple[str, ...]]:
    for spike in seen.spikes:
        more = ", ..." if spike.pairs_count > len(spike.pairs) else ""
        yield (
            str(burst.index + 1),
            instant(spike.from_at),
            time((spike.to_at - spike.from_at).total_seconds()),
            f"{spike.pairs_count} ({', '.join(spike.pairs)}{more})",
            "none" if spike.rtt_max_s is None else time(spike.rtt_max_s),
            count(spike.lost_count),
        )
