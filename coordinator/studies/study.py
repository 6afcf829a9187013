"""Models for the specification, trials, results and conclusion of a study."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import product
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StrictBool, StringConstraints, model_validator

from broadside.coordinator import scenarios
from broadside.coordinator.core import formatting
from broadside.coordinator.core.comparison.group_comparison import Comparison
from broadside.coordinator.core.comparison.sequential import SequentialResult
from broadside.coordinator.core.measure.experiments.drill import DrillResult, ExecutedEvent
from broadside.coordinator.core.measure.experiments.scale_out import ScaleOut, Scaling
from broadside.coordinator.core.metrics import Layer
from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.core.summary import BottleneckName, Verdict
from broadside.coordinator.core.thresholds import ALL_THRESHOLDS, CANARIES, DEVICE_TELEMETRY, PROBES
from broadside.coordinator.runs.requests import LaunchRequest
from broadside.exchange.engines import find, problems, traffic_of
from broadside.exchange.engines.port import EVERY_ENGINE
from broadside.exchange.messages import Integer, Message, Number, RunId, UtcDatetime, renamed


def with_engine(spec: RunSpec, name: str) -> Mapping[str, Any]:
    """Return the plain values of a specification, changed for another engine.

    A field with the default of the first engine is set to the default of the other engine. The same
    is done for a field that the other engine does not support. Options of the first engine are
    removed, and so are limits that the other engine cannot measure.

    Args:
        spec: The specification.
        name: Engine name to use.

    Returns:
        Values by field, not validated.
    """
    values = spec.model_dump(mode="json")
    engine = find(name)
    if engine is None or name == spec.traffic.engine:
        # An unknown engine will be rejected by name.
        return values
    usual = dict(traffic_of(engine=spec.traffic.engine))
    takes = (engine.supported_fields | EVERY_ENGINE) - {"engine", "options"}
    wished = {field for field, value in spec.traffic if value != usual[field]}
    traffic = {"engine": name} | {
        field: value for field, value in values["traffic"].items() if field in wished & takes
    }
    if any(text.startswith("traffic.direction:") for text in problems(traffic_of(**traffic))):
        # It moves bytes in one direction only.
        del traffic["direction"]
    measured = engine.measures(traffic_of(**traffic)) | {PROBES, CANARIES, DEVICE_TELEMETRY}
    unanswered = [
        threshold.bound for threshold in ALL_THRESHOLDS if threshold.requires not in measured
    ]
    objective = values["objective"] | dict.fromkeys(unanswered)
    return {**values, "traffic": traffic, "objective": objective}


def differences(spec: RunSpec, name: str) -> Iterator[str]:
    """Yield the fields that are different for another engine, as ``field: value``.

    Args:
        spec: The specification.
        name: Engine name to use.
    """
    other = RunSpec.model_validate(with_engine(spec, name))
    for part, before, after in (
        ("traffic", spec.traffic, other.traffic),
        ("objective", spec.objective, other.objective),
    ):
        for field, value in dict(before).items():
            now = dict(after)[field]
            if now != value and field != "engine":
                text = "none" if now in (None, {}) else getattr(now, "value", now)
                yield f"{part}.{field}: {text}"


TRIALS_MAX_COUNT: Final = 200
ENGINE: Final = "traffic.engine"

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,30}$")]


class Axis(Message):
    """A field of the run specification with the values to use.

    Attributes:
        values: Values to use.
    """

    field: str = Field(description="dotted name of a field of the run specification")
    values: tuple[Any, ...] = Field(min_length=1, max_length=TRIALS_MAX_COUNT)

    @model_validator(mode="before")
    @classmethod
    def _is_read(cls, value: Any) -> Any:
        """Accept all names of the field, and values with units, as for a launch."""
        if not isinstance(value, dict) or not isinstance(value.get("field"), str):
            return value
        field, values = scenarios.field_of(value["field"]), value.get("values")
        if not isinstance(values, list | tuple):
            return value
        try:
            read = [scenarios.read_value(field, value) for value in values]
        except scenarios.BadScenario as error:
            raise ValueError(str(error)) from error
        return {**value, "field": field, "values": read}

    @property
    def is_numeric(self) -> bool:
        """True if all values are numbers, so that they can be used for a curve."""
        return all(type(value) in (int, float) for value in self.values)


class Sweep(Message):
    """A run for each value of a field, or for each combination of two fields.

    Attributes:
        kind: Always sweep.
        axes: Fields with their values.
        rounds_count: Number of rounds over all values, every second one in reverse order.
    """

    kind: Literal["sweep"] = "sweep"
    axes: tuple[Axis, ...] = Field(min_length=1, max_length=2)
    rounds_count: Annotated[Integer, Field(ge=1, le=TRIALS_MAX_COUNT)] = 1

    @model_validator(mode="after")
    def _axes_differ(self) -> "Sweep":
        if len({axis.field for axis in self.axes}) < len(self.axes):
            raise ValueError(f"axes: {self.axes[0].field} occurs twice; name two fields")
        return self


class SearchLoad(StrEnum):
    """Quantity that a search changes."""

    BITS = "bits_per_second"
    # New connections.
    CONNECTIONS = "connections_per_second"
    # Connections that are open at the same time.
    HELD = "held_count"

    def describe(self, value: float | None) -> str:
        """Return a load as text."""
        if value is None:
            return formatting.UNKNOWN
        if self is SearchLoad.BITS:
            return formatting.rate(value)
        unit = "held connections" if self is SearchLoad.HELD else "connections/s"
        return f"{value:,.0f} {unit}"


class Search(Message):
    """Search for the highest offered load that meets the limits.

    It needs the lowest and the highest load of one quantity. Loads are for the whole fleet at real
    scale. Rates in bit/s are payload in both directions together.

    Attributes:
        kind: Always search.
        min_bits_per_second: Lowest rate to offer in bit/s.
        max_bits_per_second: Highest rate to offer in bit/s.
        min_connections_per_second: Lowest number of new connections per second to attempt.
        max_connections_per_second: Highest number of new connections per second to attempt.
        min_held_count: Lowest number of connections to hold at the same time.
        max_held_count: Highest number of connections to hold at the same time.
        shortfall_max_ratio: Largest loss relative to all sent data, or to all attempts to connect
            (0 to 1). A search over connections uses ``success_min_ratio`` of the run if it is
            omitted.
        rtt_mean_max_s: Largest mean round-trip time in seconds.
        residual_max_ratio: Largest residual (0 to 1).
        precision_ratio: Width of the last interval relative to its upper end.
        trials_max_count: Maximum number of trials.
    """

    kind: Literal["search"] = "search"
    min_bits_per_second: Annotated[Number, Field(gt=0)] | None = None
    max_bits_per_second: Annotated[Number, Field(gt=0)] | None = None
    min_connections_per_second: Annotated[Number, Field(gt=0)] | None = None
    max_connections_per_second: Annotated[Number, Field(gt=0)] | None = None
    min_held_count: Annotated[Number, Field(gt=0)] | None = None
    max_held_count: Annotated[Number, Field(gt=0)] | None = None
    shortfall_max_ratio: Annotated[Number, Field(ge=0, lt=1)] = 0.01
    rtt_mean_max_s: Annotated[Number, Field(gt=0)] | None = None
    residual_max_ratio: Annotated[Number, Field(gt=0, le=1)] | None = None
    precision_ratio: Annotated[Number, Field(ge=0.001, lt=1)] = 0.02
    trials_max_count: Annotated[Integer, Field(ge=1, le=TRIALS_MAX_COUNT)] = 20

    def with_success(self, least: float) -> "Search":
        """Return the same search over connections with the loss that a threshold allows.

        Args:
            least: Smallest part of complete attempts. It has no effect if the request has a loss.
        """
        if (
            not least
            or self.load is SearchLoad.BITS
            or "shortfall_max_ratio" in self.model_fields_set
        ):
            return self
        return self.model_copy(update={"shortfall_max_ratio": round(1 - least, 9)})

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> "Search":
        fields = [f"{end}_{load}" for load in SearchLoad for end in ("min", "max")]
        given = [name for name in fields if getattr(self, name) is not None]
        if given not in ([f"min_{load}", f"max_{load}"] for load in SearchLoad):
            raise ValueError(
                f"{', '.join(given) or 'min_bits_per_second'}: give the lowest and the highest "
                f"load of one quantity: {', '.join(SearchLoad)}"
            )
        if self.lowest >= self.highest:
            raise ValueError(
                f"min_{self.load}: {self.lowest:g} is not below max_{self.load} {self.highest:g}"
            )
        return self

    @property
    def load(self) -> SearchLoad:
        """Quantity that the search changes."""
        return next(load for load in SearchLoad if getattr(self, f"min_{load}") is not None)

    @property
    def lowest(self) -> float:
        """Lowest load to offer."""
        return float(getattr(self, f"min_{self.load}"))

    @property
    def highest(self) -> float:
        """Highest load to offer."""
        return float(getattr(self, f"max_{self.load}"))


class Mode(Message):
    """State of the device under test, with changes to the specification for its runs.

    Attributes:
        name: Name of the state.
        overrides: Changes to the specification for runs in this state.
    """

    name: Name
    overrides: Mapping[str, Any] = {}


class AB(Message):
    """Comparison of two device states in the order A B B A, to balance the effect of drift.

    Attributes:
        kind: Always ab.
        a: First state.
        b: Second state.
        switch: Switch of the coordinator to set the device state.
        rounds_count: Number of rounds A B B A.
    """

    kind: Literal["ab"] = "ab"
    a: Mode
    b: Mode
    switch: Name | None = None
    rounds_count: Annotated[Integer, Field(ge=1, le=TRIALS_MAX_COUNT // 4)] = 1

    @model_validator(mode="after")
    def _states_differ(self) -> "AB":
        if self.a.name == self.b.name:
            raise ValueError(f"b.name: {self.b.name!r} is also the name of a; name two states")
        return self


class Matrix(Message):
    """One device in several modes, with a run in each mode, for some rounds.

    Attributes:
        kind: Always matrix.
        modes: States to compare.
        switch: Name of the switch that sets the device state. None to set it by hand.
        rounds_count: Number of rounds over all states.
    """

    kind: Literal["matrix"] = "matrix"
    modes: tuple[Mode, ...] = Field(min_length=2, max_length=50)
    switch: Name | None = None
    rounds_count: Annotated[Integer, Field(ge=1, le=20)] = 1

    @model_validator(mode="after")
    def _modes_differ(self) -> "Matrix":
        names = [mode.name for mode in self.modes]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"modes: {', '.join(twice)} occurs twice; name each mode once")
        if len(names) * self.rounds_count > TRIALS_MAX_COUNT:
            raise ValueError(
                f"rounds_count: {self.rounds_count} rounds of {len(names)} modes are more than "
                f"{TRIALS_MAX_COUNT} trials; reduce it"
            )
        return self


class Staircase(Message):
    """Scale-out of a device, with loads that are applied one after another until it is stable.

    Rates are payload at real scale, offered by the whole fleet.

    Attributes:
        kind: Always scaleout.
        offers_bits_per_second: Rates to offer in bit/s. If empty, the rate is not limited.
        hold_s: Duration of one hold in seconds.
        settle_s: Seconds without a step, after which the device is stable.
        holds_max_count: Maximum number of holds for all loads.
        units_count: Number of units at the start, or None if unknown.
        plan_bits_per_second: Rate to plan the number of units for.
    """

    kind: Literal["scaleout"] = "scaleout"
    offers_bits_per_second: Annotated[
        tuple[Annotated[Number, Field(gt=0)], ...], Field(max_length=50)
        # In order. If empty, there is one step with the highest rate of the fleet.
    ] = ()
    hold_s: Annotated[Integer, Field(ge=20, le=3600)] = 300
    settle_s: Annotated[Number, Field(ge=0, le=7200)] = 600.0
    holds_max_count: Annotated[Integer, Field(ge=1, le=TRIALS_MAX_COUNT)] = 20
    units_count: Annotated[Number, Field(ge=1, le=1000)] | None = None
    plan_bits_per_second: Annotated[Number, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _holds_are_enough(self) -> "Staircase":
        if len(self.offers_bits_per_second) > self.holds_max_count:
            raise ValueError(
                f"holds_max_count: {self.holds_max_count} is less than the "
                f"{len(self.offers_bits_per_second)} offers; raise it"
            )
        return self


class Drill(Message):
    """Event in a burst, to measure its effects on traffic and the recovery.

    The event is a state of a switch that is declared to the coordinator. Without a switch, it is a
    command in the process of the user who runs the study. No text of a command can be given here.

    Attributes:
        kind: Always drill.
        switch: Name of the switch that sets the device state. None to set it by hand.
        state: State that the switch sets.
        at_s: Seconds from the start of the measured traffic in the burst.
        probe_every_s: Seconds between probes, which is the resolution for an outage.
    """

    kind: Literal["drill"] = "drill"
    switch: Name | None = None
    state: Name | None = None
    at_s: Annotated[Number, Field(ge=5, le=86_000)] = 60.0
    probe_every_s: Annotated[Number, Field(ge=0.02, le=1)] = 0.02

    @model_validator(mode="after")
    def _switch_has_a_state(self) -> "Drill":
        if (self.switch is None) != (self.state is None):
            raise ValueError("switch, state: give both fields, or neither")
        return self


class Inspection(Message):
    """Share of forbidden canaries that leak, at rising loads. The run needs ``traffic.canary``.

    Rates are payload at real scale, offered by the whole fleet.

    Attributes:
        kind: Always inspection.
        offers_bits_per_second: Payload rates to offer, in bit/s at real scale.
        rounds_count: Number of rounds over all loads, every second one in reverse order.
    """

    kind: Literal["inspection-under-load"]
    offers_bits_per_second: Annotated[
        tuple[Annotated[Number, Field(gt=0)], ...], Field(min_length=2, max_length=50)
    ]
    rounds_count: Annotated[Integer, Field(ge=1, le=4)] = 1

    @model_validator(mode="after")
    def _loads_rise(self) -> "Inspection":
        offers = self.offers_bits_per_second
        if sorted(set(offers)) != list(offers):
            raise ValueError("offers_bits_per_second: give different loads in rising order")
        return self


# Kinds of questions with an event or several loads in one burst, which must not end early.
_OVER_TIME: Final = ("drill", "scaleout")

Question = Annotated[
    Sweep | Search | AB | Matrix | Staircase | Drill | Inspection, Field(discriminator="kind")
]


class Sequential(Message):
    """Further rounds until the answer is certain, or until a limit is reached.

    A round is two bursts of an A/B comparison (one of each state), one burst for each value of a
    sweep, or one burst at a rate of a search.

    Attributes:
        margin_ratio: Largest relative difference that does not matter (0 to 1).
        scatter_ratio: Expected scatter between bursts (0 to 1), for the expected number of bursts.
            None uses that of earlier bursts of the device, or 0.01.
        rounds_max_count: Maximum number of rounds, or for a search the maximum for one rate.
        budget_usd: Limit for the cost of all bursts, in US dollars at real scale.
    """

    margin_ratio: Annotated[Number, Field(gt=0, lt=1)] = 0.02
    scatter_ratio: Annotated[Number, Field(gt=0, lt=1)] | None = None
    rounds_max_count: Annotated[Integer, Field(ge=3, le=TRIALS_MAX_COUNT)] = 20
    budget_usd: Annotated[Number, Field(gt=0)] | None = None


class StudySpec(Message):
    """Specification of a study, with the question and the run to change for it.

    Attributes:
        name: Name of the study.
        question: Question that the study answers.
        spec: Run specification that is changed for each trial.
        pause_s: Seconds between two trials.
        stop_on_failure: True to end the study if a trial could not run.
        sequential: Settings for further rounds until the answer is certain. None runs the planned
            number of trials.
    """

    name: Name
    question: Question
    spec: RunSpec
    pause_s: Annotated[Number, Field(ge=0, le=3600)] = 0.0
    stop_on_failure: StrictBool = False
    sequential: Sequential | None = None


class StudyRequest(LaunchRequest):
    """Request for a study, with a question and a run given by scenario or in full.

    Attributes:
        name: Name of the study. If None, the kind of the question is used.
        question: Question that the study answers.
        pause_s: Seconds between two trials.
        stop_on_failure: True to end the study if a trial could not run.
        sequential: Settings for further rounds until the answer is certain. None runs the planned
            number of trials.
    """

    name: Name | None = None
    question: Question
    pause_s: Annotated[Number, Field(ge=0, le=3600)] = 0.0
    stop_on_failure: StrictBool = False
    sequential: Sequential | None = None

    @model_validator(mode="after")
    def _has_rounds(self) -> "StudyRequest":
        question, sequential = self.question, self.sequential
        if sequential is None:
            return self
        if not isinstance(question, AB | Sweep | Search):
            raise ValueError(f"sequential: a {question.kind} has no rounds; remove it")
        if isinstance(question, Sweep):
            count = sequential.rounds_max_count * len(
                list(product(*(a.values for a in question.axes)))
            )
            if count > TRIALS_MAX_COUNT:
                raise ValueError(
                    f"sequential.rounds_max_count: {count} trials are more than "
                    f"{TRIALS_MAX_COUNT}; reduce it, or the values"
                )
        return self

    @model_validator(mode="after")
    def _values_differ(self) -> "StudyRequest":
        for axis in self.question.axes if isinstance(self.question, Sweep) else ():
            twice = [value for at, value in enumerate(axis.values) if value in axis.values[:at]]
            if twice:
                raise ValueError(f"{axis.field}: {twice[0]} occurs twice; give each value once")
        return self

    def study(self) -> StudySpec:
        """Return the specification of the study.

        Raises:
            ScenarioError: The specification of the run is invalid.
        """
        spec = self.resolve()
        if spec.objective.stop is not None and self.question.kind in _OVER_TIME:
            raise scenarios.BadScenario(
                f"objective.stop: {spec.objective.stop} is not allowed in a study of kind "
                f"{self.question.kind}, because it measures changes during a burst; remove "
                "objective.stop"
            )
        if isinstance(self.question, Inspection) and spec.traffic.canary is None:
            raise scenarios.BadScenario(
                "traffic.canary: this study measures which forbidden requests pass, and none are "
                "sent; set traffic.canary.consent to the name of the person who agreed to them"
            )
        question = self.question
        least = spec.objective.success_min_ratio
        if isinstance(question, Search) and least is not None:
            question = question.with_success(least)
        if self.sequential is not None:
            rounds_count = self.sequential.rounds_max_count
            if isinstance(question, AB):
                # One round A B B A has two pairs.
                question = question.model_copy(update={"rounds_count": -(-rounds_count // 2)})
            elif isinstance(question, Sweep):
                question = question.model_copy(update={"rounds_count": rounds_count})
        return StudySpec(
            name=self.name or self.question.kind,
            question=question,
            sequential=self.sequential,
            spec=spec,
            pause_s=self.pause_s,
            stop_on_failure=self.stop_on_failure,
        )


class Trial(Message):
    """One run of a study."""

    index: Annotated[int, Field(ge=0)]
    # Changes to the run specification by dotted name.
    overrides: Mapping[str, Any] = {}
    # Special values of this trial by field or mode, as text.
    says: Mapping[str, str] = {}
    # State that the switch should set.
    mode: str | None = None
    # Search: payload at real scale.
    offered_bits_per_second: float | None = None
    # Search over connections: new ones per second, or held ones, at real scale.
    offered_connections_count: float | None = None

    @property
    def offered(self) -> float | None:
        """Offered load, or None if the trial is not part of a search."""
        bits = self.offered_bits_per_second
        return self.offered_connections_count if bits is None else bits

    def resolve(self, study_id: str, study: StudySpec) -> RunSpec:
        """Return the specification for this trial.

        Args:
            study_id: Study id to use as a label.
            study: Study specification.

        Raises:
            BadScenario: The specification is invalid.
        """
        engine = str(self.overrides.get(ENGINE, study.spec.traffic.engine))
        spec = scenarios.build(with_engine(study.spec, engine), self.overrides)
        text = {"study": study_id, "trial": f"{self.index + 1:03d}", **self.says}
        return spec.model_copy(update={"labels": {**spec.labels, **text}})


class DeviceLoad(Message):
    """Load of one device in a trial, as the mean over bursts. None is unknown.

    Attributes:
        device: Name of the device.
        cpu_ratio: CPU use (0 to 1).
        received_bits_per_second: Payload rate of the device at real scale, in bit/s.
    """

    device: str
    cpu_ratio: float | None = None
    received_bits_per_second: float | None = None


class TrialResult(Message):
    """Result of a trial. Rates are payload at real scale, unless noted. ``None`` is unknown.

    Attributes:
        index: Index of the trial, from 0.
        run_id: Id of the run. None if there is none.
        problem: Why there is no run or no verdict. None if there is one.
        offered_bits_per_second: Search: offered payload rate at real scale, in bit/s.
        verdict: Verdict. None if there is none yet.
        received_half_width_bits_per_second: Half of the 95 % interval of the received rate, in
            bit/s.
        fleet_ip_bits_per_second: Rate that the fleet received at the IP layer and at real scale, in
            bit/s.
        firewall_bits_per_second: Rate of the device counter at its layer and at real scale, in
            bit/s.
        residual_ratio: Residual: counted bytes divided by predicted ones, minus one.
        loss_ratio: Lost UDP datagrams divided by sent ones (0 to 1).
        retransmit_ratio: Retransmitted segments divided by all segments that were sent (0 to 1).
        client_cpu_ratio: CPU use of all cores of the clients' hosts (0 to 1).
        server_cpu_ratio: CPU use of all cores of the servers' hosts (0 to 1).
        client_cpu_s_per_gigabyte: CPU time of the clients' engines in seconds per gigabyte, as
            measured.
        server_cpu_s_per_gigabyte: CPU time of the servers' engines in seconds per gigabyte, as
            measured.
        device_cpu_ratio: CPU use of the device (0 to 1).
        device_cpu_s_per_gigabyte: CPU time of the device in seconds per gigabyte of payload.
        devices: Devices with telemetry.
        reset_pairs_count: Number of pairs with connections that were cut.
        stalled_pairs_count: Number of pairs that were stalled.
        silences_capped: True if there were more silent streams than are stored.
        concurrent_run_ids: Ids of other runs with traffic at the same time.
        cost_usd: Cost at real scale in US dollars, if the study has a budget.
        scaling: Scale-out: scaling within the hold.
        offered_connections_count: Search over connections: new ones per second, or held ones, at
            real scale.
        connections_per_second: Connections established per second.
        connections_held_count: Largest number of connections that were open at the same time.
        connections_attempted_ratio: Part of the planned attempts to connect that the clients made.
        attempt_delay_max_s: Longest delay of an attempt on a client, in seconds.
        success_ratio: Part of the requests or connections that were complete.
        leak_ratio: Leaked share of the canaries in the worst burst (0 to 1).
        leak_low_ratio: Lower end of the interval of the leaked share (0 to 1).
        leak_high_ratio: Upper end of the interval of the leaked share (0 to 1).
        allowed_blocked_ratio: Share of the allowed requests that did not arrive (0 to 1).
        seen_units_count: Largest number of units by translated addresses. None if the device does
            not translate them.
    """

    index: int
    run_id: RunId | None = None
    problem: str | None = None
    offered_bits_per_second: float | None = None
    offered_connections_count: float | None = None
    connections_per_second: float | None = None
    connections_held_count: float | None = None
    connections_attempted_ratio: float | None = None
    attempt_delay_max_s: float | None = None
    success_ratio: float | None = None
    verdict: Verdict | None = None
    completeness_ratio: float | None = None
    received_bits_per_second: float | None = None
    received_half_width_bits_per_second: float | None = None
    fleet_ip_bits_per_second: float | None = None
    sent_bits_per_second: float | None = None
    firewall_bits_per_second: float | None = None
    residual_ratio: float | None = None
    loss_ratio: float | None = None
    leak_ratio: float | None = None
    leak_low_ratio: float | None = None
    leak_high_ratio: float | None = None
    allowed_blocked_ratio: float | None = None
    seen_units_count: float | None = None
    rtt_mean_s: float | None = None
    retransmit_ratio: float | None = None
    client_cpu_ratio: float | None = None
    server_cpu_ratio: float | None = None
    client_cpu_s_per_gigabyte: float | None = None
    server_cpu_s_per_gigabyte: float | None = None
    device_cpu_ratio: float | None = None
    device_cpu_s_per_gigabyte: float | None = None
    devices: tuple[DeviceLoad, ...] = ()
    reset_pairs_count: int = 0
    stalled_pairs_count: int = 0
    silences_capped: bool = False
    bottleneck: Annotated[BottleneckName, renamed("bottleneck", "limiter")] = BottleneckName.UNKNOWN
    bursts_count: int = 0
    concurrent_run_ids: Annotated[
        tuple[RunId, ...], renamed("concurrent_run_ids", "beside_run_ids")
    ] = ()
    cost_usd: float | None = None
    scaling: Scaling | None = None

    @property
    def offered(self) -> float | None:
        """Offered load, or None if the trial is not part of a search."""
        bits = self.offered_bits_per_second
        return self.offered_connections_count if bits is None else bits

    def received_at(self, layer: Layer) -> tuple[float | None, Layer]:
        """Return the received rate at a layer, or the payload of a result of an older version.

        Args:
            layer: Wanted layer.

        Returns:
            Rate in bit/s, and the layer at which it was measured. The rate is None if it is
            unknown.
        """
        if layer is Layer.IP and self.fleet_ip_bits_per_second is not None:
            return self.fleet_ip_bits_per_second, Layer.IP
        return self.received_bits_per_second, Layer.PAYLOAD

    def is_complete(self, coverage_floor_ratio: float) -> bool:
        """Return True if enough of the trial was measured to use its values."""
        covered = self.completeness_ratio or 0.0
        measured = (self.received_bits_per_second, self.connections_per_second)
        return measured != (None, None) and covered >= coverage_floor_ratio


class Knee(Message):
    """Point of a curve from which higher values give little more rate.

    Attributes:
        field: Dotted name of the field.
        value: Value of the field.
        share_ratio: Part of the highest measured rate (0 to 1).
    """

    field: str
    value: float
    received_bits_per_second: float
    share_ratio: float


class LeakPoint(Message):
    """Leaked share of the canaries at one offered load, with its exact interval.

    Attributes:
        offered_bits_per_second: Offered payload rate in bit/s at real scale.
        leak_ratio: Leaked share, the largest of the trials (0 to 1).
        leak_low_ratio: Lower end of its interval (0 to 1).
        leak_high_ratio: Upper end of its interval (0 to 1).
        device_cpu_ratio: Mean CPU use of the devices (0 to 1). None if it is unknown.
    """

    offered_bits_per_second: float
    # Mean over the trials.
    received_bits_per_second: float | None = None
    leak_ratio: float
    leak_low_ratio: float
    leak_high_ratio: float
    device_cpu_ratio: float | None = None


class LeakCurve(Message):
    """Leaked share of the canaries against the offered load.

    Attributes:
        points: One point for each offered load, in ascending order.
        knee_from_bits_per_second: Highest load before the share rises, in bit/s. None if it does
            not rise.
        knee_to_bits_per_second: First load whose interval is above that of the lowest load, in
            bit/s. None if there is none.
    """

    points: tuple[LeakPoint, ...]
    knee_from_bits_per_second: float | None = None
    knee_to_bits_per_second: float | None = None


class FailingReason(StrEnum):
    """Reason why a rate is counted as failing.

    Attributes:
        BROKE: It did not meet a threshold.
        UNMEASURED: There is no complete trial for it.
        UNKNOWN: A value that is needed for a threshold is unknown.
        GENERATOR: The senders did not offer the load.
    """

    BROKE = "broke"
    UNMEASURED = "unmeasured"
    UNKNOWN = "unknown"
    GENERATOR = "generator"


class SearchResult(Message):
    """Answer of a search. Rates in bit/s are payload at real scale.

    Attributes:
        highest_bits_per_second: Rate of the highest trial that met the limits, in bit/s. None if
            even the lowest one failed.
        lowest_failing_bits_per_second: Rate of the lowest trial that did not meet the limits, in
            bit/s. None if the highest requested rate met them.
        lowest_failing_why: Why this trial did not meet the limits.
        width_ratio: Difference of both rates divided by the higher one.
        trial_index: Index of the last trial at the highest rate, from 0.
        highest_sent_bits_per_second: Rate that was sent in this trial, in bit/s.
        open_bits_per_second: Sequential study: rates in bit/s for which the loss was not certain
            after the last trial.
        highest_connections_count: The same as `highest_bits_per_second` for connections: new ones
            per second, or held ones.
        lowest_failing_connections_count: The same as `lowest_failing_bits_per_second` for
            connections.
        open_connections_count: Loads in connections for which the loss was not certain after the
            last trial (sequential study, or late attempts).
        lowest_failing_bottleneck: What limited the trial at the lowest failing load.
    """

    highest_bits_per_second: float | None = None
    lowest_failing_bits_per_second: float | None = None
    highest_connections_count: float | None = None
    lowest_failing_connections_count: float | None = None
    lowest_failing_why: FailingReason | None = None
    width_ratio: float | None
    trial_index: int | None
    highest_sent_bits_per_second: float | None = None
    open_bits_per_second: tuple[float, ...] = ()
    open_connections_count: tuple[float, ...] = ()
    lowest_failing_bottleneck: BottleneckName | None = None

    @property
    def highest(self) -> float | None:
        """Highest load that met the limits. None if there is none."""
        bits = self.highest_bits_per_second
        return self.highest_connections_count if bits is None else bits

    @property
    def lowest_failing(self) -> float | None:
        """Lowest load that did not meet the limits. None if there is none."""
        bits = self.lowest_failing_bits_per_second
        return self.lowest_failing_connections_count if bits is None else bits


CloseUp = ScaleOut | DrillResult


class Conclusion(Message):
    """Conclusion from all trials of a study.

    Attributes:
        knees: Points from which higher values give little more rate.
        search_result: Answer of a search. None for other studies.
        comparison: Comparison of two states. None for other studies.
        sequential: Sequential study: comparison of the two states, or of the best value with each
            other one.
        scale_out: Result of a scale-out. None for other studies.
        drilled: Result of a drill. None for other studies.
        notes: Notes, as sentences.
        leaks: Leaked share of the canaries against the load. None for other studies.
    """

    sentence: str
    knees: tuple[Knee, ...] = ()
    search_result: Annotated[SearchResult | None, renamed("search_result", "found")] = None
    comparison: Comparison | None = None
    sequential: tuple[SequentialResult, ...] = ()
    leaks: LeakCurve | None = None
    scale_out: ScaleOut | None = None
    drilled: DrillResult | None = None
    notes: tuple[str, ...] = ()


class Study(Message):
    """Row of a study, with the specification and data that cannot be computed from the runs.

    Attributes:
        study_id: Id of the study.
        spec: Specification of the study.
        expected: Sequential study: expected number of bursts, as text.
        locked_by: Coordinator that will execute the next step. None if there is none.
        locked_until_at: Time until which no other coordinator will execute it.
        results: Results in the order of the trials. All other data is in the runs.
        last_over_at: End of the last trial.
        waits_for: Why the next trial has to wait. None if it does not.
        event: Drill: the event that was executed, or will be soon.
        cancelled_at: Time of the abort. None if it was not aborted.
        cancelled_by: Name of the user who aborted it. None if it was not aborted.
        cancel_reason: Reason that was given for the abort. None if it was not aborted.
        ended_at: Time of the end. None if it has not ended.
        problem: Reason for an early end. None if there is none.
        conclusion: Conclusion. None before the end.
    """

    study_id: RunId
    spec: StudySpec
    created_at: UtcDatetime
    created_by: str
    expected: str | None = None
    locked_by: Annotated[str | None, renamed("locked_by", "held_by")] = None
    locked_until_at: Annotated[UtcDatetime | None, renamed("locked_until_at", "held_until_at")] = (
        None
    )
    results: tuple[TrialResult, ...] = ()
    last_over_at: UtcDatetime | None = None
    waits_for: str | None = None
    event: ExecutedEvent | None = None
    cancelled_at: UtcDatetime | None = None
    cancelled_by: str | None = None
    cancel_reason: str | None = None
    ended_at: UtcDatetime | None = None
    problem: str | None = None
    conclusion: Conclusion | None = None
