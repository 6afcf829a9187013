"""The ``broadside up``, ``scale``, ``park``, ``unpark`` and ``down`` commands for a range on Azure.

They run terraform and az on the files in ``deploy/azure``, and print each command. ``--dry-run``
only prints them. In addition, each command completes what a killed or failed command has started,
and ``down`` proves that no resource remains.
"""

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from broadside.coordinator.cli.exits import Exit, stop
from broadside.coordinator.cli.range_check import shortages, usd_a_day
from broadside.coordinator.cli.range_files import (
    default_directory,
    lay_files,
    note_bundle,
    require_bundle,
)
from broadside.coordinator.cli.range_ready import READY_WITHIN_S, wait_ready
from broadside.coordinator.cli.terraform import (
    RESUME,
    Orphan,
    ask,
    ask_az,
    ask_az_together,
    ask_rest,
    attempt,
    import_blocks,
    mend_state,
    needs,
    orphans,
    remember,
    remembered,
    run,
    run_together,
    terraform,
    variables_of,
)
from broadside.coordinator.core.formatting import dollars

DIRECTORY: Final = default_directory()
FLEET_MAX: Final = 1000
LOOK_PAUSE_S: Final = 10.0
# Limit for repeated applies. Terraform detects existing resources layer by layer, such as a network
# and then its subnets.
RESUMES_MAX: Final = 8
UPLOAD_PATIENCE_S: Final = 300.0
FIREWALL_PATIENCE_S: Final = 1800.0
# API versions from 2024-10-01 preserve autoscaleConfiguration.
FIREWALL_API: Final = "2025-05-01"
# Wait for a Terraform process that outlived its command.
LOCK: Final = "-lock-timeout=10m"

Directory = Annotated[
    Path,
    typer.Option(
        help="the Terraform directory; default: deploy/azure of a checkout, else broadside/azure "
        "under $XDG_STATE_HOME",
        metavar="DIR",
        show_default=False,
    ),
]
Vars = Annotated[
    list[Path] | None,
    typer.Option("--vars", metavar="FILE", help="a .tfvars file; may come several times"),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="one Terraform variable; may come again"),
]
Backend = Annotated[
    Path | None,
    typer.Option("--backend", metavar="FILE", help="where the state is: -backend-config of init"),
]
Bundle = Annotated[
    Path | None,
    typer.Option(
        "--bundle",
        metavar="FILE",
        help="broadside-bundle-VERSION.tar.gz of a release, which the VMs install; later commands "
        "know it. A checkout builds its own",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="do not ask before changing or destroying")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="print the commands and run none")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeOutputs:
    """Terraform outputs that these commands use.

    Attributes:
        name: Range name, which is also its tag.
        resource_group: Resource group name.
        subscription_id: Subscription id.
        scale_sets: Scale set names for the agents.
        own_group: True if the range has created its resource group.
    """

    name: str
    resource_group: str
    subscription_id: str
    scale_sets: tuple[str, ...]
    own_group: bool

    @property
    def place(self) -> list[str]:
        return ["--resource-group", self.resource_group, "--subscription", self.subscription_id]


def up(
    directory: Directory = DIRECTORY,
    variables: Vars = None,
    settings: Set = None,
    backend: Backend = None,
    bundle: Bundle = None,
    check: Annotated[
        bool, typer.Option("--check", help="only say what quota or size the subscription lacks")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    ready_within_s: Annotated[
        float,
        typer.Option(
            help="seconds to wait until all agents and the coordinator are ready; 0: do not wait",
            min=0,
        ),
    ] = READY_WITHIN_S,
) -> None:
    """Build the range, or bring it to what the variables say; wait until its agents are ready.

    After a failed one the same command goes on: VMs that are up look for their package until it
    is there.
    """
    lay_files(directory, update=True)
    command = terraform(directory)
    mend_state(directory)
    given = variables_of(directory, variables, settings)
    if not dry_run:
        note_bundle(directory, bundle)
        require_bundle(directory, given)
    (directory / RESUME).unlink(missing_ok=True)
    state = [] if backend is None else [f"-backend-config={backend.resolve()}"]
    run([*command, "init", "-input=false", *state], dry_run)
    if check:
        _check(directory, given)
        return
    if not dry_run:
        remember(directory, given)
        if (told := _outputs(directory)).get("parked"):
            _set_firewall(told, allocated=True)
    _apply(directory, given, yes, dry_run)
    if not dry_run:
        _upload(directory)
        if ready_within_s:
            _wait_ready(directory, ready_within_s)
        typer.echo("up; when you are done: broadside down")


def scale(
    instances: Annotated[int, typer.Argument(min=0, max=FLEET_MAX, help="VMs in each scale set")],
    directory: Directory = DIRECTORY,
    dry_run: DryRun = False,
) -> None:
    """Set how many clients and how many servers there are: 30 before a test, 0 after it."""
    outputs = _must_stand(directory)
    _scale(outputs, instances, dry_run)
    if not dry_run:
        typer.echo(f"{' and '.join(outputs.scale_sets)}: {instances} VMs each")


def park(
    directory: Directory = DIRECTORY,
    variables: Vars = None,
    settings: Set = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Stop what costs while nobody tests: the fleet to 0, firewall and Bastion given back.

    Addresses, rules, roles, tables and results stay. Variables: those of the last `up` from here,
    unless some are given.
    """
    _scale(_must_stand(directory), 0, dry_run)
    _park(directory, variables, settings, "true", yes, dry_run)
    if not dry_run:
        _set_firewall(_outputs(directory), allocated=False)
        typer.echo("parked; the next morning: broadside unpark")


def unpark(
    directory: Directory = DIRECTORY,
    variables: Vars = None,
    settings: Set = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Bring firewall and Bastion back, and the routes to the firewall's new address."""
    _must_stand(directory)
    if not dry_run:
        _set_firewall(_outputs(directory), allocated=True)
    _park(directory, variables, settings, "false", yes, dry_run)
    if not dry_run:
        typer.echo("unparked, with no agents; before a test: broadside scale N")


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
    """Destroy the range, and prove that nothing with its tag is left (else exit 1).

    What is left after that, of an `up` that was cut short for instance, it deletes by its tag.
    """
    lay_files(directory)
    command = terraform(directory)
    mend_state(directory)
    (directory / RESUME).unlink(missing_ok=True)
    given = variables_of(directory, variables, settings) or remembered(directory)
    found = _read_outputs(directory)
    if found is None and name is None:
        found = _asked_for(directory, given)
    if (chosen := name or (found.name if found else None)) is None:
        stop(
            f"no range stands in {directory}'s state; give --name to look for one by its tag",
            Exit.CANNOT_RUN,
        )
    left = Remains(
        name=chosen,
        group=found.resource_group if found else chosen,
        where=tuple(["--subscription", found.subscription_id] if found else []),
    )
    destroy = [*command, "destroy", *given, LOCK, *_approve(yes)]
    code = attempt(destroy, dry_run, keep_errors=False)[0] if found else 0
    if dry_run:
        left.look(dry_run)
        return
    if code and not left.sweep(yes):
        stop(f"terraform ended with {code}; what it changed stands", Exit.CANNOT_RUN)
    # The obstacle is removed. Terraform must update its state too.
    if code:
        run(destroy, dry_run)
    # Resources that were created from a template remain in a group that the range does not own.
    if found and not found.own_group:
        left.sweep(yes)
    if not left.wait(patience_s):
        left.sweep(yes)
        if not left.wait(patience_s):
            left.tell()
    typer.echo(
        f"down: no resource has the tag broadside={left.name}, and it has no group {left.group}"
    )


# Applying -----------------------------------------------------------------------------------------


def _apply(directory: Path, given: Sequence[str], yes: bool, dry_run: bool) -> None:
    """Apply, and import the resources that an interrupted apply has created but not recorded."""
    argv = [*terraform(directory), "apply", *given, LOCK, *_approve(yes)]
    resume, taken = directory / RESUME, dict[str, Orphan]()
    try:
        for _ in range(RESUMES_MAX):
            code, errors = attempt(argv, dry_run)
            if code == 0:
                return
            found = {each.address: each for each in orphans(errors)}
            if not found.keys() - taken.keys():
                break
            _must_be_ours(directory, given, list(found.values()))
            taken |= found
            typer.echo(
                f"{len(found)} made by an `up` that was cut short; taking them over", err=True
            )
            if machines := [each.id for each in found.values() if each.is_machine]:
                run(["az", "resource", "delete", "--ids", *machines], dry_run)
            kept = [each for each in taken.values() if not each.is_machine]
            resume.write_text(import_blocks(kept))
    finally:
        resume.unlink(missing_ok=True)
    stop(
        f"terraform ended with {code}; what it made stands: up again goes on, down removes it",
        Exit.CANNOT_RUN,
    )


def _upload(directory: Path) -> None:
    """Upload the package if the account has private endpoints.

    The account is opened to the operator addresses to make the upload, and will be closed after it.
    """
    told = _outputs(directory)
    package = told.get("package")
    if package is None:
        return
    place = ["--resource-group", told["resource_group"], "--subscription", told["subscription_id"]]
    account = ["az", "storage", "account", "update", "--name", package["account"], *place]
    put = [
        "az", "storage", "blob", "upload", "--auth-mode", "login", "--overwrite",
        "--only-show-errors",
        "--account-name", package["account"], "--container-name", package["container"],
        "--name", package["blob"], "--file", package["path"], "--output", "none",
    ]  # fmt: skip
    access = [*account, "--output", "none", "--public-network-access"]
    run([*access, "Enabled"], dry_run=False)
    try:
        end_s = time.monotonic() + UPLOAD_PATIENCE_S
        while attempt(put, dry_run=False, keep_errors=False)[0]:
            if time.monotonic() > end_s:
                stop("the package was not uploaded; the range stands: up again", Exit.CANNOT_RUN)
            typer.echo("a role or rule that is new may not count yet; again", err=True)
            time.sleep(LOOK_PAUSE_S)
    finally:
        run([*access, "Disabled"], dry_run=False)


def _wait_ready(directory: Path, within_s: float) -> None:
    outputs = _outputs(directory)
    if outputs.get("boot") is None or outputs.get("parked"):
        return
    range_ = _range(outputs)
    wait_ready(range_.place, range_.scale_sets, outputs["boot"], within_s)


def _must_be_ours(directory: Path, given: Sequence[str], found: Sequence[Orphan]) -> None:
    """Exit if a resource to import is not of the range, because `down` would destroy it."""
    told = needs(directory, given)
    if told is None:
        stop("terraform console does not say what the variables ask for", Exit.CANNOT_RUN)
    name, where = str(told["name"]), ["--subscription", str(told["subscription_id"])]
    tag = ["--tag", f"broadside={name}", *where]
    listed = ask_az_together(["group", "list", *tag], ["resource", "list", *tag])
    ours = [each["id"].lower() for some in listed for each in some]
    for each in found:
        own_name = each.id.lower().rsplit("/", 1)[-1].startswith(f"{name}-")
        # A role assignment name is derived from the range.
        is_role = "/roleassignments/" in each.id.lower()
        # This is data in the range's account. Data in another account would not be readable.
        is_data = each.id.startswith("https://")
        inside = any(each.top == one or each.top.startswith(one + "/") for one in ours)
        if not (own_name or is_role or is_data or inside):
            stop(
                f"{each.id} is there and has no tag broadside={name}: not this range's; name the "
                "range otherwise, or remove it yourself",
                Exit.CANNOT_RUN,
            )


def _check(directory: Path, given: Sequence[str]) -> None:
    told = needs(directory, given, strict=True)
    if told is None:
        stop("the variables do not do, for the reason above", Exit.CANNOT_RUN)
    region, where = str(told["location"]), ["--subscription", str(told["subscription_id"])]
    place = ["--location", region, *where]
    locations, compute, network, sizes = ask_az_together(
        ["account", "list-locations"],
        ["vm", "list-usage", *place],
        ["network", "list-usages", *place],
        ["vm", "list-skus", *place, "--resource-type", "virtualMachines"],
    )
    short = list(
        shortages(told, locations=locations, compute=compute, network=network, sizes=sizes)
    )
    if (plan := told["image_plan"]) and not ask_az("vm", "image", "terms", "show", *plan)[
        "accepted"
    ]:
        short.append(f"the image's legal terms: az vm image terms accept {' '.join(plan)}")
    for line in short:
        typer.echo(f"short: {line}")
    if short:
        stop(f"{len(short)} to be asked for before `up` can succeed", Exit.CANNOT_RUN)
    typer.echo(
        f"enough quota in {region} for {2 * int(told['instances'])} {told['vm_size']}, a "
        f"{told['coordinator_size']} and {told['public_addresses_count']} public addresses"
    )
    typer.echo("firewall capacity units have no quota: a region can still be short of them")


# Parking ------------------------------------------------------------------------------------------


def _park(
    directory: Path,
    variables: Sequence[Path] | None,
    settings: Sequence[str] | None,
    parked: str,
    yes: bool,
    dry_run: bool,
) -> None:
    given = variables_of(directory, variables, settings) or remembered(directory)
    _apply(directory, [*given, f"-var=parked={parked}"], yes, dry_run)
    if dry_run or (told := needs(directory, given)) is None:
        return
    from broadside.coordinator.prices import load

    parked_usd, running_usd = usd_a_day(told, load())
    typer.echo(
        f"about {dollars(parked_usd)} a day parked, {dollars(running_usd)} running with no agents "
        "(list prices, East US)"
    )


def _set_firewall(told: Mapping[str, Any], *, allocated: bool) -> None:
    """Allocate or deallocate the firewall by setting or removing its addresses.

    A firewall without addresses has no instances and no cost. The change uses the Resource Manager,
    because the Terraform provider would create a new firewall.
    """
    addresses = told.get("firewall_addresses")
    if addresses is None:
        return
    url = f"{told['firewall_id']}?api-version={FIREWALL_API}"
    body = ask_rest("--method", "get", "--url", url)
    if bool(body["properties"].get("ipConfigurations")) == allocated:
        return
    body["properties"] |= addresses if allocated else dict.fromkeys(addresses)
    if not allocated:
        body["properties"]["ipConfigurations"] = []
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({name: value for name, value in body.items() if name != "etag"}, file)
        file.flush()
        ask_rest("--method", "put", "--url", url, "--body", f"@{file.name}")
    end_s = time.monotonic() + FIREWALL_PATIENCE_S
    while (state := _provisioning(url)) not in ("Succeeded", "Failed"):
        if time.monotonic() > end_s:
            stop(f"the firewall is {state} for too long; the same command goes on", Exit.CANNOT_RUN)
        time.sleep(LOOK_PAUSE_S)
    if state == "Failed":
        stop("the firewall did not take it; the same command tries again", Exit.CANNOT_RUN)


def _provisioning(url: str) -> str:
    body = ask_rest("--method", "get", "--url", url)
    return str(body["properties"]["provisioningState"])


def _scale(outputs: RangeOutputs, instances: int, dry_run: bool) -> None:
    """Scale all scale sets at the same time. az waits until Azure has finished."""
    capacity = ["--new-capacity", str(instances), "--output", "none"]
    run_together(
        [
            ["az", "vmss", "scale", "--name", name, *outputs.place, *capacity]
            for name in outputs.scale_sets
        ],
        dry_run,
    )


# Destroying ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """Resources that Azure still lists for a range, by tag and by resource group.

    Attributes:
        name: Range name, which is the tag value.
        group: Resource group name.
        where: Options for az, with the subscription. Empty if it is unknown.
    """

    name: str
    group: str
    where: tuple[str, ...]

    @property
    def _listing(self) -> list[str]:
        return ["az", "resource", "list", "--tag", f"broadside={self.name}", *self.where]

    @property
    def _groups(self) -> list[str]:
        return ["az", "group", "list", "--tag", f"broadside={self.name}", *self.where]

    def look(self, dry_run: bool) -> None:
        for argv in (self._listing, self._groups):
            run([*argv, "--output", "json"], dry_run)

    def found(self) -> tuple[list[str], list[str]]:
        """Return the resource ids and the resource group names."""
        resources, groups = ask_az_together(self._listing[1:], self._groups[1:])
        try:
            # Every resource to delete must have the tag. Do not rely on the list filter.
            for each in (*resources, *groups):
                if each["tags"]["broadside"] != self.name:
                    stop(f"az lists {each['id']}, which is not {self.name}'s", Exit.CANNOT_RUN)
            return [str(each["id"]) for each in resources], [str(each["name"]) for each in groups]
        except (KeyError, TypeError):
            stop("az answered something else than a list; nothing is proven", Exit.CANNOT_RUN)

    def wait(self, patience_s: float) -> bool:
        """Wait until Azure lists no resource. Return False after ``patience_s`` seconds."""
        end_s = time.monotonic() + patience_s
        while any(left := self.found()):
            if time.monotonic() >= end_s:
                return False
            typer.echo(f"{len(left[0]) + len(left[1])} still listed; looking again", err=True)
            time.sleep(min(LOOK_PAUSE_S, max(0.0, end_s - time.monotonic())))
        return True

    def sweep(self, yes: bool) -> bool:
        """Delete the remaining resources by tag. Return True if a deletion was requested."""
        resources, groups = self.found()
        if not resources and not groups:
            return False
        for each in (*groups, *resources):
            typer.echo(f"left behind: {each}", err=True)
        if not yes and not typer.confirm("delete them?", err=True):
            return False
        for group in groups:
            attempt(
                ["az", "group", "delete", "--name", group, *self.where, "--yes"], dry_run=False,
                keep_errors=False,
            )  # fmt: skip
        if not groups:
            attempt(
                ["az", "resource", "delete", "--ids", *resources], dry_run=False, keep_errors=False
            )
        return True

    def tell(self) -> None:
        """Print the remaining resources, which still cost money, and exit with 1."""
        resources, groups = self.found()
        for each in resources:
            typer.echo(f"left: {each}")
        for each in groups:
            typer.echo(f"left: resource group {each}")
        count = len(resources) + len(groups)
        stop(f"{count} left of range {self.name}; they still cost", Exit.FAIL)


# Terraform state ----------------------------------------------------------------------------------


def _must_stand(directory: Path) -> RangeOutputs:
    lay_files(directory)
    mend_state(directory)
    outputs = _read_outputs(directory)
    if outputs is None:
        stop(f"no range stands in {directory}'s state; run: broadside up", Exit.CANNOT_RUN)
    return outputs


def _read_outputs(directory: Path) -> RangeOutputs | None:
    """Return the range in the Terraform state, or None if it is missing or incomplete."""
    told = _outputs(directory)
    try:
        return _range(told)
    except KeyError:
        return None
    except TypeError:
        stop("terraform output: not a range's; give --directory", Exit.CANNOT_RUN)


def _asked_for(directory: Path, given: Sequence[str]) -> RangeOutputs | None:
    """Return the range that the variables describe, for an `up` that was interrupted."""
    if not (directory / ".terraform").is_dir():
        return None
    told = needs(directory, given)
    return None if told is None else _range({**told, "scale_sets": ()})


def _range(told: Mapping[str, Any]) -> RangeOutputs:
    return RangeOutputs(
        name=str(told["name"]),
        resource_group=str(told["resource_group"]),
        subscription_id=str(told["subscription_id"]),
        scale_sets=tuple(told["scale_sets"]),
        own_group=bool(told["own_group"]),
    )


def _outputs(directory: Path) -> Mapping[str, Any]:
    try:
        told: Mapping[str, Any] = json.loads(ask([*terraform(directory), "output", "-json"]))
        return {key: output["value"] for key, output in told.items()}
    except (ValueError, TypeError, KeyError):
        stop("terraform output: no JSON; run: terraform init", Exit.CANNOT_RUN)


def _approve(yes: bool) -> list[str]:
    return ["-input=false", "-auto-approve"] if yes else []
