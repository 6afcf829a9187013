"""What a study is: its specification, its trials, what they showed, and what follows."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StrictBool, StringConstraints, model_validator

from broadside.coordinator import scenarios
from broadside.coordinator.core.goals import GOALS, PROBES
from broadside.coordinator.core.judge.comparison import Comparison
from broadside.coordinator.core.measure.drill import Drilled, EventRan
from broadside.coordinator.core.measure.scale_out import ScaleOut, Scaling
from broadside.coordinator.core.plan.spec import RunSpec
from broadside.coordinator.core.summary import LimiterName, Verdict
from broadside.coordinator.views.requests import LaunchRequest
from broadside.exchange.engines import find, traffic_of
from broadside.exchange.engines.port import EVERY_ENGINE
from broadside.exchange.messages import Message, Number, RunId, UtcDatetime, Whole


def with_engine(spec: RunSpec, name: str) -> Mapping[str, Any]:
    """The specification's plain values for the engine of that name.

    A field that stands as the first engine has it by itself is nobody's wish, so the other engine
    has it its own way; so it has what it does not take. The first engine's options go, and so do
    goals that the other's figures do not answer.
    """
    values = spec.model_dump(mode="json")
    engine = find(name)
    if engine is None or name == spec.traffic.engine:
        return values  # what no engine is will be refused by name
    usual = dict(traffic_of(engine=spec.traffic.engine))
    takes = (engine.honours | EVERY_ENGINE) - {"engine", "options"}
    wished = {field for field, value in spec.traffic if value != usual[field]}
    traffic = {"engine": name} | {
        field: value for field, value in values["traffic"].items() if field in wished & takes
    }
    measured = engine.measures(traffic_of(**traffic)) | {PROBES}
    unanswered = [goal.bound for goal in GOALS if goal.needs not in measured]
    objective = values["objective"] | dict.fromkeys(unanswered)
    return {**values, "traffic": traffic, "objective": objective}


def differences(spec: RunSpec, name: str) -> Iterator[str]:
    """What a run by that engine has otherwise than the specification, as ``field: value``."""
    other = RunSpec.model_validate(with_engine(spec, name))
    for part, before, after in (
        ("traffic", spec.traffic, other.traffic),
        ("objective", spec.objective, other.objective),
    ):
        for field, value in dict(before).items():
            now = dict(after)[field]
            if now != value and field != "engine":
                said = "none" if now in (None, {}) else getattr(now, "value", now)
                yield f"{part}.{field}: {said}"


TRIALS_MAX_COUNT: Final = 200
ENGINE: Final = "traffic.engine"

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,30}$")]


class Axis(Message):
    """One field of the run specification and the values it takes."""

    field: str = Field(description="dotted name of a field of the run specification")
    values: tuple[Any, ...] = Field(min_length=1, max_length=TRIALS_MAX_COUNT)

    @model_validator(mode="before")
    @classmethod
    def _is_read(cls, given: Any) -> Any:
        """By any name of the field, and values as any launch takes them."""
        if not isinstance(given, dict) or not isinstance(given.get("field"), str):
            return given
        field, values = scenarios.field_of(given["field"]), given.get("values")
        if not isinstance(values, list | tuple):
            return given
        try:
            read = [scenarios.read_value(field, value) for value in values]
        except scenarios.BadScenario as error:
            raise ValueError(str(error)) from error
        return {**given, "field": field, "values": read}

    @property
    def is_numeric(self) -> bool:
        """Whether the values are numbers, so that a curve over them means something."""
        return all(type(value) in (int, float) for value in self.values)


class Sweep(Message):
    """A run for every value of one field, or for every combination of two."""

    kind: Literal["sweep"] = "sweep"
    axes: tuple[Axis, ...] = Field(min_length=1, max_length=2)

    @model_validator(mode="after")
    def _axes_are_apart(self) -> "Sweep":
        if len({axis.field for axis in self.axes}) < len(self.axes):
            raise ValueError(f"axes: {self.axes[0].field} is there twice; name two fields")
        return self


class Search(Message):
    """The highest offered rate whose trials keep the goals.

    Rates are payload at real scale: what the fleet is asked to send in all, both flows together.
    """

    kind: Literal["search"] = "search"
    min_bits_per_second: Annotated[Number, Field(gt=0)]
    max_bits_per_second: Annotated[Number, Field(gt=0)]
    shortfall_max_ratio: Annotated[Number, Field(ge=0, lt=1)] = 0.01  # loss, of what was sent
    rtt_mean_max_s: Annotated[Number, Field(gt=0)] | None = None
    residual_max_ratio: Annotated[Number, Field(gt=0, le=1)] | None = None
    precision_ratio: Annotated[Number, Field(ge=0.001, lt=1)] = 0.02  # width of the last interval
    trials_max_count: Annotated[Whole, Field(ge=1, le=TRIALS_MAX_COUNT)] = 20

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> "Search":
        if self.min_bits_per_second >= self.max_bits_per_second:
            raise ValueError(
                f"min_bits_per_second: {self.min_bits_per_second:g} is not below "
                f"max_bits_per_second {self.max_bits_per_second:g}"
            )
        return self


class Mode(Message):
    """A state of the device under test, and what a run in it changes of the specification."""

    name: Name
    overrides: Mapping[str, Any] = {}


class AB(Message):
    """Two states of the device, alternating A B B A so that drift falls on both alike."""

    kind: Literal["ab"] = "ab"
    a: Mode
    b: Mode
    switch: Name | None = None  # the coordinator's switch that puts the device into a state
    rounds_count: Annotated[Whole, Field(ge=1, le=TRIALS_MAX_COUNT // 4)] = 1  # of A B B A

    @model_validator(mode="after")
    def _states_are_apart(self) -> "AB":
        if self.a.name == self.b.name:
            raise ValueError(f"b.name: {self.b.name!r} is A's as well; name two states")
        return self


class Matrix(Message):
    """One device in n modes: a run in each, in turn, for some rounds."""

    kind: Literal["matrix"] = "matrix"
    modes: tuple[Mode, ...] = Field(min_length=2, max_length=50)
    switch: Name | None = None
    rounds_count: Annotated[Whole, Field(ge=1, le=20)] = 1

    @model_validator(mode="after")
    def _modes_are_apart(self) -> "Matrix":
        names = [mode.name for mode in self.modes]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"modes: {', '.join(twice)} is there twice; name each mode once")
        if len(names) * self.rounds_count > TRIALS_MAX_COUNT:
            raise ValueError(
                f"rounds_count: {self.rounds_count} rounds of {len(names)} modes are over "
                f"{TRIALS_MAX_COUNT} trials; ask for fewer"
            )
        return self


class Staircase(Message):
    """How a device grows: loads that are held, one after another, until it has settled.

    Rates are payload at real scale, offered by the fleet in all.
    """

    kind: Literal["scaleout"] = "scaleout"
    offers_bits_per_second: Annotated[
        tuple[Annotated[Number, Field(gt=0)], ...], Field(max_length=50)
    ] = ()  # in order; empty: one step of as much as the fleet can
    hold_s: Annotated[Whole, Field(ge=20, le=3600)] = 300  # s of one hold
    settle_s: Annotated[Number, Field(ge=0, le=7200)] = 600.0  # s without a step that are the end
    holds_max_count: Annotated[Whole, Field(ge=1, le=TRIALS_MAX_COUNT)] = 20  # in all
    units_count: Annotated[Number, Field(ge=1, le=1000)] | None = None  # before; None: not known
    plan_bits_per_second: Annotated[Number, Field(gt=0)] | None = None  # to pre-scale for

    @model_validator(mode="after")
    def _holds_are_enough(self) -> "Staircase":
        if len(self.offers_bits_per_second) > self.holds_max_count:
            raise ValueError(
                f"holds_max_count: {self.holds_max_count} is less than the "
                f"{len(self.offers_bits_per_second)} offers; raise it"
            )
        return self


class Drill(Message):
    """An event inside a burst: what it breaks, for how long, and what comes back.

    The event is a state of a switch that is declared to the coordinator. Without one it is a
    command that whoever drives the study has in their own process; no text of a command is asked
    for here, or taken.
    """

    kind: Literal["drill"] = "drill"
    switch: Name | None = None
    state: Name | None = None
    at_s: Annotated[Number, Field(ge=5, le=86_000)] = 60.0  # s of the burst's measured traffic
    probe_every_s: Annotated[Number, Field(ge=0.02, le=1)] = 0.02  # s: the resolution of an outage

    @model_validator(mode="after")
    def _switch_has_a_state(self) -> "Drill":
        if (self.switch is None) != (self.state is None):
            raise ValueError("switch, state: give both, or neither")
        return self


Question = Annotated[Sweep | Search | AB | Matrix | Staircase | Drill, Field(discriminator="kind")]


class StudySpec(Message):
    """What to vary, and the run that it is varied in."""

    name: Name
    question: Question
    spec: RunSpec
    pause_s: Annotated[Number, Field(ge=0, le=3600)] = 0.0  # s between two trials
    stop_on_failure: StrictBool = False  # a trial that could not run ends the study


class StudyRequest(LaunchRequest):
    """A question, and the run that it is asked in: by a scenario's name or in full."""

    name: Name | None = None  # the question's kind otherwise
    question: Question
    pause_s: Annotated[Number, Field(ge=0, le=3600)] = 0.0  # s between two trials
    stop_on_failure: StrictBool = False

    @model_validator(mode="after")
    def _values_are_apart(self) -> "StudyRequest":
        for axis in self.question.axes if isinstance(self.question, Sweep) else ():
            twice = [value for at, value in enumerate(axis.values) if value in axis.values[:at]]
            if twice:
                raise ValueError(f"{axis.field}: {twice[0]} is there twice; give each value once")
        return self

    def study(self) -> StudySpec:
        """The study asked for. Raises :class:`~broadside.coordinator.scenarios.ScenarioError`."""
        return StudySpec(
            name=self.name or self.question.kind,
            question=self.question,
            spec=self.resolve(),
            pause_s=self.pause_s,
            stop_on_failure=self.stop_on_failure,
        )


class Trial(Message):
    """One run of a study."""

    index: Annotated[int, Field(ge=0)]
    overrides: Mapping[str, Any] = {}  # of the study's run specification, by dotted name
    says: Mapping[str, str] = {}  # what is special about it: field or mode and value, as text
    mode: str | None = None  # the state that the switch puts the device into
    offered_bits_per_second: float | None = None  # search: payload at real scale

    def resolve(self, study_id: str, study: StudySpec) -> RunSpec:
        """The trial's specification. Raises
        :class:`~broadside.coordinator.scenarios.BadScenario`."""
        engine = str(self.overrides.get(ENGINE, study.spec.traffic.engine))
        spec = scenarios.build(with_engine(study.spec, engine), self.overrides)
        said = {"study": study_id, "trial": f"{self.index + 1:03d}", **self.says}
        return spec.model_copy(update={"labels": {**spec.labels, **said}})


class DeviceLoad(Message):
    """What one device bore in a trial, mean over bursts; None is unknown."""

    device: str
    cpu_ratio: float | None = None
    received_bits_per_second: float | None = None  # its part of the payload, at real scale


class TrialResult(Message):
    """What a trial's run showed; rates are payload at the receiver, at real scale.

    ``None`` is unknown.
    """

    index: int
    run_id: RunId | None = None
    problem: str | None = None  # why there is no run, or no verdict
    offered_bits_per_second: float | None = None  # search: payload at real scale
    verdict: Verdict | None = None
    completeness_ratio: float | None = None
    received_bits_per_second: float | None = None
    received_half_width_bits_per_second: float | None = None  # 95 % CI
    sent_bits_per_second: float | None = None
    firewall_bits_per_second: float | None = None  # IP layer
    residual_ratio: float | None = None
    loss_ratio: float | None = None  # UDP datagrams
    rtt_mean_s: float | None = None
    retransmit_ratio: float | None = None  # of segments sent
    client_cpu_ratio: float | None = None  # busy share of all cores
    server_cpu_ratio: float | None = None
    client_cpu_s_per_gigabyte: float | None = None  # of the engines' processes, as measured
    server_cpu_s_per_gigabyte: float | None = None
    device_cpu_ratio: float | None = None
    device_cpu_s_per_gigabyte: float | None = None
    devices: tuple[DeviceLoad, ...] = ()  # that witnesses told of
    reset_pairs_count: int = 0  # whose connections were cut
    stalled_pairs_count: int = 0  # that stood still
    silences_capped: bool = False  # more single streams fell silent than are kept
    limiter: LimiterName = LimiterName.UNKNOWN
    bursts_count: int = 0
    beside_run_ids: tuple[RunId, ...] = ()  # runs outside the study that sent during it
    scaling: Scaling | None = None  # scaleout: what the hold's seconds say

    def is_whole(self, coverage_floor_ratio: float) -> bool:
        """Whether enough of the trial was measured for its figures to count."""
        covered = self.completeness_ratio or 0.0
        return self.received_bits_per_second is not None and covered >= coverage_floor_ratio


class Knee(Message):
    """Where more of the field stops to give more of the rate."""

    field: str
    value: float
    received_bits_per_second: float
    share_ratio: float  # of the largest rate seen


class Why(StrEnum):
    """What is known of a rate that counts as failing."""

    BROKE = "broke"  # it broke a goal
    UNMEASURED = "unmeasured"  # no trial at it is whole
    UNKNOWN = "unknown"  # a figure that a goal asks for is unknown
    GENERATOR = "generator"  # the senders did not offer it


class Found(Message):
    """A search's answer; rates are payload at real scale."""

    # Offered by the highest trial that kept the goals; None: not even the lowest did.
    highest_bits_per_second: float | None
    lowest_failing_bits_per_second: float | None  # None: the highest asked for kept them
    lowest_failing_why: Why | None = None
    width_ratio: float | None  # between the two, of the upper
    trial_index: int | None  # the last trial at the highest rate
    highest_sent_bits_per_second: float | None = None  # what that trial's senders really sent


CloseUp = ScaleOut | Drilled


class Conclusion(Message):
    """What a study's trials say together."""

    sentence: str
    knees: tuple[Knee, ...] = ()
    found: Found | None = None
    comparison: Comparison | None = None
    scale_out: ScaleOut | None = None
    drilled: Drilled | None = None
    notes: tuple[str, ...] = ()


class Study(Message):
    """A study's row in the table: what was asked, and what cannot be derived from its runs."""

    study_id: RunId
    spec: StudySpec
    created_at: UtcDatetime
    created_by: str
    held_by: str | None = None  # the coordinator that takes the next step
    held_until_at: UtcDatetime | None = None
    results: tuple[TrialResult, ...] = ()  # in trial order; runs hold the rest
    last_over_at: UtcDatetime | None = None
    waits_for: str | None = None  # what holds the next trial up
    event: EventRan | None = None  # drill: what was carried out, or is about to be
    cancelled_at: UtcDatetime | None = None
    cancelled_by: str | None = None
    cancel_reason: str | None = None
    ended_at: UtcDatetime | None = None
    problem: str | None = None  # why it ended early
    conclusion: Conclusion | None = None
