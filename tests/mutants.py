"""Mutation testing of the judgement (`make mutants`).

Run this file using `python -m tests.mutants --mutants 300 --seed 1`.

It draws random mutants of all functions in judge, measure and comparison of coordinator/core. It
runs the unit tests and the stored verdicts on each one (tests/mutant_runner.py), and prints each
survivor with its difference. It skips mutants of display text (a literal with a space, or a part of
an f-string) and of the `strict` of a zip, which is an assertion.

The commit HEAD is mutated and tested in a temporary folder. The exit code is 1 if at least 5 %
survive. The position of a mutant in a draw depends only on its name and the seed. A change of one
function draws the same mutants of the others.

build/mutants/results.jsonl stores one result per line, so an interrupted run continues. Its results
so far are a smaller draw. After a commit that changes only tests, the survivors are tried again.
After another commit, each mutant first runs the test that detected it before.
"""

import argparse
import ast
import difflib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
TOOL = CHECKOUT / ".tools" / "mutmut"
KEPT = CHECKOUT / "build" / "mutants"
CORE = "coordinator/core"
MUTATED = ("judge", "measure", "comparison")
# Long tests that simulate fleets end to end are left out, because no mutant reaches them within its
# time limit.
UNIT = "tests/unit/coordinator"
TESTS = (
    *(f"{UNIT}/core/{part}" for part in MUTATED),
    *(f"{UNIT}/core/test_{part}.py" for part in ("figures", "engines", "tunnels")),
    f"{UNIT}/runs/test_stored_verdicts.py",
)
# Largest share of mutants that may survive.
MOST_SURVIVORS = 0.05
# Match a mutated function, or its line in the table of its original.
_MUTANT = re.compile(r"( *)(?:def (\w+__mutmut_\d+)\(|mutants_\w+\['(\w+__mutmut_\d+)'\] = )")


def changed_node(before: ast.AST, after: ast.AST) -> ast.AST | None:
    """Return the smallest node of ``before`` with all differences (f-strings as a whole).

    Return None if both differ only in their positions in the file.
    """
    if ast.dump(before) == ast.dump(after):
        return None
    if type(before) is not type(after) or isinstance(before, ast.JoinedStr):
        return before
    ours, theirs = list(ast.iter_child_nodes(before)), list(ast.iter_child_nodes(after))
    if len(ours) != len(theirs):
        return before
    pairs = list(zip(ours, theirs, strict=True))
    changed = [node for one, other in pairs if (node := changed_node(one, other)) is not None]
    return changed[0] if len(changed) == 1 else before


def is_prose(node: ast.AST | None) -> bool:
    """Return whether a node is display text: an f-string, or a literal with a space."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and " " in node.value.strip()
    return isinstance(node, ast.JoinedStr)


class _WithoutStrict(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        node.keywords = [keyword for keyword in node.keywords if keyword.arg != "strict"]
        return node


def means_the_same(before: ast.AST, after: ast.AST) -> bool:
    """Return whether two functions differ only in display text or in an assertion."""
    if is_prose(changed_node(before, after)):
        return True
    plain = (_WithoutStrict().visit(ast.parse(ast.unparse(node))) for node in (before, after))
    return len({ast.dump(node) for node in plain}) == 1


def functions_of(mutated: ast.AST) -> dict[str, ast.FunctionDef]:
    """Return the functions of a file written by mutmut, originals and mutants, by name."""
    return {node.name: node for node in ast.walk(mutated) if isinstance(node, ast.FunctionDef)}


def renamed(function: ast.FunctionDef) -> ast.FunctionDef:
    """Return the function under its original name, without the additions of mutmut."""
    local = function.name.partition("__mutmut_")[0].removeprefix("x_").rpartition("ǁ")[2]
    fields = {**dict(ast.iter_fields(function)), "name": local, "decorator_list": []}
    return ast.fix_missing_locations(ast.FunctionDef(**fields))


def differences(mutated: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield each useful mutant of a file written by mutmut, with its change.

    The change is a unified diff without comments.
    """
    functions = functions_of(mutated)
    for name, function in functions.items():
        stem, _, number = name.rpartition("_")
        if not (stem.endswith("__mutmut") and number.isdigit()):
            continue
        pair = renamed(functions[f"{stem}_orig"]), renamed(function)
        if not means_the_same(*pair):
            before, after = (ast.unparse(part).splitlines() for part in pair)
            yield name, "\n".join(list(difflib.unified_diff(before, after, lineterm="", n=2))[2:])


def drawn(names: Sequence[str], count: int, seed: int) -> list[str]:
    """Return `count` of the names in random order, or all of them if there are fewer."""
    order = sorted(names, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())
    return order[:count]


def prepare(tree: Path) -> None:
    """Extract the commit HEAD into a folder."""
    archive = subprocess.run(
        ["git", "archive", "HEAD"], cwd=CHECKOUT, check=True, capture_output=True
    )
    tree.mkdir()
    subprocess.run(["tar", "x"], cwd=tree, check=True, input=archive.stdout)


def mutate(tree: Path, count: int, seed: int) -> dict[str, str]:
    """Draw mutants, write them into the files of the tree, and return their changes by name.

    Files are cached by the hash of their source, because mutmut takes a second for 200 lines.
    """
    # The module is in .tools, where main() found it.
    from mutmut.mutation.file_mutation import (  # type: ignore[import-not-found]
        mutate_file_contents,
    )

    by_name: dict[str, str] = {}
    codes: dict[tuple[Path, str], str] = {}
    for part in MUTATED:
        for file in sorted((tree / CORE / part).rglob("*.py")):
            source = file.read_text()
            stored = KEPT / "files" / f"{hashlib.sha256(source.encode()).hexdigest()}.json"
            if not stored.exists():
                code = mutate_file_contents(str(file), source).code
                stored.parent.mkdir(parents=True, exist_ok=True)
                stored.write_text(json.dumps([code, dict(differences(ast.parse(code)))]))
            code, changes = json.loads(stored.read_text())
            place = file.parent if file.name == "__init__.py" else file.with_suffix("")
            module = ".".join(("broadside", *place.relative_to(tree).parts))
            by_name |= {f"{module}.{name}": change for name, change in changes.items()}
            codes[file, module] = code
    names = drawn(list(by_name), count, seed)
    for (file, module), code in codes.items():
        local = {name.rpartition(".")[2] for name in names if name.rpartition(".")[0] == module}
        file.write_text(without_others(code, local))
    return {name: by_name[name] for name in names}


def without_others(code: str, wanted: Container[str]) -> str:
    """Return the code without other mutants, because some modules would take seconds to load."""
    stored: list[str] = []
    # Indentation of the skipped function.
    inside: str | None = None
    for line in code.splitlines():
        if inside is not None and not line.startswith((f"{inside} ", f"{inside})")) and line:
            inside = None
        match = _MUTANT.match(line)
        if match is None or (match[2] or match[3]) in wanted:
            stored += [line] * (inside is None)
        elif match[2]:
            inside = match[1]
            while stored[-1].lstrip().startswith("@"):
                stored.pop()
    return "\n".join(stored) + "\n"


def tree_of(place: str) -> str:
    """Return git's hash of HEAD, or of a folder in it."""
    completed = subprocess.run(
        ["git", "rev-parse", place], cwd=CHECKOUT, check=True, capture_output=True, text=True
    )
    return completed.stdout.strip()


def results() -> list[dict[str, str | float | None]]:
    """Return all earlier results from results.jsonl, oldest first."""
    file = KEPT / "results.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def decided(
    rows: Sequence[dict[str, str | float | None]], job: dict[str, str]
) -> dict[str, str | None]:
    """Return each mutant's detecting test of any commit, or None by the present tests."""
    by_name: dict[str, str | None] = {}
    for row in rows:
        killer = row["killed_by"]
        if row.get("code") == job["code"] and (killer or row["commit"] == job["commit"]):
            by_name[str(row["mutant"])] = None if killer is None else str(killer)
    return by_name


def run_tests(tree: Path, names: Sequence[str], job: dict[str, str], seconds: float) -> None:
    """Run tests/mutant_runner.py on these mutants. Raises SystemExit if it fails."""
    killers = {row["mutant"]: row["killed_by"] for row in results()}
    chosen = {name: killers.get(name) for name in names}
    complete = {"mutants": chosen, "job": job, "kept": str(KEPT), "seconds": seconds}
    (tree / "mutants.json").write_text(json.dumps(complete))
    # The .pth files in .venv would import broadside from the checkout, so this uses the base
    # interpreter.
    python = Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}")
    packages = next(Path(sys.prefix).glob("lib/python3*/site-packages"))
    path = os.pathsep.join(map(str, (tree / "src", tree, packages, TOOL)))
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.mutant_runner")
    done = subprocess.run(
        [python, *command, "--hypothesis-profile", "mutants", *TESTS],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"the runner failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")


def report(
    names: Sequence[str], killers: dict[str, str | None], changes: dict[str, str], seed: int
) -> tuple[str, float]:
    """Return the printed report and the share of survivors."""
    alive = sorted(name for name in names if killers.get(name) is None)
    share = len(alive) / len(names) if names else 0.0
    lines = [f"{name}\n{changes[name]}\n" for name in alive]
    lines.append(
        f"drawn {len(names)} (seed {seed}), killed {len(names) - len(alive)}, "
        f"survived {len(alive)} ({share:.1%})"
    )
    return "\n".join(lines), share


def main() -> int:
    """Draw mutants, run the tests and print the report."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--mutants", type=int, default=300, help="how many are drawn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="of the drawn, those with this in their name")
    parser.add_argument("--seconds", type=float, default=6, help="of tests for a mutant at most")
    arguments = parser.parse_args()
    sys.path.append(str(TOOL))
    job = {"commit": tree_of("HEAD"), "code": tree_of("HEAD:coordinator")}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder, "tree")
        prepare(tree)
        changes = mutate(tree, arguments.mutants, arguments.seed)
        names = [name for name in changes if arguments.only in name]
        before = decided(results(), job)
        if left := [name for name in names if name not in before]:
            run_tests(tree, left, job, arguments.seconds)
    killers = decided(results(), job)
    text, share = report(names, killers, changes, arguments.seed)
    sys.stdout.write(text + "\n")
    return int(share >= MOST_SURVIVORS)


if __name__ == "__main__":
    sys.exit(main())
