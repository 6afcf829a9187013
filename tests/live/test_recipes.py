"""Execute the recipes of docs/architecture.md in a copy of the tree.

The named tests fail until a change is complete. No change needs more than two files beside its
tests. After each change the data of earlier versions reads as before.
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
SOURCES: Final = "tests/unit/coordinator/device/ledgers"
WITNESSES: Final = "tests/unit/coordinator/device/witnesses"
ENGINES: Final = "tests/unit/exchange/engines"

# Edits by file: the existing text and the text to insert before it. An empty text creates the file.
Edits = Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Recipe with its first step, the tests that fail after it, and the other steps.

    Attributes:
        title: Heading in docs/architecture.md.
        fails: Tests by file and name.
        proof: Test files that pass when the recipe is complete.
    """

    title: str
    begun: Edits
    fails: tuple[str, ...]
    whole: Edits = field(default_factory=dict)
    proof: tuple[str, ...]

    @property
    def sources(self) -> set[str]:
        """Changed files except tests. The settings table in README is generated."""
        return {path for path in (*self.begun, *self.whole) if not path.startswith("tests/")}


RECIPES: Final = (
    Recipe(
        title="A goal",
        begun={
            "coordinator/core/plan/spec.py": (
                "    retransmit_max_ratio: Annotated",
                "    rtt_p95_max_s: Annotated[float, Field(gt=0)] | None = None\n",
            )
        },
        fails=(f"{CORE}/test_goals.py::test_every_field_of_an_objective",),
        whole={
            "coordinator/core/goals.py": (
                '    Goal(\n        bound="retransmit_max_ratio"',
                """    Goal(bound="rtt_p95_max_s", id="rtt-p95", words="95th percentile of RTT",
        needs="rtt", teller=Teller.FLOW, figure="rtt_p95_s", pairs_count="rtt_pairs_count"),
""",
            )
        },
        proof=(f"{CORE}/test_goals.py", "tests/unit/exchange/engines/test_port.py"),
    ),
    Recipe(
        title="A figure",
        begun={
            "coordinator/core/figures.py": (
                '    Figure(\n        "client_cpu_mean_ratio"',
                """    Figure("late_reports_count", "reports that came late", "late_reports_count",
        fold=Fold.TOTAL),
""",
            )
        },
        fails=(f"{CORE}/test_figures.py::test_the_metrics_are_documented",),
        whole={"docs/metrics.md": ("| `", "| `broadside_run_late_reports` | reports | late |\n")},
        proof=(f"{CORE}/test_figures.py",),
    ),
    Recipe(
        title="A metric source",
        begun={
            "coordinator/device/ledgers/csv_counter_source.py": (
                "",
                '''"""A firewall's running totals that somebody exported as CSV."""

import numpy as np

from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.coordinator.core.measure.columns import Floats
from broadside.coordinator.device.ledgers.csv_source import CsvForm, CsvLedger
from broadside.coordinator.device.ledgers.source import needed


class CounterLedger(CsvLedger):
    """Each reading less the one before; one that went back is unknown."""

    def _rows(self, text: str) -> tuple[Floats, Floats]:
        at_s, totals = super()._rows(text)
        moved = np.diff(totals)
        return at_s[:-1], np.where(moved < 0, np.nan, moved)


def open_source(settings: CoordinatorSettings) -> CounterLedger:
    path = needed(settings, "ledger_path", settings.ledger_path)
    return CounterLedger(path, CsvForm(value_column=settings.csv_value_column))
''',
            )
        },
        fails=(
            f"{SOURCES}/test_source.py::test_every_source_has_its_case_here",
            "tests/unit/test_documented.py::test_a_generated_page_is_up_to_date",
        ),
        whole={
            f"{SOURCES}/test_source.py": (
                '    "prometheus": (',
                '    "csv-counter": (CsvLedger, {"ledger_path": Path("x")}),\n',
            ),
            f"{SOURCES}/test_csv_counter_source.py": (
                "",
                """from datetime import UTC, datetime
from pathlib import Path

from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.coordinator.device.ledgers.source import open_ledger
from broadside.exchange.messages import Direction


async def test_totals_become_bins(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("time,bytes\\n0,100\\n60,400\\n120,300\\n180,350\\n240,1350\\n")
    source = open_ledger(CoordinatorSettings(ledger="csv-counter", ledger_path=tmp_path / "c.csv"))
    at = [datetime.fromtimestamp(s, UTC) for s in (0, 240)]
    read = await source.read(*at, Direction.FORWARD)
    assert [None if b != b else int(b) for b in read.bytes] == [300, None, 50, 1000]
""",
            ),
        },
        proof=(
            f"{SOURCES}/test_source.py",
            f"{SOURCES}/test_csv_counter_source.py",
            "tests/unit/test_documented.py",
        ),
    ),
    Recipe(
        title="A witness",
        begun={
            "coordinator/device/witnesses/local_csv_witness.py": (
                "",
                '''"""A device's figures in a CSV file whose times are local."""

from collections.abc import Mapping
from typing import Any

from broadside.coordinator.device.witnesses import csv_witness
from broadside.coordinator.device.witnesses.witness_file import ArchiveWitness


def open_source(entry: Mapping[str, Any]) -> ArchiveWitness:
    """As ``csv``, in the zone of the site."""
    return csv_witness.open_source({"zone": "Europe/Amsterdam", **entry})
''',
            )
        },
        fails=(f"{WITNESSES}/test_witness_file.py::test_every_source_has_its_case_here",),
        whole={
            f"{WITNESSES}/test_witness_file.py": (
                '    "prometheus": \'url',
                """    "local-csv": 'csv_file = "x"\\n'
    'read = [{quantity = "cpu_ratio", column = "c"}]',
""",
            ),
        },
        proof=(f"{WITNESSES}/test_witness_file.py",),
    ),
    Recipe(
        title="A traffic engine",
        begun={
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
        fails=(
            f"{ENGINES}/test_port.py::test_an_engine_is_a_file_a_test_and_a_line_in_the_docs[web]",
        ),
        whole={
            f"{ENGINES}/test_web.py": (
                "",
                """from broadside.exchange.engines import find


def test_it_is_found() -> None:
    assert find("web") is not None
""",
            ),
            "docs/engines.md": ("| `http` |", "| `web` | as `http` |\n"),
        },
        proof=(f"{ENGINES}/test_port.py", f"{ENGINES}/test_web.py"),
    ),
    Recipe(
        title="A field of scenarios",
        begun={
            "coordinator/core/plan/spec.py": (
                "    budget_usd: Annotated",
                "    cool_down_s: Annotated[int, Field(ge=0, le=600)] = 0  # s between bursts\n",
            )
        },
        fails=(f"{CORE}/plan/test_plain_fields.py::test_every_field_of_a_scenario_is_read",),
        whole={
            "coordinator/core/plan/planner.py": (
                "def plan(",
                "def cool_down(spec: RunSpec) -> int:\n    return spec.cool_down_s\n\n\n",
            )
        },
        proof=(f"{CORE}/plan/test_plain_fields.py", f"{CORE}/judge/test_conditions.py"),
    ),
    Recipe(
        title="A traffic option",
        begun={
            "exchange/messages.py": (
                "    options: Annotated[Mapping",
                "    zero_copy: bool = False  # sendfile\n",
            )
        },
        fails=(f"{CORE}/plan/test_plain_fields.py::test_every_field_of_a_scenario_is_read",),
        whole={
            "exchange/engines/iperf3.py": (
                '        ("--omit", traffic.omit_s or None),\n',
                '        *((("--zerocopy", ""),) if traffic.zero_copy else ()),\n',
            )
        },
        proof=(f"{CORE}/plan/test_plain_fields.py", f"{ENGINES}/test_port.py"),
    ),
)


def apply(tree: Path, edits: Edits) -> None:
    for path, (before, text) in edits.items():
        file = tree / path
        if not before:
            file.write_text(text)
            continue
        stood = file.read_text()
        assert before in stood, f"{path} has no {before!r}: mend the recipe"
        file.write_text(stood.replace(before, text + before, 1))


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
    """Copy the parts of this checkout that the recipes use, with the data of earlier versions."""
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
        apply(tree, recipe.begun)
    begun = failing(tree)
    for recipe in RECIPES:
        apply(tree, recipe.whole)
    subprocess.run([sys.executable, "docs/tables.py"], cwd=tree, check=True, env=environment(tree))
    return begun, failing(tree)


def read_in(tree: Path) -> dict[str, Any]:
    """Return verdicts, seals, jobs and rows of all versions as the code of the tree reads them."""
    found = {}
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
        found[version] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return a tree for the recipes in sequence, with the data that it reads before them."""
    tree = copy_to(tmp_path_factory.mktemp("compatible"))
    return tree, read_in(tree)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.title)
def test_after_a_recipe_all_that_earlier_versions_wrote_reads_as_it_did(
    recipe: Recipe, untouched: tuple[Path, dict[str, Any]]
) -> None:
    tree, before = untouched
    apply(tree, recipe.begun)
    apply(tree, recipe.whole)
    after = read_in(tree)
    for version, found in before.items():
        assert found["runs"], version
        seals = [run["seal"] for run in found["runs"].values()]
        assert seals.count("verified") == len(seals) - seals.count("none") >= 10
        assert set(found["jobs"].values()) == {True}, "jobs are written byte by byte as they were"
        assert after[version] == found


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.title)
def test_a_recipe_fails_by_name_until_it_is_whole_and_takes_two_files_at_most(
    recipe: Recipe, followed: tuple[set[str], set[str]]
) -> None:
    begun, whole = followed
    for test in recipe.fails:
        assert any(name.startswith(test) for name in begun), (test, begun)
    assert not {name for name in whole if name.startswith(recipe.proof)}, whole
    assert len(recipe.sources) <= 2, recipe.sources
    page = (ROOT / "docs" / "architecture.md").read_text()
    told = page[page.index(f"**{recipe.title}**") :].partition("\n\n")[0]
    for path in recipe.sources:
        named = Path(path.removeprefix("coordinator/"))
        assert named.name in told or named.parent.as_posix() in told, f"{path} is not in it"
    for path in {test.partition("::")[0] for test in recipe.fails}:
        assert path in told, f"docs/architecture.md does not say that {path} fails"
