"""Tests for private files that need processes, sockets or real time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# This is used instead of the agent and prints what it would get.
SHOWN = """
import os, sys
from pathlib import Path
def show(program, arguments):
    print(os.environ.get("BROADSIDE_AGENT_JOIN"), arguments, os.umask(0))
os.execv = show
sys.argv = ["broadside", *sys.argv[1:]]
from broadside.coordinator.cli import main
main()
"""


def agent(*arguments: str, given: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if "BROADSIDE" not in name}
    return subprocess.run(
        [sys.executable, "-P", "-c", SHOWN, "agent", "--role", "client", *arguments],
        input=given,
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_join_code_comes_from_file_standard_input_or_environment(tmp_path: Path) -> None:
    (tmp_path / "code").write_text("bsj.x.secret\n")
    processes = [
        agent("--join-file", str(tmp_path / "code")),
        agent("--join-file", "-", given="bsj.x.secret\n"),
        agent(BROADSIDE_AGENT_JOIN="bsj.x.secret"),
        agent(BROADSIDE_AGENT_JOIN_FILE=str(tmp_path / "code")),
    ]
    for done in processes:
        assert done.stdout.startswith("bsj.x.secret"), done.stderr
        assert done.stdout.count("bsj.x.secret") == 1, "code in arguments"
        assert done.stderr == ""
        assert done.stdout.split()[-1] == str(0o077)


@pytest.mark.parametrize(
    ("content", "message"), [("", "its first line is empty"), (None, "No such")]
)
def test_file_without_join_code_is_an_error(
    tmp_path: Path, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "code").write_text(content)
    done = agent("--join-file", str(tmp_path / "code"))
    assert done.returncode == 3
    assert message in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [["backup", "saved/file"], ["enroll", "new", "--role", "client"], ["token", "list"]],
)
def test_files_of_private_commands_are_private(tmp_path: Path, arguments: list[str]) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "broadside.coordinator", *arguments],
            env=os.environ | {"BROADSIDE_DATA_DIR": str(tmp_path / "data")},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            umask=0,
            check=True,
        )

    (tmp_path / "saved").mkdir()
    run("token", "add", "me", "--role", "viewer")
    run(*arguments)
    created = [path for path in tmp_path.rglob("*") if path != tmp_path / "saved"]
    assert len(created) > 1
    assert {str(path): path.stat().st_mode & 0o077 for path in created} == {
        str(p): 0 for p in created
    }
