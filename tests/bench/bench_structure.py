"""Prints how deep the house is: its longest import chain, and its import cycles.

Run: ``python -m tests.bench.bench_structure [ROOT]``; the standard library is enough. An edge goes
from a module to each module of ours that it names in an import statement. A package stands for its
own ``__init__``; importing a module does not count as importing the packages above it. The chain is
the longest path, a cycle in it counted with all its modules. Both are told twice: with what is
imported at import time, and with what functions and ``if TYPE_CHECKING`` import as well.
"""

import ast
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

PACKAGES: Final = ("agent", "coordinator", "exchange", "lab")


def modules(root: Path) -> dict[str, Path]:
    """Every module of ours by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _nodes(tree: ast.AST, *, deferred: bool) -> Iterator[ast.AST]:
    """Import statements; ``deferred`` ones (functions, TYPE_CHECKING) only if asked for."""
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


def imports(name: str, path: Path, known: Mapping[str, Path], *, deferred: bool) -> set[str]:
    """The modules of ours that one names."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found = set()
    for node in _nodes(ast.parse(path.read_text("utf-8")), deferred=deferred):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in known}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                found.add(inner if inner in known else module)
    return {each for each in found if each in known and each != name}


def parts(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Strongly connected parts, what is imported first (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            place = stack.index(node)
            found.append(sorted(stack[place:]))
            del stack[place:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def longest(graph: Mapping[str, set[str]]) -> list[str]:
    """The longest chain of modules, from the one that imports to the one imported last."""
    best: dict[str, list[str]] = {}
    for part in parts(graph):
        below = [best[other] for node in part for other in graph[node] if other not in part]
        chain = [*part, *max(below, key=len, default=[])]
        best |= dict.fromkeys(part, chain)
    return max(best.values(), key=len)


def main(root: Path) -> None:
    """Print all of it."""
    known = modules(root)
    sys.setrecursionlimit(10_000)
    for name, deferred in (("at import", False), ("with deferred imports", True)):
        graph = {m: imports(m, path, known, deferred=deferred) for m, path in known.items()}
        chain = longest(graph)
        print(f"longest import chain, {name}: {len(chain)}")
        print("  " + "\n  ".join(chain))
        cycles = [part for part in parts(graph) if len(part) > 1]
        print(f"import cycles, {name}: {len(cycles)}")
        for cycle in cycles:
            print("  " + " <-> ".join(cycle))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parents[2])
