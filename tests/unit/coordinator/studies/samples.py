"""Sample studies to use in tests."""

from datetime import UTC, datetime
from typing import Any

import numpy as np

from broadside.coordinator.core.measure.experiments.drill import (
    DrillResult,
    ExecutedEvent,
    FlowDip,
    PairOutage,
)
from broadside.coordinator.core.measure.experiments.scale_out import (
    LoadPhase,
    find_scale_out,
    rate_curve,
)
from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.studies.conclude import conclude
from broadside.coordinator.studies.search import next_offer
from broadside.coordinator.studies.study import (
    Axis,
    CloseUp,
    DeviceLoad,
    Drill,
    Matrix,
    Mode,
    Question,
    Search,
    Staircase,
    Study,
    StudySpec,
    Sweep,
    TrialResult,
)
from broadside.exchange.messages import Flow

SPEC = RunSpec(scenario="smoke", pairs_count=4)
STREAMS = (1, 2, 4, 8, 16)
SWEEP = Sweep(axes=(Axis(field="traffic.streams_count", values=STREAMS),))
MODES = Matrix(modes=(Mode(name="off"), Mode(name="alert"), Mode(name="deny")))
SEARCH = Search(min_bits_per_second=1e9, max_bits_per_second=20e9, trials_max_count=8)


def study(question: Question, results: list[TrialResult]) -> Study:
    spec = StudySpec(name="s", question=question, spec=SPEC)
    return Study(
        study_id="20261120-120000-s-00aa",
        spec=spec,
        created_at=datetime(2026, 11, 20, 12, tzinfo=UTC),
        created_by="me",
        results=tuple(results),
        conclusion=conclude(spec, results),
    )


def results(*rates: float | None, **more: Any) -> list[TrialResult]:
    return [
        TrialResult(
            index=index, received_bits_per_second=rate, **({"completeness_ratio": 1.0} | more)
        )
        for index, rate in enumerate(rates)
    ]


def searched() -> Study:
    """Return a search where the path can carry 7 Gbit/s."""
    done: list[TrialResult] = []
    while (offer := next_offer(SEARCH, SPEC, done)) is not None:
        carried = {"received_bits_per_second": min(offer, 7e9), "completeness_ratio": 1.0}
        done.append(TrialResult(index=len(done), offered_bits_per_second=offer, **carried))
    return study(SEARCH, done)


SWEPT = study(SWEEP, results(1e9, 2e9, 4e9, 8e9, 8.1e9))
IN_MODES = study(MODES, results(10e9, 9e9, None, client_cpu_ratio=0.4))


def _over_two_devices() -> Study:
    """Return a matrix with two devices that get 70 % and 30 % of the traffic.

    The CPU and rate values are from "A Little About Cisco Networking Performance".
    """
    modes = {"cef": (47, 22, 95e6), "acl": (55, 25, 95e6), "zpf": (83, 41, 90e6)}
    modes["log"] = (99, 64, 42e6)
    trials = results(*(rate for _, _, rate in modes.values()))
    for index, (*busy, rate) in enumerate(modes.values()):
        loads = tuple(
            DeviceLoad(device=name, cpu_ratio=percent / 100, received_bits_per_second=share * rate)
            for name, percent, share in zip(("fw-a", "fw-b"), busy, (0.7, 0.3), strict=True)
        )
        trials[index] = trials[index].model_copy(update={"devices": loads})
    return study(Matrix(modes=tuple(Mode(name=name) for name in modes)), trials)


OVER_TWO_DEVICES = _over_two_devices()


def closed_up(question: Question, close_up: CloseUp, event: ExecutedEvent | None = None) -> Study:
    """Return an ended study with the given drill or scale-out result."""
    ended = study(question, results(9e9))
    conclusion = conclude(ended.spec, ended.results, close_up=close_up, event=event)
    return ended.model_copy(update={"conclusion": conclusion})


def grown() -> Study:
    """Return a staircase starting at 20 Gbit/s, with a step of 11.4 Gbit/s every 20 s."""
    rates = np.repeat(20e9 + 11.4e9 * np.arange(6), 20)
    blank = np.full(len(rates), np.nan)
    phase = LoadPhase(start_s=1_795_000_000.0, rates=rates, retransmits=blank, rtt_s=blank)
    result = find_scale_out([phase]).model_copy(update={"units_before_count": 2.0})
    result = result.model_copy(update={"units_after_count": 7.0})
    return closed_up(Staircase(plan_bits_per_second=150e9), result)


def drilled() -> Study:
    """Return a drill with an outage of 1.5 s but without any cut sessions."""
    at = datetime(2026, 11, 23, 12, 1, tzinfo=UTC)
    outage = PairOutage(pair="pair-001", from_at=at, outage_s=1.5, resolution_s=0.02, lost_count=75)
    dip = FlowDip(
        flow=Flow.UP,
        level_bits_per_second=10e9,
        lowest_bits_per_second=0.0,
        short_bytes=4e9,
        back_after_s=5.0,
        old_ratio=1.0,
        new_ratio=0.98,
    )
    rates = np.repeat([10e9, 0.0, 10e9], [30, 2, 30])
    result = DrillResult(
        event=ExecutedEvent(planned_at=at, started_at=at, ended_at=at, exit_code=0),
        resolution_s=0.02,
        probed_count=2,
        outages=(outage,),
        outages_count=1,
        outage_from_at=at,
        outage_s=1.5,
        flows=(dip,),
        sessions_count=8,
        tcp_s=3.5,
        rate_curve=rate_curve(at.timestamp() - 30, rates),
    )
    return closed_up(Drill(), result, result.event)


def drill(**known: object) -> DrillResult:
    """Return the drill result and change these fields."""
    study = drilled()
    assert study.conclusion is not None and study.conclusion.drilled is not None
    return study.conclusion.drilled.model_copy(update=known)
