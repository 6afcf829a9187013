"""Studies that are over, with results that a path of a known kind would give."""

from datetime import UTC, datetime
from typing import Any

from coordinator.core.plan.spec import RunSpec
from coordinator.studies.conclude import conclude
from coordinator.studies.search import next_offer
from coordinator.studies.study import (
    Axis,
    Matrix,
    Mode,
    Question,
    Search,
    Study,
    StudySpec,
    Sweep,
    TrialResult,
)

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
    """A search on a path that carries 7 Gbit/s."""
    done: list[TrialResult] = []
    while (offer := next_offer(SEARCH, SPEC, done)) is not None:
        carried = {"received_bits_per_second": min(offer, 7e9), "completeness_ratio": 1.0}
        done.append(TrialResult(index=len(done), offered_bits_per_second=offer, **carried))
    return study(SEARCH, done)


SWEPT = study(SWEEP, results(1e9, 2e9, 4e9, 8e9, 8.1e9))
IN_MODES = study(MODES, results(10e9, 9e9, None, client_cpu_ratio=0.4))
