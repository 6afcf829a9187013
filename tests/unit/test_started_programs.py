"""Test that all started programs get an environment without the secrets in this process.

The environment can be read by the user who runs the program, and a traffic engine can be used by
anyone on the network.
"""

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from broadside.exchange.programs import program_environment

ROOT: Final = Path(__file__).parents[2]
# The lab is not included, because its processes are started by the user.
PACKAGES: Final = ("agent", "coordinator", "exchange")
STARTERS: Final = frozenset(
    {
        *(f"subprocess.{name}" for name in ("run", "Popen", "call", "check_call", "check_output")),
        "asyncio.create_subprocess_exec",
        "asyncio.create_subprocess_shell",
        "subprocess.getoutput",
        "os.system",
        "os.popen",
    }
)
# Maps the file and function to the reason why the program needs the full environment.
FULL_ENVIRONMENT: Final[Mapping[tuple[str, str], str]] = {
    ("coordinator/backups.py", "_back_up"): "Broadside itself, which reads its settings there",
    ("coordinator/cli/doctor.py", "agent_checks"): "Broadside itself",
    ("coordinator/cli/azure_firewall_commands.py", "set_capacity"): "the user's own command",
    ("coordinator/cli/terraform.py", "_run"): "terraform takes its credentials there",
    ("coordinator/cli/terraform.py", "attempt"): "terraform takes its credentials there",
    (
        "exchange/version.py",
        "read_commit",
    ): "git; setup.py runs the file before the package is installed",
    ("coordinator/studies/switch.py", "run_argv"): "the user's own command, which may sign in",
}


def _starts() -> set[tuple[str, str]]:
    """Return the places where a program is started without an explicit environment, by file and
    function."""
    result = set()
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(path.read_text())
            for function in ast.walk(tree):
                if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    continue
                for call in ast.walk(function):
                    if not isinstance(call, ast.Call) or ast.unparse(call.func) not in STARTERS:
                        continue
                    if not any(keyword.arg == "env" for keyword in call.keywords):
                        result.add((str(path.relative_to(ROOT)), function.name))
    return result


def test_programs_with_the_full_environment_are_listed() -> None:
    assert _starts() == FULL_ENVIRONMENT.keys()


def test_secrets_settings_and_proxies_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BROADSIDE_AGENT_JOIN", "AZURE_CLIENT_SECRET", "HTTPS_PROXY", "MY_TOKEN"):
        monkeypatch.setenv(name, "x")
    environment = program_environment()
    assert "x" not in environment.values()
    assert "PATH" in environment
