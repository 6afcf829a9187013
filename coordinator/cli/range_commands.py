"""``broadside up``, ``scale`` and ``down``: the range on Azure, by terraform and az.

Thin on purpose: each prints the commands it runs, and ``--dry-run`` prints them alone. What they do
is in ``deploy/azure``; what ``down`` adds is the proof that nothing is left.
"""

import json
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer

from coordinator.cli.exits import Exit, stop

DIRECTORY: Final = Path(__file__).parents[2] / "deploy" / "azure"
FLEET_MAX: Final = 1000
LOOK_PAUSE_S: Final = 10.0

Directory = Annotated[
    Path, typer.Option(help="the Terraform directory", metavar="DIR", show_default=False)
]
Vars = Annotated[
    list[Path] | None,
    typer.Option("--vars", metavar="FILE", help="a .tfvars file; may come several times"),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="one Terraform variable; may come again"),
]
Yes = Annotated[bool, typer.Option("--yes", help="do not ask before changing or destroying")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="print the commands and run none")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A range's outputs, as far as these commands need them."""

    name: str
    resource_group: str
    subscription_id: str
    scale_sets: tuple[str, ...]

    @property
    def place(self) -> list[str]:
        return ["--resource-group", self.resource_group, "--subscription", self.subscription_id]


def up(
    directory: Directory = DIRECTORY,
    variables: Vars = None,
    settings: Set = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Build the range, or bring it to what the variables say (`terraform apply`)."""
    terraform = _terraform(directory)
    given = _given(directory, variables, settings)
    _run([*terraform, "init", "-input=false"], dry_run)
    _run([*terraform, "apply", *given, *_approve(yes)], dry_run)
    if not dry_run:
        typer.echo("up; when you are done: broadside down")


def scale(
    instances: Annotated[int, typer.Argument(min=0, max=FLEET_MAX, help="VMs in each scale set")],
    directory: Directory = DIRECTORY,
    dry_run: DryRun = False,
) -> None:
    """Set how many clients and how many servers there are: 30 before a test, 0 after it."""
    standing = _standing(directory)
    if standing is None:
        stop(f"no range stands in {directory}'s state; run: broadside up", Exit.CANNOT_RUN)
    capacity = ["--new-capacity", str(instances), "--no-wait"]
    for name in standing.scale_sets:
        _run(["az", "vmss", "scale", "--name", name, *standing.place, *capacity], dry_run)
    for name in standing.scale_sets:
        _run(["az", "vmss", "wait", "--name", name, *standing.place, "--updated"], dry_run)
    if not dry_run:
        typer.echo(f"{' and '.join(standing.scale_sets)}: {instances} VMs each")


def down(
    directory: Directory = DIRECTORY,
    variables: Vars = None,
    settings: Set = None,
    name: Annotated[
        str | None, typer.Option(help="the range's name; default: as Terraform's state says")
    ] = None,
    patience_s: Annotated[
        float, typer.Option(help="seconds in which Azure may still list what is gone", min=0)
    ] = 120.0,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Destroy the range, and prove that nothing with its tag is left (exit 1 when something is)."""
    standing = _standing(directory)
    chosen = name or (standing.name if standing else None)
    if chosen is None:
        stop(
            f"no range stands in {directory}'s state; give --name to look for one by its tag",
            Exit.CANNOT_RUN,
        )
    if standing is not None:
        given = _given(directory, variables, settings)
        _run([*_terraform(directory), "destroy", *given, *_approve(yes)], dry_run)
    where = ["--subscription", standing.subscription_id] if standing else []
    listing = ["az", "resource", "list", "--tag", f"broadside={chosen}", *where, "--output", "json"]
    group = standing.resource_group if standing else chosen
    exists = ["az", "group", "exists", "--name", group, *where]
    if dry_run:
        _run(listing, dry_run)
        _run(exists, dry_run)
        return
    end_s = time.monotonic() + patience_s
    while left := _left(listing, exists, group):
        if time.monotonic() >= end_s:
            for line in left:
                typer.echo(f"left: {line}")
            stop(f"{len(left)} left of range {chosen}; they still cost", Exit.FAIL)
        typer.echo(f"{len(left)} still listed; looking again", err=True)
        time.sleep(min(LOOK_PAUSE_S, max(0.0, end_s - time.monotonic())))
    typer.echo(f"down: no resource has the tag broadside={chosen}, and there is no group {group}")


def _left(listing: Sequence[str], exists: Sequence[str], group: str) -> list[str]:
    """What Azure still lists of the range."""
    try:
        found = [f"{each['id']} ({each['type']})" for each in json.loads(_ask(listing))]
        there = json.loads(_ask(exists))
    except (ValueError, KeyError, TypeError):
        stop("az answered something else than JSON; nothing is proven", Exit.CANNOT_RUN)
    return [*found, *([f"resource group {group}"] if there is not False else [])]


def _terraform(directory: Path) -> list[str]:
    if not (directory / "main.tf").is_file():
        stop(f"directory {directory}: no Terraform there; give --directory", Exit.USAGE)
    return ["terraform", f"-chdir={directory}"]


def _given(directory: Path, files: Sequence[Path] | None, pairs: Sequence[str] | None) -> list[str]:
    """Variables as terraform's own options; a file is looked for here, then in the directory."""
    words = []
    for path in files or ():
        found = next((each for each in (path, directory / path) if each.is_file()), None)
        if found is None:
            stop(f"vars {path}: no such file", Exit.USAGE)
        words.append(f"-var-file={found.resolve()}")
    for pair in pairs or ():
        if "=" not in pair:
            stop(f"set {pair!r}: must be NAME=VALUE", Exit.USAGE)
        words.append(f"-var={pair}")
    return words


def _approve(yes: bool) -> list[str]:
    return ["-input=false", "-auto-approve"] if yes else []


def _standing(directory: Path) -> Standing | None:
    """The range in Terraform's state; None when none stands there."""
    try:
        told: Mapping[str, Any] = json.loads(_ask([*_terraform(directory), "output", "-json"]))
        values = {key: output["value"] for key, output in told.items()}
        return Standing(
            name=values["name"],
            resource_group=values["resource_group"],
            subscription_id=values["subscription_id"],
            scale_sets=tuple(values["scale_sets"]),
        )
    except KeyError:
        return None
    except (ValueError, TypeError):
        stop("terraform output: no JSON; run: terraform init", Exit.CANNOT_RUN)


def _run(argv: Sequence[str], dry_run: bool) -> None:
    """Show a command and run it on this terminal; ends with 4 when it fails."""
    typer.echo(shlex.join(argv) if dry_run else f"+ {shlex.join(argv)}", err=not dry_run)
    if dry_run:
        return
    try:
        code = subprocess.run(argv, check=False).returncode
    except FileNotFoundError:
        _missing(argv[0])
    if code:
        stop(f"{argv[0]} ended with {code}; what it changed stands", Exit.CANNOT_RUN)


def _ask(argv: Sequence[str]) -> str:
    """What a command that only looks printed."""
    try:
        done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
    except FileNotFoundError:
        _missing(argv[0])
    if done.returncode:
        stop(f"{shlex.join(argv)} ended with {done.returncode}", Exit.CANNOT_RUN)
    return done.stdout


def _missing(tool: str) -> NoReturn:
    hint = {"az": "the Azure CLI (then: az login)", "terraform": "Terraform 1.9 or newer"}
    stop(f"{tool} is missing; install {hint.get(tool, tool)}", Exit.CANNOT_RUN)
