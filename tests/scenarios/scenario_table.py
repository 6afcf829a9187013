"""Table rows for the result of a case or of one trial, without side effects."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from broadside.coordinator.core.metrics import ALL_METRICS, RECEIVED
from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.core.summary import RunSummary, SecondState
from broadside.coordinator.studies.study import Study

CHAPTER: Final = "## Measured\n"
# Findings that explain a rate are shown before other findings.
TELLING: Final = ("residual", "collapse", "bottleneck-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Result of a case.

    Attributes:
        cpu_s_per_gigabyte: CPU of the engines of both ends.
        faults: Expectations that are not met.
        core_was_full: One of several cores was full.
        problem: Reason that the case did not run.
        trials: Trials of a study.
        verdict: Verdict, or None for a study.
        device: Device metrics by name.
        unit_changes: Units that joined or left, with the epoch s.
        cpu: CPU ratio of each device by telemetry.
        cpu_counted: CPU ratio of each device's process as the kernel counted.
        lost: Pairs that were not completely measured, with the reason.
        problems: Findings with severity problem.
    """

    name: str
    outcome: str
    pairs_count: int = 0
    flows_count: int = 0
    encapsulation: str = ""
    engine: str = ""
    payload_bits_per_second: float | None = None
    latency_p50_s: float | None = None
    latency_p99_s: float | None = None
    cpu_s_per_gigabyte: float | None = None
    faults: tuple[str, ...] = ()
    machine_was_busy: bool = False
    core_was_full: bool = False
    problem: str | None = None
    trials: "tuple[Row, ...]" = ()
    verdict: str | None = None
    completeness_ratio: float | None = None
    bottleneck: str | None = None
    device: Mapping[str, float] = field(default_factory=dict)
    unit_changes: tuple[tuple[str, float], ...] = ()
    cpu: Mapping[str, float] = field(default_factory=dict)
    cpu_counted: Mapping[str, float] = field(default_factory=dict)
    lost: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


# Metrics of the clients that a case can expect.
_OF_CLIENTS: Final = ("start_spread", "attempt_delay")


def run_row(name: str, summary: RunSummary, spec: RunSpec, phrase: str | None = None) -> Row:
    """Return the row of a run. A finding that contains ``phrase`` is shown first."""
    traffic = spec.traffic
    sentences = sorted(
        summary.findings,
        key=lambda finding: (
            phrase is None or phrase not in f"{finding.id} {finding.sentence}",
            not finding.id.startswith(TELLING),
        ),
    )
    finding = sentences[0].sentence if sentences else "nothing found"
    return Row(
        name=name,
        pairs_count=summary.pairs_planned,
        flows_count=summary.pairs_planned * traffic.streams_count,
        encapsulation=_encapsulation(spec),
        engine=traffic.engine,
        payload_bits_per_second=RECEIVED.of_run(summary),
        latency_p50_s=summary.probe_p50_s,
        latency_p99_s=summary.probe_p99_s,
        cpu_s_per_gigabyte=_both(
            summary.client_cpu_s_per_gigabyte, summary.server_cpu_s_per_gigabyte
        ),
        outcome=f"{summary.verdict}: {finding}",
        verdict=summary.verdict.value,
        completeness_ratio=summary.completeness_ratio,
        bottleneck=summary.bottleneck.value,
        device={
            item.name: value
            for item in ALL_METRICS
            if item.name.startswith(("device_", "seen_", "unit_", "leak_", *_OF_CLIENTS))
            and (value := item.of_run(summary)) is not None
        },
        cpu={
            item.device: item.cpu_ratio.mean
            for item in summary.bursts[0].devices
            if item.cpu_ratio is not None
        },
        unit_changes=tuple(
            (change.change, change.at.timestamp())
            for burst in summary.bursts
            if burst.units is not None
            for change in burst.units.changes
        ),
        lost=tuple(
            f"burst {burst.index + 1} {pair.pair} {pair.state.value}: {pair.reason or 'no reason'}"
            for burst in summary.bursts
            for pair in burst.pairs
            if pair.state is not SecondState.MEASURED
        ),
        problems=tuple(item.sentence for item in summary.findings if item.severity == "problem"),
    )


def study_row(name: str, study: Study, trials: Sequence[Row]) -> Row:
    """Return the row of a study with its conclusion.

    The measured values are in the trials' rows.
    """
    spec = study.spec.spec
    text = study.conclusion.sentence if study.conclusion else "no conclusion"
    return Row(
        name=name,
        pairs_count=spec.pairs_count,
        flows_count=spec.pairs_count * spec.traffic.streams_count,
        encapsulation=", ".join(dict.fromkeys(row.encapsulation for row in trials))
        or _encapsulation(spec),
        engine=spec.traffic.engine,
        outcome=f"{len(study.results)} trials: {study.problem or text}",
        problem=study.problem,
        trials=tuple(trials),
    )


def _encapsulation(spec: RunSpec) -> str:
    return "none" if spec.traffic.encapsulation is None else "vxlan"


def _both(client: float | None, server: float | None) -> float | None:
    """Return the sum of both ends' cost, or None if one is unknown."""
    return None if client is None or server is None else client + server


def failed(name: str, problem: str) -> Row:
    return Row(name=name, outcome="did not run", problem=problem)


HEADINGS: Final = (
    "scenario",
    "pairs",
    "flows",
    "encap",
    "engine",
    "payload received, Mbit/s",
    "latency p50 / p99, ms",
    "CPU s a GB",
    "verdict or finding",
)


def cells(row: Row) -> tuple[str, ...]:
    """Return a row as text, with a dash for unknown values."""

    def shown(value: float | None, factor: float, form: str) -> str:
        return "-" if value is None else format(value * factor, form)

    outcome = row.problem or row.outcome
    if row.faults:
        outcome = f"NOT SHOWN: {'; '.join(row.faults)}; {outcome}"
    if row.machine_was_busy:
        outcome = f"(the machine was the limit) {outcome}"
    elif row.core_was_full:
        outcome = f"(one core was full) {outcome}"
    return (
        row.name,
        str(row.pairs_count),
        str(row.flows_count),
        row.encapsulation,
        row.engine,
        shown(row.payload_bits_per_second, 1e-6, ".1f"),
        f"{shown(row.latency_p50_s, 1e3, '.2f')} / {shown(row.latency_p99_s, 1e3, '.2f')}",
        shown(row.cpu_s_per_gigabyte, 1, ".2f"),
        outcome,
    )


def markdown(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table in Markdown as in the docs, with trials below their study."""
    yield f"| {' | '.join(HEADINGS)} |"
    yield f"|{' --- |' * len(HEADINGS)}"
    for row in rows:
        for item in (row, *row.trials):
            yield f"| {' | '.join(cell.replace('|', '/') for cell in cells(item))} |"


def chapter(document: str, rows: Sequence[Row], when: str) -> str:
    """Return the document with a new last chapter ``## Measured``.

    Raises:
        ValueError: The document has no such chapter.
    """
    before, mark, _ = document.partition(CHAPTER)
    if not mark:
        raise ValueError(f"the document has no chapter {CHAPTER.strip()!r}")
    return f"{before}{CHAPTER}\n{when}\n\n" + "\n".join(markdown(rows)) + "\n"
