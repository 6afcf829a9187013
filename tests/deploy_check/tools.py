"""External tools that check deploy/. Each returns its faults, or the reason for not running."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broadside.exchange.programs import program_path

ROOT: Final = Path(__file__).parents[2]
AZURE: Final = ROOT / "deploy" / "azure"
CHECKOV: Final = ROOT / ".tools" / "checkov" / "bin" / "checkov"
KUBERNETES: Final = ROOT / ".tools" / "kubernetes" / "bin"
# Version of Kubernetes.
RELEASE: Final = "1.33.0"
_TIMEOUT_S: Final = 540


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """Faults of a tool. ``unrun`` is the reason if it did not run."""

    faults: tuple[str, ...] = ()
    unrun: str | None = None


def cloud_init_schema(cloud_config: str) -> Ran:
    """``cloud-init schema``: types and names of the keys."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(cloud_config)
        file.flush()
        return _run(["cloud-init", "schema", "--config-file", file.name])


def systemd_verify(name: str, unit: str) -> Ran:
    """``systemd-analyze verify``, with stand-ins for what is on an Azure VM only."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        units = root / "units"
        units.mkdir()
        stand_in = root / "program"
        stand_in.write_text("#!/bin/sh\n")
        stand_in.chmod(0o755)
        (units / name).write_text(re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={stand_in}", unit))
        for other in ("chrony.service", "sysinit.target", "basic.target", "shutdown.target",
                      "network-online.target", "multi-user.target"):  # fmt: skip
            service = f"[Service]\nExecStart={stand_in}\n" if other.endswith("service") else ""
            (units / other).write_text(f"[Unit]\nDescription=x\nDefaultDependencies=no\n{service}")
        argv = ["systemd-analyze", "verify", "--man=no", str(units / name)]
        # Unknown directives only cause a warning, so any output is a fault.
        return _run(argv, silent=True, SYSTEMD_UNIT_PATH=str(units))


def systemd_exposure(name: str, unit: str, most: float) -> Ran:
    """``systemd-analyze security``: the exposure must be at most ``most``, of 10."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(unit)
        return _run(
            [
                "systemd-analyze",
                "security",
                "--offline=yes",
                f"--threshold={round(most * 10)}",
                "--no-pager",
                str(path),
            ],
            pattern=r"Overall exposure",
        )


def chrony_parses(conf: str) -> Ran:
    """``chronyd -p -f``: prints the configuration it understood, and sets no clock."""
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write(conf)
        file.flush()
        return _run(["chronyd", "-p", "-f", file.name])


def hadolint() -> Ran:
    return _run([str(ROOT / ".venv/bin/hadolint"), str(ROOT / "deploy/docker/Dockerfile")])


def compose() -> Ran:
    return _run([str(ROOT / ".venv/bin/python"), "-m", "tests.deploy_check.compose"])


def kubernetes_objects() -> str:
    """``kustomize build`` of deploy/hosts/kubernetes: YAML. Raises ``CalledProcessError``."""
    argv = [str(KUBERNETES / "kustomize"), "build", str(ROOT / "deploy" / "hosts" / "kubernetes")]
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout


def kubeconform() -> Ran:
    """``kubeconform -strict`` on what ``kustomize build`` makes, by schemas that are here."""
    if not (KUBERNETES / "kubeconform").exists():
        return Ran(unrun="kubeconform is missing; run: make tools")
    try:
        objects = kubernetes_objects()
    except subprocess.CalledProcessError as error:
        return Ran(faults=tuple(error.stderr.splitlines()))
    # The import takes long, because it loads its schemas.
    import kubernetes_validate

    package = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
    with tempfile.TemporaryDirectory() as folder:
        for path in (package / f"v{RELEASE}-local-strict").glob("*.json"):
            text = path.read_text().replace('"/api/_', f'"file://{folder}/_')
            (Path(folder) / path.name).write_text(text)
        made = Path(folder) / "made.yaml"
        made.write_text(objects)
        return _run(
            [
                str(KUBERNETES / "kubeconform"), "-strict", "-kubernetes-version", RELEASE,
                "-schema-location", f"{folder}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json",
                str(made),
            ]
        )  # fmt: skip


def shell_parses() -> Ran:
    """``sh -n`` on every script under deploy/."""
    results = [_run(["sh", "-n", str(path)]) for path in sorted((ROOT / "deploy").rglob("*.sh"))]
    return Ran(faults=tuple(line for ran in results for line in ran.faults))


def checkov() -> Ran:
    """Run checkov on Terraform and Dockerfile from its own virtual environment."""
    lock = str(ROOT / "deploy" / "checkov.lock")
    if not CHECKOV.exists() and (
        fault := install_in_venv(CHECKOV.parents[1], "sync", "--require-hashes", lock)
    ):
        return Ran(faults=(f"checkov could not be installed: {fault}",))
    return _run(
        [
            str(CHECKOV), "--directory", str(ROOT / "deploy"), "--framework", "terraform",
            "dockerfile", "--config-file", str(ROOT / "deploy" / "checkov.yaml"),
        ],
        pattern=r"^Check:|^\s*(FAILED|File:)",
    )  # fmt: skip


def install_in_venv(home: Path, how: str, *what: str) -> str | None:
    """Install a tool with conflicting pins by ``uv pip`` in its own virtual environment.

    Return the error text, or None.
    """
    uv = str(ROOT / ".tools" / "uv" / "bin" / "uv")
    python = str(home / "bin" / "python")
    made = _run([uv, "venv", "-q", "--clear", "--python", sys.executable, str(home)])
    got = made.faults or _run([uv, "pip", how, "-q", "--python", python, *what]).faults
    return got[0] if got else None


def terraform_fmt() -> Ran:
    return _run(["terraform", "fmt", "-check", "-recursive", "-list=true", str(ROOT / "deploy")])


def terraform_test() -> Ran:
    """``terraform validate`` and ``test``, in a copy, with the provider that provider.sh built."""
    built = subprocess.run(
        ["sh", str(AZURE / "provider.sh")], capture_output=True, text=True, check=False, timeout=60
    )
    if built.returncode:
        return Ran(unrun="no azurerm provider here; build it: sh deploy/azure/provider.sh build")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "azure"
        shutil.copytree(AZURE, copy, ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*"))
        for command in (["init", "-backend=false"], ["validate"], ["test"]):
            argv = ["terraform", f"-chdir={copy}", *command, "-no-color"]
            pattern = r"Error:|fail$|error_message|│" if command == ["test"] else r"Error:|│"
            ran = _run(
                argv,
                pattern=pattern,
                TF_CLI_CONFIG_FILE=built.stdout.strip(),
                CHECKPOINT_DISABLE="1",
            )
            if ran.faults or ran.unrun:
                return ran
    return Ran()


def _run(
    argv: Sequence[str], *, pattern: str = ".", silent: bool = False, **environment: str
) -> Ran:
    """Run a tool. If it fails, its faults are the lines that match ``pattern``, or all lines.

    A ``silent`` tool must print nothing either.
    """
    if (program := program_path(argv[0])) is None:
        name = Path(argv[0]).name
        return Ran(unrun=f"{name} is missing{'' if name == 'terraform' else '; run: make tools'}")
    done = subprocess.run(
        [program, *argv[1:]],
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
    )
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    if done.returncode == 0 and not (silent and lines):
        return Ran()
    stored = tuple(line for line in lines if re.search(pattern, line)) or tuple(lines)
    return Ran(faults=stored or (f"{Path(argv[0]).name} exited with {done.returncode}",))
