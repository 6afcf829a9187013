"""The ``broadside lab`` commands, which build, change and remove a test network on this host."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broadside.coordinator.cli.api_errors import require_known
from broadside.coordinator.cli.command_group import CommandGroup, Output
from broadside.coordinator.cli.exit_codes import exit_with_error
from broadside.coordinator.cli.progress_display import show_progress
from broadside.coordinator.cli.text_tables import print_table
from broadside.exchange.checks import HostCheck
from broadside.exchange.programs import module_command

if TYPE_CHECKING:
    from broadside.lab.topology import LabSpec

app = CommandGroup()


def lab_build_s(pairs_count: int) -> float:
    """Return the usual time to build a lab in seconds: 0.9 s for 4 pairs, 2.3 s for 30."""
    return 0.7 + 0.055 * pairs_count


def lab_spec(
    pairs_count: int, prefix: str, scale: int, firewall_bits_per_second: float
) -> "LabSpec":
    """Return the specification of a lab.

    Args:
        pairs_count: Number of client/server pairs.
        prefix: Prefix of all names of the lab.
        scale: Real rates are ``scale`` times the rates of the lab.
        firewall_bits_per_second: Real rate of the firewall in bit/s.
    """
    from broadside.lab.site import AZURE_NIC_BITS_PER_SECOND
    from broadside.lab.topology import LabSpec

    return LabSpec(
        pairs_count=pairs_count,
        prefix=prefix,
        scale=scale,
        nic_bits_per_second=round(AZURE_NIC_BITS_PER_SECOND / scale),
        firewall_bits_per_second=round(firewall_bits_per_second / scale),
    )


@app.command()
def up(
    session: Output,
    pairs: Annotated[int, typer.Option(min=1, max=250)] = 30,
    scale: Annotated[int, typer.Option(min=1)] = 100,
    firewall_gbit: Annotated[float, typer.Option(min=0.001)] = 180.0,
) -> None:
    """Build the lab, or repair it.

    Args:
        pairs: Client/server pairs.
        scale: Scale 1:SCALE of VMs with 10 Gbit/s.
        firewall_gbit: Real rate of the firewall at the IP layer, in Gbit/s.
    """
    from broadside.lab import network
    from broadside.lab import privileges as rights
    from broadside.lab.site import PREFIX

    if rights.find_rights().require().rights is rights.Rights.USER_NAMESPACE:
        rights.create_world(PREFIX)
        rights.join(PREFIX, module_command("broadside.coordinator", *sys.argv[1:]))
    with show_progress("building the lab", expected_s=lab_build_s(pairs)):
        built = network.up(lab_spec(pairs, PREFIX, scale, firewall_gbit * 1e9))
    hosts = [
        {
            "name": host.name,
            "role": host.role.value,
            "namespace": host.namespace,
            "address": host.address,
            "chrony": host.chrony,
        }
        for host in built.hosts
    ]

    def print_text(_: object) -> None:
        typer.echo(
            f"lab {PREFIX}: {pairs} + {pairs} hosts at 1:{scale}, firewall in namespace "
            f"{built.firewall_namespace}, device counter {built.counter_path}"
        )
        for limit in built.limits:
            typer.echo(f"note: {limit}")

    fields = {"prefix": PREFIX, "pairs": pairs, "scale": scale}
    fields |= {"counter_path": str(built.counter_path), "hosts": hosts}
    session.show({**fields, "limits": list(built.limits)}, print_text)


def _complete_profile(incomplete: str) -> list[str]:
    """Return the profiles of the lab that start with the given text."""
    from broadside.lab.profiles import PROFILES

    return [name for name in PROFILES if name.startswith(incomplete)]


@app.command()
def profile(
    session: Output,
    name: Annotated[str | None, typer.Argument(autocompletion=_complete_profile)] = None,
    prefix: str | None = None,
) -> None:
    """Apply a profile to the device and the path of the lab, or list the profiles.

    Args:
        name: Profile; without it, list the profiles.
        prefix: Prefix of the lab.
    """
    from broadside.lab import network, profiles
    from broadside.lab.site import PREFIX

    prefix = prefix or PREFIX
    if name is None:
        known = [
            {"profile": one, "description": described.description}
            for one, described in profiles.PROFILES.items()
        ]
        session.show(known, _print_profiles)
        return
    require_known("profile", name, profiles.PROFILES, "broadside lab profile")
    lab = network.status(prefix).lab
    if lab is None:
        exit_with_error(f"lab {prefix}: not found; run `broadside lab up`")
    applied = profiles.apply(lab, name)
    session.show(
        {"lab": prefix, "profile": name, "description": applied.description},
        lambda _: typer.echo(f"lab {prefix}: {name}: {applied.description}"),
    )


def _print_profiles(profiles: list[dict[str, str]]) -> None:
    print_table("", list(profiles[0]), [list(profile.values()) for profile in profiles])


@app.command()
def down(session: Output) -> None:
    """Remove all labs on this host, also those of killed demos.

    Their namespaces, processes and files are removed. A lab that a demo uses is not changed.
    """
    from broadside.lab import network
    from broadside.lab import privileges as rights
    from broadside.lab.site import PREFIXES, in_use

    removed: list[dict[str, Any]] = []
    remaining: list[str] = []
    for prefix in PREFIXES:
        with in_use(prefix) as ours:
            if not ours:
                typer.echo(f"lab {prefix}: not removed, because a demo is using it", err=True)
                continue
            namespace_ended = rights.release(prefix)
            report = network.down(prefix)
        if namespace_ended or report.namespaces_count or report.processes_count or report.left:
            removed.append(
                {
                    "prefix": prefix,
                    "user_namespace_ended": namespace_ended,
                    "processes_count": report.processes_count,
                    "namespaces_count": report.namespaces_count,
                    "left": list(report.left),
                }
            )
            remaining += report.left
    session.show(removed, _print_removed)
    if remaining:
        exit_with_error(f"could not remove: {'; '.join(remaining)}")


def _print_removed(labs: list[dict[str, Any]]) -> None:
    if not labs:
        typer.echo("no lab found")
    for lab in labs:
        more = ", and their user namespace" if lab["user_namespace_ended"] else ""
        typer.echo(
            f"lab {lab['prefix']}: removed {lab['namespaces_count']} namespaces and "
            f"{lab['processes_count']} processes{more}"
        )


def lab_checks() -> list[HostCheck]:
    """Check if the lab can be built on this host."""
    from broadside.lab.errors import LabError
    from broadside.lab.lab_programs import PACKAGE_OF_TOOL, find_tool
    from broadside.lab.privileges import Rights, find_rights

    checks = []
    for tool in PACKAGE_OF_TOOL:
        try:
            checks.append(HostCheck(name=tool, ok=True, detail=find_tool(tool), required=False))
        except LabError as error:
            checks.append(HostCheck(name=tool, ok=False, detail=str(error), required=False))
    rights = find_rights()
    detail = rights.reason or f"namespaces can be built ({rights.rights.value})"
    is_possible = rights.rights is not Rights.NONE
    return [*checks, HostCheck(name="lab", ok=is_possible, detail=detail, required=False)]
