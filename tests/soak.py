"""A soak in minutes: the lab, a fleet, bursts a few seconds apart, and processes killed under it.

``python -m tests.soak`` kills the coordinator twice and one client agent once, and
prints what the run says of itself: every burst accounted for, the kill in the account of what
broke, availability and drift. The exit code is 0 if all of that holds, whatever the verdict on
rates.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from broadside.coordinator.cli.summary_tables import print_summary
from broadside.coordinator.core.summary import DisruptionKind, RunSummary, SecondState
from broadside.exchange.fabric import FabricSettings, open_fabric
from broadside.exchange.messages import JobPhase
from broadside.lab import privileges as rights
from broadside.lab.child_processes import run_to_end
from broadside.lab.errors import LabBroken, LabError
from broadside.lab.serving import ServeProcess
from broadside.lab.site import RunningLab, built, free_prefix, staged
from broadside.lab.topology import Lab, LabSpec

# Time from the launch to the first burst.
LEAD_S: Final = 7
# How long to wait for the verdict after the last burst.
AFTER_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakOptions:
    """Options for the run and the faults.

    Attributes:
        pairs_count: Number of pairs.
        bursts_count: Number of bursts.
        burst_s: Duration of a burst in seconds.
        period_s: Seconds from the start of a burst to the next.
        streams_count: Streams for each pair.
        stream_bits_per_second: Rate of each stream in bit/s.
        late_after_s: Limit for a late start in seconds, as in a scenario.
        spares_count: Number of client agents in addition to the pairs.
        kill_coordinator_at: Times to kill the coordinator, as a share of the planned duration.
        kill_agent_in: Index of the burst in which a client agent is killed, or ``None`` for no
            kill.
    """

    pairs_count: int = 8
    bursts_count: int = 60
    burst_s: int = 5
    period_s: int = 10
    streams_count: int = 2
    stream_bits_per_second: int = 5_000_000
    late_after_s: float = 1.0
    spares_count: int = 0
    kill_coordinator_at: tuple[float, ...] = (0.3, 0.6)
    kill_agent_in: int | None = 2

    @property
    def length_s(self) -> float:
        return (self.bursts_count - 1) * self.period_s + self.burst_s


@dataclass(slots=True, kw_only=True)
class Soaked:
    """Result of a soak.

    Attributes:
        summary: Summary of the run.
        killed_at: Times in epoch seconds when the coordinator was killed.
        victim: Client agent that was killed while it was sending.
        victim_killed_at_s: Time of this kill in epoch seconds.
    """

    summary: RunSummary
    killed_at: list[float] = field(default_factory=list)
    victim: str | None = None
    victim_killed_at_s: float | None = None

    def faults(self, options: SoakOptions) -> list[str]:
        """Return a line for each check that fails."""
        summary, result = self.summary, []
        if len(summary.bursts) != options.bursts_count:
            result.append(f"{len(summary.bursts)} of {options.bursts_count} bursts are on record")
        seen = sum(summary.completeness.seconds(state) for state in SecondState)
        planned = options.bursts_count * options.pairs_count * options.burst_s
        if not seen == summary.completeness.planned_s == planned:
            result.append(f"{seen} pair-seconds have a state, {planned} were planned")
        if summary.completeness.pending_s:
            result.append(f"{summary.completeness.pending_s} pair-seconds are still pending")
        if summary.run_trends is None or summary.run_trends.availability is None:
            return [*result, "no availability"]
        if options.bursts_count >= 4 and not summary.run_trends.trends:
            result.append("no trend")
        if self.victim_killed_at_s is not None and not self._names_the_kill():
            result.append(f"the kill of {self.victim} is not in the account of what broke")
        return result

    def _names_the_kill(self) -> bool:
        assert self.summary.run_trends is not None
        return any(
            disruption.kind is DisruptionKind.CUT
            and any(f"{self.victim} stopped reporting" in cause for cause in disruption.causes)
            and abs(disruption.start_at.timestamp() - (self.victim_killed_at_s or 0.0)) <= 1.5
            for disruption in self.summary.run_trends.disruptions
        )


def soak(options: SoakOptions, lab: Lab, folder: Path) -> Soaked:
    """Run the soak in a running lab. All processes have ended when this returns.

    Args:
        options: Options for the run and the faults.
        lab: The lab.
        folder: Folder for data and logs.
    """
    data = FabricSettings(data_dir=folder / "data")
    spares_count = len(lab.servers) - options.pairs_count
    with staged(lab, folder, spares_count=spares_count) as site:
        run_id, first_start_s = _launch(site.coordinator, options)
        return _carry(options, data, site, run_id, first_start_s)


def _carry(
    options: SoakOptions, data: FabricSettings, site: RunningLab, run_id: str, first_start_s: float
) -> Soaked:
    """Kill processes at the planned times and wait for the verdict."""
    # Burst index for a kill of a client agent, ``None`` for a kill of the coordinator.
    due: list[tuple[float, int | None]] = [
        (first_start_s + share * options.length_s, None) for share in options.kill_coordinator_at
    ]
    if options.kill_agent_in is not None:
        middle_s = options.kill_agent_in * options.period_s + options.burst_s / 2
        due.append((first_start_s + middle_s, options.kill_agent_in))
    killed_at: list[float] = []
    victim = victim_killed_at_s = None
    for at_s, burst_index in sorted(due, key=lambda item: item[0]):
        time.sleep(max(0.0, at_s - time.time()))
        if burst_index is not None:
            over_s = at_s + options.burst_s / 2
            victim = asyncio.run(_sending_client(data, run_id, burst_index, over_s))
            site.agents.kill(victim)
            victim_killed_at_s = time.time()
        else:
            killed_at.append(time.time())
            site.coordinator.kill()
            site.coordinator.start()
    within_s = first_start_s + options.length_s + AFTER_S - time.time()
    return Soaked(
        summary=site.coordinator.summary(run_id, within_s),
        killed_at=killed_at,
        victim=victim,
        victim_killed_at_s=victim_killed_at_s,
    )


async def _sending_client(
    data: FabricSettings, run_id: str, burst_index: int, over_s: float
) -> str:
    """Return a client that is sending in a burst, as soon as there is one.

    A spare can also be busy, with a pair of the next burst.
    """
    fabric = open_fabric(data)
    try:
        while time.time() < over_s:
            claims = await fabric.records.bursts.read_claims(run_id, burst_index)
            sending = [
                claim.agent_id for claim in claims.values() if claim.phase is JobPhase.RUNNING
            ]
            if sending:
                return min(sending)
            await asyncio.sleep(0.1)
    finally:
        await fabric.close()
    raise LabBroken(f"no client agent sends in the second half of burst {burst_index + 1}")


def _launch(coordinator: ServeProcess, options: SoakOptions) -> tuple[str, float]:
    overrides = {
        "pairs_count": options.pairs_count,
        "bursts_count": options.bursts_count,
        "burst_s": options.burst_s,
        "period_s": options.period_s,
        "align_to_period": False,
        "lead_s": LEAD_S,
        "late_after_s": options.late_after_s,
        "traffic.streams_count": options.streams_count,
        "traffic.stream_bits_per_second": options.stream_bits_per_second,
        "objective.target_bits_per_second": None,
    }
    answer = coordinator.launch({"scenario": "soak", "overrides": overrides})
    first_start_at = datetime.fromisoformat(answer["bursts"][0]["planned_start_at"])
    return str(answer["run_id"]), first_start_at.timestamp()


def main() -> int:
    """Run the soak test and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    usual = SoakOptions()
    for flag, field_name in (
        ("--pairs", "pairs_count"),
        ("--bursts", "bursts_count"),
        ("--seconds", "burst_s"),
        ("--period", "period_s"),
        ("--spares", "spares_count"),
    ):
        value = getattr(usual, field_name)
        parser.add_argument(flag, dest=field_name, type=int, default=value)
    options = SoakOptions(**vars(parser.parse_args()))
    try:
        with (
            free_prefix() as prefix,
            built(
                LabSpec(pairs_count=options.pairs_count + options.spares_count, prefix=prefix),
                on_loopback=rights.find_rights().rights is not rights.Rights.ROOT,
            ) as lab,
            tempfile.TemporaryDirectory(prefix="broadside-soak-") as folder,
        ):
            soaked = soak(options, lab, Path(folder))
    except (LabError, ValueError, TimeoutError) as error:
        sys.stderr.write(f"soak: {error}\n")
        return 2
    print_summary(soaked.summary)
    faults = soaked.faults(options)
    for fault in faults:
        sys.stderr.write(f"soak: {fault}\n")
    if not faults:
        sys.stderr.write(
            f"soak: {options.bursts_count} bursts accounted for, coordinator killed "
            f"{len(soaked.killed_at)} times, {soaked.victim} once\n"
        )
    return 1 if faults else 0


if __name__ == "__main__":
    run_to_end(main)
