"""Check of all files under deploy/ (``python -m tests.deploy_check``).

It prints one line per check and exits with 1 if there are faults.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.deploy_check import boot, hcl, range_rules, tools
from tests.deploy_check.schema import Schema
from tests.deploy_check.tools import AZURE, ROOT, Ran
from tests.deploy_check.values import Values

SCHEMA: Final = ROOT / "tests" / "data" / "azurerm" / "schema.json.gz"
# Limit on the exposure by systemd-analyze security, from 0 ("SAFE") to 10. "OK" begins at 5. The
# priority of the gate adds 0.1.
EXPOSURE_MAX: Final = 1.7
AGENT: Final = boot.Boot(
    service="agent",
    environment={"BROADSIDE_FABRIC": "azure", "BROADSIDE_AGENT_ROLE": "client"},
)
COORDINATOR: Final = boot.Boot(service="coordinator", environment={"BROADSIDE_FABRIC": "azure"})


def read_files(folder: Path) -> dict[str, str]:
    """Return Terraform's files in a folder by relative path."""
    return {
        str(path.relative_to(folder)): path.read_text("utf-8")
        for pattern in ("*.tf", "*.tfvars")
        for path in folder.rglob(pattern)
        if ".terraform" not in path.parts
    }


def range_faults(files: dict[str, str], schema: Schema) -> Iterator[str]:
    """Yield faults by schema and rules, with the defaults and with every example."""
    modules = hcl.load(files)
    for module in modules.values():
        yield from schema.faults(module)
    examples = {
        path: hcl.read_values(files[path], path) for path in files if path.endswith(".tfvars")
    }
    seen: set[str] = set()
    for path, given in {"defaults": {}, **examples}.items():
        yield from range_rules.variable_faults(modules[hcl.ROOT], given, path)
        range_ = range_rules.Range(modules=modules, values=Values(modules, given), schema=schema)
        for fault in range_rules.faults(range_):
            if fault not in seen:
                seen.add(fault)
                yield fault
    defaults = range_rules.Range(modules=modules, values=Values(modules, {}), schema=schema)
    yield from range_rules.name_faults(defaults)


def checks() -> Iterator[tuple[str, Ran]]:
    """Yield each check by name after it has run."""
    result = range_faults(read_files(AZURE), Schema.read(SCHEMA))
    yield "terraform files: schema and rules", _terraform_faults(result)
    folder = AZURE / "modules" / "boot"
    for item in (AGENT, COORDINATOR):
        cloud_config = boot.render(folder, item)
        unit = boot.render_unit(folder, item)
        name = f"broadside-{item.service}.service"
        yield f"{item.service}: cloud-config", Ran(faults=tuple(boot.faults(cloud_config)))
        yield f"{item.service}: cloud-init schema", tools.cloud_init_schema(cloud_config)
        yield f"{item.service}: systemd-analyze verify", tools.systemd_verify(name, unit)
        exposure = tools.systemd_exposure(name, unit, EXPOSURE_MAX)
        yield f"{item.service}: systemd-analyze security, at most {EXPOSURE_MAX}", exposure
    yield "chrony.conf: chronyd -p", tools.chrony_parses((folder / "files/chrony.conf").read_text())
    yield "scripts: sh -n", tools.shell_parses()
    yield "docker-compose.yml", tools.compose()
    yield "kustomize build, kubeconform", tools.kubeconform()
    yield "hadolint", tools.hadolint()
    yield "checkov", tools.checkov()
    yield "terraform fmt", tools.terraform_fmt()
    yield "terraform validate and test", tools.terraform_test()


def _terraform_faults(lines: Iterator[str]) -> Ran:
    try:
        return Ran(faults=tuple(lines))
    except hcl.Unreadable as error:
        return Ran(faults=(str(error),))


def print_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _lines(name: str, ran: Ran) -> list[str]:
    if ran.unrun:
        return [f"not run  {name}: {ran.unrun}"]
    return [f"FAULTY   {name}", *ran.faults] if ran.faults else [f"ok       {name}"]


def main() -> int:
    """Print one line per check with its faults, and return the exit code."""
    parser = argparse.ArgumentParser(prog="tests.deploy_check", description=__doc__)
    parser.add_argument(
        "--require-all", action="store_true", help="fail also when a check was not run"
    )
    required = parser.parse_args().require_all
    failed = unrun = 0
    for name, ran in checks():
        failed += bool(ran.faults)
        unrun += ran.unrun is not None
        print_line("\n         ".join(_lines(name, ran)))
    print_line(f"deploy-check: {failed} faulty, {unrun} not run")
    return 1 if failed or (required and unrun) else 0


if __name__ == "__main__":
    sys.exit(main())
