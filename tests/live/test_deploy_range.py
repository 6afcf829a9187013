"""``broadside up``, ``scale``, ``down``: the commands they run, and what they make of answers."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.live.commands import Done, run_command

pytestmark = pytest.mark.live

OUTPUTS = {
    "name": "night",
    "resource_group": "night",
    "subscription_id": "00000000-0000-0000-0000-000000000001",
    "scale_sets": ["night-clients", "night-servers"],
    "firewall_id": "/subscriptions/0/x",
}
PLACE = f"--resource-group night --subscription {OUTPUTS['subscription_id']}"

# Stands in for terraform and az: writes down how it was called, answers what a file says.
STUB = """#!/bin/sh
printf '%s' "$(basename "$0")" >> "$STUB/calls"
printf ' %s' "$@" >> "$STUB/calls"
echo >> "$STUB/calls"
case "$(basename "$0") $*" in
*" output "*) cat "$STUB/outputs" ;;
"az resource list"*)
    cat "$STUB/resources"
    [ ! -f "$STUB/later" ] || mv "$STUB/later" "$STUB/resources"
    ;;
"az group exists"*) cat "$STUB/group" ;;
*" destroy "*) [ ! -f "$STUB/destroy_fails" ] || exit 9 ;;
esac
"""


class Stubs:
    """A terraform and an az that only write down their calls."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        self._capfd = capfd
        (folder / "bin").mkdir()
        for name in ("terraform", "az"):
            path = folder / "bin" / name
            path.write_text(STUB)
            path.chmod(0o755)
        self.directory = folder / "azure"
        self.directory.mkdir()
        (self.directory / "main.tf").write_text("")
        (self.directory / "examples").mkdir()
        (self.directory / "examples" / "soak.tfvars").write_text("")
        self.answer(outputs={name: {"value": value} for name, value in OUTPUTS.items()})
        self.answer(resources=[], group=False)

    def answer(self, **answers: Any) -> None:
        for name, value in answers.items():
            (self.folder / name).write_text(json.dumps(value))

    def run(self, *words: str, path: str | None = None) -> Done:
        with self._monkeypatch.context() as patch:
            patch.setenv("STUB", str(self.folder))
            patch.setenv("PATH", path or f"{self.folder / 'bin'}:{os.environ['PATH']}")
            verb, *rest = words
            argv = [verb, "--directory", str(self.directory), *rest]
            return run_command(argv, patch, self._capfd)

    def calls(self) -> list[str]:
        """The commands that were run, but for those that only read the outputs."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        chdir = f"-chdir={self.directory} "
        return [line.replace(chdir, "") for line in lines if " output " not in line]


@pytest.fixture
def stubs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Stubs:
    return Stubs(tmp_path, monkeypatch, capfd)


LISTING = (
    f"az resource list --tag broadside=night --subscription {OUTPUTS['subscription_id']} "
    "--output json"
)


def test_up(stubs: Stubs) -> None:
    done = stubs.run("up", "--vars", "examples/soak.tfvars", "--set", "instances=3", "--yes")
    assert done.returncode == 0, done.stderr
    file = stubs.directory / "examples" / "soak.tfvars"
    assert stubs.calls() == [
        "terraform init -input=false",
        f"terraform apply -var-file={file} -var=instances=3 -input=false -auto-approve",
    ]
    assert "broadside down" in done.stdout


def test_without_yes_terraform_asks(stubs: Stubs) -> None:
    assert stubs.run("up").returncode == 0
    assert stubs.calls()[-1] == "terraform apply"


def test_dry_runs_print_what_would_be_run_and_run_nothing(stubs: Stubs) -> None:
    """What is printed is what is run, word for word."""
    for words in (("up", "--yes"), ("scale", "7"), ("down", "--yes")):
        shown = stubs.run(*words, "--dry-run")
        assert shown.returncode == 0, shown.stderr
        assert stubs.calls() == []
        stubs.run(*words)
        chdir = f"-chdir={stubs.directory} "
        assert [line.replace(chdir, "") for line in shown.stdout.splitlines()] == stubs.calls()
        (stubs.folder / "calls").unlink()


def test_scale_sets_both_fleets_and_waits(stubs: Stubs) -> None:
    done = stubs.run("scale", "30")
    assert done.returncode == 0, done.stderr
    assert stubs.calls() == [
        f"az vmss scale --name night-clients {PLACE} --new-capacity 30 --no-wait",
        f"az vmss scale --name night-servers {PLACE} --new-capacity 30 --no-wait",
        f"az vmss wait --name night-clients {PLACE} --updated",
        f"az vmss wait --name night-servers {PLACE} --updated",
    ]


def test_down_proves_that_nothing_is_left(stubs: Stubs) -> None:
    done = stubs.run("down", "--yes")
    assert done.returncode == 0, done.stderr
    exists = f"az group exists --name night --subscription {OUTPUTS['subscription_id']}"
    assert stubs.calls() == [
        "terraform destroy -input=false -auto-approve", LISTING, exists,
    ]  # fmt: skip
    assert "no resource has the tag broadside=night" in done.stdout


LEFT = [{"id": "/subscriptions/0/x/disk", "type": "Microsoft.Compute/disks"}]


def test_down_ends_with_1_and_names_what_is_left(stubs: Stubs) -> None:
    stubs.answer(resources=LEFT, group=True)
    done = stubs.run("down", "--yes", "--patience-s", "0")
    assert done.returncode == 1
    assert "left: /subscriptions/0/x/disk (Microsoft.Compute/disks)" in done.stdout
    assert "left: resource group night" in done.stdout
    assert "2 left of range night; they still cost" in done.stderr


def test_down_gives_azure_time_to_forget(stubs: Stubs) -> None:
    """The list lags a little behind what was destroyed."""
    stubs.answer(resources=LEFT, later=[])
    done = stubs.run("down", "--yes", "--patience-s", "0.5")
    assert done.returncode == 0, done.stderr
    assert "1 still listed; looking again" in done.stderr


def test_what_fails_is_not_called_down(stubs: Stubs) -> None:
    (stubs.folder / "destroy_fails").write_text("")
    done = stubs.run("down", "--yes")
    assert done.returncode == 4
    assert "terraform ended with 9" in done.stderr
    assert LISTING not in stubs.calls()


def test_what_az_cannot_tell_is_not_called_down(stubs: Stubs) -> None:
    (stubs.folder / "resources").write_text("Please run 'az login'")
    done = stubs.run("down", "--yes")
    assert done.returncode == 4
    assert "nothing is proven" in done.stderr


def test_without_a_state_there_is_nothing_to_scale_and_a_name_to_look_for(stubs: Stubs) -> None:
    stubs.answer(outputs={})
    assert stubs.run("scale", "3").returncode == 4
    assert stubs.run("down", "--yes").returncode == 4
    done = stubs.run("down", "--yes", "--name", "night")
    assert done.returncode == 0, done.stderr
    assert stubs.calls() == [
        "az resource list --tag broadside=night --output json", "az group exists --name night",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("up", "--vars", "nowhere.tfvars"), 3, "no such file"),
        (("up", "--set", "instances"), 3, "must be NAME=VALUE"),
        (("scale", "1001"), 3, "1000"),
        (("up", "--directory", "/nowhere"), 3, "no Terraform there"),
    ],
)
def test_wrong_usage(stubs: Stubs, words: tuple[str, ...], code: int, says: str) -> None:
    done = stubs.run(*words)
    assert (done.returncode, stubs.calls()) == (code, [])
    assert says in done.stderr


def test_a_missing_tool_is_named(stubs: Stubs) -> None:
    done = stubs.run("up", path="/nowhere")
    assert done.returncode == 4
    assert "terraform is missing" in done.stderr
