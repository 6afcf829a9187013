"""Models for the specification, trials, results and conclusion of a study."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import product
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StrictBool, StringConstraints, model_validator

from broadside.coordinator import scenarios
from broadside.coordinator.core.comparison import Comparison
from broadside.coordinator.core.comparison.sequential import SequentialResult
from broadside.coordinator.core.measure.experiments.drill import DrillResult, ExecutedEvent
from broadside.coordinator.core.measure.experiments.scale_out import ScaleOut, Scaling
from broadside.coordinator.core.metrics import Layer
from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.core.summary import BottleneckName, Verdict
from broadside.coordinator.core.thresholds import ALL_THRESHOLDS, CANARIES, PROBES
from broadside.coordinator.views.requests import LaunchRequest
from broadside.exchange.engines import find, traffic_of
from broadside.exchange.engines.port import EVERY_ENGINE
from broadside.exchange.messages import Integer, Message, Number, RunId, UtcDatetime, renamed


def with_engine(spec: RunSpec, name: str) -> Mapping[str, Any]:
    """Return the plain values of a specification, changed for another engine.

    A field with the default of the first engine is set to the default of the other engine. The same
    is done for a field that the other engine does not support. Options of the first engine are
    removed, and so are goals that the other engine cannot measure.

    Args:
        spec: The specification.
        name: Engine name to use.
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
    measured = engine.measures(traffic_of(**traffic)) | {PROBES, CANARIES}
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
    """A field of the run specification with the values to use."""

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
    """A run for each value of a field, or for each combination of two fields."""

    kind: Literal["sweep"] = "sweep"
    axes: tuple[Axis, ...] = Field(min_length=1, max_length=2)
    # Number of rounds over all values, every second one in reverse order.
    rounds_count: Annotated[Integer, Field(ge=1, le=TRIALS_MAX_COUNT)] = 1

    @model_validator(mode="after")
    def _axes_differ(self) -> "Sweep":
        if len({axis.field for axis in self.axes}) < len(self.axes):
            raise ValueError(f"axes: {self.axes[0].field} occurs twice; name two fields")
        return self


class Search(Message):
    """Search for the highest offered rate that meets the goals.

    Rates are payload at real scale, for the whole fleet and both directions together.
    """

    kind: Literal["search"] = "search"
    min_bits_per_second: Annotated[Number, Field(gt=0)]
    max_bits_per_second: Annotated[Number, Field(gt=0)]
    # Loss relative to all data that was sent.
    shortfall_max_ratio: Annotated[Number, Field(ge=0, lt=1)] = 0.01
    rtt_mean_max_s: Annotated[Number, Field(gt=0)] | None = None
    residual_max_ratio: Annotated[Number, Field(gt=0, le=1)] | None = None
    # Width of the last interval.
    precision_ratio: Annotated[Number, Field(ge=0.001, lt=1)] = 0.02
    trials_max_count: Annotated[Integer, Field(ge=1, le=TRIALS_MAX_COUNT)] = 20

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> "Search":
        if self.min_bits_per_second >= self.max_bits_per_second:
            raise ValueError(
                f"min_bits_per_second: {self.min_bits_per_second:g} is not below "
                f"max_bits_per_second {self.max_bits_per_second:g}"
            )
        return self


class Mode(Message):
    """State of the device under test, with changes to the specification for its runs."""

    name: Name
    overrides: Mapping[str, Any] = {}


class AB(Message):
    """Comparison of two device states in the order A B B A, to balance the effect of drift."""

    kind: Literal["ab"] = "ab"
    a: Mode
    b: Mode
    # Switch of the coordinator to set the device state.
    switch: Name | None = None
    # Number of rounds A B B A.
    rounds_count: Annotated[Integer, Field(ge=1, le=TRIALS_MAX_COUNT // 4)] = 1

    @model_validator(mode="after")
    def _states_differ(self) -> "AB":
        if self.a.name == self.b.name:
            raise ValueError(f"b.name: {self.b.name!r} is also the name of a; name two states")
        return self


class Matrix(Message):
    """One device in several modes, with a run in each mode, for some rounds."""

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
    """

    kind: Literal["scaleout"] = "scaleout"
    offers_bits_per_second: Annotated[
        tuple[Annotated[Number, Field(gt=0)], ...], Field(max_length=50)
        # In order. If empty, there is one step with the highest rate of the fleet.
    ] = ()
    # Seconds of one hold.
    hold_s: Annotated[Integer, Field(ge=20, le=3600)] = 300
    # Seconds without a step, after which the device is stable.
    settle_s: Annotated[Number, Field(ge=0, le=7200)] = 600.0
    # Maximum number of holds for all loads.
    holds_max_count: Annotated[Integer, Field(ge=1, le=TRIALS_MAX_COUNT)] = 20
    # Number of units at the start, or None if unknown.
    units_count: Annotated[Number, Field(ge=1, le=1000)] | None = None
    # Rate to plan the number of units for.
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
    """

    kind: Literal["drill"] = "drill"
    switch: Name | None = None
    state: Name | None = None
    # Seconds from the start of the measured traffic in the burst.
    at_s: Annotated[Number, Field(ge=5, le=86_000)] = 60.0
    # Time between probes, which is the resolution for an outage.
    probe_every_s: Annotated[Number, Field(ge=0.02, le=1)] = 0.02

    @model_validator(mode="after")
    def _switch_has_a_state(self) -> "Drill":
        if (self.switch is None) != (self.state is None):
            raise ValueError("switch, state: give both fields, or neither")
        return self


class Inspection(Message):
    """Share of forbidden canaries that leak, at rising loads. The run needs ``traffic.canary``.

    Rates are payload at real scale, offered by the whole fleet.
    """

    # No default: the text of a stored study would not have it.
    kind: Literal["inspection-under-load"]
    offers_bits_per_second: Annotated[
        tuple[Annotated[Number, Field(gt=0)], ...], Field(min_length=2, max_length=50)
    ]
    # Number of rounds over all loads, every second one in reverse order.
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
    """

    # Largest relative difference that does not matter.
    margin_ratio: Annotated[Number, Field(gt=0, lt=1)] = 0.02
    # Expected scatter between bursts, for the expected number of bursts.
    scatter_ratio: Annotated[Number, Field(gt=0, lt=1)] = 0.01
    # Limit for the rounds. For a search, this is the limit for one rate.
    rounds_max_count: Annotated[Integer, Field(ge=3, le=TRIALS_MAX_COUNT)] = 20
    # Limit for the cost of all bursts, in US dollars at real scale.
    budget_usd: Annotated[Number, Field(gt=0)] | None = None


class StudySpec(Message):
    """Specification of a study, with the question and the run to change for it."""

    name: Name
    question: Question
    spec: RunSpec
    # Time between two trials.
    pause_s: Annotated[Number, Field(ge=0, le=3600)] = 0.0
    # True to end the study if a trial could not run.
    stop_on_failure: StrictBool = False
    # None runs the planned number of trials.
    sequential: Sequential | None = None


class StudyRequest(LaunchRequest):
    """Request for a study, with a question and a run given by scenario or in full."""

    # If None, the kind of the question will be used.
    name: Name | None = None
    question: Question
    # Time between two trials.
    pause_s: Annotated[Number, Field(ge=0, le=3600)] = 0.0
    stop_on_failure: StrictBool = False
    # Further bursts until the answer is certain. None runs the planned number of trials.
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
    """Load of one device in a trial, as the mean over bursts. None is unknown."""

    device: str
    cpu_ratio: float | None = None
    # Part of the payload at real scale.
    received_bits_per_second: float | None = None


class TrialResult(Message):
    """Result of a trial. Rates are payload at real scale, unless noted. ``None`` is unknown."""

    index: int
    run_id: RunId | None = None
    # Reason if there is no run, or no verdict.
    problem: str | None = None
    # Search: payload at real scale.
    offered_bits_per_second: float | None = None
    verdict: Verdict | None = None
    completeness_ratio: float | None = None
    received_bits_per_second: float | None = None
    # Half width for the 95 % interval.
    received_half_width_bits_per_second: float | None = None
    # At the IP layer.
    fleet_ip_bits_per_second: float | None = None
    sent_bits_per_second: float | None = None
    # At the layer of the device counter.
    firewall_bits_per_second: float | None = None
    residual_ratio: float | None = None
    # For UDP datagrams.
    loss_ratio: float | None = None
    # Canaries of the worst burst, see ``CanaryPhase``.
    leak_ratio: float | None = None
    leak_low_ratio: float | None = None
    leak_high_ratio: float | None = None
    allowed_blocked_ratio: float | None = None
    rtt_mean_s: float | None = None
    # Ratio to all segments that were sent.
    retransmit_ratio: float | None = None
    # Busy part of all cores.
    client_cpu_ratio: float | None = None
    server_cpu_ratio: float | None = None
    # For the engine processes, as measured.
    client_cpu_s_per_gigabyte: float | None = None
    server_cpu_s_per_gigabyte: float | None = None
    device_cpu_ratio: float | None = None
    device_cpu_s_per_gigabyte: float | None = None
    # Devices with telemetry.
    devices: tuple[DeviceLoad, ...] = ()
    # Pairs with connections that were cut.
    reset_pairs_count: int = 0
    # Pairs that were stalled.
    stalled_pairs_count: int = 0
    # True if there were more silent streams than are stored.
    silences_capped: bool = False
    bottleneck: Annotated[BottleneckName, renamed("bottleneck", "limiter")] = BottleneckName.UNKNOWN
    bursts_count: int = 0
    # Other runs with traffic at the same time.
    concurrent_run_ids: Annotated[
        tuple[RunId, ...], renamed("concurrent_run_ids", "beside_run_ids")
    ] = ()
    # Cost at real scale, if the study has a budget.
    cost_usd: float | None = None
    # Scale-out: scaling within the hold.
    scaling: Scaling | None = None

    def received_at(self, layer: Layer) -> tuple[float | None, Layer]:
        """Return the received rate at a layer, or the payload of a result of an older version."""
        if layer is Layer.IP and self.fleet_ip_bits_per_second is not None:
            return self.fleet_ip_bits_per_second, Layer.IP
        return self.received_bits_per_second, Layer.PAYLOAD

    def is_complete(self, coverage_floor_ratio: float) -> bool:
        """Return True if enough of the trial was measured to use its values."""
        covered = self.completeness_ratio or 0.0
        return self.received_bits_per_second is not None and covered >= coverage_floor_ratio


class Knee(Message):
    """Point of a curve from which higher values give little more rate."""

    field: str
    value: float
    received_bits_per_second: float
    # Part of the highest measured rate.
    share_ratio: float


class LeakPoint(Message):
    """Leaked share of the canaries at one offered load, with its 95 % interval."""

    offered_bits_per_second: float
    # Mean over the trials.
    received_bits_per_second: float | None = None
    # Largest of the trials.
    leak_ratio: float
    leak_low_ratio: float
    leak_high_ratio: float
    device_cpu_ratio: float | None = None


class LeakCurve(Message):
    """Leaked share of the canaries against the offered load."""

    points: tuple[LeakPoint, ...]
    # Loads between which the share rises: the highest one before the rise, and the first one whose
    # interval is above that of the lowest load. None if there is no rise.
    knee_from_bits_per_second: float | None = None
    knee_to_bits_per_second: float | None = None


class Why(StrEnum):
    """Reason why a rate is counted as failing."""

    # It did not meet a threshold.
    BROKE = "broke"
    # There is no complete trial for it.
    UNMEASURED = "unmeasured"
    # A value that is needed for a threshold is unknown.
    UNKNOWN = "unknown"
    # The senders did not offer the load.
    GENERATOR = "generator"


class SearchResult(Message):
    """Answer of a search. Rates are payload at real scale."""

    # Rate of the highest trial that met the goals, or None if even the lowest one failed.
    highest_bits_per_second: float | None
    # None if the highest requested rate met them.
    lowest_failing_bits_per_second: float | None
    lowest_failing_why: Why | None = None
    # Difference of both rates / the higher one.
    width_ratio: float | None
    # The last trial at the highest rate.
    trial_index: int | None
    # Rate that was sent in this trial.
    highest_sent_bits_per_second: float | None = None
    # Sequential study: rates where the loss was not certain after the last trial.
    open_bits_per_second: tuple[float, ...] = ()


CloseUp = ScaleOut | DrillResult


class Conclusion(Message):
    """Conclusion from all trials of a study."""

    sentence: str
    knees: tuple[Knee, ...] = ()
    search_result: Annotated[SearchResult | None, renamed("search_result", "found")] = None
    comparison: Comparison | None = None
    # Sequential study: comparison of the two states, or of the best value with each other one.
    sequential: tuple[SequentialResult, ...] = ()
    leaks: LeakCurve | None = None
    scale_out: ScaleOut | None = None
    drilled: DrillResult | None = None
    notes: tuple[str, ...] = ()


class Study(Message):
    """Row of a study, with the specification and data that cannot be computed from the runs."""

    study_id: RunId
    spec: StudySpec
    created_at: UtcDatetime
    created_by: str
    # Sequential study: expected number of bursts, as text.
    expected: str | None = None
    # Coordinator that will execute the next step.
    locked_by: Annotated[str | None, renamed("locked_by", "held_by")] = None
    locked_until_at: Annotated[UtcDatetime | None, renamed("locked_until_at", "held_until_at")] = (
        None
    )
    # In the order of the trials. All other data is in the runs.
    results: tuple[TrialResult, ...] = ()
    last_over_at: UtcDatetime | None = None
    # Reason why the next trial has to wait.
    waits_for: str | None = None
    # Drill: the event that was executed, or will be soon.
    event: ExecutedEvent | None = None
    cancelled_at: UtcDatetime | None = None
    cancelled_by: str | None = None
    cancel_reason: str | None = None
    ended_at: UtcDatetime | None = None
    # Reason for an early end.
    problem: str | None = None
    conclusion: Conclusion | None = None
