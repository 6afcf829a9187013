"""The ``broadside agent`` command, which runs or checks an agent on this host."""

import os
from pathlib import Path
from typing import Annotated

import typer

from broadside.coordinator.cli.token_option import read_secret
from broadside.exchange.messages import Role
from broadside.exchange.programs import module_command


def agent(
    role: Annotated[
        Role,
        typer.Option(
            envvar="BROADSIDE_AGENT_ROLE",
            help="client pulls jobs; server offers iperf3 ports",
        ),
    ],
    agent_id: Annotated[str | None, typer.Option(help="name; default: the host name")] = None,
    address: Annotated[str | None, typer.Option(help="address the traffic uses")] = None,
    ports: Annotated[str | None, typer.Option(help="server: such as 5201 or 5201-5204")] = None,
    coordinator: Annotated[
        str | None,
        typer.Option(
            help="https://host:8443 of a coordinator elsewhere; the fabric is then `http`"
        ),
    ] = None,
    join_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="BROADSIDE_AGENT_JOIN_FILE",
            help="file whose first line is the join code, - for standard input; default: what "
            "BROADSIDE_AGENT_JOIN holds",
        ),
    ] = None,
    # Deprecated since 0.10, because every user on a host can read the process arguments.
    join: Annotated[str | None, typer.Option(metavar="CODE", hidden=True)] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="start nothing: print what this host lacks for the role, each with its fix, and "
            "exit 4 where something is missing",
        ),
    ] = False,
    engines: Annotated[
        list[str] | None,
        typer.Option("--engine", help="with --check: an engine that must be usable; default: all"),
    ] = None,
    rights: Annotated[
        bool,
        typer.Option(
            "--rights",
            help="start nothing: print as JSON what this host's identity may do with queue and "
            "tables, and exit 4 where a right is missing, or is one too many",
        ),
    ] = False,
    remove_tunnels: Annotated[
        bool,
        typer.Option(
            "--remove-tunnels",
            help="start nothing: remove what tunnels of this agent a killed process left behind",
        ),
    ] = False,
) -> None:
    """Run an agent until it is told to stop. Everything else is set by BROADSIDE_AGENT_..."""
    if join is not None:
        typer.echo(
            "warning: --join CODE is deprecated, because everybody on this host may read it in the "
            "list of processes; use --join-file FILE, --join-file - or BROADSIDE_AGENT_JOIN",
            err=True,
        )
    if join_file is not None:
        join = read_secret("--join-file", join_file)
    chosen = {
        "role": role.value,
        "agent_id": agent_id,
        "address": address,
        "ports": ports,
        "join": join,
    }
    if coordinator is not None:
        os.environ |= {"BROADSIDE_FABRIC": "http", "BROADSIDE_COORDINATOR": coordinator}
    for name, value in chosen.items():
        if value is not None:
            os.environ[f"BROADSIDE_AGENT_{name.upper()}"] = value
    module = ["broadside.agent"]
    if check:
        module = ["broadside.agent.check", "--ready", *(engines or ())]
    elif rights:
        module = ["broadside.agent.check", "--rights"]
    elif remove_tunnels:
        module = ["broadside.agent", "--remove-tunnels"]
    command = module_command(*module)
    # An agent is a small separate process. It should not contain the coordinator modules.
    os.execv(command[0], command)  # noqa: S606 - no shell wanted
