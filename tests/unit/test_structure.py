"""Test the import directions in docs/architecture.md and the size of agent processes."""

import ast
import builtins
import csv
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from broadside.coordinator.cli.command_list import COMMANDS
from tests import conftest
from tests.bench.bench_structure import (
    IMPORT_NAME,
    imported_names,
    imports,
    longest,
    modules,
)
from tests.docs_build.import_table import read_import_table, used_imports

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("agent", "coordinator", "exchange", "lab")
PRODUCT_FOLDERS: Final = (*PACKAGES, "dashboards", "deploy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Allowed imports for the modules under ``path_pattern``, in addition to the standard library.

    A name includes all names below it.
    """

    path_pattern: str
    # If None, all names except those in ``never`` can be used.
    only: tuple[str, ...] | None = None
    never: tuple[str, ...] = ()


PYDANTIC: Final = ("pydantic", "pydantic_core", "pydantic_settings")

CORE: Final = (
    "broadside.coordinator.core",
    "broadside.exchange.engines",
    "broadside.exchange.messages",
    "numpy",
)

# The first rule that matches the module path is used.
RULES: Final = (
    Rule(
        path_pattern="exchange/azure/*", only=("broadside.exchange", *PYDANTIC, "azure", "aiohttp")
    ),
    Rule(path_pattern="exchange/http/*", only=("broadside.exchange", *PYDANTIC, "httpx")),
    Rule(path_pattern="exchange/*", only=("broadside.exchange", *PYDANTIC)),
    Rule(path_pattern="agent/*", only=("broadside.agent", "broadside.exchange", *PYDANTIC)),
    # The run specification is used to parse scenario files and API requests.
    Rule(path_pattern="coordinator/core/run_spec.py", only=(*CORE, "pydantic")),
    Rule(path_pattern="coordinator/core/guards.py", only=(*CORE, "pydantic")),
    Rule(path_pattern="coordinator/core/thresholds.py", only=(*CORE, "pydantic")),
    # The price table is used to parse a file from the user.
    Rule(path_pattern="coordinator/core/plan/price.py", only=(*CORE, "pydantic")),
    Rule(path_pattern="coordinator/core/plan/schedule.py", only=(*CORE, "cronsim")),
    Rule(path_pattern="coordinator/core/*", only=CORE),
    Rule(path_pattern="coordinator/cli/demo.py", never=("broadside.agent", "azure")),
    Rule(path_pattern="coordinator/cli/lab_commands.py", never=("broadside.agent", "azure")),
    Rule(
        path_pattern="coordinator/device/resource_manager.py",
        never=("broadside.agent", "broadside.lab"),
    ),
    Rule(path_pattern="coordinator/*", never=("broadside.agent", "broadside.lab", "azure")),
    Rule(path_pattern="lab/*"),
)


def within(name: str, roots: tuple[str, ...]) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in roots)


def forbidden_imports(source: str, path: str) -> list[str]:
    """Return the imports in a module that are not allowed by its rule."""
    rule = next(rule for rule in RULES if fnmatch(path, rule.path_pattern))
    return [
        f"{path} imports {name}"
        for name in imported_names(source, path)
        if name.partition(".")[0] not in sys.stdlib_module_names
        and (within(name, rule.never) or (rule.only is not None and not within(name, rule.only)))
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_import_directions(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    results = [
        forbidden_imports(file.read_text("utf-8"), str(file.relative_to(ROOT))) for file in files
    ]
    assert [line for lines in results for line in lines] == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("agent/worker.py", "import broadside.coordinator.runs.coordinator"),
        ("agent/worker.py", "def f():\n    from numpy import array"),
        ("agent/worker.py", "from broadside.lab import network"),
        ("exchange/chunks.py", "import numpy as np"),
        ("exchange/records/run_records.py", "from azure.data.tables import TableClient"),
        ("exchange/records/run_records.py", "from ...agent import worker"),
        ("coordinator/runs/coordinator.py", "from broadside.agent.clock import read"),
        ("coordinator/runs/coordinator.py", "import broadside.lab"),
        ("coordinator/runs/coordinator.py", "import azure.identity"),
        ("coordinator/core/plan/planner.py", "from broadside.exchange import ports"),
        ("coordinator/core/plan/planner.py", "from broadside.coordinator import runs"),
        ("coordinator/core/plan/planner.py", "from ... import runs"),
        ("coordinator/core/plan/planner.py", "import pydantic"),
        ("coordinator/cli/demo.py", "from broadside.agent import worker"),
    ],
)
def test_forbidden_import_is_detected(path: str, source: str) -> None:
    assert len(forbidden_imports(source, path)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (
            "coordinator/core/plan/planner.py",
            "from broadside.exchange import messages\nfrom . import runs\nimport numpy",
        ),
        ("coordinator/cli/demo.py", "from broadside.lab.network import build"),
        ("exchange/azure/azure_fabric.py", "from azure.servicebus.aio import ServiceBusClient"),
        (
            "lab/fleet.py",
            "import broadside.agent.worker, broadside.coordinator.runs.coordinator, httpx",
        ),
    ],
)
def test_allowed_import_is_accepted(path: str, source: str) -> None:
    assert forbidden_imports(source, path) == []


def test_imports_between_folders_match_the_architecture_page() -> None:
    table = read_import_table()
    assert len(table) > 10
    wrong = {
        folder: (sorted(others - set(table[folder])), sorted(set(table[folder]) - others))
        for folder, others in used_imports(table).items()
        if others != set(table[folder])
    }
    assert wrong == {}, "(add, remove) for each folder: python -m tests.docs_build"


def folder_graph(imported: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """Return the imported folders by folder, each with only the modules directly in it.

    Args:
        imported: Paths of the imported modules, by path of the importing module.
    """
    graph: dict[str, set[str]] = {}
    for path, others in imported.items():
        folder = str(Path(path).parent)
        graph.setdefault(folder, set()).update({str(Path(other).parent) for other in others})
        graph[folder].discard(folder)
    return graph


def test_folders_have_no_import_cycle() -> None:
    """Check this for folders at every level, also for imports inside functions and for types."""
    known = {
        name: path
        for name, path in modules(ROOT).items()
        # It is started and never imported, so it belongs to no folder.
        if path.name != "__main__.py"
    }
    imported = {
        str(path): [str(known[other]) for other in imports(name, path, known, deferred=True)]
        for name, path in known.items()
    }
    graph = folder_graph(imported)
    assert len(graph) > 30
    # These can raise CycleError.
    TopologicalSorter(graph).prepare()
    TopologicalSorter(read_import_table()).prepare()


def test_import_cycle_of_a_nested_folder_is_detected() -> None:
    graph = folder_graph({"a/x.py": ["a/y.py", "a/b/z.py"], "a/b/z.py": ["a/y.py"]})
    assert graph == {"a": {"a/b"}, "a/b": {"a"}}
    with pytest.raises(CycleError):
        TopologicalSorter(graph).prepare()


def test_modules_have_no_import_cycle() -> None:
    """Check this also for imports inside functions and for types."""
    known = modules(ROOT)
    graph = {name: imports(name, path, known, deferred=True) for name, path in known.items()}
    # It was 33 before types were moved to the lowest modules.
    assert len(longest(graph)) < 20, longest(graph)
    graph = {name: imports(name, path, known, deferred=False) for name, path in known.items()}
    assert len(longest(graph)) <= 15, longest(graph)


def product_sources() -> list[str]:
    return [
        path.read_text("utf-8") for name in PRODUCT_FOLDERS for path in (ROOT / name).rglob("*.py")
    ]


def test_few_functions_have_more_than_five_arguments() -> None:
    """Ruff rejects others. These have a noqa: mostly commands and routes with many options."""
    assert sum(text.count("noqa: PLR0913") for text in product_sources()) <= 25


Function = ast.FunctionDef | ast.AsyncFunctionDef
BRANCHES: Final = (
    *(ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case),
    *(ast.FunctionDef, ast.AsyncFunctionDef),
)


def branches_count(node: ast.AST) -> int:
    """Return the number of branches in a statement. A function has one more path than branches.

    The count is that of ruff's rule C901, which counts no expressions.
    """
    count = 0
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.expr():
                continue
            case ast.Try(orelse=[_, *_]):
                count += 1
            case ast.Match(
                cases=[*_, ast.match_case(pattern=ast.MatchAs(pattern=None), guard=None)]
            ):
                count -= 1
        count += isinstance(child, BRANCHES) + branches_count(child)
    return count


def length_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function without its docstring."""
    whole = (function.end_lineno or 0) - function.lineno + 1
    if ast.get_docstring(function) is None:
        return whole
    docstring = function.body[0]
    return whole - ((docstring.end_lineno or 0) - docstring.lineno + 1)


def test_functions_are_short_with_few_branches() -> None:
    trees = map(ast.parse, product_sources())
    functions = [n for tree in trees for n in ast.walk(tree) if isinstance(n, Function)]
    assert len(functions) > 4000
    complex_ones = [node.name for node in functions if branches_count(node) >= 10]
    assert len(complex_ones) <= 8, complex_ones
    lengths = sorted(map(length_of, functions))
    assert lengths[len(lengths) * 99 // 100] <= 50


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("if x: pass\nelif y and z: pass\nelse: [a for a in b if a]", 2),
        ("while x:\n    for y in z: pass", 2),
        ("try: pass\nexcept A: pass\nexcept B: pass\nelse: pass\nfinally: pass", 3),
        ("match x:\n    case 1: pass\n    case y: pass", 1),
        ("match x:\n    case 1: pass\n    case y if y: pass", 2),
        ("def f():\n    with x: return 1 if y else 2", 1),
    ],
)
def test_branches_are_counted(source: str, count: int) -> None:
    assert branches_count(ast.parse(source)) == count


def comments_behind_code(source: str) -> list[str]:
    """Return the comments that follow code in their line, without those for tools."""
    return [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
        and token.line[: token.start[1]].strip()
        and not re.match(r"# (noqa|type|fmt|pragma)", token.string)
    ]


def vague_docstrings(source: str) -> tuple[int, int]:
    """Return how many docstrings begin with a question word, and how many there are."""
    kinds = Function | ast.ClassDef | ast.Module
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    texts = [text for node in nodes if (text := ast.get_docstring(node))]
    return sum(bool(re.match(r"(What|Who|Where|Whether)\b", text)) for text in texts), len(texts)


def test_comments_are_above_code_and_docstrings_begin_with_a_verb_or_noun() -> None:
    sources = product_sources()
    comments_count = sum(len(comments_behind_code(source)) for source in sources)
    lines_count = sum(source.count("\n") for source in sources)
    assert comments_count < lines_count / 100
    counts = list(map(vague_docstrings, sources))
    assert sum(vague for vague, _ in counts) < sum(all_ for _, all_ in counts) / 50


def test_comment_behind_code_and_vague_docstring_are_detected() -> None:
    source = '"""Whether it is."""\nx = "#"  # seconds\n# A line.\ny = 1  # noqa: E501\n'
    assert comments_behind_code(source) == ["# seconds"]
    assert vague_docstrings(source) == (1, 1)


def test_import_chain_and_cycle_are_detected() -> None:
    assert longest({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == ["a", "b", "c"]
    with pytest.raises(CycleError):
        longest({"a": {"b"}, "b": {"c"}, "c": {"b"}})


def test_agents_only_read_control_and_no_private_data() -> None:
    """Check this, because agents do not have more permissions. See exchange/records."""
    texts = {path: path.read_text() for path in sorted((ROOT / "agent").glob("**/*.py"))}
    used = {verb for text in texts.values() for verb in re.findall(r"\.runs\.(\w+)", text)}
    assert used
    assert all(verb.startswith("read_") for verb in used), used
    for path, text in texts.items():
        assert not re.search(r"\.private\b|fabric\.(records|control)\b", text), path


CORE_FOLDERS: Final = sorted(
    path.parent for path in (ROOT / "coordinator/core").rglob("__init__.py")
)


def core_imports(path: Path) -> Iterator[tuple[Path, str, str]]:
    """Yield (folder, module, name) for the names that a file imports from a folder in the core.

    For a module that is imported as a whole, these are the names that the file uses.
    """
    tree = ast.parse(path.read_text("utf-8"))
    whole: dict[str, tuple[Path, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and within(node.module or "", (CORE[0],)):
            place = ROOT.joinpath(*(node.module or "").split(".")[1:])
            for alias in node.names:
                if not place.is_dir():
                    yield place.parent, place.name, alias.name
                elif (place / f"{alias.name}.py").exists():
                    whole[alias.asname or alias.name] = (place, alias.name)
                else:
                    yield place, "__init__", alias.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in whole:
            yield *whole[ast.unparse(node.value)], node.attr


def exports_of(folder: Path) -> dict[str, set[str]]:
    """Return ``EXPORTS`` of a folder: the names that other folders can import, by module."""
    for node in ast.parse((folder / "__init__.py").read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EXPORTS":
            values = ast.literal_eval(node.value).items()
            return {module: set(names.split()) for module, names in values}
    return {}


def test_core_folders_are_small_and_list_what_other_folders_import() -> None:
    used: dict[Path, dict[str, set[str]]] = {folder: {} for folder in CORE_FOLDERS}
    for path in modules(ROOT).values():
        for folder, module, name in core_imports(path):
            if folder != path.parent:
                used[folder].setdefault(module, set()).add(name)
    for folder, names in used.items():
        assert len(list(folder.glob("*.py"))) <= 15, folder
        assert exports_of(folder) == names, folder


@pytest.mark.parametrize(
    ("source", "imported"),
    [
        (f"from {CORE[0]}.plan.price import Price", ("plan", "price", "Price")),
        (
            f"from {CORE[0]}.judge.bottleneck import CAUSES",
            ("judge/bottleneck", "__init__", "CAUSES"),
        ),
        (f"from {CORE[0]} import formatting as f\nf.rate(1)", ("", "formatting", "rate")),
    ],
)
def test_import_from_the_core_is_detected(
    source: str, imported: tuple[str, str, str], tmp_path: Path
) -> None:
    path = tmp_path / "x.py"
    path.write_text(source)
    folder, module, name = imported
    assert list(core_imports(path)) == [(ROOT / "coordinator/core" / folder, module, name)]


def test_file_names_are_unique() -> None:
    folders = (*PACKAGES, "dashboards", "deploy", "docs", "tests")
    names = Counter(path.name for space in folders for path in (ROOT / space).rglob("*.py"))
    twice = {name for name, count in names.items() if count > 1}
    # Files named by Python and pytest.
    assert twice <= {"__init__.py", "__main__.py", "conftest.py"}


def public_types(source: str) -> list[str]:
    """Return the public classes and type aliases at the top level of a module."""
    names = [
        name
        for node in ast.parse(source).body
        for name in (
            [node.name]
            if isinstance(node, ast.ClassDef)
            else [target.id for target in node.targets if isinstance(target, ast.Name)]
            if isinstance(node, ast.Assign)
            else []
        )
    ]
    return [name for name in names if re.fullmatch(r"[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*", name)]


def test_public_type_has_one_meaning() -> None:
    names = Counter(
        name
        for folder in PRODUCT_FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        for name in public_types(path.read_text("utf-8"))
    )
    assert names.total() > 1000
    assert [name for name, count in names.items() if count > 1] == []


def test_public_types_are_detected() -> None:
    source = "class A1b: ...\nSide = Literal['a']\nclass _C: ...\nMAX = 1\nname: str = ''"
    assert public_types(source) == ["A1b", "Side"]


RAISED: Final = re.compile(r"^ +([A-Za-z_][\w.]*): ", re.MULTILINE)


def documented_errors(source: str) -> set[str]:
    """Return the classes in the ``Raises:`` sections of a module."""
    return {
        error.rpartition(".")[2]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        and "Raises:\n" in (text := ast.get_docstring(node) or "")
        for error in RAISED.findall(text.partition("Raises:\n")[2].partition("\n\n")[0])
    }


def test_documented_errors_exist() -> None:
    sources = [
        path.read_text("utf-8")
        for folder in PRODUCT_FOLDERS
        for path in (ROOT / folder).rglob("*.py")
    ]
    bound = {
        name
        for source in sources
        for node in ast.walk(ast.parse(source))
        for name in (
            [node.name]
            if isinstance(node, ast.ClassDef)
            else [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom)
            else [node.attr]
            if isinstance(node, ast.Attribute)
            else []
        )
    }
    assert {"OSError"} < (errors := {e for source in sources for e in documented_errors(source)})
    assert errors - bound - set(dir(builtins)) == set()


@pytest.mark.parametrize("order", ["FIRST", "BOTH_CORES", "ALONE"])
def test_files_in_the_order_of_the_tests_exist(order: str) -> None:
    stems = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    assert [name for name in getattr(conftest, order) if f"test_{name}" not in stems] == []


def real_clocks(source: str) -> list[str]:
    """Return the uses of a clock that tests cannot replace, because it is a method of a C type."""
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and node.attr in ("now", "utcnow", "today")
        and ast.unparse(node.value).rpartition(".")[2] in ("datetime", "date")
    ]


def test_modules_and_unit_tests_use_the_function_for_the_current_time() -> None:
    """See ``exchange.outage_log.utc_now``."""
    folders = (*PACKAGES, "dashboards", "tests/unit")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    found = {str(path): uses for path in paths if (uses := real_clocks(path.read_text("utf-8")))}
    assert found == {}


@pytest.mark.parametrize("source", ["datetime.now(UTC)", "dt.datetime.utcnow", "date.today()"])
def test_real_clock_is_detected(source: str) -> None:
    assert len(real_clocks(source)) == 1
    assert real_clocks("self.now(), clock.today") == []


# Modules that parse JSON without ``exchange.strict_json``, by reason.
OTHER_JSON: Final[Mapping[str, tuple[str, ...]]] = {
    "own output or a file of the package": (
        "coordinator/api/examples.py",
        "coordinator/api/tabular_responses.py",
        "coordinator/cli/document_output.py",
        "coordinator/prices/__init__.py",
        "coordinator/scenarios/__init__.py",
        "exchange/messages.py",
    ),
    "stored by the coordinator itself": (
        "coordinator/cli/range_files.py",
        "coordinator/core/measure/grid/series.py",
        "coordinator/core/plan_seal.py",
        "coordinator/device/capacity.py",
        "coordinator/device/telemetry/telemetry_storage.py",
        "coordinator/notices/announcer.py",
        "coordinator/runs/evidence_loader.py",
        "coordinator/core/judge/reconciliation/overlapping_bursts.py",
        "coordinator/runs/stored_runs.py",
        "coordinator/views/responses.py",
        "exchange/embedded/embedded_table.py",
    ),
    "output of a program on the same host, such as az, ip and terraform": (
        "agent/tunnel.py",
        "coordinator/azure_range/machines.py",
        "coordinator/azure_range/terraform_state.py",
        "coordinator/cli/range_commands.py",
        "coordinator/cli/support_commands.py",
        "coordinator/cli/terraform.py",
        "deploy/image.py",
    ),
    "iperf3 repeats names with --bidir, and its output can be incomplete": (
        "exchange/engines/iperf3_text.py",
    ),
    "a line of a serial console can have text after the object": (
        "coordinator/cli/range_checks.py",
    ),
    "the secrets of an ambiguous file are redacted too": ("coordinator/cli/support_redaction.py",),
    "it runs on a new host before Broadside is installed": (
        "deploy/azure/modules/boot/files/fetch.py",
    ),
    "the lab is one host": (
        "lab/fleet.py",
        "lab/byte_counter.py",
        "lab/network.py",
        "lab/servicebus/__main__.py",
        "lab/broker_process.py",
        "lab/servicebus/listener.py",
        "lab/serving.py",
    ),
}
JSON_READERS: Final = ("load", "loads", "JSONDecoder", "from_json")


def parses_json(source: str) -> bool:
    """Return whether a module parses JSON with a library."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="json" | "pydantic_core"), attr=name):
                names = [name]
            case ast.ImportFrom(module="json" | "pydantic_core", names=aliases):
                names = [alias.name for alias in aliases]
            # The method of a response.
            case ast.Call(func=ast.Attribute(attr="json"), args=[], keywords=[]):
                return True
            case _:
                continue
        if set(names) & set(JSON_READERS):
            return True
    return False


def test_json_of_others_is_parsed_by_the_strict_parser() -> None:
    """See ``tests/unit/test_untrusted_json.py`` for the behaviour."""
    paths = [path for folder in PRODUCT_FOLDERS for path in (ROOT / folder).rglob("*.py")]
    found = [str(p.relative_to(ROOT)) for p in paths if parses_json(p.read_text("utf-8"))]
    allowed = [path for paths in OTHER_JSON.values() for path in paths]
    assert sorted(found) == sorted([*allowed, "exchange/strict_json.py"])


@pytest.mark.parametrize(
    "source",
    [
        *("json.loads(x)", "from json import load", "json.JSONDecoder()", "answer.json()"),
        *("from pydantic_core import from_json", "pydantic_core.from_json(x)"),
    ],
)
def test_use_of_a_json_library_is_detected(source: str) -> None:
    assert parses_json(source)
    assert not parses_json("json.dumps(x); plan.json(1)")


# Branches, loops, comprehensions and handlers.
DECISIONS: Final = (
    *(ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.comprehension, ast.BoolOp),
    *(ast.Try, ast.Match),
)
# A module with fewer decisions is tested with the modules that use it.
LOGIC_MIN_COUNT: Final = 20

# Modules with logic that have no unit test in the same place, with the test that covers each. Most
# are adapters, which tests of processes, sockets and files cover. Without a value in the column
# ``uses``, the test imports or names the module. Otherwise it calls the command of this name, or it
# uses the first of these modules, and each uses the next one.
TESTED_ELSEWHERE: Final = Path(__file__).with_name("tested_elsewhere.csv")


def has_logic(source: str) -> bool:
    """Return whether a module needs its own unit test.

    It does if its functions have at least ``LOGIC_MIN_COUNT`` decisions.
    """
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, Function)]
    decisions = {node for item in functions for node in ast.walk(item)}
    return sum(isinstance(node, DECISIONS) for node in decisions) >= LOGIC_MIN_COUNT


def modules_without_unit_test() -> set[str]:
    """Return the modules with logic that no unit test mirrors."""
    paths = [
        path.relative_to(ROOT)
        for folder in PRODUCT_FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if not path.name.startswith("__") and has_logic(path.read_text("utf-8"))
    ]
    assert len(paths) > 200
    tests = ROOT / "tests" / "unit"
    mirrored = {path for path in paths if (tests / path.parent / f"test_{path.name}").is_file()}
    return {str(path) for path in paths if path not in mirrored}


def uses(source: str, path: str, module: str) -> bool:
    """Return whether a file imports a module, or names it in its text.

    Args:
        source: Text of the file.
        path: Path of the file.
        module: Path of the module. The name of a ``__main__`` is that of its package.
    """
    parts = module.removesuffix(".py").removesuffix("/__init__").removesuffix("/__main__")
    dotted = parts.replace("/", ".")
    names = (dotted, f"{IMPORT_NAME}.{dotted}")
    if any(within(name, names) for name in imported_names(source, path)):
        return True
    stem = re.escape(Path(module).stem)
    texts = [rf"\b{re.escape(dotted)}\b", rf"\b{stem}\.py\b"]
    # A package can name the modules that it imports by configuration.
    texts += [f'"{stem}"'] if path.endswith("__init__.py") else []
    return any(re.search(text, source) for text in texts)


def calls(source: str, command: str, module: str) -> bool:
    """Return whether a test names a command which this module provides."""
    function = COMMANDS[command].function
    is_named = re.search(rf"[\"']{re.escape(command)}[ \"']", source)
    return is_named is not None and Path(module).stem == function.partition(".")[0]


def covers(test: str, module: str, how: list[str]) -> bool:
    """Return whether a row of ``TESTED_ELSEWHERE`` is true."""
    source = (ROOT / test).read_text("utf-8")
    if how and how[0] in COMMANDS:
        return calls(source, how[0], module)
    chain = [test, *how, module]
    return all(uses((ROOT / path).read_text("utf-8"), path, used) for path, used in pairwise(chain))


def test_every_module_with_logic_has_a_unit_test() -> None:
    """Its place mirrors the module: ``a/b.py`` has ``tests/unit/a/test_b.py``.

    ``TESTED_ELSEWHERE`` names the test of each other module.
    """
    with TESTED_ELSEWHERE.open(encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    assert rows == sorted(rows)
    assert modules_without_unit_test() == {module for module, _, _ in rows}
    wrong = [row for row in rows if not covers(row[1], row[0], row[2].split())]
    assert wrong == []
    assert {test.split("/")[1] for _, test, _ in rows} <= {"contract", "live", "unit"}


@pytest.mark.parametrize("prefix", ["", "async ", "import asyncio\n", "import subprocess\n"])
def test_module_with_many_decisions_has_logic(prefix: str) -> None:
    function = f"{prefix}def f(x):\n" + "    if x: x = 0\n" * LOGIC_MIN_COUNT
    assert has_logic(function)
    assert not has_logic(function.rpartition("    if")[0])


def test_test_that_does_not_use_its_module_is_detected() -> None:
    screen, watch = "coordinator/cli/screen.py", "tests/unit/coordinator/cli/test_watch.py"
    assert covers(watch, screen, [])
    assert not covers(watch, "coordinator/cli/support_commands.py", [])
    assert not covers(watch, "coordinator/cli/support_commands.py", ["support-bundle"])
    assert covers("tests/live/test_imports.py", "coordinator/cli/compare_commands.py", ["compare"])
    assert not covers("tests/live/test_imports.py", screen, ["compare"])
    assert not covers(watch, "lab/profile_process.py", [screen])
