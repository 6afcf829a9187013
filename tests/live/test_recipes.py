"""Execute the recipes of CONTRIBUTING.md, using a copy of the tree.

The named tests should fail until a change is complete. A change should need at most two files of
code besides its tests. After it, it should still be possible to read data of earlier versions.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.compat.read import FIXTURES, VERSIONS

ROOT: Final = Path(__file__).parents[2]
COPIED: Final = (
    *("agent", "coordinator", "dashboards", "deploy", "docs", "exchange", "lab", "src", "tests"),
)
CORE: Final = "tests/unit/coordinator/core"
TELEMETRY: Final = "tests/unit/coordinator/device/telemetry"
ENGINES: Final = "tests/unit/exchange/engines"

# Edits by file: the existing text, and the text to insert before it. Use an empty text to create a
# file.
Edits = Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Recipe with its first step, the tests that fail after it, and the other steps.

    Attributes:
        title: Heading in CONTRIBUTING.md.
        fails: Tests by file and name.
        proof: Test files that pass when the recipe is complete.
    """

    title: str
    first_step: Edits
    fails: tuple[str, ...]
    remaining: Edits = field(default_factory=dict)
    proof: tuple[str, ...]

    @property
    def sources(self) -> set[str]:
        """Changed files except tests."""
        return {
            path for path in (*self.first_step, *self.remaining) if not path.startswith("tests/")
        }


RECIPES: Final = (
    Recipe(
        title="A threshold",
        first_step={
            "coordinator/core/thresholds.py": (
                "    retransmit_max_ratio: Annotated",
                "    rtt_p95_max_s: Annotated[float, Field(gt=0)] | None = None\n",
            )
        },
        fails=(f"{CORE}/test_thresholds.py::test_every_objective_field_is_a_threshold",),
        remaining={
            "coordinator/core/thresholds.py": (
                '    Threshold(\n        "retransmit_max_ratio"',
                """    Threshold("rtt_p95_max_s", "rtt-p95", "95th percentile of RTT",
        MetricSource.FLOW, "rtt_p95_s", "rtt", pairs_count="rtt_pairs_count"),
""",
            )
        },
        proof=(f"{CORE}/test_thresholds.py", "tests/unit/exchange/engines/test_port.py"),
    ),
    Recipe(
        title="A metric",
        first_step={
            "coordinator/core/metrics.py": (
                '    MetricDefinition(\n        "client_cpu_mean_ratio"',
                """    MetricDefinition("late_reports_count", "reports that came late", "", SUM),
""",
            )
        },
        fails=(),
        proof=(f"{CORE}/test_metrics.py",),
    ),
    Recipe(
        title="A telemetry source",
        first_step={
            "coordinator/device/telemetry/csv_total.py": (
                "",
                '''"""A firewall's running totals that somebody exported as CSV."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from broadside.coordinator.core.measure.records.columns import Floats
from broadside.coordinator.device.telemetry.config import parse_entry
from broadside.coordinator.device.telemetry.csv_export import CsvEntry, CsvSource


class CsvTotalSource(CsvSource):
    """Difference of each two totals. A total that decreased is unknown."""

    def _column(self, column: str) -> tuple[Floats, Floats]:
        at_s, totals = super()._column(column)
        increases = np.diff(totals)
        return at_s[:-1], np.where(increases < 0, np.nan, increases)


def open_source(entry: Mapping[str, Any]) -> CsvTotalSource:
    return CsvTotalSource(parse_entry(CsvEntry, entry))
''',
            ),
            "coordinator/device/telemetry/__init__.py": (
                '    "lab": "lab",',
                '    "csv-total": "csv_total",\n',
            ),
        },
        fails=(
            f"{TELEMETRY}/test_config.py::test_all_sources_have_a_case",
            f"{TELEMETRY}/test_config.py::test_all_types_are_documented",
        ),
        remaining={
            f"{TELEMETRY}/test_config.py": (
                '    "lab": \'file',
                """    "csv-total": 'file = "x.csv"\\n'
    'read = [{quantity = "cpu_ratio", column = "c"}]',
""",
            ),
            "docs/telemetry.md": ("| `lab` |", "| `csv-total` | running totals | file | | |\n"),
            f"{TELEMETRY}/test_csv_total.py": (
                "",
                """from datetime import UTC, datetime
from pathlib import Path

from broadside.coordinator.device.telemetry.config import open_entry
from broadside.coordinator.device.telemetry.device_counter import DeviceCounter
from broadside.exchange.messages import Direction

T = 1_800_000_000


async def test_totals_become_bins(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    totals = {0: 100, 60: 400, 120: 300, 180: 350, 240: 1350}
    rows = [f"{T + at_s},{total}\\n" for at_s, total in totals.items()]
    path.write_text("time,bytes\\n" + "".join(rows))
    entry = {"type": "csv-total", "device": "fw", "file": path, "byte_counter": {}}
    at = [datetime.fromtimestamp(s, UTC) for s in (T, T + 240)]
    read = await DeviceCounter([open_entry(entry)]).read(*at, Direction.FORWARD)
    assert [None if b != b else int(b) for b in read.bytes] == [300, None, 50, 1000]
""",
            ),
        },
        proof=(f"{TELEMETRY}/test_config.py", f"{TELEMETRY}/test_csv_total.py"),
    ),
    Recipe(
        title="A traffic engine",
        first_step={
            "exchange/engines/web.py": (
                "",
                '''"""HTTP downloads under another name."""

from typing import ClassVar, Final

from broadside.exchange.engines.http import Http


class Web(Http):
    """Downloads over HTTP/1.1."""

    name: ClassVar[str] = "web"


ENGINE: Final = Web()
''',
            )
        },
        fails=(f"{ENGINES}/test_port.py::test_engine_has_a_module_a_test_and_documentation[web]",),
        remaining={
            f"{ENGINES}/test_web.py": (
                "",
                """from broadside.exchange.engines import find


def test_it_is_detected() -> None:
    assert find("web") is not None
""",
            ),
            "docs/engines.md": ("| `http` |", "| `web` | as `http` |\n"),
        },
        proof=(f"{ENGINES}/test_port.py", f"{ENGINES}/test_web.py"),
    ),
    Recipe(
        title="A field of scenarios",
        first_step={
            "coordinator/core/run_spec.py": (
                "    budget_usd: Annotated",
                "    cool_down_s: Annotated[int, Field(ge=0, le=600)] = 0  # s between bursts\n",
            )
        },
        fails=(f"{CORE}/test_plain_fields.py::test_code_reads_every_field_of_a_scenario",),
        remaining={
            "coordinator/core/plan/planner.py": (
                "def plan(",
                "def cool_down(spec: RunSpec) -> int:\n    return spec.cool_down_s\n\n\n",
            )
        },
        proof=(f"{CORE}/test_plain_fields.py", f"{CORE}/comparison/test_conditions.py"),
    ),
    Recipe(
        title="A traffic option",
        first_step={
            "exchange/messages.py": (
                "    options: Annotated[",
                "    zero_copy: bool = False  # sendfile\n",
            )
        },
        fails=(f"{CORE}/test_plain_fields.py::test_code_reads_every_field_of_a_scenario",),
        remaining={
            "exchange/engines/iperf3.py": (
                '        ("--omit", traffic.omit_s or None),\n',
                '        *((("--zerocopy", ""),) if traffic.zero_copy else ()),\n',
            )
        },
        proof=(f"{CORE}/test_plain_fields.py", f"{ENGINES}/test_port.py"),
    ),
)


def apply(tree: Path, edits: Edits) -> None:
    for path, (before, text) in edits.items():
        file = tree / path
        if not before:
            file.write_text(text)
            continue
        was_up = file.read_text()
        assert before in was_up, f"{path} has no {before!r}: correct the recipe"
        file.write_text(was_up.replace(before, text + before, 1))


def failing(tree: Path) -> set[str]:
    """Return the failing tests of all recipes in the tree, without their parameters."""
    files = sorted({path for recipe in RECIPES for path in recipe.proof if (tree / path).exists()})
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", *files],
        cwd=tree,
        env=environment(tree),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert " passed" in done.stdout, done.stdout + done.stderr
    return set(re.findall(r"(?m)^(?:FAILED|ERROR) (\S+)", done.stdout))


def environment(tree: Path) -> dict[str, str]:
    """Return an environment to import ``broadside`` from the tree instead of the checkout."""
    return os.environ | {"PYTHONPATH": f"{tree / 'src'}:{tree}"}


def copy_to(tree: Path) -> Path:
    """Copy the parts of this checkout that the recipes use, and the data of earlier versions."""
    for name in COPIED:
        unwanted = shutil.ignore_patterns("__pycache__", "data" if name == "tests" else "")
        shutil.copytree(ROOT / name, tree / name, ignore=unwanted, symlinks=name == "src")
    shutil.copytree(FIXTURES, tree / FIXTURES.relative_to(ROOT))
    # Pages may also link to files without suffix.
    for path in ROOT.glob("[!.]*"):
        if path.is_file():
            shutil.copy(path, tree)
    return tree


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> tuple[set[str], set[str]]:
    """Return the failing tests after the first step of every recipe, and after all steps."""
    tree = copy_to(tmp_path_factory.mktemp("tree"))
    for recipe in RECIPES:
        apply(tree, recipe.first_step)
    first_step = failing(tree)
    for recipe in RECIPES:
        apply(tree, recipe.remaining)
    return first_step, failing(tree)


def read_in(tree: Path) -> dict[str, Any]:
    """Return verdicts, seals, jobs and rows of all versions, using the code of the tree."""
    by_name = {}
    for version in VERSIONS:
        done = subprocess.run(
            [sys.executable, "-m", "tests.compat.read", version],
            cwd=tree,
            env=environment(tree),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        by_name[version] = json.loads(done.stdout)
    return by_name


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return a tree for the recipes in sequence, and the data that it can read before them."""
    tree = copy_to(tmp_path_factory.mktemp("compatible"))
    return tree, read_in(tree)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.title)
def test_recipe_keeps_data_of_earlier_versions_readable(
    recipe: Recipe, untouched: tuple[Path, dict[str, Any]]
) -> None:
    tree, before = untouched
    apply(tree, recipe.first_step)
    apply(tree, recipe.remaining)
    after = read_in(tree)
    for version, result in before.items():
        assert result["runs"], version
        seals = [run["seal"] for run in result["runs"].values()]
        assert seals.count("verified") == len(seals) - seals.count("none") >= 10
        assert set(result["jobs"].values()) == {True}, "serialized jobs changed"
        assert after[version] == result


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.title)
def test_incomplete_recipe_fails_named_tests(
    recipe: Recipe, followed: tuple[set[str], set[str]]
) -> None:
    first_step, complete = followed
    for test in recipe.fails:
        assert any(name.startswith(test) for name in first_step), (test, first_step)
    assert not {name for name in complete if name.startswith(recipe.proof)}, complete
    code = {path for path in recipe.sources if not path.startswith("docs/")}
    assert len(code) <= 2, recipe.sources
    page = (ROOT / "CONTRIBUTING.md").read_text()
    reported = page[page.index(f"**{recipe.title}**") :].partition("\n\n")[0]
    for path in recipe.sources:
        named = Path(path.removeprefix("coordinator/"))
        assert named.name in reported or named.parent.as_posix() in reported, f"{path} is not in it"
    for path in {test.partition("::")[0] for test in recipe.fails}:
        assert path in reported, f"CONTRIBUTING.md does not say that {path} fails"
