"""Measure how verdicts change if a constant is halved or doubled.

To write ``docs/constants_effect.csv``, use ``python -m tests.constants_effect``. Two groups of
cases are judged with the normal, the halved and the doubled value of a constant. *Real* cases are
recordings: published tables (``tests/data/original``) and runs of real engines that earlier
versions stored (``tests/data/stored``, ``tests/data/compat``). *Worlds* are one world of every
eighth kind of ``tests/worlds`` with a fixed seed. For both factors, a line has the number of
verdicts that differ in the two groups, and the checks with different findings.

A case is judged again only if it uses a function that reads the constant. Otherwise the result
cannot change.
"""

import argparse
import asyncio
import csv
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache, partial
from itertools import chain
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Final

from broadside.coordinator.core.judge.checks.decision import BURST_CHECKS, RUN_CHECKS
from broadside.coordinator.core.judge.summarise import summarise_run
from broadside.coordinator.core.judge.verdict_inputs import RunContext
from broadside.coordinator.core.measure.burst import measure_burst
from broadside.coordinator.core.measure.records.evidence import BurstEvidence, CounterRecord
from broadside.coordinator.core.measure.telemetry import DeviceTelemetry
from broadside.coordinator.core.metrics import Layer
from broadside.coordinator.core.run_spec import Plan, due_at
from broadside.coordinator.core.summary import RunSummary, Verdict
from broadside.coordinator.imports.import_requests import Imported, OriginalTable
from broadside.coordinator.imports.metric_csv import read_declared_metric
from broadside.coordinator.imports.stored_imports import open_import, summarise
from broadside.coordinator.runs.coordinator import Coordinator
from broadside.coordinator.runs.evidence_loader import read_evidence
from broadside.coordinator.runs.reading_store import read_telemetry
from broadside.coordinator.runs.run_documents import (
    read_counter,
    read_fleet,
    read_outages,
)
from broadside.exchange.embedded.backup import restore
from broadside.exchange.fabric import FabricSettings, open_fabric
from broadside.exchange.messages import Presence, ServiceOutage
from tests.compat.read import FIXTURES, VERSIONS
from tests.docs_build.constants_page import numbers, supports
from tests.hunt.adapter import conclude
from tests.unit.coordinator.imports.small_tables import made, parse
from tests.unit.coordinator.imports.test_table_bursts import DATA
from tests.unit.coordinator.runs.test_stored_verdicts import STORED, load
from tests.worlds import KINDS, generate
from tests.worlds.record_format import Recording

PAGE: Final = Path(__file__).parents[1] / "docs" / "constants_effect.csv"
FACTORS: Final = {"halved": 0.5, "doubled": 2.0}
SEED: Final = 31
# Every eighth kind whose world is no larger than this, so that a run takes minutes.
KINDS_STEP: Final = 8
PAIR_SECONDS_MAX: Final = 1500
# Published tables, with or without the device's published metric; target in bit/s, coverage floor,
# limit of the residual. 30 clients carried 181 to 188 Gbit/s at the IP layer, with 90 to 97 % of
# the pairs on record.
TABLES: Final = (
    ("seed-280s-30clients", True, 180e9, 0.95, 0.05),
    ("seed-280s-30clients", True, 140e9, 0.85, 0.3),
    ("seed-280s-30clients", False, 188e9, 0.85, 0.05),
    ("seed-1740s-30clients", True, 195e9, 0.95, 0.05),
    ("seed-idps-on-off-1client", False, 1e9, 0.95, 0.05),
)
METRIC: Final = "-firewall-throughput.csv"
# Passes and fails of the newest version are also judged against targets so many half widths below
# and above what was received.
HALF_WIDTHS: Final = 1.5
# Stored, but planted: its traffic was generated here.
PLANTED: Final = "killed-clients-ledger"
CHECK_OF: Final = {
    **{finding: check.id for check in BURST_CHECKS for finding in check.findings.split()},
    **{finding: check.id for check in RUN_CHECKS for finding in check.findings.split()},
}


@dataclass(frozen=True)
class Result:
    """Verdicts of a run and its bursts, and the ids of all findings."""

    verdicts: tuple[str, ...]
    findings: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Case:
    """One run. ``read`` makes its evidence from the record, ``judge`` its summary from that."""

    name: str
    is_real: bool
    read: Callable[[], Any]
    judge: Callable[[Any], RunSummary]


@dataclass(frozen=True)
class JudgedCase:
    """A case with the constants as they are, and the global names that its functions read."""

    case: Case
    evidence: Any
    result: Result
    names_to_read: frozenset[str]
    names_to_judge: frozenset[str]


# Cases ------------------------------------------------------------------------------------------


def cases(folder: Path) -> Iterator[Case]:
    """Yield all cases: tables, stored runs and worlds. ``folder`` receives the stored records."""
    for name, metric, target, floor, residual in TABLES:
        read = partial(_table, name, metric, target, floor, residual)
        yield Case(f"{name} {target / 1e9:g}G", True, read, _judge_table)
    sources: list[Path | str] = [*STORED, *VERSIONS]
    for index, source in enumerate(sources):
        if PLANTED not in str(source):
            yield from _stored_cases(source, folder / str(index))
    for kind in list(KINDS)[::KINDS_STEP]:
        world = generate(kind, SEED)
        spec = world.spec
        if spec.pairs_count * spec.duration_s * spec.bursts_count <= PAIR_SECONDS_MAX:
            yield Case(f"world {kind}", False, partial(_same, world.recording), conclude)


def _same(recording: Recording) -> Recording:
    return recording


def _table(name: str, metric: bool, target: float, floor: float, residual: float) -> OriginalTable:
    limits = {"target_bits_per_second": target, "coverage_floor_ratio": floor}
    read = parse((DATA / f"{name}.csv").read_text(encoding="utf-8"), f"{name}.csv")
    update: dict[str, Any] = {
        "overrides": {
            f"objective.{limit}": value
            for limit, value in {**limits, "residual_max_ratio": residual}.items()
        }
    }
    if metric:
        points, *_ = read_declared_metric(DATA / f"{name.rpartition('-')[0]}{METRIC}")
        update |= {"metric_source": "chart", "metric": points}
    return read.model_copy(update=update)


def _judge_table(table: OriginalTable) -> RunSummary:
    return made(table)[1]


@dataclass(frozen=True)
class Stored:
    """Inputs of a stored run's verdict."""

    plan: Plan
    at: datetime
    imported: Imported | None = None
    bursts: tuple[BurstEvidence, ...] = ()
    device_counter: CounterRecord | None = None
    telemetry: DeviceTelemetry | None = None
    fleet: tuple[Presence, ...] = ()
    troubles: tuple[ServiceOutage, ...] = ()


def _stored_cases(source: Path | str, folder: Path) -> Iterator[Case]:
    """Return the runs that ended by themselves and have a verdict, some with nearer targets."""
    for run_id in asyncio.run(_laid_out(source, folder)):
        stored = _read(folder, run_id)
        if stored is None:
            continue
        summary = _judge_stored(stored)
        if summary.verdict is Verdict.MEASURED:
            continue
        yield Case(run_id, True, partial(_read_with, folder, stored.plan), _judge_stored)
        if source == VERSIONS[-1] and summary.verdict is not Verdict.INCONCLUSIVE:
            for target in _near(summary):
                plan = _with_target(stored.plan, target * stored.plan.spec.scale)
                yield Case(f"{run_id} near", True, partial(_read_with, folder, plan), _judge_stored)


def _near(summary: RunSummary) -> Iterator[float]:
    """Return payload rates in bit/s that a run passes and fails by a little."""
    rates = [
        (burst.fleet_received_bits_per_second, burst.fleet_received_half_width_bits_per_second)
        for burst in summary.bursts
    ]
    known = [(rate, width) for rate, width in rates if rate is not None and width is not None]
    if known:
        yield min(rate - HALF_WIDTHS * width for rate, width in known)
        yield max(rate + HALF_WIDTHS * width for rate, width in known)


async def _laid_out(source: Path | str, folder: Path) -> list[str]:
    """Write the records of a version or of one file into a folder and return the run ids."""
    if isinstance(source, str):
        restore(FIXTURES / source / "backup.tar.gz", folder)
    fabric = open_fabric(FabricSettings(data_dir=folder))
    try:
        if isinstance(source, Path):
            await load(fabric, source)
        results = [header.run_id async for header in fabric.records.private.list_runs(limit=1_000)]
    finally:
        await fabric.close()
    return sorted(results)


def _read(folder: Path, run_id: str) -> Stored | None:
    return asyncio.run(_read_run(folder, run_id))


async def _read_run(folder: Path, run_id: str) -> Stored | None:
    """Return a run, or None if it was cancelled, never judged, or is a table of `TABLES`."""
    fabric = open_fabric(FabricSettings(data_dir=folder))
    try:
        records, states = fabric.records, Coordinator(fabric).stored
        summary, imported = await states.summary(run_id), await states.imported(run_id)
        control = await records.runs.read_control(run_id)
        if summary is None or isinstance(imported, OriginalTable):
            return None
        if control is not None and control.cancelled_at is not None:
            return None
        plan = await states.read_plan(run_id)
        if imported is not None:
            return Stored(plan, summary.computed_at, imported)
        return Stored(
            plan,
            summary.computed_at,
            None,
            tuple([_unpacked(await read_evidence(records, plan, burst)) for burst in plan.bursts]),
            await read_counter(records, run_id),
            await read_telemetry(records, run_id),
            await read_fleet(records, run_id),
            await read_outages(records, run_id),
        )
    finally:
        await fabric.close()


def _unpacked(burst: BurstEvidence) -> BurstEvidence:
    """Return evidence that can be measured more than once."""
    return replace(burst, pairs=tuple(chain.from_iterable(burst.blocks())), unpack=None)


def _with_target(plan: Plan, target_bits_per_second: float) -> Plan:
    objective = plan.spec.objective.model_copy(
        update={
            "target_bits_per_second": target_bits_per_second,
            "layer": Layer.PAYLOAD,
            "tolerance_ratio": 0.0,
        }
    )
    spec = plan.spec.model_copy(update={"objective": objective})
    return plan.model_copy(update={"spec": spec}).sealed()


def _read_with(folder: Path, plan: Plan) -> Stored:
    stored = _read(folder, plan.run_id)
    assert stored is not None
    return replace(stored, plan=plan)


def _judge_stored(stored: Stored) -> RunSummary:
    if stored.imported is not None:
        measured = open_import(stored.imported).measure(stored.plan)
        return summarise(stored.plan, measured, stored.at)
    spec = stored.plan.spec
    return summarise_run(
        stored.plan,
        [measure_burst(spec, burst, due_at(burst.burst)) for burst in stored.bursts],
        stored.device_counter,
        stored.at,
        RunContext(telemetry=stored.telemetry, fleet=stored.fleet, troubles=stored.troubles),
    )


# Effects ----------------------------------------------------------------------------------------


@contextmanager
def scaled(name: str, factor: float) -> Iterator[bool]:
    """Multiply a constant in all modules and yield False if rounding leaves it unchanged."""
    module, constant = name.split(".")
    there = list(_having(module, constant))
    value = getattr(there[0], constant)
    new = _times(value, factor)
    for item in there:
        setattr(item, constant, new)
    _forget()
    try:
        yield bool(new != value)
    finally:
        for item in there:
            setattr(item, constant, value)
        _forget()


def _having(module: str, constant: str) -> Iterator[ModuleType]:
    """Return the modules that have a constant under its name, not those with one of their own."""
    for key, item in list(sys.modules.items()):
        if key.startswith("broadside.coordinator.") and hasattr(item, constant):
            stem = key.rpartition(".")[2]
            if stem == module or f"{stem}.{constant}" not in numbers():
                yield item


@cache
def _caches() -> list[Any]:
    core = [m for key, m in sys.modules.items() if key.startswith("broadside.coordinator.core.")]
    results = [f for module in core for f in vars(module).values() if hasattr(f, "cache_clear")]
    return list({id(item): item for item in results}.values())


def _forget() -> None:
    """Clear the caches of the core, because their values depend on the old constant."""
    for cach in _caches():
        cach.cache_clear()


def _times(value: Any, factor: float) -> Any:
    if isinstance(value, tuple):
        return tuple(_times(item, factor) for item in value)
    return max(1, round(value * factor)) if isinstance(value, int) else value * factor


@contextmanager
def names_read() -> Iterator[set[str]]:
    """Collect the global names that the coordinator's functions read while they run."""
    names: set[str] = set()
    seen: set[int] = set()

    def note(frame: FrameType, _event: str, _argument: object) -> None:
        code = frame.f_code
        if id(code) not in seen and "coordinator" in code.co_filename:
            seen.add(id(code))
            names.update(code.co_names)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield names
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def judge(case: Case, evidence: Any) -> Result:
    """Return a case's verdicts.

    If the changed constant raises an error, its name is the verdict.
    """
    try:
        summary = case.judge(evidence)
    except Exception as error:
        return Result((type(error).__name__,))
    findings = [*summary.findings, *(f for burst in summary.bursts for f in burst.findings)]
    verdicts = (str(summary.verdict), *(str(burst.verdict) for burst in summary.bursts))
    return Result(verdicts, frozenset(finding.id for finding in findings))


def judge_as_is(case: Case) -> JudgedCase:
    """Judge a case with the constants as they are."""
    _forget()
    with names_read() as to_read:
        evidence = case.read()
    _forget()
    with names_read() as to_judge:
        result = judge(case, evidence)
    return JudgedCase(case, evidence, result, frozenset(to_read), frozenset(to_judge))


def judge_again(usual_case: JudgedCase, constant: str) -> Result:
    """Judge a case with a constant that was changed."""
    evidence = usual_case.evidence
    if constant in usual_case.names_to_read:
        try:
            evidence = usual_case.case.read()
        except Exception as error:
            return Result((type(error).__name__,))
    elif constant not in usual_case.names_to_judge:
        return usual_case.result
    return judge(usual_case.case, evidence)


def effect(name: str, usual: Sequence[JudgedCase]) -> Mapping[str, str]:
    """Return one constant's line."""
    line: dict[str, str] = {"name": name}
    checks: set[str] = set()
    for part, factor in FACTORS.items():
        with scaled(name, factor) as is_changed:
            constant = name.partition(".")[2]
            new = [judge_again(e, constant) if is_changed else e.result for e in usual]
        for group, is_real in (("real", True), ("worlds", False)):
            both = [
                (a.result, b) for a, b in zip(usual, new, strict=True) if a.case.is_real is is_real
            ]
            moved = sum(a.verdicts != b.verdicts for a, b in both)
            line[f"{part}_{group}"] = f"{moved}/{len(both)}"
            for a, b in both:
                checks |= {CHECK_OF.get(item, "observation") for item in a.findings ^ b.findings}
    return {**line, "checks": " ".join(sorted(checks))}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.constants_effect", description=__doc__)
    parser.add_argument("names", nargs="*", help="module.NAME; all where none is given")
    arguments = parser.parse_args()
    stored: dict[str, Mapping[str, str]] = {}
    if arguments.names and PAGE.exists():
        with PAGE.open(encoding="utf-8", newline="") as file:
            stored = {line["name"]: line for line in csv.DictReader(file)}
    rows = supports()
    names: Sequence[str] = arguments.names or [
        n for n in numbers() if rows[n].kind not in ("work", "beside")
    ]
    with tempfile.TemporaryDirectory() as folder:
        usual = [judge_as_is(case) for case in cases(Path(folder))]
        for item in usual:
            sys.stdout.write(f"{item.case.name}: {' '.join(item.result.verdicts)}\n")
        for name in names:
            stored[name] = effect(name, usual)
            sys.stdout.write(" ".join(stored[name].values()) + "\n")
            sys.stdout.flush()
            _write(stored)
    return 0


def _write(lines: Mapping[str, Mapping[str, str]]) -> None:
    columns = ["name", *(f"{w}_{g}" for w in FACTORS for g in ("real", "worlds")), "checks"]
    there = numbers()
    with PAGE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines[name] for name in sorted(lines) if name in there)


if __name__ == "__main__":
    sys.exit(main())
