"""What a run is: its specification, and the plan that a specification becomes."""

import math
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, StrictBool, StringConstraints

from broadside.coordinator.core.figures import Layer
from broadside.coordinator.core.goals import GOALS, PROBES, WITNESSES
from broadside.coordinator.core.plan.seal import document_digest, with_seal
from broadside.exchange.engines import filled_in, find, measures, scaled
from broadside.exchange.engines import problems as engine_problems
from broadside.exchange.messages import (
    Endpoint,
    Identifier,
    Job,
    Message,
    RawPolicy,
    RunId,
    Traffic,
    UtcDatetime,
    is_none,
    pair_name,
)

UNATTENDED_MAX_S = 604_800  # s from launch: a week
PERIOD_MAX_S = 604_800
ARM_GAP_MIN_S = 5.0  # s between two bursts that the fleet needs to report and to arm again

TUNNEL_GAP_S = 4.0  # s more, for both ends of the tunnels
BYPASS: Final = "bypass"  # device.path of a run that is not to cross the firewall


class Objective(Message):
    """What the run is to show, and how much of it must have been seen to say so."""

    target_bits_per_second: Annotated[float, Field(gt=0)] | None = None  # at real scale, at `layer`
    layer: Layer = Layer.IP
    tolerance_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.05  # below the target and still a pass
    coverage_floor_ratio: Annotated[float, Field(gt=0, le=1)] = 0.95  # of planned pair-seconds
    rtt_mean_max_s: Annotated[float, Field(gt=0)] | None = None
    retransmit_max_ratio: Annotated[float, Field(ge=0, le=1)] | None = None  # of segments sent
    loss_max_ratio: Annotated[float, Field(ge=0, le=1)] | None = None  # UDP datagrams
    success_min_ratio: Annotated[float, Field(ge=0, le=1)] | None = None  # of requests
    latency_p99_max_s: Annotated[float, Field(gt=0)] | None = None  # of all pairs' requests
    probe_p99_max_s: Annotated[float, Field(gt=0)] | None = None  # of all pairs' probes
    probe_loss_max_ratio: Annotated[float, Field(ge=0, le=1)] | None = None
    device_cpu_p95_max_ratio: Annotated[float, Field(gt=0, le=1)] | None = None  # of each device
    device_memory_max_ratio: Annotated[float, Field(gt=0, le=1)] | None = None
    device_drops_max_per_second: Annotated[float, Field(ge=0)] | None = None  # mean of the window
    device_health_min_ratio: Annotated[float, Field(gt=0, le=1)] | None = None
    device_snat_ports_max_ratio: Annotated[float, Field(gt=0, le=1)] | None = None
    residual_max_ratio: Annotated[float, Field(gt=0, le=1)] = 0.05  # fleet against firewall
    start_spread_max_s: Annotated[float, Field(gt=0, le=60)] = 0.1  # between the pairs' first bytes


class RunSpec(Message):
    """Everything that decides what a run does; a scenario is a named, partly filled one.

    What a launch must keep beyond the fields' own bounds is in :meth:`problems`: those rules grow,
    and a stored run is to be read by every later Broadside.
    """

    scenario: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{0,40}$")]
    description: str = ""
    pairs_count: Annotated[int, Field(ge=1, le=2000)] = 30
    bursts_count: Annotated[int, Field(ge=1, le=10_000)] = 1
    burst_s: Annotated[int, Field(ge=1, le=86_400)] = 30  # s of measured traffic a burst
    period_s: Annotated[int, Field(ge=1, le=PERIOD_MAX_S)] = 60  # s from one start to the next
    align_to_period: StrictBool = False  # starts are multiples of the period since the UTC epoch
    lead_s: Annotated[int, Field(ge=1, le=3600)] = 15  # s from launch to the first start, at least
    traffic: Annotated[Traffic, BeforeValidator(filled_in)] = Traffic()
    objective: Objective = Objective()
    scale: Annotated[float, Field(gt=0)] = 1.0  # lab: real rates are this many times the measured
    late_after_s: Annotated[float, Field(gt=0, le=60)] = 1.0  # s after the instant: data is late
    clock_bound_max_s: Annotated[float, Field(gt=0, le=10)] = 0.05  # s, the clock gate
    lease_s: Annotated[int, Field(ge=5, le=3600)] = 60  # s without a coordinator until agents stop
    # s from launch for which agents go on without any coordinator, and not a second longer, or the
    # instant until which they do, at most a week from launch; neither: the lease holds
    unattended_s: Annotated[int, Field(ge=60, le=UNATTENDED_MAX_S)] | None = None
    unattended_until_at: UtcDatetime | None = None
    # of a pair's own running median: a fall by so much is a disruption
    disruption_drop_ratio: Annotated[float, Field(gt=0, lt=1)] = 0.5
    # whose engines' printed output is kept, of client ends: failed is those that did not measure,
    # and one sample pair
    raw: RawPolicy = RawPolicy.FAILED
    budget_usd: Annotated[float, Field(ge=0)] | None = None  # at real scale; None: no limit
    labels: Mapping[str, str] = {}
    device: Mapping[str, str] = {}  # what the report says of the device: sku, region, idps ...

    def problems(self) -> tuple[str, ...]:
        """Why it cannot be launched as it is, each as ``field: problem; fix``; empty: it can."""
        return (
            *engine_problems(scaled(self.traffic, self.scale)),
            *self._unmeasured_goals(),
            *self._short_period(),
            *self._two_ends(),
        )

    def _unmeasured_goals(self) -> Iterator[str]:
        measured = measures(self.traffic) | ({PROBES} if self.traffic.probe is not None else set())
        there = ", ".join(goal.bound for goal in GOALS if goal.needs in measured) or "none"
        for goal in GOALS:
            if getattr(self.objective, goal.bound) is None or goal.needs in measured:
                continue
            if goal.needs == WITNESSES:  # whether there are any is for the planner to say
                continue
            if goal.needs == PROBES:
                yield (
                    f"objective.{goal.bound}: nothing measures it without probes; "
                    "set traffic.probe=udp"
                )
            else:
                yield (
                    f"objective.{goal.bound}: {self.traffic.engine} over "
                    f"{self.traffic.protocol.value} does not measure it; drop it, or use an "
                    f"engine that does (docs/engines.md); goals that it can answer: {there}"
                )

    @property
    def least_period_s(self) -> int:
        """From one burst's instant to the next, s: what comes in between has to fit."""
        needed_s = self.burst_s + self.traffic.omit_s + ARM_GAP_MIN_S
        probe = self.traffic.probe
        probe_s = 0.0 if probe is None else probe.after_s + 1  # for the last answer
        needed_s += max(self._tail_s, probe_s)
        if self.traffic.encapsulation is not None:
            needed_s += TUNNEL_GAP_S
        return math.ceil(needed_s)

    @property
    def _tail_s(self) -> float:
        """After its end until the engine has given up what hangs, s."""
        engine = find(self.traffic.engine)
        return 0.0 if engine is None else engine.tail_s(self.traffic)

    def _short_period(self) -> Iterator[str]:
        if self.bursts_count > 1 and self.period_s < self.least_period_s:
            tail_s, engine = self._tail_s, self.traffic.engine
            tail = f"up to {tail_s:g} s until {engine} has given up, " if tail_s else ""
            yield (
                f"period_s: {self.period_s} s is too short for bursts of {self.burst_s} s "
                f"(omit_s {self.traffic.omit_s} s, {tail}and {ARM_GAP_MIN_S:g} s to arm again); "
                f"set at least {self.least_period_s} s"
            )

    def _two_ends(self) -> Iterator[str]:
        if self.unattended_s is not None and self.unattended_until_at is not None:
            yield (
                f"unattended_s, unattended_until_at: {self.unattended_s} s and "
                f"{self.unattended_until_at:%Y-%m-%d %H:%M:%S} UTC; give one of the two"
            )

    @property
    def is_unattended(self) -> bool:
        """Whether agents go on without a coordinator, until a hard end."""
        return self.unattended_s is not None or self.unattended_until_at is not None

    def hard_end_at(self, launched_at: datetime) -> datetime | None:
        """Its hard end where it is unattended, else None."""
        if self.unattended_s is not None:
            return launched_at + timedelta(seconds=self.unattended_s)
        return self.unattended_until_at

    @property
    def bypasses_device(self) -> bool:
        """Whether its traffic is to pass the firewall by: a reference."""
        return self.device.get("path") == BYPASS

    @property
    def sku(self) -> str | None:
        """What kind of firewall it is said to cross, in small letters; None: not said."""
        return self.device.get("sku", "").lower() or None

    @property
    def scaled_target_bits_per_second(self) -> float | None:
        """The target as this run can measure it: at ``scale``, at the objective's layer."""
        target = self.objective.target_bits_per_second
        return None if target is None else target / self.scale


class Pair(Message):
    """A slot in every burst: one server endpoint, and whichever client takes the job."""

    index: int
    endpoint: Endpoint
    server_nic_bits_per_second: int | None = None
    nic_mtu_bytes: int | None = None  # smallest of its server and all clients; None: one is unknown

    @property
    def name(self) -> str:
        return pair_name(self.index)


class Burst(Message):
    """One planned instant at which every pair starts."""

    index: int
    planned_start_at: UtcDatetime
    duration_s: int  # s of measured traffic
    omit_s: int = 0  # s of engine warm-up before it

    @property
    def planned_end_at(self) -> UtcDatetime:
        return self.planned_start_at + timedelta(seconds=self.duration_s + self.omit_s)


class LedgerPromise(Message):
    """The device's own byte counts, on which the verdict is to rest beside the fleet's."""

    source: str  # as the settings name it: lab, csv, prometheus, azure-monitor
    coverage_min_ratio: Annotated[float, Field(gt=0, le=1)] = 0.95  # of the bursts' bytes that
    # must lie in bins which it knows


class Plan(Message):
    """A run made concrete: who, when, from what, and what is to prove it.

    What is to be proven is fixed with it: the objective and its layer, the clock gate, the
    endpoints, the ledger, the decision rule. The verdict repeats its seal.
    """

    run_id: RunId
    created_at: UtcDatetime
    spec: RunSpec
    pairs: tuple[Pair, ...]
    bursts: tuple[Burst, ...]
    warnings: tuple[str, ...] = ()  # feasible, but the operator should know
    ledger: LedgerPromise | None = None  # None: nothing but the fleet vouches for the run
    shared_boot_id: Identifier | None = Field(None, exclude_if=is_none)  # the fleet's one clock
    clocks_promised: bool = True  # readings of every agent's clock; imports have none
    witnesses: tuple[str, ...] = ()  # devices that are to be told of
    limits_as_of: str | None = None  # the newest date in the table of documented limits
    decision_rule: Literal["guarded-acceptance"] = "guarded-acceptance"  # docs/verdict.md
    confidence_ratio: Annotated[float, Field(gt=0, lt=1)] = 0.95  # of the interval that it takes
    # Over the stored document without this member, which is its last one.
    seal_sha256: str | None = None

    # SHA-256 of the stored document that this plan was read from; None: it was not read from one.
    _stored_sha256: str | None = PrivateAttr(None)

    @classmethod
    def read(cls, document: bytes) -> "Plan":
        """Return a stored plan, whose seal is compared with the bytes as they are stored.

        Raises:
            ValidationError: The document is no plan of this version.
        """
        plan = cls.model_validate_json(document)
        plan._stored_sha256 = document_digest(document, plan.seal_sha256)
        return plan

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> "Plan":
        """Return a copy; one that was changed is no longer what was stored."""
        copy = super().model_copy(update=update, deep=deep)
        if update:
            copy._stored_sha256 = None
        return copy

    @property
    def document(self) -> bytes:
        """The plan as it is stored: its seal is the last member, whatever fields came after it."""
        return with_seal(self.to_json(without=("seal_sha256",)).encode(), self.seal_sha256)

    def digest(self) -> str:
        """SHA-256 of the plan's document without its seal, in hexadecimal."""
        return self._stored_sha256 or document_digest(self.document, self.seal_sha256)

    def sealed(self) -> "Plan":
        """The plan with its seal, as it is stored and judged."""
        return self.model_copy(update={"seal_sha256": document_digest(self.document, None)})

    @property
    def is_intact(self) -> bool:
        """Whether nothing of it changed since it was sealed."""
        return self.seal_sha256 is None or self.seal_sha256 == self.digest()

    @property
    def traffic(self) -> Traffic:
        """What is really sent: paced rates are divided by the run's scale."""
        return scaled(self.spec.traffic, self.spec.scale)

    def jobs(self, burst: Burst) -> Iterator[Job]:
        """The jobs of one burst, in pair order."""
        traffic = self.traffic
        for pair in self.pairs:
            is_sample = pair.index == 0 and self.spec.raw is not RawPolicy.NONE
            yield Job(
                run_id=self.run_id,
                burst_index=burst.index,
                pair_index=pair.index,
                endpoint=pair.endpoint,
                traffic=traffic,
                planned_start_at=burst.planned_start_at,
                duration_s=burst.duration_s,
                late_after_s=self.spec.late_after_s,
                clock_bound_max_s=self.spec.clock_bound_max_s,
                shared_boot_id=self.shared_boot_id,
                raw=RawPolicy.ALL if is_sample else self.spec.raw,
            )
