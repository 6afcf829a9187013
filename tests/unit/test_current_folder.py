"""Test that processes started by Broadside cannot import modules from the current folder."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from broadside.exchange.programs import module_command
from broadside.lab.namespaces import NamespaceProcess, is_module, module_argv

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("agent", "coordinator", "exchange", "lab")
# `python -m broadside...` in a unit, a script or a list, without -P before -m.
RUNS_MODULE: Final = re.compile(r"python[\d.]*[\"']?,?\s+[\"']?-m[\"']?,?\s+[\"']?broadside")


def unsafe_starts(source: str) -> Iterator[int]:
    """Yield the lines that start Python and search the current folder first."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.List | ast.Tuple | ast.Call):
            parts = node.args if isinstance(node, ast.Call) else node.elts
            names = {ast.unparse(part) for part in parts}
            constants = {part.value for part in parts if isinstance(part, ast.Constant)}
            is_python = "sys.executable" in names or "-m" in constants
            if is_python and constants & {"-m", "-c"} and "-P" not in constants:
                yield node.lineno


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('argv = [sys.executable, "-m", "broadside.agent"]', [1]),
        ('run(sys.executable, "-c", "", check=True)', [1]),
        ('argv = (\n*before, "-m", module)', [1]),
        ('argv = [sys.executable, "-P", "-m", "broadside.agent"]', []),
        ('argv = ["sh", "-c", "true"]', []),
    ],
)
def test_unsafe_start_is_detected(source: str, lines: list[int]) -> None:
    assert list(unsafe_starts(source)) == lines


def test_shipped_modules_start_python_safely() -> None:
    results = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in PACKAGES
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in unsafe_starts(path.read_text("utf-8"))
    ]
    assert results == []


def test_shipped_files_run_modules_safely() -> None:
    assert RUNS_MODULE.search("ExecStart=/opt/broadside/venv/bin/python -m broadside.agent")
    assert RUNS_MODULE.search('["/opt/broadside/venv/bin/python", "-m", "broadside.agent"]')
    assert not RUNS_MODULE.search("python -P -m broadside.agent")
    paths = [ROOT / "docker-compose.yml", *(ROOT / "deploy").rglob("*"), *(ROOT / "docs").iterdir()]
    results = [
        str(path.relative_to(ROOT))
        for path in paths
        if path.is_file() and path.suffix not in (".py", ".pyc", ".lock", ".png")
        if RUNS_MODULE.search(path.read_text("utf-8", errors="replace"))
    ]
    assert results == []


def test_lab_process_is_recognised_by_its_command() -> None:
    argv = module_argv("broadside.lab.byte_counter", "bs1")
    assert argv == module_command("broadside.lab.byte_counter", "--broadside-lab=bs1")
    assert argv[:4] == [sys.executable, "-P", "-m", "broadside.lab.byte_counter"]
    process = NamespaceProcess(pid=1, arguments=(*argv, "--csv", "x"), namespace_inode=1)
    assert is_module(process, "broadside.lab.byte_counter", "bs1")
    assert not is_module(process, "broadside.lab.fleet", "bs1")
    assert not is_module(process, "broadside.lab.byte_counter", "bs")
