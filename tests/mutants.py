"""Mutation of the judgement: `python -m tests.mutants --mutants 300 --seed 1` (`make mutants`).

Draws mutants at random over all functions of coordinator/core/judge and coordinator/core/measure,
runs the unit tests of coordinator/core on each, and prints those that no test noticed, each with
its difference. A mutant that changes only text for readers (a literal with a space in it, or
anything within an f-string) is not drawn. What is mutated and tested is the commit HEAD, in a
temporary folder. Exits 1 when at least 5 % survived. The same commit, number and seed draw the
same mutants.
"""

import argparse
import ast
import difflib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
TOOL = CHECKOUT / ".tools" / "mutmut"
CORE = "src/broadside/coordinator/core"
MUTATED = (
    *(f"{CORE}/judge/{part}*.py" for part in ("", "checks/", "bottleneck/")),
    f"{CORE}/measure/*.py",
)
TESTS = "tests/unit/coordinator/core/"
LINKED = ("agent", "coordinator", "dashboards", "deploy/azure", "exchange", "lab")
BESIDE = ("tests", "docs", "agent", "coordinator", "dashboards", "deploy", "exchange", "lab")
FILES = ("Makefile", "README.md", "CHANGELOG.md")
# mutmut writes all mutants before it runs any: one that is quickly run.
FIRST = "broadside.coordinator.core.judge.drift.*__mutmut_1"
MOST_SURVIVORS = 0.05  # issue 31
NOT_KILLED = (0, 33, None)  # exit codes of mutmut: survived, no test calls it, did not run


def changed_node(before: ast.AST, after: ast.AST) -> ast.AST | None:
    """The smallest node of before that holds all differences, an f-string as a whole.

    None when both are equal but for their places in the file.
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
    """Whether a node is text for readers: an f-string, or a literal with a space in it."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and " " in node.value.strip()
    return isinstance(node, ast.JoinedStr)


def functions_of(mutated: ast.AST) -> dict[str, ast.FunctionDef]:
    """The functions of a file that mutmut wrote, originals and mutants, by their names there."""
    return {node.name: node for node in ast.walk(mutated) if isinstance(node, ast.FunctionDef)}


def renamed(function: ast.FunctionDef) -> ast.FunctionDef:
    """The function under its own name, without what mutmut puts around it."""
    own = function.name.partition("__mutmut_")[0].removeprefix("x_").rpartition("ǁ")[2]
    return ast.FunctionDef(**{**dict(ast.iter_fields(function)), "name": own, "decorator_list": []})


def pair_of(mutant: str, functions: dict[str, ast.FunctionDef]) -> tuple[ast.FunctionDef, ...]:
    """The original and the mutated function of a mutant."""
    name = mutant.rpartition(".")[2]
    original = name.rpartition("_")[0] + "_orig"
    return renamed(functions[original]), renamed(functions[name])


def difference(mutant: str, functions: dict[str, ast.FunctionDef]) -> str:
    """A mutant as a unified difference, comments left out."""
    before, after = (
        ast.unparse(ast.fix_missing_locations(part)).splitlines()
        for part in pair_of(mutant, functions)
    )
    return "\n".join(list(difflib.unified_diff(before, after, lineterm="", n=2))[2:])


def candidates(tree: Path) -> Iterator[str]:
    """Names of the mutants of a tree that change more than text for readers."""
    for meta in sorted(tree.glob("mutants/src/**/*.meta")):
        names = json.loads(meta.read_text())["exit_code_by_key"]
        functions = functions_of(ast.parse(meta.with_suffix("").read_text())) if names else {}
        for name in sorted(names):
            if not is_prose(changed_node(*pair_of(name, functions))):
                yield name


def drawn(names: Sequence[str], count: int, seed: int) -> list[str]:
    """`count` of the names at random; all of them when there are fewer."""
    return sorted(random.Random(seed).sample(sorted(names), min(count, len(names))))


def outcomes(tree: Path, names: Sequence[str]) -> dict[str, tuple[int | None, str]]:
    """By name: mutmut's exit code, None when it did not run, and the difference."""
    wanted = set(names)
    found = {}
    for meta in sorted(tree.glob("mutants/src/**/*.meta")):
        codes = json.loads(meta.read_text())["exit_code_by_key"]
        here = sorted(wanted & set(codes))
        functions = functions_of(ast.parse(meta.with_suffix("").read_text())) if here else {}
        for name in here:
            found[name] = codes[name], difference(name, functions)
    return found


def prepare(tree: Path) -> None:
    """Put the commit HEAD into a folder, as mutmut needs it: files instead of links to folders."""
    archive = subprocess.run(
        ["git", "archive", "HEAD"], cwd=CHECKOUT, check=True, capture_output=True
    )
    tree.mkdir()
    subprocess.run(["tar", "x"], cwd=tree, check=True, input=archive.stdout)
    for folder in LINKED:
        link = tree / "src" / "broadside" / folder
        link.unlink()
        shutil.copytree(tree / folder, link)
    table = {
        "source_paths": ["src"],
        "only_mutate": list(MUTATED),
        "pytest_add_cli_args_test_selection": [TESTS],
        "also_copy": [*BESIDE, *FILES],
    }
    with (tree / "pyproject.toml").open("a") as project:
        project.write("\n[tool.mutmut]\n")
        project.writelines(f"{key} = {json.dumps(value)}\n" for key, value in table.items())


def run_mutmut(tree: Path, names: Sequence[str]) -> None:
    """Let mutmut run these mutants, in one process; what it says is kept in mutmut.log.

    Raises SystemExit when it failed.
    """
    # The interpreter without .venv's .pth files: they would import the checkout's broadside.
    python = Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}")
    packages = next(Path(sys.prefix).glob("lib/python3*/site-packages"))
    environment = {**os.environ, "PYTHONPATH": f"{TOOL}{os.pathsep}{packages}"}
    log = tree.parent / "mutmut.log"
    with log.open("ab") as out:
        done = subprocess.run(
            [python, "-m", "mutmut", "run", "--max-children", "1", *names],
            cwd=tree,
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode:
        said = log.read_text(errors="replace").replace("\r", "\n").splitlines()[-40:]
        raise SystemExit("mutmut failed:\n" + "\n".join(said))


def report(found: dict[str, tuple[int | None, str]], seed: int) -> tuple[str, float]:
    """What is printed, and the share that survived."""
    alive = {name: diff for name, (code, diff) in found.items() if code in NOT_KILLED}
    share = len(alive) / len(found) if found else 0.0
    lines = [f"{name}\n{diff}\n" for name, diff in sorted(alive.items())]
    lines.append(
        f"drawn {len(found)} (seed {seed}), killed {len(found) - len(alive)}, "
        f"survived {len(alive)} ({share:.1%})"
    )
    return "\n".join(lines), share


def main() -> int:
    """Draw, run and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--mutants", type=int, default=300, help="how many are drawn")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder, "tree")
        prepare(tree)
        run_mutmut(tree, [FIRST])
        names = drawn(list(candidates(tree)), asked.mutants, asked.seed)
        run_mutmut(tree, names)
        said, share = report(outcomes(tree, names), asked.seed)
    sys.stdout.write(said + "\n")
    return int(share >= MOST_SURVIVORS)


if __name__ == "__main__":
    sys.exit(main())
