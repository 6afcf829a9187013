"""terraform and az as ``broadside up``, ``scale``, ``down`` and ``park`` run them.

Terraform forgets what it was making when it is killed: the resource is there, the state does not
say so, and the next apply refuses to make it twice. :func:`orphans` reads which, and
:func:`import_blocks` has the next apply take them over.
"""

import contextlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import typer

from broadside.coordinator.cli.exits import Exit, stop

# Under the range's folder, beside what Terraform itself keeps there and git ignores.
_NULLS: Final = Path(".terraform") / "null.tfvars.json"
_LAST: Final = Path(".terraform") / "broadside-up.json"
STATE_LOOKS: Final = 3
STATE_PAUSE_S: Final = 1.0
CALL_S: Final = 600.0  # s of a call of az or Terraform that looks, or changes one thing
REST_TRIES: Final = 6
REST_PAUSE_S: Final = 5.0  # az does not show which pause was asked for; a few seconds is usual
RESUME: Final = "resume_imports.tf"  # no override file: those take no import blocks

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_FRAME: Final = re.compile(r"^[│╷╵]\s?", re.MULTILINE)
_THERE: Final = re.compile(r"resource with the ID \"([^\"]+)\" already exists", re.IGNORECASE)
_JOINED: Final = re.compile(
    r"association between \"([^\"]+)\" and \"([^\"]+)\" already exists", re.I
)
_THROTTLED: Final = re.compile(r"too ?many ?requests", re.IGNORECASE)
_WITH: Final = re.compile(r"\bwith ((?:module\.|azurerm_)\S+?),\s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A resource that is there, and that the state does not know."""

    address: str  # in Terraform's files
    id: str  # as `terraform import` wants it

    @property
    def is_machine(self) -> bool:
        """Whether it is made again and not taken over.

        Azure gives no custom data back, so that Terraform would replace it; the provider's import
        of a scale set without extensions ends in a panic; and it keeps nothing.
        """
        kinds = ("virtualmachines", "virtualmachinescalesets")
        return self.id.lower().split("/")[-2] in kinds

    @property
    def top(self) -> str:
        """The id of the resource that it is or lies in, in small letters."""
        found = re.match(
            r"(/subscriptions/[^/]+/resourcegroups/[^/]+(?:/providers/[^/]+/[^/]+/[^/]+)?)",
            self.id.lower(),
        )
        return found[1] if found else self.id.lower()


def terraform(directory: Path) -> list[str]:
    """Terraform's command line; ends with 3 when there is nothing for it."""
    if not (directory / "main.tf").is_file():
        stop(f"directory {directory}: no Terraform there; give --directory", Exit.USAGE)
    return ["terraform", f"-chdir={directory}"]


def mend_state(directory: Path) -> None:
    """Put the last whole state in the place of one that a killed Terraform wrote half.

    Terraform writes its file in place, and keeps beside it what it was when the command began.
    What was made since is taken over as any other orphan, what was destroyed since is found gone.
    """
    state = directory / "terraform.tfstate"
    broken, backup = state.with_suffix(".tfstate.broken"), state.with_suffix(".tfstate.backup")
    for _ in range(STATE_LOOKS):  # one that outlived its command may be writing just now
        is_fresh = state.exists() and state.stat().st_size == 0 and not backup.exists()
        if is_fresh or not state.exists() or _is_whole(state):
            return
        time.sleep(STATE_PAUSE_S)
    state.replace(broken)
    typer.echo(f"{state} was written half; it is kept as {broken.name}", err=True)
    if _is_whole(backup):
        shutil.copy(backup, state)


def _is_whole(state: Path) -> bool:
    try:
        return "version" in json.loads(state.read_text())
    except (OSError, ValueError, TypeError):
        return False


def variables_of(
    directory: Path, files: Sequence[Path] | None, pairs: Sequence[str] | None
) -> list[str]:
    """Variables as terraform's own options; a file is looked for here, then in the directory.

    Terraform takes ``-var=x=null`` for a text of four letters, so nulls go by a file.
    """
    words = []
    for path in files or ():
        found = next((each for each in (path, directory / path) if each.is_file()), None)
        if found is None:
            stop(f"vars {path}: no such file", Exit.USAGE)
        words.append(f"-var-file={found.resolve()}")
    nulls = dict[str, None]()
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals:
            stop(f"set {pair!r}: must be NAME=VALUE", Exit.USAGE)
        if value == "null":
            nulls[name] = None
        else:
            words.append(f"-var={pair}")
    if nulls:
        path = directory / _NULLS
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(nulls))
        words.append(f"-var-file={path.resolve()}")
    return words


def remember(directory: Path, words: Sequence[str]) -> None:
    """Keep what `up` was given, for `park`, `unpark` and `down`."""
    path = directory / _LAST
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(list(words)))


def remembered(directory: Path) -> list[str]:
    """What the last `up` here was given; nothing when there was none."""
    try:
        words = json.loads((directory / _LAST).read_text())
    except (OSError, ValueError):
        return []
    return [str(word) for word in words]


def needs(
    directory: Path, words: Sequence[str], *, strict: bool = False
) -> Mapping[str, Any] | None:
    """What the variables ask for (``local.needs``), without a plan.

    None when they do not do, and Terraform has said on standard error which one and why. Unless
    ``strict``, one that nothing here depends on may be wrong.
    """
    argv = [*terraform(directory), "console", *words]
    told = "jsonencode(local.needs)\n"
    done = _run(argv, input=told, capture_output=True, text=True)
    found = None
    with contextlib.suppress(ValueError, TypeError, IndexError):
        found = json.loads(json.loads(done.stdout.strip().splitlines()[-1]))
    if isinstance(found, dict) and not (strict and "Error: " in done.stderr):
        return found
    sys.stderr.write(done.stderr.partition("\n!!!!")[0])  # its console crashes once it said so
    return None


def run(argv: Sequence[str], dry_run: bool) -> None:
    """Show a command and run it on this terminal; ends with 4 when it fails."""
    run_together([argv], dry_run)


def run_together(argvs: Sequence[Sequence[str]], dry_run: bool) -> None:
    """Show commands and run them side by side; ends with 4 when one of them fails."""
    with ThreadPoolExecutor() as pool:
        codes = list(pool.map(lambda argv: attempt(argv, dry_run, keep_errors=False)[0], argvs))
    for argv, code in zip(argvs, codes, strict=True):
        if code:
            stop(f"{argv[0]} ended with {code}; what it changed stands", Exit.CANNOT_RUN)


def attempt(argv: Sequence[str], dry_run: bool, *, keep_errors: bool = True) -> tuple[int, str]:
    """Show a command and run it; its exit code, and what it said on standard error."""
    typer.echo(shlex.join(argv) if dry_run else f"+ {shlex.join(argv)}", err=not dry_run)
    if dry_run:
        return 0, ""
    if not keep_errors:
        return _run(argv, within_s=None).returncode, ""  # an apply, which the operator watches
    said = []
    try:
        with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
            for line in process.stderr or ():
                sys.stderr.write(line)
                said.append(line)
    except FileNotFoundError:
        missing(argv[0])
    return process.returncode, "".join(said)


def _run(
    argv: Sequence[str], *, within_s: float | None = CALL_S, **how: Any
) -> subprocess.CompletedProcess[Any]:
    """Run a command; ends with 4 when there is none of that name, or it has no end in time."""
    try:
        return subprocess.run(argv, check=False, timeout=within_s, **how)
    except FileNotFoundError:
        missing(argv[0])
    except subprocess.TimeoutExpired:
        stop(f"{shlex.join(argv)}: no end within {within_s:g} s", Exit.CANNOT_RUN)


def ask(argv: Sequence[str]) -> str:
    """What a command that only looks printed; ends with 4 when it fails."""
    done = _run(argv, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        stop(f"{shlex.join(argv)} ended with {done.returncode}", Exit.CANNOT_RUN)
    return str(done.stdout)


def ask_az(*words: str) -> Any:
    """What az answered, as a value; ends with 4 when it is none."""
    try:
        return json.loads(ask(["az", *words, "--output", "json"]))
    except ValueError:
        stop("az answered something else than JSON; nothing is proven", Exit.CANNOT_RUN)


def try_az(*words: str) -> tuple[Any, str | None]:
    """Return az's answer as a value, or None and the last line of what it said instead."""
    done = _run(["az", *words, "--output", "json"], capture_output=True, text=True)
    try:
        if done.returncode == 0:
            return json.loads(done.stdout), None
    except ValueError:
        return None, "az answered something else than JSON"
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return None, next((line for line in lines if "ERROR" in line), (lines or ["no reason"])[-1])


def ask_az_together(*questions: Sequence[str]) -> list[Any]:
    """What az answered to each; az takes seconds to start, so they are asked side by side."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda words: ask_az(*words), questions))


def ask_rest(*words: str) -> Any:
    """What ``az rest`` answered; ends with 4 when it fails.

    Unlike az's other commands it gives up where Azure says 429; here it is tried again.
    """
    argv = ["az", "rest", *words, "--output", "json"]
    typer.echo(f"+ {shlex.join(argv)}", err=True)
    tries_left = REST_TRIES
    while True:
        done = _run(argv, capture_output=True, text=True)
        sys.stderr.write(done.stderr)
        if done.returncode == 0:
            return json.loads(done.stdout or "null")
        tries_left -= 1
        if not tries_left or not _THROTTLED.search(done.stderr):
            stop(f"az ended with {done.returncode}; what it changed stands", Exit.CANNOT_RUN)
        time.sleep(REST_PAUSE_S)


def missing(tool: str) -> NoReturn:
    hint = {"az": "the Azure CLI (then: az login)", "terraform": "Terraform 1.9 or newer"}
    stop(f"{tool} is missing; install {hint.get(tool, tool)}", Exit.CANNOT_RUN)


def orphans(errors: str) -> list[Orphan]:
    """The resources that an apply found to be there already, by what it said."""
    plain = _FRAME.sub("", _COLOUR.sub("", errors))
    found = []
    for part in re.split(r"^\s*Error: ", plain, flags=re.MULTILINE)[1:]:
        text = " ".join(part.split()) + " "
        address = _WITH.search(text)
        if address is None:
            continue
        if there := _THERE.search(text):
            found.append(Orphan(address=address[1], id=there[1]))
        elif joined := _JOINED.search(text):
            # A subnet's own are imported by the subnet, all others by both ids.
            is_subnets = ".azurerm_subnet_" in address[1]
            ids = joined[1] if is_subnets else f"{joined[1]}|{joined[2]}"
            found.append(Orphan(address=address[1], id=ids))
    return found


def import_blocks(found: Sequence[Orphan]) -> str:
    """Terraform that takes them over at the next apply."""
    return "".join(
        f"import {{\n  to = {each.address}\n  id = {json.dumps(each.id)}\n}}\n\n" for each in found
    )
