"""Run specification, and the plan that is made from it."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, StrictBool, StringConstraints

from broadside.coordinator.core.guards import (
    CONTROL_POLL_S,
    FAST_PAIRS_MAX_COUNT,
    GUARDS_MAX_COUNT,
    LIVE_PROBES_S,
    PROBE_PAIRS_MAX_COUNT,
    PROBE_RTT,
    PROBE_WAIT_S,
    Guard,
)
from broadside.coordinator.core.plan_seal import document_digest, with_seal
from broadside.coordinator.core.thresholds import (
    ALL_THRESHOLDS,
    CANARIES,
    DEVICE_TELEMETRY,
    PROBES,
    Objective,
)
from broadside.exchange.engines import filled_in, find, measures, ramps_s, scaled
from broadside.exchange.engines import problems as engine_problems
from broadside.exchange.messages import (
    DEFAULT_ENGINE,
    BurstEnd,
    EndCause,
    Endpoint,
    Identifier,
    Job,
    Message,
    OwnBurstIndex,
    RawPolicy,
    RunId,
    Traffic,
    UtcDatetime,
    is_none,
    pair_name,
)

# Longest unattended time from launch in seconds, a week.
UNATTENDED_MAX_S = 604_800
PERIOD_MAX_S = 604_800
# Time between two bursts that the fleet needs to report and to prepare again.
ARM_GAP_MIN_S = 5.0

# Time for reports after a burst. An agent stops an engine that hangs 10 s after the planned end.
COLLECT_S: Final = 25.0
# Additional seconds to create and remove the tunnels at both ends.
TUNNEL_GAP_S = 4.0
# Time between the first probe and the burst, so that a guard has values before the first byte.
GUARD_PROBE_BEFORE_S: Final = 4.0
# Time from the launch to the first burst of a run with guards.
GUARD_LEAD_MIN_S: Final = 8
# Shortest duration of a burst that is ended early, in seconds: by default, and where RFC 9411 is
# claimed, which recommends it.
SUSTAIN_S: Final = 60
SUSTAIN_RFC9411_S: Final = 300
_RFC9411: Final = re.compile(r"rfc[ _-]?9411", re.IGNORECASE)
# Largest number of other kinds of traffic in one run.
MIX_MAX_COUNT: Final = 8
# Scenarios with this in their name look for changes over time, and so do runs of this length.
SOAK: Final = "soak"
SOAK_S: Final = 12 * 3600
# Value of ``device.path`` for a run that should not cross the firewall.
BYPASS: Final = "bypass"


class TrafficShare(Message):
    """Other traffic of some pairs in a mixed run.

    Attributes:
        traffic: Traffic of these pairs.
        name: Name in results and findings. None uses the name of the engine.
        objective: Thresholds of this part, in place of those of the run.
    """

    traffic: Annotated[Traffic, BeforeValidator(filled_in)]
    # Number of pairs, which are part of the pairs of the run.
    pairs_count: Annotated[int, Field(ge=1, le=2000)] = 1
    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9 -]{0,23}$")] | None = Field(
        None, exclude_if=is_none
    )
    objective: Objective | None = Field(None, exclude_if=is_none)


class RunSpec(Message):
    """Run specification. A scenario is a named specification with some fields set.

    Launch rules in addition to the bounds of the fields are in :meth:`problems`. New versions can
    add such rules, but must still be able to read every stored run.

    Attributes:
        description: Description of the run.
        pairs_count: Number of pairs, each a client and a server.
        burst_s: Seconds of measured traffic in a burst.
        period_s: Seconds from the start of one burst to the next.
        align_to_period: True to start at multiples of the period since 1970 (UTC).
        lead_s: Minimum number of seconds from launch to the first start.
        traffic: Traffic of a pair.
        objective: Target and thresholds.
        scale: Lab: real rate divided by the measured rate.
        late_after_s: Largest distance of the first data from the start time, in seconds. Beyond it,
            the test is late.
        clock_bound_max_s: Largest clock error for the clock gate, in seconds.
        lease_s: Time for agents to continue if there is no coordinator, in seconds.
        unattended_s: Seconds from the launch until which agents continue without a coordinator, at
            most a week. If this and `unattended_until_at` are None, the lease is used.
        unattended_until_at: Time until which agents continue without a coordinator.
        disruption_drop_ratio: Fall of a pair's rate below its running median that counts as a
            disruption (0 to 1).
        raw: Jobs whose raw engine output is stored. `failed` stores it for failed clients and for
            one sample pair.
        device: Description of the device for the report, such as SKU, region or IDPS mode.
        guards: Limits on live values that stop all traffic, see docs/guards.md.
        dry_run: True stops the run shortly before the first byte, to test the guards and the stop
            path.
        mix: Other traffic of some of the pairs. All other pairs send ``traffic``.
    """

    scenario: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]{0,40}$")]
    description: str = ""
    pairs_count: Annotated[int, Field(ge=1, le=2000)] = 30
    bursts_count: Annotated[int, Field(ge=1, le=10_000)] = 1
    burst_s: Annotated[int, Field(ge=1, le=86_400)] = 30
    period_s: Annotated[int, Field(ge=1, le=PERIOD_MAX_S)] = 60
    align_to_period: StrictBool = False
    lead_s: Annotated[int, Field(ge=1, le=3600)] = 15
    traffic: Annotated[Traffic, BeforeValidator(filled_in)] = Traffic()
    mix: Annotated[tuple[TrafficShare, ...], Field(max_length=MIX_MAX_COUNT)] = ()
    objective: Objective = Objective()
    scale: Annotated[float, Field(gt=0)] = 1.0
    late_after_s: Annotated[float, Field(gt=0, le=60)] = 1.0
    clock_bound_max_s: Annotated[float, Field(gt=0, le=10)] = 0.05
    lease_s: Annotated[int, Field(ge=5, le=3600)] = 60
    unattended_s: Annotated[int, Field(ge=60, le=UNATTENDED_MAX_S)] | None = None
    unattended_until_at: UtcDatetime | None = None
    disruption_drop_ratio: Annotated[float, Field(gt=0, lt=1)] = 0.5
    raw: RawPolicy = RawPolicy.FAILED
    budget_usd: Annotated[float, Field(ge=0)] | None = None
    labels: Mapping[str, str] = {}
    device: Mapping[str, str] = {}
    guards: Annotated[tuple[Guard, ...], Field(max_length=GUARDS_MAX_COUNT)] = ()
    dry_run: StrictBool = False

    def problems(self) -> tuple[str, ...]:
        """Return the reasons why this cannot be launched, each as ``field: problem; fix``."""
        if self.mix:
            return tuple(self._mix_problems())
        return (
            *engine_problems(scaled(self.traffic, self.scale)),
            *self._unmeasured_thresholds(),
            *self._short_period(),
            *self._ramps(),
            *self._two_ends(),
            *self._unarmed_guards(),
            *self._early_stop(),
        )

    def _mix_problems(self) -> Iterator[str]:
        """Yield the problems of a mixed run and of each of its parts."""
        others_count = sum(share.pairs_count for share in self.mix)
        if others_count >= self.pairs_count:
            yield (
                f"mix: it has {others_count} of {self.pairs_count} pairs, so traffic has none; "
                "raise pairs_count"
            )
            return
        if self.objective.stop is not None or self.traffic.omit_s:
            yield "mix: objective.stop and traffic.omit_s are not possible; remove them"
        for number, part in enumerate(self.parts):
            if number and part.traffic.encapsulation != self.traffic.encapsulation:
                yield "mix.traffic.encapsulation: all pairs need the same; remove it"
            if number and part.traffic.canary is not None:
                yield "mix.traffic.canary: only traffic can have canaries; set traffic.canary"
            prefix = f"mix {number}: " if number else ""
            yield from (f"{prefix}{problem}" for problem in part.problems())
        names = self.part_names
        if len(set(names)) < len(names):
            yield f"mix.name: {', '.join(names)} are not different; set mix.name"
        yield from self._unmeasured_thresholds(
            frozenset[str]().union(*(_measured_by(part.traffic) for part in self.parts))
        )

    @property
    def part_names(self) -> tuple[str, ...]:
        """Name of each part. A part without a name has that of its engine.

        When several have the same engine, later ones have a number.
        """
        engines = [self.traffic.engine, *(share.traffic.engine for share in self.mix)]
        given = [None, *(share.name for share in self.mix)]
        counts = [engines[: number + 1].count(name) for number, name in enumerate(engines)]
        return tuple(
            name or (engine if count == 1 else f"{engine} {count}")
            for name, engine, count in zip(given, engines, counts, strict=True)
        )

    @property
    def parts(self) -> "tuple[RunSpec, ...]":
        """A specification for each kind of traffic. The first one has ``traffic``.

        The first part has the target. A threshold belongs to each part that measures it.
        """
        if not self.mix:
            return (self,)
        first_count = self.pairs_count - sum(share.pairs_count for share in self.mix)
        shares = (TrafficShare(traffic=self.traffic, pairs_count=max(1, first_count)), *self.mix)
        return tuple(
            self.model_copy(
                update={
                    "traffic": share.traffic,
                    "pairs_count": share.pairs_count,
                    "mix": (),
                    "objective": _objective_of(self.objective, share, is_first=not number),
                    "guards": () if number else self.guards,
                }
            )
            for number, share in enumerate(shares)
        )

    def _unmeasured_thresholds(self, measured: frozenset[str] | None = None) -> Iterator[str]:
        measured = _measured_by(self.traffic) if measured is None else measured
        there = (
            ", ".join(
                threshold.bound for threshold in ALL_THRESHOLDS if threshold.requires in measured
            )
            or "none"
        )
        for threshold in ALL_THRESHOLDS:
            if getattr(self.objective, threshold.bound) is None or threshold.requires in measured:
                continue
            # The planner checks whether such telemetry is available.
            if threshold.requires == DEVICE_TELEMETRY:
                continue
            if threshold.requires == PROBES:
                yield (
                    f"objective.{threshold.bound}: it is not measured without probes; "
                    "set traffic.probe=udp"
                )
            elif threshold.requires == CANARIES:
                yield (
                    f"objective.{threshold.bound}: it is not measured without canaries; set "
                    "traffic.canary.consent to the name of the person who agreed to them"
                )
            else:
                yield (
                    f"objective.{threshold.bound}: {self.traffic.engine} over "
                    f"{self.traffic.protocol.value} does not measure it; remove it, or use an "
                    "engine that does (/docs/engines.html of the coordinator); available "
                    f"thresholds: {there}"
                )

    @property
    def least_period_s(self) -> int:
        """Shortest period in seconds, to fit everything between two starts."""
        needed_s = self.burst_s + self.traffic.omit_s + ARM_GAP_MIN_S
        probe = self.traffic.probe
        # Wait for the last answer.
        probe_s = 0.0 if probe is None else probe.after_s + 1
        canary = self.traffic.canary
        # Wait for the last answers, and for what the server has received.
        canary_s = 0.0 if canary is None else canary.after_s + canary.hold_s + 3
        needed_s += max(self._tail_s, probe_s, canary_s)
        if self.traffic.encapsulation is not None:
            needed_s += TUNNEL_GAP_S
        return math.ceil(needed_s)

    @property
    def _tail_s(self) -> float:
        """Seconds after the burst end until the engine stops connections that hang."""
        engine = find(self.traffic.engine)
        return 0.0 if engine is None else engine.shutdown_grace_s(self.traffic)

    def _short_period(self) -> Iterator[str]:
        if self.bursts_count > 1 and self.period_s < self.least_period_s:
            tail_s, engine = self._tail_s, self.traffic.engine
            tail = f"up to {tail_s:g} s until {engine} stops, " if tail_s else ""
            yield (
                f"period_s: {self.period_s} s is too short for bursts of {self.burst_s} s "
                f"(omit_s {self.traffic.omit_s} s, {tail}and {ARM_GAP_MIN_S:g} s to prepare "
                f"again); set at least {self.least_period_s} s"
            )

    def _ramps(self) -> Iterator[str]:
        up_s, down_s = ramps_s(self.traffic)
        if up_s + down_s >= self.burst_s:
            yield (
                f"burst_s: the ramps of {up_s} s and {down_s} s leave no sustain phase in "
                f"{self.burst_s} s; set at least {up_s + down_s + 1} s, or shorter ramps "
                "(traffic.options.ramp_up_s, ramp_down_s)"
            )

    def _two_ends(self) -> Iterator[str]:
        if self.unattended_s is not None and self.unattended_until_at is not None:
            yield (
                f"unattended_s, unattended_until_at: {self.unattended_s} s and "
                f"{self.unattended_until_at:%Y-%m-%d %H:%M:%S} UTC; set only one of them"
            )

    def _unarmed_guards(self) -> Iterator[str]:
        probe = self.traffic.probe
        for guard in self.guards:
            if guard.quantity == PROBE_RTT and guard.limit >= PROBE_WAIT_S:
                yield (
                    f"guards: {guard}: a probe is lost after {PROBE_WAIT_S:g} s; set a lower "
                    "limit, or use probe_loss_ratio"
                )
            if guard.is_probe and (probe is None or probe.before_s < GUARD_PROBE_BEFORE_S):
                yield (
                    f"guards: {guard}: probes must begin {GUARD_PROBE_BEFORE_S:g} s before the "
                    f"burst; set traffic.probe.before_s={GUARD_PROBE_BEFORE_S:g}"
                )
        if self.is_guarded and self.is_unattended:
            yield (
                "guards, unattended_s: agents that work without a coordinator have no guards; "
                "remove one of them"
            )
        if self.is_guarded and self.lead_s < GUARD_LEAD_MIN_S:
            yield (
                f"lead_s: {self.lead_s} s is too short to arm guards; set at least "
                f"{GUARD_LEAD_MIN_S} s"
            )

    @property
    def is_guarded(self) -> bool:
        """True if guards, or a dry run, can stop the run."""
        return bool(self.guards) or self.dry_run

    @property
    def is_unattended(self) -> bool:
        """True if agents should work with no coordinator until a hard end."""
        return self.unattended_s is not None or self.unattended_until_at is not None

    def hard_end_at(self, launched_at: datetime) -> datetime | None:
        """Return the hard end for a launch at this time, or None if a lease is used."""
        if self.unattended_s is not None:
            return launched_at + timedelta(seconds=self.unattended_s)
        return self.unattended_until_at

    @property
    def claims_rfc9411(self) -> bool:
        """True if the description, a label or a device field names RFC 9411."""
        texts = (self.description, *self.labels, *self.labels.values(), *self.device.values())
        return any(_RFC9411.search(text) for text in texts)

    @property
    def sustain_least_s(self) -> int:
        """Shortest duration of a burst in seconds with ``objective.stop``."""
        usual_s = SUSTAIN_RFC9411_S if self.claims_rfc9411 else SUSTAIN_S
        return self.objective.sustain_min_s or usual_s

    @property
    def is_soak(self) -> bool:
        """True if the run looks for changes over time, by its name or its length."""
        length_s = (self.bursts_count - 1) * self.period_s + self.burst_s
        return SOAK in self.scenario.casefold() or length_s >= SOAK_S

    def _early_stop(self) -> Iterator[str]:
        """Yield problems with ``objective.stop``."""
        objective, least_s = self.objective, self.sustain_least_s
        if objective.stop is None:
            if objective.sustain_min_s is not None:
                yield (
                    f"objective.sustain_min_s: {objective.sustain_min_s} s has no effect without "
                    "objective.stop; set objective.stop=when-certain, or remove it"
                )
            return
        if objective.target_bits_per_second is None:
            yield (
                "objective.stop: when-certain compares the rate with a target, and none is set; "
                "set objective.target_bits_per_second"
            )
        if self.traffic.engine != DEFAULT_ENGINE:
            yield (
                f"objective.stop: when-certain needs both ends' readings of each second, which "
                f"{self.traffic.engine} does not have; use traffic.engine={DEFAULT_ENGINE}, or "
                "remove objective.stop"
            )
        if self.is_soak:
            yield (
                f"objective.stop: when-certain is not allowed in the scenario {self.scenario}, "
                "because a soak looks for changes over time; remove objective.stop, or use another "
                f"name and less than {SOAK_S // 3600} hours"
            )
        if self.claims_rfc9411 and least_s < SUSTAIN_RFC9411_S:
            yield (
                f"objective.sustain_min_s: {least_s} s is shorter than the {SUSTAIN_RFC9411_S} s "
                f"that RFC 9411 recommends, and the run refers to RFC 9411; set at least "
                f"{SUSTAIN_RFC9411_S} s, or remove the reference"
            )
        if self.burst_s <= least_s:
            yield (
                f"objective.stop: bursts of {self.burst_s} s are not longer than the shortest "
                f"duration of {least_s} s (objective.sustain_min_s), so none can end early; set "
                "burst_s above it, or remove objective.stop"
            )

    @property
    def may_end_early(self) -> bool:
        """True if the coordinator may end a burst before its planned end."""
        return self.objective.stop is not None

    @property
    def bypasses_device(self) -> bool:
        """True if the traffic should not cross the firewall. Such a run is a reference."""
        return self.device.get("path") == BYPASS

    @property
    def sku(self) -> str | None:
        """SKU of the firewall in lower case, or None if it is not set."""
        return self.device.get("sku", "").lower() or None

    @property
    def scaled_target_bits_per_second(self) -> float | None:
        """Target in bit/s as measured (divided by ``scale``), at the layer of the objective.

        None if the objective has no target.
        """
        target = self.objective.target_bits_per_second
        return None if target is None else target / self.scale


def _measured_by(traffic: Traffic) -> frozenset[str]:
    """Return the metrics of a traffic with its probes and canaries."""
    beside = {PROBES: traffic.probe, CANARIES: traffic.canary}
    return measures(traffic) | {name for name, value in beside.items() if value is not None}


def _objective_of(objective: Objective, share: TrafficShare, *, is_first: bool) -> Objective:
    """Return the objective for one part of a mixed run."""
    measured = _measured_by(share.traffic) | ({DEVICE_TELEMETRY} if is_first else set())
    others = [one.bound for one in ALL_THRESHOLDS if one.requires not in measured]
    fields = dict.fromkeys(others) | ({} if is_first else {"target_bits_per_second": None})
    changed = share.objective
    given = (
        {}
        if changed is None
        else {name: getattr(changed, name) for name in changed.model_fields_set}
    )
    return objective.model_copy(update=fields | given)


class Pair(Message):
    """A server endpoint in every burst. In each burst, the client is the one that takes the job.

    Attributes:
        index: Index of the pair, from 0.
        endpoint: Address and ports of the server.
        server_nic_bits_per_second: Limit of the server's NIC in bit/s. None if unknown.
        nic_mtu_bytes: Smallest MTU of the server and all clients in bytes. None if one is unknown.
        part_index: Part of a mixed run: 0 sends ``traffic``, and n the n-th entry of ``mix``.
    """

    index: int
    endpoint: Endpoint
    server_nic_bits_per_second: int | None = None
    nic_mtu_bytes: int | None = None
    part_index: int = 0

    @property
    def name(self) -> str:
        return pair_name(self.index)


class Burst(Message):
    """A planned time at which all pairs start.

    Attributes:
        duration_s: Seconds of measured traffic.
        omit_s: Seconds of engine warm-up before it.
        end: Order that ended the burst before its planned end. None if there was none.
        requested_s: Planned seconds of measured traffic, if the burst was ended early.
    """

    index: OwnBurstIndex
    planned_start_at: UtcDatetime
    duration_s: int
    omit_s: int = 0
    end: BurstEnd | None = Field(None, exclude_if=is_none)
    requested_s: int | None = Field(None, exclude_if=is_none)

    def ended(self, end: BurstEnd) -> "Burst":
        """Return the burst with the duration that all pairs reach under an order to end it."""
        complete_s = math.floor((end.at - self.planned_start_at).total_seconds() + 1e-6)
        duration_s = min(self.duration_s, max(1, complete_s - self.omit_s))
        update = {"duration_s": duration_s, "end": end, "requested_s": self.longest_s}
        return self.model_copy(update=update)

    @property
    def is_certain(self) -> bool:
        """True if the burst was ended early because its rate was certain."""
        return self.end is not None and self.end.cause is not EndCause.GUARD

    @property
    def longest_s(self) -> int:
        """Seconds of measured traffic that the jobs requested."""
        return self.requested_s or self.duration_s

    @property
    def planned_end_at(self) -> UtcDatetime:
        return self.planned_start_at + timedelta(seconds=self.duration_s + self.omit_s)


def due_at(burst: Burst) -> datetime:
    """Return the time when a burst is over even if some reports are missing."""
    return burst.planned_end_at + timedelta(seconds=COLLECT_S)


class CounterRequirement(Message):
    """Device counter that the verdict will use in addition to the fleet.

    Attributes:
        source: Type of the telemetry source, for example ``snmp``.
        coverage_min_ratio: Part of the bytes of all bursts that must be in known bins of the
            counter.
    """

    source: str
    coverage_min_ratio: Annotated[float, Field(gt=0, le=1)] = 0.95


class Plan(Message):
    """Run plan with endpoints, start times, traffic and the evidence that is required.

    The plan also sets what the run needs to prove: the objective with its layer, the clock gate,
    the counter and the decision rule. The verdict contains the seal of the plan.

    Attributes:
        created_at: Time of the launch.
        spec: Run specification.
        pairs: Pairs with their endpoints.
        bursts: Bursts with their start times.
        warnings: What an operator should know, although the run can be launched.
        ledger: Device counter that the verdict needs. None if there is only the evidence of the
            fleet.
        shared_boot_id: Boot id of the kernel whose clock all agents use. None if there are several.
        clocks_promised: True if clock readings from every agent are required. Imports have none.
        witnesses: Names of devices that must have telemetry.
        limits_as_of: Newest date in the table of documented limits.
        decision_rule: Rule for the verdict, see docs/verdict.md.
        confidence_ratio: Confidence level of the interval for the decision (0 to 1).
        seal_sha256: SHA-256 of the stored document without this member.
    """

    run_id: RunId
    created_at: UtcDatetime
    spec: RunSpec
    pairs: tuple[Pair, ...]
    bursts: tuple[Burst, ...]
    warnings: tuple[str, ...] = ()
    ledger: CounterRequirement | None = None
    shared_boot_id: Identifier | None = Field(None, exclude_if=is_none)
    clocks_promised: bool = True
    witnesses: tuple[str, ...] = ()
    limits_as_of: str | None = None
    decision_rule: Literal["guarded-acceptance"] = "guarded-acceptance"
    confidence_ratio: Annotated[float, Field(gt=0, lt=1)] = 0.95
    seal_sha256: str | None = None

    # SHA-256 of the stored document that was read, or None if the plan was not read.
    _stored_sha256: str | None = PrivateAttr(None)

    @classmethod
    def read(cls, document: bytes) -> "Plan":
        """Return a stored plan, with a digest of the stored bytes to compare with its seal.

        Raises:
            ValidationError: The document is not a plan of this version.
        """
        plan = cls.model_validate_json(document)
        plan._stored_sha256 = document_digest(document, plan.seal_sha256)
        return plan

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> "Plan":
        """Return a copy. A changed copy does not use the digest of the stored document.

        Args:
            update: New values by field name. They are not validated. None changes nothing.
            deep: True to copy the values of the fields too.
        """
        copy = super().model_copy(update=update, deep=deep)
        if update:
            copy._stored_sha256 = None
        return copy

    def with_ends(self, ends: Iterable[BurstEnd]) -> "Plan":
        """Return the plan with the bursts that were ended before their planned end.

        It keeps the digest of the stored plan, because an order to end a burst is no change of the
        plan.

        Args:
            ends: The stored orders.
        """
        by_burst = {end.burst_index: end for end in ends}
        if not by_burst:
            return self
        bursts = tuple(
            burst.ended(by_burst[burst.index])
            if burst.index in by_burst and burst.end is None
            else burst
            for burst in self.bursts
        )
        return self.with_bursts(bursts)

    def with_bursts(self, bursts: Sequence[Burst]) -> "Plan":
        """Return the plan with only the bursts that ran, or with the time that they took.

        It keeps the digest of the stored plan, because this is no change of the plan.

        Args:
            bursts: Bursts of this plan.
        """
        plan = self.model_copy(update={"bursts": tuple(bursts)})
        plan._stored_sha256 = self.digest()
        return plan

    @property
    def document(self) -> bytes:
        """The plan as it is stored, with the seal as its last member."""
        return with_seal(self.to_json(without=("seal_sha256",)).encode(), self.seal_sha256)

    def digest(self) -> str:
        """Return the SHA-256 of the document without its seal, in hexadecimal."""
        return self._stored_sha256 or document_digest(self.document, self.seal_sha256)

    def sealed(self) -> "Plan":
        """Return the plan with its seal."""
        return self.model_copy(update={"seal_sha256": document_digest(self.document, None)})

    @property
    def is_intact(self) -> bool:
        """True if the plan was not changed after it was sealed."""
        return self.seal_sha256 is None or self.seal_sha256 == self.digest()

    @property
    def traffic(self) -> Traffic:
        """Traffic to send, with paced rates divided by the scale of the run."""
        return scaled(self.spec.traffic, self.spec.scale)

    @property
    def parts(self) -> "tuple[Plan, ...]":
        """A plan for each kind of traffic with its pairs. They have the digest of this plan."""
        return tuple(
            self._part(spec, [pair for pair in self.pairs if pair.part_index == number])
            for number, spec in enumerate(self.spec.parts)
        )

    @property
    def part_sizes(self) -> tuple[tuple[str, int], ...]:
        """Name and number of pairs of each part."""
        counts = Counter(pair.part_index for pair in self.pairs)
        return tuple((name, counts[number]) for number, name in enumerate(self.spec.part_names))

    def _part(self, spec: RunSpec, pairs: Iterable[Pair]) -> "Plan":
        plan = self.model_copy(update={"spec": spec, "pairs": tuple(pairs)})
        plan._stored_sha256 = self.digest()
        return plan

    def jobs(self, burst: Burst, pairs: Iterable[Pair] | None = None) -> Iterator[Job]:
        """Yield the jobs for one burst, in the order of the pairs.

        Args:
            burst: The burst.
            pairs: Pairs with their servers in this burst. None means the pairs as planned.
        """
        traffics = [scaled(part.traffic, part.scale) for part in self.spec.parts]
        is_probed = any(guard.is_probe for guard in self.spec.guards)
        is_fast = self.spec.is_guarded and len(self.pairs) <= FAST_PAIRS_MAX_COUNT
        for pair in self.pairs if pairs is None else pairs:
            is_sample = pair.index == 0 and self.spec.raw is not RawPolicy.NONE
            yield Job(
                run_id=self.run_id,
                burst_index=burst.index,
                pair_index=pair.index,
                endpoint=pair.endpoint,
                traffic=traffics[pair.part_index],
                planned_start_at=burst.planned_start_at,
                duration_s=burst.longest_s,
                may_end_early=self.spec.may_end_early,
                late_after_s=self.spec.late_after_s,
                clock_bound_max_s=self.spec.clock_bound_max_s,
                shared_boot_id=self.shared_boot_id,
                raw=RawPolicy.ALL if is_sample else self.spec.raw,
                control_poll_s=CONTROL_POLL_S if is_fast else None,
                live_probes_s=LIVE_PROBES_S
                if is_probed and not pair.part_index and pair.index < PROBE_PAIRS_MAX_COUNT
                else None,
            )
