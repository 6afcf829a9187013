"""``broadside demo``: a real broadside on this machine, from an empty host to a verdict."""

import asyncio
import contextlib
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator import scenarios
from coordinator.cli import display, watch
from coordinator.cli.client import ApiError, Client, connect
from coordinator.cli.exits import Exit, stop
from coordinator.cli.lab_commands import AZURE_NIC_BITS_PER_SECOND, free_prefix
from coordinator.cli.options import Json, print_json
from coordinator.cli.verdict import exit_of, show_summary
from coordinator.core import words
from coordinator.core.judge.summary import RunSummary
from coordinator.views.requests import LaunchRequest
from exchange.messages import Role

if TYPE_CHECKING:
    from lab.azure_services import AzureInMiniature
    from lab.fleet import Fleet
    from lab.topology import Lab

SCENARIO = "scale-180g"
READY_S = 60.0  # s within which every agent must have said hello
LEAD_S = 12  # s from launch to the first burst: sixty agents arm on two cores
GAP_S = 10  # s between bursts, to report and to arm again
BLOCK_BYTES = 32_768  # one write: small against a scaled link's share of a second
VICTIM = "c001"  # the client that --kill-one kills


class FabricChoice(StrEnum):
    EMBEDDED = "embedded"  # SQLite files
    AZURE_LOCAL = "azure-local"  # the real SDKs, against a broker, Azurite and a metrics endpoint


# Warmed in the fork server: an agent imports them only when its settings ask for them.
IMPORTS_OF_FABRIC = {
    FabricChoice.EMBEDDED: ("exchange.embedded.sqlite_fabric",),
    FabricChoice.AZURE_LOCAL: ("exchange.azure.azure_fabric",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What the command line asks for."""

    pairs_count: int
    streams_count: int
    burst_s: int
    bursts_count: int
    scale: int
    firewall_rate_ratio: float
    fabric: FabricChoice
    kill_one: bool
    keep: bool

    @property
    def target_bits_per_second(self) -> float:
        """The scenario's target, in proportion to the pairs, at real scale."""
        spec = scenarios.load(SCENARIO)
        return (spec.objective.target_bits_per_second or 0) * self.pairs_count / spec.pairs_count

    def overrides(self, *, in_lab: bool) -> dict[str, Any]:
        """What the demo changes in the scenario; on plain loopback there is nothing to reach."""
        target = {
            "scale": self.scale if in_lab else 1,
            "objective.target_bits_per_second": self.target_bits_per_second if in_lab else None,
        }
        return {
            **target,
            "pairs_count": self.pairs_count,
            "bursts_count": self.bursts_count,
            "burst_s": self.burst_s,
            "period_s": self.burst_s + GAP_S,
            "align_to_period": False,
            "lead_s": LEAD_S,
            "traffic.streams_count": self.streams_count,
            "traffic.block_bytes": BLOCK_BYTES,
        }


def demo(
    pairs: Annotated[int, typer.Option(min=1, max=250, help="client/server pairs")] = 30,
    streams: Annotated[int, typer.Option(min=1, max=128, help="TCP streams a pair")] = 8,
    seconds: Annotated[int, typer.Option(min=3, max=3600, help="length of a burst, s")] = 10,
    bursts: Annotated[int, typer.Option(min=1, max=100, help="bursts")] = 2,
    scale: Annotated[int, typer.Option(min=1, help="real rates are SCALE times the lab's")] = 100,
    firewall_rate_ratio: Annotated[
        float, typer.Option(min=0.01, max=10, help="the firewall's rate, of the target's")
    ] = 1.0,
    fabric: Annotated[
        FabricChoice, typer.Option(help="where coordinator and agents meet")
    ] = FabricChoice.EMBEDDED,
    kill_one: Annotated[
        bool, typer.Option("--kill-one", help="kill one client agent in the first burst")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="leave the lab standing; `broadside lab down` removes it")
    ] = False,
    as_json: Json = False,
) -> None:
    """Build the lab, start the fleet, fire, judge, and take all down again."""
    options = DemoOptions(
        pairs_count=pairs,
        streams_count=streams,
        burst_s=seconds,
        bursts_count=bursts,
        scale=scale,
        firewall_rate_ratio=firewall_rate_ratio,
        fabric=fabric,
        kill_one=kill_one,
        keep=keep,
    )
    from lab.errors import LabError

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    steps = display.Steps()
    try:
        with free_prefix() as prefix, _standing_lab(options, prefix, steps) as lab:
            summary = _fire(options, lab, steps, quiet=as_json)
    except (LabError, ApiError) as error:
        stop(str(error), Exit.CANNOT_RUN)
    if as_json:
        print_json(report(summary, lab))
    else:
        show_summary(summary)
    raise typer.Exit(exit_of(summary))


def report(summary: RunSummary, lab: "Lab") -> Mapping[str, Any]:
    """The one JSON object of ``demo --json``."""
    return {
        "rates": f"as measured in a lab at 1:{summary.scale:g}; "
        "real_* fields are the same times the scale",
        "lab_limits": list(lab.limits),
        **summary.model_dump(mode="json"),
    }


@contextlib.contextmanager
def _standing_lab(options: DemoOptions, prefix: str, steps: display.Steps) -> Iterator["Lab"]:
    """The lab, taken down again at the end whatever happens; plain loopback without rights."""
    from lab import loopback, network
    from lab import privileges as rights
    from lab.topology import LabSpec

    spec = LabSpec(
        pairs_count=options.pairs_count,
        prefix=prefix,
        scale=options.scale,
        nic_bits_per_second=round(AZURE_NIC_BITS_PER_SECOND / options.scale),
        firewall_bits_per_second=round(
            options.target_bits_per_second / options.scale * options.firewall_rate_ratio
        ),
    )
    finding = rights.find_rights()
    match finding.rights:
        case rights.Rights.USER_NAMESPACE:
            steps.say("no root: the lab is built in a user namespace of its own, gone at the end")
            rights.run_inside([sys.executable, "-m", "coordinator", *sys.argv[1:]])
        case rights.Rights.NONE:
            steps.say(f"no lab: {finding.reason}")
        case rights.Rights.ROOT:
            pass
    alone = finding.rights is rights.Rights.NONE
    base_path = Path(tempfile.mkdtemp(prefix="broadside-")) if alone else network.DEFAULT_PATH
    try:
        if alone:
            lab = loopback.up(spec, base_path)
        else:
            steps.say(
                f"building the lab: {options.pairs_count} clients, {options.pairs_count} servers, "
                f"a firewall of {words.rate(spec.firewall_bits_per_second)} at 1:{options.scale}"
            )
            lab = network.up(spec)
        for limit in lab.limits:
            steps.say(f"note: {limit}")
        with loopback.one_clock(lab) if alone else contextlib.nullcontext(lab) as clocked:
            yield clocked
    finally:
        if options.keep:
            steps.say(f"lab {prefix} is left standing; remove it with `broadside lab down`")
        else:
            gone = network.down(prefix, base_path)
            steps.say(
                f"lab down: {gone.namespaces_count} namespaces, {gone.processes_count} processes"
            )
            for left in gone.left:
                steps.say(f"could not remove {left}")
            if alone:
                shutil.rmtree(base_path, ignore_errors=True)


def _fire(options: DemoOptions, lab: "Lab", steps: display.Steps, *, quiet: bool) -> RunSummary:
    """Start coordinator and fleet, launch, follow, return the verdict."""
    from lab import clocks, fleet
    from lab.serving import Serving

    folder = lab.path / "demo"  # `lab down` removes it with the lab, also after a SIGKILL
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        with (
            _meeting_place(options, lab, folder, steps) as place,
            Serving({**place.fabric, **place.ledger}, folder) as coordinator,
        ):
            steps.say(f"starting {2 * options.pairs_count} agents")
            plans = fleet.plan_agents(lab, place.fabric)
            with fleet.start(
                plans,
                prefix=lab.spec.prefix,
                log_path=folder / "logs",
                imports=IMPORTS_OF_FABRIC[options.fabric],
            ) as agents:
                in_lab = lab.firewall_namespace is not None
                late = clocks.wait_synced(lab, READY_S) if in_lab else ()
                if late:
                    steps.say(f"clocks not synchronised: {', '.join(late[:5])}")
                overrides = options.overrides(in_lab=in_lab)
                request = LaunchRequest(scenario=SCENARIO, overrides=overrides, by="demo")
                return asyncio.run(
                    _follow(options, request, coordinator.url, agents, folder, steps, quiet=quiet)
                )
    finally:
        if options.keep:
            steps.say(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


async def _follow(
    options: DemoOptions,
    request: LaunchRequest,
    url: str,
    agents: "Fleet",
    folder: Path,
    steps: display.Steps,
    *,
    quiet: bool,
) -> RunSummary:
    """Launch once all agents are ready, and follow to the verdict."""
    async with connect(url) as client:
        await _all_ready(client, options.pairs_count, folder)
        status = await client.launch(request)
        steps.say(f"launched {status.run_id}")
        for warning in status.warnings:
            steps.say(f"warning: {warning}")
        first_start_at = status.bursts[0].planned_start_at
        killer = asyncio.create_task(_kill_one(agents, first_start_at, options, steps))
        try:
            return await watch.follow(client, status.run_id, plain=True, quiet=quiet)
        finally:
            killer.cancel()


@dataclass(frozen=True, slots=True, kw_only=True)
class MeetingPlace:
    """Where coordinator and agents meet, as environment variables."""

    fabric: Mapping[str, str]  # for both
    ledger: Mapping[str, str]  # for the coordinator


@contextlib.contextmanager
def _meeting_place(
    options: DemoOptions, lab: "Lab", folder: Path, steps: display.Steps
) -> "Iterator[MeetingPlace | AzureInMiniature]":
    if options.fabric is FabricChoice.AZURE_LOCAL:
        from lab import azure_services as azure

        steps.say("starting the Service Bus broker, Azurite and the metrics endpoint")
        direction = scenarios.load(SCENARIO).traffic.direction
        with azure.standing(lab, folder / "azure", direction) as place:
            yield place
        return
    ledger = {}
    if lab.ledger_path is not None:
        ledger = {"BROADSIDE_LEDGER": "lab", "BROADSIDE_LEDGER_PATH": str(lab.ledger_path)}
    yield MeetingPlace(
        fabric={"BROADSIDE_FABRIC": "embedded", "BROADSIDE_DATA_DIR": str(folder / "data")},
        ledger=ledger,
    )


async def _all_ready(client: Client, pairs_count: int, folder: Path) -> None:
    """Every agent has said hello and can work, every server listens."""
    end_s = time.monotonic() + READY_S
    while True:
        presences = await client.presences()
        ready = [
            presence
            for presence in presences
            if presence.problem is None and (presence.role is Role.CLIENT or presence.ports)
        ]
        if len(ready) == 2 * pairs_count:
            return
        problems = {presence.problem for presence in presences if presence.problem is not None}
        if problems:
            raise ApiError(f"an agent cannot work: {'; '.join(sorted(problems))}")
        if time.monotonic() > end_s:
            raise ApiError(
                f"only {len(ready)} of {2 * pairs_count} agents are ready after {READY_S:g} s; "
                f"run with --keep and see {folder / 'logs'}"
            )
        await asyncio.sleep(0.2)


async def _kill_one(
    agents: "Fleet", first_start_at: datetime, options: DemoOptions, steps: display.Steps
) -> None:
    """Kill one client in the middle of the first burst, if asked to."""
    if not options.kill_one:
        return
    middle_s = first_start_at.timestamp() + options.burst_s / 2
    await asyncio.sleep(max(0.0, middle_s - datetime.now(UTC).timestamp()))
    agents.kill(VICTIM)
    steps.say(f"killed client agent {VICTIM}")
