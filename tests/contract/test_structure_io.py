"""Tests for structure that need processes, sockets or real time."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from broadside.exchange.fabric import FabricSettings, open_fabric
from tests.unit.coordinator.stored_run import store_run
from tests.unit.test_structure import ROOT

HEAVY: Final = frozenset({"numpy", "fastapi", "starlette", "rich", "typer", "uvicorn", "httpx"})


def loaded_by(script: str) -> set[str]:
    """Return the modules loaded in a new Python process after ``script``. Its output is ignored."""
    text = "\n".join(
        (
            "import contextlib, io, sys",
            "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):",
            *(f"    {line}" for line in script.splitlines()),
            "print(*sys.modules)",
        )
    )
    completed = subprocess.run(
        [sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(completed.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["--help"], {"fastapi", "httpx", "numpy", "pydantic", "rich", "sqlite3", "starlette"}),
        (["runs"], {"fastapi", "httpx", "numpy", "starlette", "uvicorn"}),
        (["show", "last"], {"fastapi", "httpx", "numpy", "starlette", "uvicorn"}),
    ],
)
def test_command_loads_only_used_modules(
    arguments: list[str], heavy: set[str], tmp_path: Path
) -> None:
    async def stored() -> None:
        fabric = open_fabric(FabricSettings(data_dir=tmp_path))
        await store_run(fabric)
        await fabric.close()

    asyncio.run(stored())
    loaded = loaded_by(
        "import os, broadside.coordinator.cli as cli\n"
        f"os.environ['BROADSIDE_DATA_DIR'] = {str(tmp_path)!r}\n"
        f"sys.argv = ['broadside', *{arguments!r}]\ncli.main()"
    )
    assert "broadside.coordinator.cli" in loaded
    assert not heavy & loaded


@pytest.mark.parametrize("package", ["exchange", "agent"])
def test_agent_process_loads_no_heavy_module(package: str) -> None:
    """Check also indirect imports, because sixty processes may be started together."""
    modules = [
        "broadside." + str(file.relative_to(ROOT)).removesuffix(".py").replace("/", ".")
        for file in sorted((ROOT / package).rglob("*.py"))
        if not {"azure", "http"} & {*file.relative_to(ROOT).parts}
        and not file.name.startswith("__main__")
    ]
    names = loaded_by(f"import {', '.join(modules)}")
    loaded = {name.partition(".")[0] for name in names}
    assert f"broadside.{package}" in names
    assert loaded & (HEAVY | {"azure"}) == set()
