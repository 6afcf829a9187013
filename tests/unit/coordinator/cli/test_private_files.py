"""A command that writes secrets makes them its user's alone; no code needs to be an argument."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from broadside.coordinator.cli.command_list import COMMANDS, PRIVATE_COMMANDS

# In place of the agent: what it would be given.
SHOWN = """
import os, sys
from pathlib import Path
os.execv = lambda program, words: print(os.environ.get("BROADSIDE_AGENT_JOIN"), words, os.umask(0))
sys.argv = ["broadside", *sys.argv[1:]]
from broadside.coordinator.cli import main
main()
"""


def agent(*words: str, given: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    stored = {name: value for name, value in os.environ.items() if "BROADSIDE" not in name}
    return subprocess.run(
        [sys.executable, "-P", "-c", SHOWN, "agent", "--role", "client", *words],
        input=given,
        env=stored | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_join_code_is_read_from_a_file_standard_input_or_the_environment(tmp_path: Path) -> None:
    (tmp_path / "code").write_text("bsj.x.secret\n")
    reported = [
        agent("--join-file", str(tmp_path / "code")),
        agent("--join-file", "-", given="bsj.x.secret\n"),
        agent(BROADSIDE_AGENT_JOIN="bsj.x.secret"),
        agent(BROADSIDE_AGENT_JOIN_FILE=str(tmp_path / "code")),
    ]
    for done in reported:
        assert done.stdout.startswith("bsj.x.secret"), done.stderr
        assert done.stdout.count("bsj.x.secret") == 1, "it is in no argument of the agent"
        assert done.stderr == ""
        assert done.stdout.split()[-1] == str(0o077)


@pytest.mark.parametrize(("content", "said"), [("", "its first line is empty"), (None, "No such")])
def test_a_file_without_a_code_ends_the_command(
    tmp_path: Path, content: str | None, said: str
) -> None:
    if content is not None:
        (tmp_path / "code").write_text(content)
    done = agent("--join-file", str(tmp_path / "code"))
    assert done.returncode == 3
    assert said in done.stderr


def test_commands_that_write_secrets_are_commands() -> None:
    assert set(COMMANDS) >= PRIVATE_COMMANDS


@pytest.mark.parametrize(
    "words", [["backup", "kept/file"], ["enroll", "new", "--role", "client"], ["token", "list"]]
)
def test_what_they_write_is_their_users_alone(tmp_path: Path, words: list[str]) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "broadside.coordinator", *words],
            env=os.environ | {"BROADSIDE_DATA_DIR": str(tmp_path / "data")},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            umask=0,
            check=True,
        )

    (tmp_path / "kept").mkdir()
    run("token", "add", "me", "--role", "viewer")
    run(*words)
    made = [path for path in tmp_path.rglob("*") if path != tmp_path / "kept"]
    assert len(made) > 1
    assert {str(path): path.stat().st_mode & 0o077 for path in made} == {str(p): 0 for p in made}
