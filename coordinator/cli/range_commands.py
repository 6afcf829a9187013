"""The ``broadside up``, ``scale``, ``park``, ``unpark`` and ``down`` commands for a range on Azure.

They run terraform and az on the files in ``deploy/azure``, and print each command. ``--dry-run``
only prints them. Each command also completes what an interrupted command has started, and ``down``
checks that no resource remains.
"""

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer

from broadside.coordinator.cli import terraform as tf
from broadside.coordinator.cli.exit_codes import ExitCode, exit_with_error
from broadside.coordinator.cli.progress_display import print_expected_end, show_progress
from broadside.coordinator.cli.range_checks import (
    READY_WITHIN_S,
    describe_parked_cost,
    describe_standing_cost,
    shortages,
    wait_ready,
)
from broadside.coordinator.cli.range_files import (
    copy_files,
    default_directory,
    require_bundle,
    store_bundle,
)

DIRECTORY: Final = default_directory()
FLEET_MAX: Final = 1000
POLL_INTERVAL_S: Final = 10.0
# Limit for repeated applies. Terraform detects existing resources layer by layer, such as a network
# and then its subnets.
RESUMES_MAX: Final = 8
UPLOAD_TIMEOUT_S: Final = 300.0
FIREWALL_TIMEOUT_S: Final = 1800.0
# API versions from 2024-10-01 preserve autoscaleConfiguration.
FIREWALL_API: Final = "2025-05-01"
# Wait for a Terraform process that outlived its command.
LOCK: Final = "-lock-timeout=10m"
# Minutes that Terraform usually needs at most, see docs/day-one.md.
_UP_MINUTES: Final = 25
_DOWN_MINUTES: Final = 20
_PARK_MINUTES: Final = 15

Directory = Annotated[
    Path,
    typer.Option(
        metavar="DIR",
        show_default=False,
        help="Terraform folder; default: deploy/azure of a checkout, else broadside/azure below "
        "$XDG_STATE_HOME.",
    ),
]
Vars = Annotated[
    list[Path] | None,
    typer.Option("--vars", metavar="FILE", help="File with variables (.tfvars); repeatable."),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Terraform variable; repeatable."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Change or destroy without a question.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print the commands.")]


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
    def az_options(self) -> list[str]:
        return ["--resource-group", self.resource_group, "--subscription", self.subscription_id]


def up(  # noqa: PLR0913 - options
    directory: Directory = DIRECTORY,
    variables: Vars = None,
    settings: Set = None,
    backend: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    bundle: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    check: Annotated[bool, typer.Option("--check")] = False,
    explain: Annotated[bool, typer.Option("--explain")] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    ready_within_s: Annotated[float, typer.Option("--timeout-s", min=0)] = READY_WITHIN_S,
) -> None:
    """Create or update the range.

    It waits until the agents are ready. After a failure, run the same command again to continue.

    Args:
        backend: Location of the Terraform state, for -backend-config of init.
        bundle: File broadside-bundle-VERSION.tar.gz of a release, which the VMs install; later
            commands use the same file. A checkout builds its own.
        check: Only print which quota or VM size the subscription lacks.
        explain: Only print a table of what each VM of the applied range needs, and whether names,
            routes, security groups, firewall rules, identities and roles permit it.
        ready_within_s: Seconds to wait until the agents and the coordinator are ready; 0 does not
            wait.
    """
    copy_files(directory, update=True)
    command = tf.terraform(directory)
    options = tf.variable_options(directory, variables, settings)
    if not dry_run:
        store_bundle(directory, bundle)
        require_bundle(directory, options)
    (directory / tf.RESUME).unlink(missing_ok=True)
    state = [] if backend is None else [f"-backend-config={backend.resolve()}"]
    tf.run([*command, "init", "-input=false", *state], dry_run)
    if check:
        _check(directory, options)
        return
    if explain:
        _explain(directory, dry_run)
        return
    if not dry_run:
        tf.store_variables(directory, options)
        if (outputs := _outputs(directory)).get("parked"):
            _set_firewall(outputs, allocated=True)
    _apply(directory, options, yes, dry_run, minutes=_UP_MINUTES)
    if not dry_run:
        _upload(directory)
        if ready_within_s:
            with show_progress("waiting for agents and coordinator", limit_s=ready_within_s):
                _wait_ready(directory, ready_within_s)
        typer.echo("the range is up; to destroy it: broadside down")


def scale(
    instances: Annotated[int, typer.Argument(min=0, max=FLEET_MAX)],
    directory: Directory = DIRECTORY,
    dry_run: DryRun = False,
) -> None:
    """Set the number of clients and servers.

    Args:
        instances: VMs in each scale set, such as 30 before a test and 0 after it.
    """
    outputs = _require_range(directory)
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
    """Stop the parts of the range that cost most.

    The VMs of the agents, the firewall and Bastion are deallocated. Addresses, rules, roles, tables
    and results remain. The variables are those of the last `up`, unless others are given.
    """
    _scale(_require_range(directory), 0, dry_run)
    options = _given_or_stored(directory, variables, settings)
    _set_parked(directory, options, yes, dry_run, parked="true")
    if not dry_run:
        _set_firewall(_outputs(directory), allocated=False)
        typer.echo("the range is parked; to start it again: broadside unpark")
        if (needs := tf.needs(directory, options)) is not None:
            typer.echo(f"parked, it costs {describe_parked_cost(needs)}")


def unpark(
    directory: Directory = DIRECTORY,
    variables: Vars = None,
    settings: Set = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Start the firewall and Bastion again.

    The routes are set to the new address of the firewall.
    """
    _require_range(directory)
    if not dry_run:
        _set_firewall(_outputs(directory), allocated=True)
    options = _given_or_stored(directory, variables, settings)
    _set_parked(directory, options, yes, dry_run, parked="false")
    if not dry_run:
        typer.echo("the range is unparked and has no agents; before a test: broadside scale N")


def down(  # noqa: PLR0913 - options
    directory: Directory = DIRECTORY,
    variables: Vars = None,
    settings: Set = None,
    name: str | None = None,
    patience_s: Annotated[float, typer.Option("--timeout-s", min=0)] = 120.0,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Destroy the range and check that nothing remains.

    Resources that Terraform does not know, such as those of an interrupted `up`, are deleted by
    their tag. If a resource remains, the exit code is 1.

    Args:
        name: Name of the range; default: from the Terraform state.
        patience_s: Seconds in which Azure may still list deleted resources.
    """
    copy_files(directory)
    command = tf.terraform(directory)
    (directory / tf.RESUME).unlink(missing_ok=True)
    options = tf.variable_options(directory, variables, settings) or tf.stored_variables(directory)
    outputs = _read_outputs(directory)
    if outputs is None and name is None:
        outputs = _planned_outputs(directory, options)
    tag = name or (outputs.name if outputs else None)
    if tag is None:
        exit_with_error(
            f"the Terraform state of {directory} has no range; use --name to search for one by its "
            "tag"
        )
    remaining = RemainingResources(
        name=tag,
        group=outputs.resource_group if outputs else tag,
        az_options=("--subscription", outputs.subscription_id) if outputs else (),
    )
    destroy = [*command, "destroy", *options, LOCK, *_approve(yes)]
    if outputs and not dry_run:
        print_expected_end("terraform", _DOWN_MINUTES)
    code = tf.attempt(destroy, dry_run, capture=False)[0] if outputs else 0
    if dry_run:
        remaining.print_commands()
        return
    if code:
        if not remaining.delete(yes):
            exit_with_error(f"terraform ended with {code}; its changes remain")
        # The obstacle is deleted. Terraform needs to update its state too.
        tf.run(destroy, dry_run)
    # Resources that were created from a template remain in a group that the range does not own.
    if outputs and not outputs.own_group:
        remaining.delete(yes)
    if not remaining.wait(patience_s):
        remaining.delete(yes)
        if not remaining.wait(patience_s):
            remaining.fail()
    typer.echo(
        f"the range is down: no resource has the tag broadside={tag}, and there is no group "
        f"{remaining.group}"
    )


# Applying -----------------------------------------------------------------------------------------


def _apply(
    directory: Path, options: Sequence[str], yes: bool, dry_run: bool, *, minutes: int
) -> None:
    """Apply, and import the resources that an interrupted apply has created but not recorded.

    Args:
        directory: Folder with the Terraform files.
        options: Options for the variables.
        yes: True to apply without a question.
        dry_run: True to print the command only.
        minutes: Minutes that it usually needs at most.
    """
    if not dry_run:
        print_expected_end("terraform", minutes)
    argv = [*tf.terraform(directory), "apply", *options, LOCK, *_approve(yes)]
    resume, imported = directory / tf.RESUME, dict[str, tf.Orphan]()
    try:
        for _ in range(RESUMES_MAX):
            code, errors = tf.attempt(argv, dry_run)
            tf.store_errors(directory, errors if code else "")
            if code == 0:
                return
            orphans = {orphan.address: orphan for orphan in tf.find_orphans(errors)}
            if not orphans.keys() - imported.keys():
                break
            _require_ownership(directory, options, list(orphans.values()))
            imported |= orphans
            typer.echo(f"importing {len(orphans)} resources of an interrupted `up`", err=True)
            if machines := [orphan.id for orphan in orphans.values() if orphan.is_machine]:
                tf.run(["az", "resource", "delete", "--ids", *machines], dry_run)
            others = [orphan for orphan in imported.values() if not orphan.is_machine]
            resume.write_text(tf.import_blocks(others))
    finally:
        resume.unlink(missing_ok=True)
    exit_with_error(
        f"terraform ended with {code}; its changes remain; run `broadside up` again to continue, "
        "or `broadside down` to remove them"
    )


def _upload(directory: Path) -> None:
    """Upload the package if the account has private endpoints.

    Public access to the account is enabled for the upload, and disabled after it.
    """
    outputs = _outputs(directory)
    package = outputs.get("package")
    if package is None:
        return
    group = ["--resource-group", outputs["resource_group"]]
    account = ["az", "storage", "account", "update", "--name", package["account"], *group]
    account += ["--subscription", outputs["subscription_id"]]
    put = [
        "az", "storage", "blob", "upload", "--auth-mode", "login", "--overwrite",
        "--only-show-errors",
        "--account-name", package["account"], "--container-name", package["container"],
        "--name", package["blob"], "--file", package["path"], "--output", "none",
    ]  # fmt: skip
    access = [*account, "--output", "none", "--public-network-access"]
    tf.run([*access, "Enabled"], dry_run=False)
    try:
        end_s = time.monotonic() + UPLOAD_TIMEOUT_S
        while tf.attempt(put, dry_run=False, capture=False)[0]:
            if time.monotonic() > end_s:
                exit_with_error("the package is not uploaded; run `broadside up` again")
            typer.echo(
                "the upload failed, perhaps because a new role is not active yet; trying again",
                err=True,
            )
            time.sleep(POLL_INTERVAL_S)
    finally:
        tf.run([*access, "Disabled"], dry_run=False)


def _wait_ready(directory: Path, within_s: float) -> None:
    outputs = _outputs(directory)
    if outputs.get("boot") is None or outputs.get("parked"):
        return
    range_ = _parse_outputs(outputs)
    wait_ready(range_.az_options, range_.scale_sets, outputs["boot"], within_s)


def _require_ownership(
    directory: Path, options: Sequence[str], orphans: Sequence[tf.Orphan]
) -> None:
    """Exit if a resource to import is not of the range, because `down` would destroy it."""
    plan = tf.needs(directory, options)
    if plan is None:
        exit_with_error("terraform console cannot evaluate the variables")
    name = str(plan["name"])
    tag = ["--tag", f"broadside={name}", "--subscription", str(plan["subscription_id"])]
    listed = tf.call_az_together(["group", "list", *tag], ["resource", "list", *tag])
    tagged = [resource["id"].lower() for resources in listed for resource in resources]
    for orphan in orphans:
        path = orphan.id.lower()
        # The name of a role assignment is derived from the range. A URL is data in the account of
        # the range; data in another account would not be readable.
        is_local = (
            path.rsplit("/", 1)[-1].startswith(f"{name}-")
            or "/roleassignments/" in path
            or path.startswith("https://")
            or any(orphan.top == one or orphan.top.startswith(one + "/") for one in tagged)
        )
        if not is_local:
            exit_with_error(
                f"{orphan.id} exists without the tag broadside={name}, so it does not belong to "
                "this range; use another name for the range, or delete it"
            )


def _check(directory: Path, options: Sequence[str]) -> None:
    plan = tf.needs(directory, options, strict=True)
    if plan is None:
        exit_with_error("the variables are invalid, see above")
    region, subscription = str(plan["location"]), ["--subscription", str(plan["subscription_id"])]
    az_options = ["--location", region, *subscription]
    locations, compute, network, sizes = tf.call_az_together(
        ["account", "list-locations"],
        ["vm", "list-usage", *az_options],
        ["network", "list-usages", *az_options],
        ["vm", "list-skus", *az_options, "--resource-type", "virtualMachines"],
    )
    missing = list(
        shortages(plan, locations=locations, compute=compute, network=network, sizes=sizes)
    )
    image = plan["image_plan"]
    if image and not tf.call_az("vm", "image", "terms", "show", *image)["accepted"]:
        command = f"az vm image terms accept {' '.join(image)}"
        missing.append(f"terms of the image: accept them with: {command}")
    typer.echo(describe_standing_cost(plan))
    for line in missing:
        typer.echo(f"missing: {line}")
    if missing:
        exit_with_error(
            f"{len(missing)} requirements are missing; request them before `broadside up`"
        )
    typer.echo(
        f"enough quota in {region} for {2 * int(plan['instances'])} {plan['vm_size']}, a "
        f"{plan['coordinator_size']} and {plan['public_addresses_count']} public addresses"
    )
    typer.echo("capacity units of a firewall have no quota, but can be exhausted in a region")


def _explain(directory: Path, dry_run: bool) -> None:
    """Walk the Terraform state, and exit if a VM cannot use what it needs."""
    from broadside.coordinator.azure_range.terraform_state import read_state
    from broadside.coordinator.azure_range.trace import HopState, table
    from broadside.coordinator.azure_range.walk import walk

    argv = [*tf.terraform(directory), "show", "-json"]
    if dry_run:
        tf.run(argv, dry_run)
        return
    rows = walk(read_state(json.loads(tf.read_output(argv))))
    for line in table(rows):
        typer.echo(line)
    if broken := sum(row.state is HopState.BROKEN for row in rows):
        exit_with_error(f"{broken} needs are not met; each line names the hop that breaks")


# Parking ------------------------------------------------------------------------------------------


def _given_or_stored(
    directory: Path, variables: Sequence[Path] | None, settings: Sequence[str] | None
) -> Sequence[str]:
    return tf.variable_options(directory, variables, settings) or tf.stored_variables(directory)


def _set_parked(
    directory: Path, options: Sequence[str], yes: bool, dry_run: bool, *, parked: str
) -> None:
    arguments = [*options, f"-var=parked={parked}"]
    _apply(directory, arguments, yes, dry_run, minutes=_PARK_MINUTES)


def _set_firewall(outputs: Mapping[str, Any], *, allocated: bool) -> None:
    """Allocate or deallocate the firewall by setting or removing its addresses.

    A firewall without addresses has no instances and no cost. The change uses the Resource Manager,
    because the Terraform provider would create a new firewall.
    """
    addresses = outputs.get("firewall_addresses")
    if addresses is None:
        return
    url = f"{outputs['firewall_id']}?api-version={FIREWALL_API}"
    body = tf.call_rest("--method", "get", "--url", url)
    if bool(body["properties"].get("ipConfigurations")) == allocated:
        return
    body["properties"] |= addresses if allocated else dict.fromkeys(addresses)
    if not allocated:
        body["properties"]["ipConfigurations"] = []
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({name: value for name, value in body.items() if name != "etag"}, file)
        file.flush()
        tf.call_rest("--method", "put", "--url", url, "--body", f"@{file.name}")
    end_s = time.monotonic() + FIREWALL_TIMEOUT_S
    while (state := _provisioning(url)) not in ("Succeeded", "Failed"):
        if time.monotonic() > end_s:
            exit_with_error(f"the firewall is still {state}; run the same command again")
        time.sleep(POLL_INTERVAL_S)
    if state == "Failed":
        exit_with_error("the change of the firewall failed; run the same command again")


def _provisioning(url: str) -> str:
    body = tf.call_rest("--method", "get", "--url", url)
    return str(body["properties"]["provisioningState"])


def _scale(outputs: RangeOutputs, instances: int, dry_run: bool) -> None:
    """Scale all scale sets at the same time. az waits until Azure has finished."""
    capacity = ["--new-capacity", str(instances), "--output", "none"]
    tf.run_together(
        [
            ["az", "vmss", "scale", "--name", name, *outputs.az_options, *capacity]
            for name in outputs.scale_sets
        ],
        dry_run,
    )


# Destroying ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainingResources:
    """Resources that Azure still lists for a range, by tag and by resource group.

    Attributes:
        name: Name of the range, which is the value of the tag.
        group: Name of the resource group.
        az_options: Options of az, with the subscription. Empty if it is unknown.
    """

    name: str
    group: str
    az_options: tuple[str, ...]

    @property
    def _queries(self) -> tuple[list[str], list[str]]:
        """Az commands that list the resources and the groups."""
        tag = ["--tag", f"broadside={self.name}", *self.az_options]
        return ["resource", "list", *tag], ["group", "list", *tag]

    def print_commands(self) -> None:
        for query in self._queries:
            tf.run(["az", *query, "--output", "json"], dry_run=True)

    def list(self) -> tuple[Sequence[str], Sequence[str]]:
        """Return the resource ids and the resource group names."""
        resources, groups = tf.call_az_together(*self._queries)
        try:
            # We should only delete resources that have the tag. You cannot be sure that the list
            # has been filtered.
            for resource in (*resources, *groups):
                if resource["tags"]["broadside"] != self.name:
                    exit_with_error(
                        f"az lists {resource['id']}, which is not tagged broadside={self.name}"
                    )
            return [str(one["id"]) for one in resources], [str(one["name"]) for one in groups]
        except (KeyError, TypeError):
            exit_with_error("az did not return a list; nothing is verified")

    def wait(self, timeout_s: float) -> bool:
        """Wait until Azure lists no resource. Return False after ``timeout_s`` seconds."""
        end_s = time.monotonic() + timeout_s
        with show_progress("waiting for Azure", limit_s=timeout_s):
            while any(remaining := self.list()):
                if time.monotonic() >= end_s:
                    return False
                count = sum(map(len, remaining))
                typer.echo(f"{count} resources are still listed; checking again", err=True)
                time.sleep(min(POLL_INTERVAL_S, max(0.0, end_s - time.monotonic())))
        return True

    def delete(self, yes: bool) -> bool:
        """Delete the remaining resources by tag. Return True if a deletion was requested."""
        resources, groups = self.list()
        if not resources and not groups:
            return False
        for name in (*groups, *resources):
            typer.echo(f"remaining: {name}", err=True)
        if not yes and not typer.confirm("delete them?", err=True):
            return False
        for group in groups:
            command = ["az", "group", "delete", "--name", group, *self.az_options, "--yes"]
            tf.attempt(command, dry_run=False, capture=False)
        if not groups:
            command = ["az", "resource", "delete", "--ids", *resources]
            tf.attempt(command, dry_run=False, capture=False)
        return True

    def fail(self) -> NoReturn:
        """Print the remaining resources, which still cost money, and exit with 1."""
        resources, groups = self.list()
        for name in (*resources, *(f"resource group {group}" for group in groups)):
            typer.echo(f"remaining: {name}")
        count = len(resources) + len(groups)
        exit_with_error(
            f"{count} resources of range {self.name} remain; they still cost money", ExitCode.FAIL
        )


# Terraform state ----------------------------------------------------------------------------------


def _require_range(directory: Path) -> RangeOutputs:
    copy_files(directory)
    outputs = _read_outputs(directory)
    if outputs is None:
        exit_with_error(f"the Terraform state of {directory} has no range; run: broadside up")
    return outputs


def _read_outputs(directory: Path) -> RangeOutputs | None:
    """Return the range in the Terraform state, or None if it is missing or incomplete."""
    try:
        return _parse_outputs(_outputs(directory))
    except KeyError:
        return None
    except TypeError:
        exit_with_error("terraform output: these are not the outputs of a range; give --directory")


def _planned_outputs(directory: Path, options: Sequence[str]) -> RangeOutputs | None:
    """Return the range that the variables describe, for an `up` that was interrupted."""
    if not (directory / ".terraform").is_dir():
        return None
    plan = tf.needs(directory, options)
    return None if plan is None else _parse_outputs({**plan, "scale_sets": ()})


def _parse_outputs(values: Mapping[str, Any]) -> RangeOutputs:
    return RangeOutputs(
        name=str(values["name"]),
        resource_group=str(values["resource_group"]),
        subscription_id=str(values["subscription_id"]),
        scale_sets=tuple(values["scale_sets"]),
        own_group=bool(values["own_group"]),
    )


def _outputs(directory: Path) -> Mapping[str, Any]:
    try:
        outputs = json.loads(tf.read_output([*tf.terraform(directory), "output", "-json"]))
        return {name: output["value"] for name, output in outputs.items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        exit_with_error("terraform output: it is not JSON; run: terraform init")


def _approve(yes: bool) -> list[str]:
    return ["-input=false", "-auto-approve"] if yes else []
