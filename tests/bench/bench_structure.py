"""Report the longest import chain of the packages, or an import cycle.

To run it, use ``python -m tests.bench.bench_structure [ROOT]``. It needs only the standard library.
There is an edge from a module to a module of ours if it is in an import statement. A package is its
own ``__init__``. If a module is imported, this does not count as an import of the packages above
it. The report has two parts: imports at import time, and the same with imports in functions and
under ``if TYPE_CHECKING``.
"""

import ast
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

PACKAGES: Final = ("agent", "coordinator", "exchange", "lab")
# ``src/broadside`` holds a link to the folder of each package.
IMPORT_NAME: Final = "broadside"


def modules(root: Path) -> dict[str, Path]:
    """Return the paths of all modules of ours by dotted name."""
    by_name = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            by_name[f"{IMPORT_NAME}.{name}"] = path
    return by_name


def _nodes(tree: ast.AST, *, deferred: bool) -> Iterator[ast.AST]:
    """Yield import statements, with those in functions and TYPE_CHECKING if ``deferred``."""
    queue: deque[ast.AST] = deque([tree])
    while queue:
        node = queue.popleft()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
            continue
        if not deferred and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if not deferred and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            queue.extend(node.orelse)
            continue
        queue.extend(ast.iter_child_nodes(node))


def imported_names(source: str, path: str, *, deferred: bool = True) -> tuple[str, ...]:
    """Return the absolute names that a module imports: ``from a.b import c`` gives ``a.b.c``.

    Args:
        source: The module's text.
        path: The module's path, relative to the checkout.
        deferred: Include imports within functions and under ``TYPE_CHECKING``.
    """
    package = tuple(path.split("/")[:-1])
    return _imported(
        source, (IMPORT_NAME, *package) if package[0] in PACKAGES else package, deferred
    )


@cache
def _imported(source: str, package: tuple[str, ...], deferred: bool) -> tuple[str, ...]:
    names: list[str] = []
    for node in _nodes(ast.parse(source), deferred=deferred):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *filter(None, [node.module])])
            names += (f"{module}.{alias.name}" for alias in node.names)
    return tuple(names)


def imports(name: str, path: Path, known: Mapping[str, Path], *, deferred: bool) -> set[str]:
    """Return the modules of ours that a module imports."""
    parts = name.removeprefix(f"{IMPORT_NAME}.").split(".")
    if path.name == "__init__.py":
        parts.append("__init__")
    names = imported_names(path.read_text("utf-8"), "/".join(parts), deferred=deferred)
    results = {item if item in known else item.rpartition(".")[0] for item in names}
    return {item for item in results if item in known and item != name}


def longest(graph: Mapping[str, set[str]]) -> list[str]:
    """Return the longest chain of modules, from the importing module to the last imported one.

    Raises:
        CycleError: Modules import each other. Its second argument is the cycle.
    """
    best: dict[str, list[str]] = {}
    for module in TopologicalSorter(graph).static_order():
        below = max((best[other] for other in sorted(graph[module])), key=len, default=[])
        best[module] = [module, *below]
    return max(best.values(), key=len)


def main(root: Path) -> None:
    """Print the report."""
    known = modules(root)
    for name, deferred in (("at import", False), ("with deferred imports", True)):
        graph = {m: imports(m, path, known, deferred=deferred) for m, path in known.items()}
        try:
            chain = longest(graph)
        except CycleError as cycle:
            print(f"import cycle, {name}: {' <- '.join(cycle.args[1])}")
        else:
            print(f"longest import chain, {name}: {len(chain)}; no import cycle")
            print("  " + "\n  ".join(chain))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parents[2])
