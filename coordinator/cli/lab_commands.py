"""The ``broadside lab`` commands, which build, change and remove the lab on this host."""

import sys
from typing import Annotated

import typer

from broadside.coordinator.cli.exits import Exit, stop
from broadside.coordinator.cli.options import Json, print_json
from broadside.coordinator.cli.token_option import CommandGroup
from broadside.exchange.checks import Check
from broadside.exchange.programs import module_command

app = CommandGroup()


@app.command()
def up(
    pairs: Annotated[int, typer.Option(min=1, max=250, help="client/server pairs")] = 30,
    scale: Annotated[int, typer.Option(min=1, help="1:SCALE of 10 Gbit/s VMs")] = 100,
    firewall_gbit: Annotated[
        float, typer.Option(min=0.001, help="the firewall's real rate, Gbit/s at the IP layer")
    ] = 180.0,
    as_json: Json = False,
) -> None:
    """Build the lab, or repair what stands of it."""
    from broadside.lab import network
    from broadside.lab import privileges as rights
    from broadside.lab.site import AZURE_NIC_BITS_PER_SECOND, PREFIX
    from broadside.lab.topology import LabSpec

    if rights.find_rights().require().rights is rights.Rights.USER_NAMESPACE:
        rights.hold(PREFIX)
        rights.join(PREFIX, module_command("broadside.coordinator", *sys.argv[1:]))
    spec = LabSpec(
        pairs_count=pairs,
        prefix=PREFIX,
        scale=scale,
        nic_bits_per_second=round(AZURE_NIC_BITS_PER_SECOND / scale),
        firewall_bits_per_second=round(firewall_gbit * 1e9 / scale),
    )
    built = network.up(spec)
    if as_json:
        print_json(
            {
                "prefix": PREFIX,
                "pairs": pairs,
                "scale": scale,
                "ledger_path": str(built.ledger_path),
                "hosts": [
                    {
                        "name": host.name,
                        "role": host.role.value,
                        "namespace": host.namespace,
                        "address": host.address,
                        "chrony": host.chrony,
                    }
                    for host in built.hosts
                ],
                "limits": list(built.limits),
            }
        )
        return
    typer.echo(
        f"lab {PREFIX}: {pairs} + {pairs} hosts at 1:{scale}, firewall in namespace "
        f"{built.firewall_namespace}, ledger {built.ledger_path}"
    )
    for limit in built.limits:
        typer.echo(f"note: {limit}")


@app.command()
def profile(
    name: Annotated[str | None, typer.Argument(help="the state; without one: list them")] = None,
    prefix: Annotated[str | None, typer.Option(help="of the lab; the one of `lab up`")] = None,
) -> None:
    """Put the lab's device and path into a state, or list the states."""
    from broadside.lab import network, profiles
    from broadside.lab.site import PREFIX

    prefix = prefix or PREFIX
    if name is None:
        for known, stands_for in profiles.PROFILES.items():
            typer.echo(f"{known:12} {stands_for.says}")
        return
    standing = network.status(prefix).lab
    if standing is None:
        stop(f"lab {prefix}: it does not stand; run `broadside lab up`", Exit.CANNOT_RUN)
    applied = profiles.apply(standing, name)
    typer.echo(f"lab {prefix}: {name}: {applied.says}")


@app.command()
def down(as_json: Json = False) -> None:
    """Remove every namespace, process and file of the lab, and what killed demos left."""
    from broadside.lab import network
    from broadside.lab import privileges as rights
    from broadside.lab.site import PREFIXES, in_use

    removed = []
    for prefix in PREFIXES:
        with in_use(prefix) as ours:
            if not ours:
                typer.echo(f"lab {prefix}: left alone, a demo is using it", err=True)
                continue
            world = rights.release(prefix)
            report = network.down(prefix)
        if world or report.namespaces_count or report.processes_count or report.left:
            removed.append((prefix, world, report))
    if as_json:
        print_json(
            [
                {
                    "prefix": prefix,
                    "user_namespace_ended": world,
                    "processes_count": report.processes_count,
                    "namespaces_count": report.namespaces_count,
                    "left": list(report.left),
                }
                for prefix, world, report in removed
            ]
        )
    for prefix, world, report in removed if not as_json else ():
        typer.echo(
            f"lab {prefix}: {report.namespaces_count} namespaces and {report.processes_count} "
            f"processes removed{', and the user namespace they were in' if world else ''}"
        )
    if not removed and not as_json:
        typer.echo("no lab stands")
    left = [line for _, _, report in removed for line in report.left]
    if left:
        stop(f"could not remove: {'; '.join(left)}", Exit.CANNOT_RUN)


def lab_checks() -> list[Check]:
    """Check if the lab can be built on this host."""
    from broadside.lab.errors import LabError
    from broadside.lab.lab_programs import PACKAGE_OF_TOOL, find_tool
    from broadside.lab.privileges import Rights, find_rights

    found = []
    for tool in PACKAGE_OF_TOOL:
        try:
            found.append(Check(name=tool, ok=True, detail=find_tool(tool), required=False))
        except LabError as error:
            found.append(Check(name=tool, ok=False, detail=str(error), required=False))
    rights = find_rights()
    found.append(
        Check(
            name="lab",
            ok=rights.rights is not Rights.NONE,
            detail=rights.reason or f"namespaces can be built ({rights.rights.value})",
            required=False,
        )
    )
    return found
