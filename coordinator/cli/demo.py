"""The ``broadside demo`` command, a complete run on this machine.

The lab is removed and the run remains in the data directory that other commands read. If another
process uses that directory, its agents would receive the demo jobs. In this case the demo uses
another directory.
"""

import asyncio
import contextlib
import fcntl
import itertools
import math
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broadside.coordinator import scenarios
from broadside.coordinator.cli import watch
from broadside.coordinator.cli.api_errors import ApiError
from broadside.coordinator.cli.command_group import Output
from broadside.coordinator.cli.exit_codes import exit_with_error
from broadside.coordinator.cli.lab_commands import lab_build_s, lab_spec
from broadside.coordinator.cli.progress_display import show_progress
from broadside.coordinator.cli.session import Session
from broadside.coordinator.cli.summary_tables import exit_of, print_summary
from broadside.coordinator.cli.text_tables import ProgressLog
from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.coordinator.core import formatting
from broadside.coordinator.core.summary import RunSummary
from broadside.coordinator.runs.requests import LaunchRequest
from broadside.exchange.embedded.sqlite import is_open_elsewhere
from broadside.exchange.fabric_settings import FabricSettings
from broadside.exchange.outage_log import utc_now
from broadside.exchange.programs import module_command

if TYPE_CHECKING:
    from broadside.lab.fleet import Fleet
    from broadside.lab.topology import Lab

SCENARIO = "scale-180g"
# Seconds from the launch to the first burst, and additional seconds for each pair on two cores.
LEAD_S = 6
LEAD_S_PER_PAIR = 0.2
# Seconds between two bursts, to report and to arm again.
GAP_S = 10
# Bytes to send in one write. This is small compared to one second on a scaled link.
BLOCK_BYTES = 32_768
# The client that ``--kill-one`` kills.
VICTIM = "c001"


class FabricChoice(StrEnum):
    """Storage backend to use for a demo."""

    # SQLite files.
    EMBEDDED = "embedded"
    # HTTPS to the coordinator, as for agents on other hosts. They enroll with a join code.
    HTTP = "http"
    # The Azure SDKs with a local broker, Azurite and a local metrics endpoint.
    AZURE_LOCAL = "azure-local"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """Command line options."""

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
        """Scenario target at real scale in bit/s, in proportion to the pairs."""
        spec = scenarios.load(SCENARIO)
        return (spec.objective.target_bits_per_second or 0) * self.pairs_count / spec.pairs_count

    def overrides(self, *, in_lab: bool) -> dict[str, Any]:
        """Return the overrides to use for the scenario. On plain loopback there is no target."""
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
            "lead_s": math.ceil(LEAD_S + LEAD_S_PER_PAIR * self.pairs_count),
            "traffic.streams_count": self.streams_count,
            "traffic.block_bytes": BLOCK_BYTES,
        }


def demo(  # noqa: PLR0913 - options
    session: Output,
    pairs: Annotated[int, typer.Option(min=1, max=250)] = 30,
    streams: Annotated[int, typer.Option(min=1, max=128)] = 8,
    seconds: Annotated[int, typer.Option(min=3, max=3600)] = 20,
    bursts: Annotated[int, typer.Option(min=1, max=100)] = 2,
    scale: Annotated[int, typer.Option(min=1)] = 100,
    firewall_rate_ratio: Annotated[float, typer.Option(min=0.01, max=10)] = 1.0,
    fabric: FabricChoice = FabricChoice.EMBEDDED,
    kill_one: Annotated[bool, typer.Option("--kill-one")] = False,
    keep: Annotated[bool, typer.Option("--keep")] = False,
) -> None:
    """Run a complete test in a lab on this host.

    It builds the lab, starts the agents, runs the bursts, prints the verdict and removes the lab.
    The run stays in the local store.

    Args:
        pairs: Client/server pairs.
        streams: TCP streams of a pair.
        seconds: Duration of a burst in s.
        bursts: Number of bursts.
        scale: Real rates are SCALE times the rates of the lab.
        firewall_rate_ratio: Rate of the firewall, as a ratio of the target.
        fabric: Queue and tables of coordinator and agents.
        kill_one: Kill one client agent in the first burst.
        keep: Do not remove the lab; `broadside lab down` removes it.
    """
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
    from broadside.lab.site import free_prefix

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    log = ProgressLog()
    try:
        with (
            _data_dir() as data_dir,
            free_prefix() as prefix,
            _build_lab(options, prefix, log) as lab,
        ):
            summary, previous = _run(options, lab, data_dir, log, session)
    except ApiError as error:
        exit_with_error(str(error))
    session.show(dict(report(summary, lab)), lambda _: print_summary(summary))
    typer.echo("\n" + "\n".join(_next_commands(options, summary, previous, data_dir)), err=True)
    raise typer.Exit(exit_of(summary))


def report(summary: RunSummary, lab: "Lab") -> Mapping[str, Any]:
    """Return the JSON object of ``demo --output json``.

    Args:
        summary: Summary of the run.
        lab: The lab with its limits.

    Returns:
        Values by name: the summary, and the limits of the lab.
    """
    return {
        "rates": f"as measured in a {formatting.lab(summary.scale)}; "
        "real_* fields are multiplied by the scale",
        "lab_limits": list(lab.limits),
        **summary.answer_fields(),
    }


@contextlib.contextmanager
def _data_dir() -> Iterator[Path]:
    """Yield the data directory of the settings, or one next to it if that is in use."""
    default = FabricSettings().data_dir
    for number in itertools.count(1):
        folder = default if number == 1 else default.with_name(f"{default.name}-{number}")
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "demo.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                # Another demo has the lock.
                continue
            if any(map(is_open_elsewhere, folder.glob("*.sqlite3"))):
                continue
            yield folder
            return


def _next_commands(
    options: DemoOptions, summary: RunSummary, previous: str | None, data_dir: Path
) -> Iterator[str]:
    """Yield the lines about the run directory and the next commands."""
    if options.fabric is FabricChoice.AZURE_LOCAL:
        yield "the run was removed with the local Azure services; without --fabric it is stored"
        return
    program = Path(sys.executable).with_name("broadside")
    name = "broadside" if shutil.which("broadside") else os.path.relpath(program)
    if data_dir != FabricSettings().data_dir:
        name = f"BROADSIDE_DATA_DIR={data_dir} {name}"
    settings = CoordinatorSettings()
    yield f"stored in {data_dir}: {summary.run_id}"
    yield f"  {name} serve          its page, at http://{settings.host}:{settings.port}/"
    yield f"  {name} show last      each burst"
    yield f"  {name} report last    the report, as one file"
    if previous is not None:
        yield f"  {name} compare {previous} last"


@contextlib.contextmanager
def _build_lab(options: DemoOptions, prefix: str, log: ProgressLog) -> Iterator["Lab"]:
    """Yield the lab and remove it at the end. Without privileges it uses plain loopback."""
    from broadside.lab import privileges as rights
    from broadside.lab.site import built

    firewall_bits_per_second = options.target_bits_per_second * options.firewall_rate_ratio
    spec = lab_spec(options.pairs_count, prefix, options.scale, firewall_bits_per_second)
    finding = rights.find_rights()
    if finding.rights is rights.Rights.USER_NAMESPACE:
        log.print("no root privileges: the lab is built in a new user namespace")
        rights.run_inside(module_command("broadside.coordinator", *sys.argv[1:]))
    on_loopback = finding.rights is rights.Rights.NONE
    if on_loopback:
        log.print(f"no lab: {finding.reason}")
    else:
        log.print(
            f"building the lab: {options.pairs_count} clients, {options.pairs_count} servers, "
            f"a firewall of {formatting.rate(spec.firewall_bits_per_second)} at 1:{options.scale}"
        )
    with contextlib.ExitStack() as stack:
        with show_progress("building the lab", expected_s=lab_build_s(options.pairs_count)):
            lab = stack.enter_context(
                built(spec, on_loopback=on_loopback, keep=options.keep, progress=log.print)
            )
        for limit in lab.limits:
            log.print(f"note: {limit}")
        yield lab
    if options.keep:
        log.print(f"lab {prefix} is not removed; remove it with `broadside lab down`")


def _run(
    options: DemoOptions, lab: "Lab", data_dir: Path, log: ProgressLog, output: Output
) -> tuple[RunSummary, str | None]:
    """Start coordinator and agents, launch a run and wait for its verdict.

    Returns:
        The summary, and the id of the previous demo run or None.
    """
    from broadside.lab import azure_services
    from broadside.lab.site import sqlite_fabric, staged

    # `lab down` removes this folder with the lab, also after a SIGKILL.
    folder = lab.path / "demo"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    overrides = options.overrides(in_lab=lab.firewall_namespace is not None)
    request = LaunchRequest(scenario=SCENARIO, overrides=overrides, by="demo")
    fabric, device_counter = sqlite_fabric(data_dir), None
    with contextlib.ExitStack() as stack:
        if options.keep:
            stack.callback(log.print, f"stored: {folder}")
        else:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        if options.fabric is FabricChoice.AZURE_LOCAL:
            log.print("starting the Service Bus broker, Azurite and the metrics endpoint")
            host = lab.management_address or "127.0.0.1"
            fabric = stack.enter_context(azure_services.standing(folder / "azure", host)).fabric()
            direction = scenarios.load(SCENARIO).traffic.direction
            device_counter = stack.enter_context(azure_services.monitored(lab, direction, folder))
        site = stack.enter_context(
            staged(
                lab,
                folder,
                fabric=fabric,
                device_counter=device_counter,
                other_hosts=options.fabric is FabricChoice.HTTP,
                port=CoordinatorSettings().port,
                progress=log.print,
            )
        )
        return asyncio.run(
            _follow(
                options,
                request,
                Session(api=site.coordinator.url, output=output.output),
                site.agents,
                log,
            )
        )


async def _follow(
    options: DemoOptions,
    request: LaunchRequest,
    session: Session,
    agents: "Fleet",
    log: ProgressLog,
) -> tuple[RunSummary, str | None]:
    """Launch a run and wait for its verdict. Return the previous demo run id too."""
    async with session.connect() as client:
        previous = await client.runs(1, by=request.by, scenario=request.scenario)
        status = await client.launch(request)
        log.print(f"launched {status.run_id}")
        log.print(f"web page: {session.api}/#/run/{status.run_id}")
        for warning in status.warnings:
            log.print(f"warning: {warning}")
        first_start_at = status.bursts[0].planned_start_at
        killer = asyncio.create_task(_kill_one(agents, first_start_at, options, log))
        try:
            summary = await watch.follow(
                client, status.run_id, local=False, quiet=not session.is_text, plain=True
            )
        finally:
            killer.cancel()
        return summary, previous[0].run_id if previous else None


async def _kill_one(
    agents: "Fleet", first_start_at: datetime, options: DemoOptions, log: ProgressLog
) -> None:
    """Kill one client in the middle of the first burst, if ``--kill-one`` is set."""
    if not options.kill_one:
        return
    middle_s = first_start_at.timestamp() + options.burst_s / 2
    await asyncio.sleep(max(0.0, middle_s - utc_now().timestamp()))
    agents.kill(VICTIM)
    log.print(f"killed client agent {VICTIM}")
