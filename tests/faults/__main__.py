"""Run the cells of the fault matrix and print the table (``python -m tests.faults``).

The exit code is 1 if any rule does not hold. Cells are distributed to several labs, each with its
own worker process. The workers remove their labs however this process ends.
"""

import argparse
import contextlib
import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, get_args

from pydantic import TypeAdapter

from broadside.lab import privileges as rights
from broadside.lab.child_processes import die_with_parent, run_to_end
from broadside.lab.errors import LabError
from broadside.lab.site import free_prefix
from tests.faults.cell import Result, run_cell
from tests.faults.fault_range import RangeFabric, standing
from tests.faults.matrix import FAULTS, Cell, Phase, chosen
from tests.faults.random_rounds import rounds
from tests.invariants import left_behind

CHAPTER: Final = "## The table\n"
LEGEND: Final = "### The faults\n"
# The titles of the fabrics in the order of execution.
TITLES: Final[Mapping[str, str]] = {
    "embedded": "One machine: the embedded store",
    "http": "Any hosts: agents over HTTPS",
    "azure": "Azure: Service Bus, Table and Blob Storage",
}
# The type of a worker's output.
RESULT: Final = TypeAdapter(Result)
# The key of a worker's output if its lab is broken.
BROKEN_LAB: Final = "lab_error"


def text(results: Sequence[Result]) -> str:
    """Return one line per cell, followed by each rule that does not hold."""
    lines = []
    for result in results:
        cell = f"{result.fault}/{result.phase}"
        memory = f"{result.peak_bytes / 1e6:.0f} MB"
        lines.append(
            f"{result.fabric:9}{cell:34}{outcome(result):58}{result.verdict:13}"
            f"{_rules(result)} {memory}"
        )
        lines += [f"    BROKEN {message}" for message in result.broken]
    return "\n".join(lines)


def markdown(results: Sequence[Result]) -> str:
    """Return a Markdown table with rows by fault and columns by phase.

    Each rule that does not hold follows below the table.
    """
    phases = list(dict.fromkeys(result.phase for result in results))
    lines = [f"| fault | {' | '.join(phases)} |", "| --- |" + " --- |" * len(phases)]
    for fault in dict.fromkeys(result.fault for result in results):
        row = {result.phase: result for result in results if result.fault == fault}
        cells = (_cell(row[phase]) if phase in row else "" for phase in phases)
        lines.append(f"| {fault} | {' | '.join(cells)} |")
    lines += [f"\n{r.fault}/{r.phase}: {message}" for r in results for message in r.broken]
    return "\n".join(lines)


def chapter(document: str, results: Sequence[Result], when: str) -> str:
    """Return the document with a new last chapter ``## The table``.

    There is one table per fabric. Tables of fabrics without results remain.

    Raises:
        ValueError: The document has no such chapter.
    """
    before, mark, old = document.partition(CHAPTER)
    if not mark:
        raise ValueError(f"the document has no chapter {CHAPTER.strip()!r}")
    parts = [f"{before}{CHAPTER}"]
    for fabric, title in TITLES.items():
        local = [result for result in results if result.fabric == fabric]
        _, had, rest = old.partition(f"### {title}\n")
        if local:
            peak_bytes = max(result.peak_bytes for result in local)
            message = f"{when} The coordinator took at most {peak_bytes / 1e6:.0f} MB of memory."
            parts.append(f"### {title}\n\n{message}\n\n{markdown(local)}\n")
        elif had:
            stored = rest.partition("\n### ")[0].partition(LEGEND)[0]
            parts.append(f"### {title}\n{stored.rstrip()}\n")
    legend = [f"| {fault.name} | {fault.description} |" for fault in FAULTS.values()]
    parts.append("\n".join([f"{LEGEND}\n| fault | action |", "| --- | --- |", *legend]) + "\n")
    return "\n".join(parts)


def outcome(result: Result) -> str:
    """Return the states of the pairs for each burst."""
    return " / ".join(result.bursts) + (f" [{result.note}]" if result.note else "")


def _cell(result: Result) -> str:
    return f"{outcome(result)}; {result.verdict}; {_rules(result)}"


def _rules(result: Result) -> str:
    return "BROKEN" if result.broken else "ok"


DOCUMENT: Final = Path(__file__).parent / "README.md"
# The lab of a worker must be removed within this time.
STOP_S: Final = 60.0
# A cell mostly waits. Three labs load two cores by a third.
LABS_COUNT: Final = 3


class Worker:
    """Process with its own lab that runs one cell at a time."""

    def __init__(self, fabric: RangeFabric) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults", "--worker", "--fabric", fabric],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C must reach only the parent process, which then stops its workers.
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        self.prefix: str | None = None
        # The reason that its lab is broken.
        self.why: str | None = None

    def run(self, cells: "queue.SimpleQueue[Cell]", results: list[Result]) -> None:
        """Run cells until none is left or the worker has ended."""
        into, out = self._process.stdin, self._process.stdout
        assert into is not None and out is not None
        first = out.readline().strip()
        if not self._is_broken(first):
            self.prefix = first or None
            sys.stderr.write(f"lab {self.prefix}\n")
        while self.prefix is not None and self._process.poll() is None:
            try:
                name, phase = cells.get_nowait()
            except queue.Empty:
                return
            with contextlib.suppress(BrokenPipeError):
                into.write(f"{name}/{phase.value}\n")
                into.flush()
            line = out.readline()
            if not line or self._is_broken(line):
                cells.put((name, phase))
                return
            result = RESULT.validate_json(line)
            results.append(result)
            sys.stderr.write(f"{text([result])}\n")

    def _is_broken(self, line: str) -> bool:
        """Return whether the line reports that the worker's lab is broken."""
        document = json.loads(line) if line.startswith("{") else {}
        if (why := document.get(BROKEN_LAB)) is not None:
            sys.stderr.write(f"faults: {why}\n")
            self.why = str(why)
        return why is not None

    def stop(self) -> list[str]:
        """Remove the worker's lab and return its leftovers."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                # The pipe may contain data that the worker never read.
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        return left_behind(self.prefix) if self.prefix else []


def work(fabric: RangeFabric) -> int:
    """Run a worker, which prints its lab's prefix and then one line of JSON for each cell to run.

    The names of the cells are read from standard input.
    """
    answers = sys.stdout
    sys.stdout = sys.stderr
    try:
        with free_prefix() as prefix:
            answers.write(f"{prefix}\n")
            answers.flush()
            with standing(prefix, fabric) as site:
                for line in sys.stdin:
                    name, _, phase = line.strip().partition("/")
                    result = run_cell(site, (name, Phase(phase)))
                    answers.write(json.dumps(asdict(result)) + "\n")
                    answers.flush()
    except LabError as error:
        answers.write(json.dumps({BROKEN_LAB: str(error)}) + "\n")
        answers.flush()
        return 2
    return 0


def run_matrix(
    cells: Sequence[Cell], labs_count: int, fabric: RangeFabric
) -> tuple[list[Result], list[str]]:
    """Return the results in the order of ``cells``, and the problems outside cells."""
    waiting: queue.SimpleQueue[Cell] = queue.SimpleQueue()
    for cell in cells:
        waiting.put(cell)
    results: list[Result] = []
    workers: list[Worker] = []
    problems: list[str] = []
    try:
        workers += [Worker(fabric) for _ in range(min(labs_count, len(cells)))]
        threads = [
            threading.Thread(target=worker.run, args=(waiting, results), daemon=True)
            for worker in workers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        # A second Ctrl-C must not interrupt the cleanup.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        stopping = [threading.Thread(target=lambda w=w: problems.extend(w.stop())) for w in workers]
        for thread in stopping:
            thread.start()
        for thread in stopping:
            thread.join()
        signal.signal(signal.SIGINT, before)
    done = {(result.fault, result.phase) for result in results}
    whys = "".join(f": {worker.why}" for worker in workers if worker.why is not None)
    problems += [
        f"{fabric} {name}/{phase.value}: was not run, its lab did not stand{whys}"
        for name, phase in cells
        if (name, phase.value) not in done
    ]
    order = {(name, phase.value): index for index, (name, phase) in enumerate(cells)}
    return sorted(results, key=lambda r: order[r.fault, r.phase]), problems


def _drawn(given: argparse.Namespace) -> tuple[Cell, ...]:
    if given.only or given.write or given.random < 1:
        raise ValueError("--random takes a number from 1, and neither --only nor --write")
    seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    sys.stderr.write(f"seed {seed}\n")
    return rounds(seed, given.random)


def _chosen(given: argparse.Namespace) -> dict[RangeFabric, tuple[Cell, ...]]:
    """Return the cells to run by fabric.

    Raises:
        ValueError: A cell does not exist.
    """
    fabrics: Sequence[RangeFabric] = given.fabric or get_args(RangeFabric)
    if given.random is not None:
        return dict.fromkeys(fabrics, _drawn(given))
    return {fabric: chosen(given.only, fabric) for fabric in fabrics}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--only", help="FAULT/PHASE, FAULT or /PHASE, several by commas")
    parser.add_argument("--random", type=int, metavar="N", help="N rounds of luck a fabric instead")
    parser.add_argument("--seed", type=int, help="of the rounds; default: random, and printed")
    parser.add_argument("--labs", type=int, default=LABS_COUNT, help="labs in parallel")
    parser.add_argument("--json", action="store_true", help="one document in place of the table")
    parser.add_argument(
        "--write", action="store_true", help="write the table in tests/faults/README.md"
    )
    parser.add_argument(
        "--fabric",
        choices=get_args(RangeFabric),
        action="append",
        help="an embedded store, agents over HTTPS, or Azure's services; all three without it",
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    given = _arguments()
    if given.worker:
        return work(given.fabric[0])
    try:
        cells = _chosen(given)
        if rights.find_rights().require().rights is rights.Rights.USER_NAMESPACE:
            rights.run_inside([sys.executable, "-m", "tests.faults", *sys.argv[1:]])
    except (ValueError, LabError) as error:
        sys.stderr.write(f"faults: {error}\n")
        return 2
    began_s = time.monotonic()
    results: list[Result] = []
    problems: list[str] = []
    for fabric, local in cells.items():
        ended, wrong = run_matrix(local, given.labs, fabric)
        results += ended
        problems += wrong
    took_s = time.monotonic() - began_s
    if given.json:
        document = {
            "took_s": round(took_s, 1),
            "cells": [asdict(result) for result in results],
            "problems": problems,
        }
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        sys.stdout.write(text(results) + "\n")
    if given.write:
        when = (
            f"{datetime.now(UTC):%Y-%m-%d}, {len(results)} cells of {len(cells)} fabrics in "
            f"{took_s / 60:.0f} minutes, {given.labs} labs in parallel on {os.cpu_count()} cores."
        )
        DOCUMENT.write_text(chapter(DOCUMENT.read_text(), results, when))
    broken = sum(bool(result.broken) for result in results)
    for problem in problems:
        sys.stderr.write(f"faults: {problem}\n")
    sys.stderr.write(
        f"faults: {len(results)} of {sum(map(len, cells.values()))} cells in {took_s:.0f} s, "
        f"{broken} with a broken rule\n"
    )
    return 1 if broken or problems else 0


if __name__ == "__main__":
    run_to_end(main)
