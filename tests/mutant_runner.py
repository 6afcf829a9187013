"""pytest plugin of tests/mutants.py that runs the tests on one mutant after the other.

The tests are collected once. Each mutant runs in a fork with the tests that call its function. The
order is: the test that detected it before, the test files named like its module, stored runs, and
other tests, quick ones first. The run ends at the first failure or after `seconds` of tests. A
mutant that takes ten times as long as the original is detected too. Functions and duration of a
test are recorded once per test file. An outdated record can only cause a mutant to survive.
"""

import hashlib
import json
import os
import resource
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings
from mutmut.mutation import trampoline  # type: ignore[import-not-found]  # of .tools

settings.register_profile(
    "mutants",
    deadline=None,
    suppress_health_check=list(HealthCheck),
    max_examples=15,
    derandomize=True,
    database=None,
)
# CPU seconds that are added to ten times the duration of a test.
PATIENCE_S = 5.0
# Time limit for a test that waits for data that a mutant never sends. It uses no CPU.
HUNG_S = 120
MEMORY_BYTES = 3 << 30
# This test compares all figures of complete runs.
EXACT = "/test_stored_verdicts.py::"


def _fork(work: Any, *args: Any) -> tuple[str, int]:
    """Run a function in a fork and return its result and the exit status of the fork."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        os.write(writer, (work(*args) or "").encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    return text, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _fails(item: pytest.Item, following: pytest.Item | None) -> bool:
    return any(report.failed for report in runtestprotocol(item, log=False, nextitem=following))


def _record_calls(items: Sequence[pytest.Item], hashes: dict[Path, str], file: str) -> str:
    """Run the tests and write the file hash, duration and called functions of each test."""
    trampoline.set_mutant_under_test("stats")
    called: set[str] = set()
    trampoline.record_trampoline_hit = lambda name, caller=None: called.add(name)
    # Functions called by fixtures of a whole file.
    shared: dict[Path, set[str]] = {}
    with Path(file).open("a") as out:
        for item, following in zip(items, [*items[1:], None], strict=True):
            called.clear()
            start = time.process_time()
            if _fails(item, following):
                return f"{item.nodeid} fails without a mutant"
            seconds = time.process_time() - start
            if item.path not in shared:
                shared[item.path] = set(called)
            calls = sorted(called | shared[item.path])
            row = [item.nodeid, hashes[item.path], seconds, calls]
            out.write(json.dumps(row) + "\n")
            out.flush()
    return ""


def _order(mutant: str, killer: str | None, rows: dict[str, Any], seconds: float) -> list[str]:
    """Return the tests to run on a mutant, with the most promising first."""
    function = mutant.rpartition("__mutmut_")[0]
    # Also match test_lag_parts.py for lag.py.
    text = f"/test_{mutant.split('.')[-2]}"
    mapped = [test for test, (_, _, calls) in rows.items() if function in calls]
    mapped.sort(
        key=lambda test: (test != killer, text not in test, EXACT not in test, rows[test][1])
    )
    chosen, spent = [], 0.0
    for test in mapped:
        if spent + rows[test][1] <= seconds:
            chosen.append(test)
            spent += rows[test][1]
    return chosen


def _try(mutant: str, tests: Sequence[pytest.Item], rows: dict[str, Any]) -> str | None:
    """Return the test that detects the mutant."""
    trampoline.set_mutant_under_test(mutant)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for item, following in zip(tests, [*tests[1:], None], strict=False):
        signal.setitimer(signal.ITIMER_VIRTUAL, PATIENCE_S + 10 * rows[item.nodeid][1])
        signal.alarm(HUNG_S)
        if _fails(item, following):
            return item.nodeid
    return None


def _rows(file: Path) -> Iterator[Any]:
    return map(json.loads, file.read_text().splitlines()) if file.exists() else iter(())


def pytest_runtestloop(session: pytest.Session) -> bool:
    """Record calls if necessary, then run the tests on each mutant."""
    job = json.loads(Path("mutants.json").read_text())
    stored = Path(job["kept"])
    hashes = {
        path: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in {item.path for item in session.items}
    }
    items = {item.nodeid: item for item in session.items}

    def rows() -> dict[str, Any]:
        known = {row[0]: row[1:] for row in _rows(stored / "calls.jsonl")}
        return {
            test: row
            for test, row in known.items()
            if test in items and row[0] == hashes[items[test].path]
        }

    known = rows()
    if missing := [item for test, item in items.items() if test not in known]:
        text, status = _fork(_record_calls, missing, hashes, str(stored / "calls.jsonl"))
        if text or status:
            raise pytest.UsageError(text or f"the record of calls ended with {status}")
        known = rows()
    with (stored / "results.jsonl").open("a") as out:
        for mutant, killer in job["mutants"].items():
            tests = _order(mutant, killer, known, job["seconds"])
            start = time.monotonic()
            text, status = _fork(_try, mutant, [items[test] for test in tests], known)
            # A signal, so no test caused it.
            if status > 0:
                raise pytest.UsageError(f"{mutant}: the fork ended with {status}")
            row = {
                "mutant": mutant,
                "killed_by": text or (f"signal {-status}" if status else None),
                "tests": len(tests),
                "seconds": round(time.monotonic() - start, 1),
                **job["job"],
            }
            out.write(json.dumps(row) + "\n")
            out.flush()
    return True
