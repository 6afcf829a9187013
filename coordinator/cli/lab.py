"""``broadside lab``: build, inspect and remove the miniature Azure on this host."""

import sys
from typing import Annotated

import typer

from coordinator.cli.connection import Json
from coordinator.cli.exits import Exit, stop
from exchange.checks import Check

PREFIX = "bs"  # of every namespace and interface that the command line's lab makes
AZURE_NIC_BITS_PER_SECOND = 10e9  # Standard_D4_v4, the size of the original test

app = typer.Typer(
    help="Azure in miniature on this host: namespaces, a firewall that counts, clocks."
)


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
    from lab import network, rights
    from lab.errors import LabError
    from lab.topology import LabSpec

    try:
        if rights.find_rights().require().rights is rights.Rights.USER_NAMESPACE:
            rights.hold(PREFIX)
            rights.join(PREFIX, [sys.executable, "-m", "coordinator", *sys.argv[1:]])
        spec = LabSpec(
            pairs_count=pairs,
            prefix=PREFIX,
            scale=scale,
            nic_bits_per_second=round(AZURE_NIC_BITS_PER_SECOND / scale),
            firewall_bits_per_second=round(firewall_gbit * 1e9 / scale),
        )
        built = network.up(spec)
    except LabError as error:
        stop(str(error), Exit.CANNOT_RUN)
    if as_json:
        from coordinator.cli.runs import print_json

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
def down(as_json: Json = False) -> None:
    """Remove every namespace, process and file of the lab."""
    from lab import network, rights
    from lab.errors import LabError

    try:
        world = rights.release(PREFIX)
        report = network.down(PREFIX)
    except LabError as error:
        stop(str(error), Exit.CANNOT_RUN)
    if as_json:
        from coordinator.cli.runs import print_json

        print_json(
            {
                "user_namespace_ended": world,
                "processes_count": report.processes_count,
                "namespaces_count": report.namespaces_count,
                "left": list(report.left),
            }
        )
    else:
        typer.echo(
            f"lab {PREFIX}: {report.namespaces_count} namespaces and {report.processes_count} "
            f"processes removed{', and the user namespace they were in' if world else ''}"
        )
    if report.left:
        stop(f"could not remove: {'; '.join(report.left)}", Exit.CANNOT_RUN)


def lab_checks() -> list[Check]:
    """Whether the lab can be built here."""
    from lab.errors import LabError
    from lab.rights import Rights, find_rights
    from lab.tools import PACKAGE_OF_TOOL, find_tool

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
