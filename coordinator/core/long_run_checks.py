"""Checks for long runs before launch, for the hard end and idle control connections."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from broadside.coordinator.core.run_spec import UNATTENDED_MAX_S, Burst, RunSpec
from broadside.exchange.engines import find
from broadside.exchange.messages import JobReport, Presence, StartMethod, Traffic

# Idle time in seconds after which Azure Firewall drops a TCP connection.
IDLE_LIMIT_S: Final = 240
# First iperf3 version with ``--cntl-ka``. For older versions the start gate sets keepalive.
KEEPALIVE_VERSION: Final = (3, 19)


def hard_end_problem(spec: RunSpec, bursts: Sequence[Burst], now: datetime) -> str | None:
    """Check the hard end of an unattended run.

    Args:
        spec: The specification.
        bursts: Planned bursts.
        now: Launch time.

    Returns:
        The problem, or None if the hard end is valid or not set.
    """
    end_at = spec.hard_end_at(now)
    if end_at is None:
        return None
    if end_at < bursts[-1].planned_end_at:
        return (
            f"the hard end {end_at:%Y-%m-%d %H:%M:%S} UTC is before the end of the last burst, "
            f"{bursts[-1].planned_end_at:%Y-%m-%d %H:%M:%S} UTC"
        )
    if end_at > now + timedelta(seconds=UNATTENDED_MAX_S):
        return f"the hard end {end_at:%Y-%m-%d %H:%M:%S} UTC is more than a week after the launch"
    return None


def keeps_control_alive(engine_version: str | None, *, gate: bool) -> bool:
    """Return True if an iperf3 client sends keepalives on its control connection during a test.

    Args:
        engine_version: Version of iperf3, or None if unknown.
        gate: True if the client is started with the start gate.
    """
    if gate:
        return True
    try:
        numbers = tuple(int(part) for part in (engine_version or "").split(".")[:2])
    except ValueError:
        return False
    return numbers >= KEEPALIVE_VERSION


def control_warning(spec: RunSpec, clients: Sequence[Presence]) -> str | None:
    """Return a warning for clients with an idle control connection.

    Args:
        spec: The specification.
        clients: Live client agents.

    Returns:
        The warning with its fix. None if all clients keep the connection alive, or if bursts are
        short.
    """
    if not _idle_for(spec.traffic, spec.burst_s + spec.traffic.omit_s):
        return None
    silent = [c for c in clients if not keeps_control_alive(c.engine_version, gate=c.gate)]
    if not silent:
        return None
    versions = sorted({client.engine_version or "unknown" for client in silent})
    return (
        f"burst_s: {len(silent)} client agents run iperf3 {', '.join(versions)} without the start "
        f"gate, so their control connections are idle in bursts of {spec.burst_s} s; a firewall "
        f"that drops idle connections after {IDLE_LIMIT_S} s breaks the end of the test; build the "
        "start gate (`broadside doctor` shows how), or install iperf3 3.19 or newer"
    )


def silent_controls_count(spec: RunSpec, burst: Burst, reports: Iterable[JobReport]) -> int:
    """Count the pairs that had a control connection idle for too long.

    Args:
        spec: The specification.
        burst: The burst to check.
        reports: Job reports for this burst.

    Returns:
        Number of pairs. 0 for other engines than iperf3 and for short bursts.
    """
    if not _idle_for(spec.traffic, burst.duration_s + burst.omit_s):
        return 0
    return sum(
        report.engine is not None
        and report.start_method is StartMethod.TIMED_EXEC
        and not keeps_control_alive(report.engine.version, gate=False)
        for report in reports
    )


def _idle_for(traffic: Traffic, duration_s: float) -> bool:
    """Return True if a test of this length leaves the control connection idle for too long."""
    engine = find(traffic.engine)
    return engine is not None and engine.idle_control and duration_s >= IDLE_LIMIT_S
