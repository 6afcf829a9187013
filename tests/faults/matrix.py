"""Matrix of faults and phases. A fault is injected at one target and healed after some time.

The target is the client with the first pair's job, that pair's server, or a shared service. Before
a claim the target is all clients except the spare, so that one of them has a job.
"""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, get_args

from broadside.coordinator.core.live.status import VISIBLE_S
from broadside.exchange.messages import Claim, Job
from broadside.exchange.messages import JobPhase as Told
from broadside.lab import clocks
from broadside.lab.azure_services import QUEUE
from tests.faults.fault_range import Range, RangeFabric
from tests.faults.small_disk_agents import fill_disk, free_disk

# The limit of the clock gate is 0.05 s.
CLOCK_STEP_S: Final = 0.4
SYNC_S: Final = 20.0
# The time from such a launch to the planned start.
LEAD_BEFORE_CLAIM_S: Final = VISIBLE_S + 7
# The engine of a coming job starts within this time.
ENGINE_S: Final = LEAD_BEFORE_CLAIM_S
ENGINE_LOOK_S: Final = 0.1
# At this time after the start one full second has been sent and reported.
INTO_S: Final = 1.5
# The row without a fault.
NOTHING: Final = "nothing"
FULL_DISK: Final = "full-disk"
# A full disk is filled again for this time.
REFILL_S: Final = 7.0
REFILL_LOOK_S: Final = 0.1
# The time before the planned end. A fault of an engine must find the engine running.
EARLY_S: Final = 0.5
# The delay of every request to the table.
SLOW_S: Final = 2.0
# Agents stop sending within this time after the end of a burst or lease.
STOP_S: Final = 5.0
# The same time after a burst with undisturbed traffic.
SILENT_S: Final = 2.0


class Phase(StrEnum):
    """State of the first pair's job in the first burst when the fault is injected."""

    BEFORE_CLAIM = "before-claim"
    ARMED = "armed"
    RUNNING = "running"
    REPORTING = "reporting"


def has_come(phase: Phase, claim: Claim | None, now_s: float) -> bool:
    """Return whether a job is in a phase, from its claim row, with ``now_s`` in epoch s.

    Before it reports, a job is running. The caller then waits for its planned end without another
    poll, because a poll would take as long as a report.
    """
    match phase:
        case Phase.BEFORE_CLAIM:
            return claim is None
        case Phase.ARMED:
            return claim is not None and claim.armed_at is not None
        case Phase.RUNNING | Phase.REPORTING:
            if claim is None or claim.running_at is None or claim.phase is not Told.RUNNING:
                return False
            return now_s >= claim.running_at.timestamp() + INTO_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Objects and identities that a fault needs.

    Attributes:
        jobs: Jobs of the first burst.
    """

    range: Range
    phase: Phase
    clients: tuple[str, ...]
    server: str
    jobs: tuple[Job, ...]


# A fault action. It returns a note, or None.
Verb = Callable[[Scene], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Row of the matrix.

    Attributes:
        description: One line for the legend of the table.
        lasts_s: Time from the injection to the healing.
        lasts_before_claim_s: The same before a claim, if it must be longer.
        early_s: Time before the planned end for faults in the reporting phase.
        burst_s: Duration of a burst. A window below 7 s has no interval and no verdict.
        gap_s: Time between the two bursts.
        stop_s: Time after the first burst until silence. It is longer if the fault delays
            traffic.
        cuts_cables: The broker has connections to disconnected agents.
        cuts_lease: Agents that must be silent after the lease has expired.
        fabrics: Fabrics that can have this fault.
        backs_up: A backup is made meanwhile and restored afterwards.
    """

    name: str
    description: str
    inject: Verb = lambda scene: None
    heal: Verb = lambda scene: None
    lasts_s: float = 0.0
    lasts_before_claim_s: float | None = None
    early_s: float = 0.0
    burst_s: int = 10
    gap_s: int = 5
    stop_s: float = SILENT_S
    lease_s: int = 60
    cuts_cables: bool = False
    cuts_lease: Literal["client", "all"] | None = None
    fabrics: tuple[RangeFabric, ...] = get_args(RangeFabric)
    backs_up: bool = False

    def lasting_s(self, phase: Phase) -> float:
        """Return the time from the injection to the healing."""
        before = self.lasts_before_claim_s
        return self.lasts_s if before is None or phase is not Phase.BEFORE_CLAIM else before


def _agents(number: int, *, server: bool = False) -> Verb:
    def act(scene: Scene) -> None:
        for agent_id in (scene.server,) if server else scene.clients:
            scene.range.kill(agent_id, number)

    return act


def _engines(number: int, *, server: bool = False) -> Verb:
    def act(scene: Scene) -> str | None:
        struck = (scene.server,) if server else scene.clients
        appears_s = ENGINE_S if scene.phase is Phase.BEFORE_CLAIM else 0.0
        end_s = time.monotonic() + appears_s
        while True:
            count = sum(scene.range.signal_engines(agent_id, number) for agent_id in struck)
            if count or time.monotonic() > end_s:
                return None if count else "no iperf3 was running there"
            time.sleep(ENGINE_LOOK_S)

    return act


def _cables(*, data: bool, up: bool) -> Verb:
    def act(scene: Scene) -> None:
        for agent_id in scene.clients:
            scene.range.set_cables(agent_id, data=data, management=True, up=up)

    return act


def _fill_disk(scene: Scene) -> None:
    """Fill the disks of the clients and block the storage.

    A full disk has an effect only without table and blobs. Space that an engine frees at its end is
    filled again, before the agent needs it for rows that it cannot send.
    """
    site = scene.range
    site.break_storage()
    end_s = time.monotonic() + REFILL_S
    while time.monotonic() < end_s:
        for agent_id in scene.clients:
            fill_disk(site.agent_pid(agent_id), site.spool_path(agent_id))
        time.sleep(REFILL_LOOK_S)


def _free_disk(scene: Scene) -> None:
    site = scene.range
    for agent_id in scene.clients:
        free_disk(site.agent_pid(agent_id), site.spool_path(agent_id))
    site.mend_storage()


def _clock(offset_s: float) -> Verb:
    def act(scene: Scene) -> None:
        for agent_id in scene.clients:
            clocks.plant_offset(scene.range.lab, agent_id, offset_s)
        if not offset_s:
            clocks.wait_synced(scene.range.lab, SYNC_S)

    return act


def _deliver_twice(scene: Scene) -> None:
    """Deliver coming messages twice, and send the already delivered ones again."""
    scene.range.services.broker.ask("twice", queue=QUEUE, on=True)
    for job in scene.jobs:
        scene.range.send_raw(job.body, f"{job.job_id}-again")


def _deliver_once(scene: Scene) -> None:
    scene.range.services.broker.ask("twice", queue=QUEUE, on=False)


def _poison(scene: Scene) -> None:
    job = scene.jobs[0]
    for index, body in enumerate((b"\x00\xff not JSON", b'{"version": 1}', job.body[:-40])):
        scene.range.send_raw(body, f"poison-{job.run_id}-{index}")


_ALL: Final = (
    Fault(
        name=NOTHING,
        description="no fault; the reference for the other rows",
        backs_up=True,
    ),
    Fault(
        name="sigkill",
        description="client agent and its engine are killed, and restarted after 6 s",
        inject=_agents(signal.SIGKILL),
        heal=lambda scene: scene.range.revive(),
        lasts_s=6,
    ),
    Fault(
        name="sigkill-server",
        description="server agent and its engines are killed, and restarted after 3 s",
        inject=_agents(signal.SIGKILL, server=True),
        heal=lambda scene: scene.range.revive(),
        lasts_s=3,
    ),
    Fault(
        name="sigkill-coordinator",
        description="coordinator is killed, and restarted after 3 s",
        backs_up=True,
        inject=lambda scene: scene.range.coordinator.kill(),
        heal=lambda scene: scene.range.coordinator.start(),
        lasts_s=3,
    ),
    Fault(
        name="sigstop",
        description="client agent and its engine are stopped for 20 s",
        inject=_agents(signal.SIGSTOP),
        heal=_agents(signal.SIGCONT),
        lasts_s=20,
        gap_s=20,
        stop_s=STOP_S,
    ),
    Fault(
        name="sigstop-coordinator",
        description="coordinator is stopped for 20 s, with a lease of 5 s",
        inject=lambda scene: scene.range.coordinator.signal(signal.SIGSTOP),
        heal=lambda scene: scene.range.coordinator.signal(signal.SIGCONT),
        lasts_s=20,
        burst_s=16,
        lease_s=5,
        cuts_lease="all",
    ),
    Fault(
        name="network-cut",
        description="both cables of the client are disconnected for 10 s",
        inject=_cables(data=True, up=False),
        heal=_cables(data=True, up=True),
        cuts_cables=True,
        lasts_s=10,
        gap_s=20,
        stop_s=STOP_S,
    ),
    Fault(
        name="control-cut",
        # Agents that share the store's files have no such network link.
        fabrics=("http", "azure"),
        description="the client is disconnected from queue and table for 20 s, with a lease of "
        "5 s; traffic is not affected",
        inject=_cables(data=False, up=False),
        heal=_cables(data=False, up=True),
        cuts_cables=True,
        lasts_s=20,
        burst_s=16,
        lease_s=5,
        cuts_lease="client",
    ),
    Fault(
        name="queue-down",
        description="the broker is killed, the coordinator is disconnected, or the queue's file "
        "is locked; restored after 8 s",
        inject=lambda scene: scene.range.break_queue(),
        heal=lambda scene: scene.range.mend_queue(),
        lasts_s=8,
    ),
    Fault(
        name="table-503",
        fabrics=("azure",),
        description="the table returns 503 for 20 s; before the claim until 4 s before the start",
        inject=lambda scene: scene.range.services.tables.refuse(503),
        heal=lambda scene: scene.range.services.tables.heal(),
        lasts_s=20,
        # This is too late for arming in time.
        lasts_before_claim_s=LEAD_BEFORE_CLAIM_S - 4,
        gap_s=26,
    ),
    Fault(
        name="table-down",
        fabrics=("azure",),
        description="the table rejects new connections for 10 s and closes existing ones",
        inject=lambda scene: scene.range.services.tables.stop(),
        heal=lambda scene: scene.range.services.tables.start(),
        lasts_s=10,
        gap_s=16,
    ),
    Fault(
        name=FULL_DISK,
        description="the client's disk is full except for 16 KiB, and table and blobs are "
        "unavailable, for 20 s",
        inject=_fill_disk,
        heal=_free_disk,
        lasts_s=20,
        gap_s=26,
    ),
    Fault(
        name="clock-step",
        description=f"the client's clock is {CLOCK_STEP_S:g} s off for 12 s, or until its job is "
        "armed; the clock gate is 0.05 s",
        inject=_clock(CLOCK_STEP_S),
        heal=_clock(0.0),
        lasts_s=12,
        # The job is armed 5 s before the planned start.
        lasts_before_claim_s=LEAD_BEFORE_CLAIM_S - 3,
    ),
    Fault(
        name="delivered-twice",
        fabrics=("azure",),
        description="all messages are delivered twice, including those already received",
        inject=_deliver_twice,
        heal=_deliver_once,
        lasts_s=15,
    ),
    Fault(
        name="poison",
        description="three messages that are not jobs are sent",
        inject=_poison,
    ),
    Fault(
        name="server-stuck",
        description="the server's iperf3 is stopped for 12 s",
        inject=_engines(signal.SIGSTOP, server=True),
        heal=_engines(signal.SIGCONT, server=True),
        lasts_s=12,
        early_s=EARLY_S,
        gap_s=20,
        stop_s=STOP_S,
    ),
    Fault(
        name="server-dead",
        description="the server's iperf3 is killed",
        inject=_engines(signal.SIGKILL, server=True),
        early_s=EARLY_S,
    ),
    Fault(
        name="client-dead",
        description="the client's iperf3 is killed as soon as it runs",
        inject=_engines(signal.SIGKILL),
        early_s=EARLY_S,
    ),
    Fault(
        name="slow-table",
        fabrics=("azure",),
        description=f"requests to the table are delayed by {SLOW_S:g} s, for 10 s",
        inject=lambda scene: scene.range.services.tables.slow(SLOW_S),
        heal=lambda scene: scene.range.services.tables.heal(),
        lasts_s=10,
    ),
)
FAULTS: Final = {fault.name: fault for fault in _ALL}
Cell = tuple[str, Phase]
CELLS: Final[tuple[Cell, ...]] = tuple((name, phase) for name in FAULTS for phase in Phase)
# The short cells that `make test` runs in sequence in one lab. Other live tests kill clients and
# coordinators, step clocks, expire leases, block the table and send invalid messages.
CORE: Final[tuple[Cell, ...]] = (
    ("sigkill-server", Phase.RUNNING),
    ("queue-down", Phase.ARMED),
    ("client-dead", Phase.RUNNING),
)


def chosen(only: str | None, fabric: RangeFabric = "azure") -> tuple[Cell, ...]:
    """Return the cells for ``FAULT``, ``FAULT/PHASE`` or ``/PHASE``, separated by commas.

    None selects all cells. Only cells of the fabric are included.

    Raises:
        ValueError: There is no such cell. The message lists the existing faults.
    """
    of_fabric = [c for c in CELLS if fabric in FAULTS[c[0]].fabrics]
    if only is None:
        return tuple(of_fabric)
    cells: list[Cell] = []
    for part in filter(None, only.split(",")):
        name, _, phase = part.partition("/")
        results = [c for c in of_fabric if name in ("", c[0]) and phase in ("", c[1].value)]
        if not results:
            names = ", ".join(dict(of_fabric))
            raise ValueError(
                f"--only {part!r}: write FAULT/PHASE, of {names} and {', '.join(Phase)}"
            )
        cells += [cell for cell in results if cell not in cells]
    return tuple(cells)
