"""Calls of terraform and az, used by the range commands.

If Terraform is killed, it does not record the resource that it was creating. The next apply then
fails because the resource already exists. :func:`find_orphans` finds such resources in the error
messages, and :func:`import_blocks` makes the next apply import them.
"""

import contextlib
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import typer

from broadside.coordinator.cli.exit_codes import exit_usage, exit_with_error

# These files are in Terraform's folder, which git ignores.
_NULLS: Final = Path(".terraform") / "null.tfvars.json"
_LAST: Final = Path(".terraform") / "broadside-up.json"
# Errors of the last apply, for a support bundle.
ERRORS: Final = Path(".terraform") / "broadside-errors.txt"
# Time limit for a call that only reads, or changes one resource.
CALL_S: Final = 600.0
REST_TRIES: Final = 6
# az does not show the requested delay. A few seconds are usual.
REST_PAUSE_S: Final = 5.0
# It is not an override file, because override files cannot contain import blocks.
RESUME: Final = "resume_imports.tf"

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
    """Existing resource that is missing in the Terraform state.

    Attributes:
        address: Address in the Terraform files.
        id: Id for `terraform import`.
    """

    address: str
    id: str

    @property
    def is_machine(self) -> bool:
        """True if the resource is created again and not imported.

        Azure does not return custom data, so Terraform would replace an imported VM. The provider
        crashes when you import a scale set without extensions. A VM has no data to preserve.
        """
        kinds = ("virtualmachines", "virtualmachinescalesets")
        return self.id.lower().split("/")[-2] in kinds

    @property
    def top(self) -> str:
        """Id of the resource or of the resource that contains it, in lower case."""
        match = re.match(
            r"(/subscriptions/[^/]+/resourcegroups/[^/]+(?:/providers/[^/]+/[^/]+/[^/]+)?)",
            self.id.lower(),
        )
        return match[1] if match else self.id.lower()


def terraform(directory: Path) -> list[str]:
    """Return the Terraform command line. Exit with 3 if the directory has no Terraform files."""
    if not (directory / "main.tf").is_file():
        exit_usage(f"directory {directory}: it has no Terraform files; give --directory")
    return ["terraform", f"-chdir={directory}"]


def variable_options(
    directory: Path, files: Sequence[Path] | None, pairs: Sequence[str] | None
) -> list[str]:
    """Return the variables as Terraform options.

    Terraform parses ``-var=x=null`` as a string, so null values are written to a file.

    Args:
        directory: The Terraform directory, which is also searched for files.
        files: Files to read variables from. None for no further files.
        pairs: Variables to set, as NAME=VALUE. None sets none.
    """
    options = []
    for path in files or ():
        file = next((one for one in (path, directory / path) if one.is_file()), None)
        if file is None:
            exit_usage(f"--vars {path}: no such file")
        options.append(f"-var-file={file.resolve()}")
    nulls = dict[str, None]()
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals:
            exit_usage(f"--set {pair!r}: expected NAME=VALUE")
        if value == "null":
            nulls[name] = None
        else:
            options.append(f"-var={pair}")
    if nulls:
        path = directory / _NULLS
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(nulls))
        options.append(f"-var-file={path.resolve()}")
    return options


def store_variables(directory: Path, options: Sequence[str]) -> None:
    """Store the variables from `up`, to be used by `park`, `unpark` and `down`.

    Args:
        directory: The Terraform directory to use.
        options: The variables, as Terraform options.
    """
    path = directory / _LAST
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(list(options)))


def store_errors(directory: Path, errors: str) -> None:
    """Store the errors of an apply for a support bundle, or remove those of an earlier one.

    Args:
        directory: Folder of the range.
        errors: Text of the errors, with colour codes. An empty text removes the file.
    """
    path = directory / ERRORS
    if errors:
        path.parent.mkdir(exist_ok=True)
        path.write_text(_COLOUR.sub("", errors))
    else:
        path.unlink(missing_ok=True)


def stored_variables(directory: Path) -> list[str]:
    """Return the variables of the last `up`, or an empty list if there was none."""
    try:
        options = json.loads((directory / _LAST).read_text())
    except (OSError, ValueError):
        return []
    return [str(option) for option in options]


def needs(
    directory: Path, options: Sequence[str], *, strict: bool = False
) -> Mapping[str, Any] | None:
    """Evaluate the requirements that follow from the variables (``local.needs``) without a plan.

    Args:
        directory: The Terraform directory to use.
        options: The variables, as Terraform options.
        strict: Also reject an invalid variable that ``local.needs`` does not depend on.

    Returns:
        The requirements. None if a variable is invalid. Terraform has then printed the reason on
            standard error.
    """
    argv = [*terraform(directory), "console", *options]
    done = _run(argv, input="jsonencode(local.needs)\n", capture_output=True, text=True)
    values = None
    with contextlib.suppress(ValueError, TypeError, IndexError):
        values = json.loads(json.loads(done.stdout.strip().splitlines()[-1]))
    if isinstance(values, dict) and not (strict and "Error: " in done.stderr):
        return values
    # The Terraform console crashes after it has printed the error.
    sys.stderr.write(done.stderr.partition("\n!!!!")[0])
    return None


def run(argv: Sequence[str], dry_run: bool) -> None:
    """Print a command and run it on this terminal. Exit with 4 if it fails.

    Args:
        argv: The command to run.
        dry_run: Print it, but do not run it.
    """
    run_together([argv], dry_run)


def run_together(argvs: Sequence[Sequence[str]], dry_run: bool) -> None:
    """Print commands and run them concurrently. Exit with 4 if one fails.

    Args:
        argvs: The commands to run.
        dry_run: Print them, but do not run them.
    """
    with ThreadPoolExecutor() as pool:
        codes = list(pool.map(lambda argv: attempt(argv, dry_run, capture=False)[0], argvs))
    for argv, code in zip(argvs, codes, strict=True):
        if code:
            exit_with_error(f"{argv[0]} ended with {code}; its changes remain")


def attempt(argv: Sequence[str], dry_run: bool, *, capture: bool = True) -> tuple[int, str]:
    """Print a command and run it.

    Args:
        argv: The command to run.
        dry_run: Print it, but do not run it.
        capture: Capture standard error, and print it too.

    Returns:
        Exit code and captured standard error.
    """
    typer.echo(shlex.join(argv) if dry_run else f"+ {shlex.join(argv)}", err=not dry_run)
    if dry_run:
        return 0, ""
    if not capture:
        # We do not need a time limit, because an operator will watch this.
        return _run(argv, within_s=None).returncode, ""
    errors = []
    try:
        with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
            for line in process.stderr or ():
                sys.stderr.write(line)
                errors.append(line)
    except FileNotFoundError:
        _exit_missing(argv[0])
    return process.returncode, "".join(errors)


def _run(
    argv: Sequence[str], *, within_s: float | None = CALL_S, **how: Any
) -> subprocess.CompletedProcess[Any]:
    """Run a command. Exit with 4 if the program is missing or the time limit is reached."""
    try:
        return subprocess.run(argv, check=False, timeout=within_s, **how)
    except FileNotFoundError:
        _exit_missing(argv[0])
    except subprocess.TimeoutExpired:
        exit_with_error(f"{shlex.join(argv)}: not finished within {within_s:g} s")


def read_output(argv: Sequence[str]) -> str:
    """Return the output of a read-only command. Exit with 4 if it fails."""
    done = _run(argv, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        exit_with_error(f"{shlex.join(argv)} ended with {done.returncode}")
    return str(done.stdout)


def call_az(*words: str) -> Any:
    """Return the parsed az response. Exit with 4 if it is invalid."""
    try:
        return json.loads(read_output(["az", *words, "--output", "json"]))
    except ValueError:
        exit_with_error("az did not return JSON; nothing is verified")


def try_az(*words: str) -> tuple[Any, str | None]:
    """Return the parsed az response and None, or None and an error line."""
    done = _run(["az", *words, "--output", "json"], capture_output=True, text=True)
    try:
        if done.returncode == 0:
            return json.loads(done.stdout), None
    except ValueError:
        return None, "az did not return JSON"
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return None, next((line for line in lines if "ERROR" in line), (lines or ["no reason"])[-1])


def call_az_together(*commands: Sequence[str]) -> list[Any]:
    """Return the responses of several az commands.

    The commands run at the same time, because az needs seconds to start.
    """
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda parts: call_az(*parts), commands))


def call_rest(*words: str) -> Any:
    """Return the ``az rest`` response. Exit with 4 if it fails.

    Unlike other az commands, ``az rest`` does not retry after status 429. This function will.
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
            exit_with_error(f"az ended with {done.returncode}; its changes remain")
        time.sleep(REST_PAUSE_S)


def _exit_missing(tool: str) -> NoReturn:
    hint = {"az": "the Azure CLI (then: az login)", "terraform": "Terraform 1.9 or newer"}
    exit_with_error(f"{tool} is not installed; install {hint.get(tool, tool)}")


def find_orphans(errors: str) -> list[Orphan]:
    """Return the resources that an apply reported as existing.

    Args:
        errors: Standard error of the apply.
    """
    plain = _FRAME.sub("", _COLOUR.sub("", errors))
    orphans = []
    for part in re.split(r"^\s*Error: ", plain, flags=re.MULTILINE)[1:]:
        text = " ".join(part.split()) + " "
        address = _WITH.search(text)
        if address is None:
            continue
        if there := _THERE.search(text):
            orphans.append(Orphan(address=address[1], id=there[1]))
        elif joined := _JOINED.search(text):
            # To import a subnet resource, use the subnet id. For all others, use both ids.
            is_subnets = ".azurerm_subnet_" in address[1]
            ids = joined[1] if is_subnets else f"{joined[1]}|{joined[2]}"
            orphans.append(Orphan(address=address[1], id=ids))
    return orphans


def import_blocks(orphans: Sequence[Orphan]) -> str:
    """Return the Terraform text that imports resources at the next apply."""
    return "".join(
        f"import {{\n  to = {one.address}\n  id = {json.dumps(one.id)}\n}}\n\n" for one in orphans
    )
