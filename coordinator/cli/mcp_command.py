"""The ``broadside mcp`` command, a Model Context Protocol server.

An assistant can read everything that a viewer can read. It can launch runs only if the operator has
started this command with a budget and with an operator token.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broadside.coordinator.cli.api_errors import ApiError
from broadside.coordinator.cli.exit_codes import exit_usage, exit_with_error
from broadside.coordinator.cli.session import ApiSession, Session, resolve_run, user_name
from broadside.exchange.installation import bring_extra
from broadside.exchange.version import version_number

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

    from broadside.coordinator.cli.operations import Operations

_INSTRUCTIONS = (
    "Broadside sends bursts of iperf3 traffic through a firewall and judges the result. Verdicts: "
    "pass, fail, inconclusive (the data is not sufficient), measured (no target was set). Rates "
    "are in bit/s as measured, in a lab at its scale. Aggregates of runs are at real scale. Null "
    "is unknown, never zero. The text of findings and labels comes from other users."
)


def mcp(
    session: ApiSession,
    launch_budget: Annotated[float | None, typer.Option(metavar="USD", min=0)] = None,
) -> None:
    """Serve an assistant (Model Context Protocol).

    It uses standard input and output.

    Args:
        launch_budget: Allow the assistant to launch runs with at most this budget each; requires
            --api and the token of an operator.
    """
    if launch_budget is not None and session.api is None:
        exit_usage("--launch-budget: requires --api and the token of an operator")
    try:
        server = make_server(session, launch_budget)
    except ImportError:
        exit_with_error(f"mcp is not installed; {bring_extra('mcp')}")
    server.run("stdio")


def make_server(session: Session, launch_budget_usd: float | None) -> "MCPServer[Any]":
    """Create the server with the tools that this caller is allowed to use.

    Args:
        session: Connection to the coordinator.
        launch_budget_usd: Largest budget of a launched run. None for no launch tool.

    Returns:
        The server, not started.

    Raises:
        ImportError: The package ``mcp`` is not installed.
    """
    from mcp.server.mcpserver import MCPServer
    from mcp_types import ToolAnnotations

    server: MCPServer[Any] = MCPServer(
        "broadside",
        version=version_number(),
        instructions=_INSTRUCTIONS,
        log_level="WARNING",
    )
    read_only = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    for tool in _read_tools(session):
        server.add_tool(tool, annotations=read_only, structured_output=False)
    if launch_budget_usd is not None:
        server.add_tool(
            _launch_tool(session, launch_budget_usd),
            annotations=ToolAnnotations(read_only_hint=False, idempotent_hint=False),
            structured_output=False,
        )
    return server


@asynccontextmanager
async def _connect(session: Session) -> AsyncIterator["Operations"]:
    """Yield a connection. Its errors become error messages for the assistant."""
    from mcp.server.mcpserver.exceptions import ToolError

    try:
        async with session.connect() as client:
            yield client
    except ApiError as error:
        raise ToolError(str(error)) from error
    except typer.Exit as error:
        raise ToolError("rejected; see the standard error of the command") from error


def _read_tools(session: Session) -> list[Any]:
    async def list_runs(
        limit: Annotated[int, "1 to 200"] = 20,
        scenario: str | None = None,
        verdict: str | None = None,
        from_at: datetime | None = None,
        before_at: datetime | None = None,
    ) -> str:
        """List runs, newest first, with verdict and received rate; filter by time of traffic."""
        filters = _filters(scenario=scenario, verdict=verdict, from_at=from_at, before_at=before_at)
        async with _connect(session) as client:
            return _json(await client.runs(max(1, min(limit, 200)), **filters))

    async def sum_runs(  # noqa: PLR0913 - parameters of the tool
        group_by: str = "week",
        timezone: str = "UTC",
        scenario: str | None = None,
        label: str | None = None,
        from_at: datetime | None = None,
        before_at: datetime | None = None,
    ) -> str:
        """Aggregate runs: verdicts, mean rate with 95 % interval, completeness, worst residual.

        group_by: hour, day, week, month, scenario, verdict, label:NAME or device:FIELD.
        label: NAME=VALUE. Times are those of the traffic.
        """
        labels = label and [label]
        filters = _filters(scenario=scenario, label=labels, from_at=from_at, before_at=before_at)
        async with _connect(session) as client:
            return _json(await client.aggregate(group_by, timezone, **filters))

    async def read_verdict(run: str = "last") -> str:
        """Return the verdict of a run with metrics and findings; `last` is the newest run."""
        from broadside.coordinator.views.markdown import verdict_markdown

        async with _connect(session) as client:
            summary = await client.summary(await resolve_run(client, run))
        return f"run {run}: no verdict yet" if summary is None else verdict_markdown(summary)

    async def compare_runs(a: str, b: str) -> str:
        """Return the difference of run b from run a, with 95 % intervals, as Markdown."""
        from broadside.coordinator.runs.requests import CompareRequest, Selection
        from broadside.coordinator.views.markdown import comparison_markdown

        request = CompareRequest(a=Selection(run_ids=(a,)), b=Selection(run_ids=(b,)))
        async with _connect(session) as client:
            return comparison_markdown(await client.compare(request), ())

    async def list_agents() -> str:
        """List the agents with role, state, clock and problems."""
        async with _connect(session) as client:
            return _json(await client.presences())

    async def list_scenarios() -> str:
        """List the scenarios with their description."""
        from broadside.coordinator import scenarios

        return "\n".join(
            f"{name}: {scenarios.load(name).description}" for name in scenarios.names()
        )

    return [list_runs, sum_runs, read_verdict, compare_runs, list_agents, list_scenarios]


def _launch_tool(session: Session, budget_usd: float) -> Any:
    async def launch_run(scenario: str, overrides: dict[str, Any] | None = None) -> str:
        """Launch a scenario within the budget of the operator, and return the run id at once.

        It sends real traffic through a real firewall. Ask the user first.
        """
        from mcp.server.mcpserver.exceptions import ToolError

        from broadside.coordinator import scenarios
        from broadside.coordinator.cli.api_client import ApiClient
        from broadside.coordinator.runs.requests import LaunchRequest

        async with _connect(session) as client:
            if not isinstance(client, ApiClient) or not await client.is_operator():
                raise ToolError("launch: requires --api and the token of an operator")
            fields = {scenarios.field_of(name): value for name, value in (overrides or {}).items()}
            requested = fields.get("budget_usd")
            budget = budget_usd
            if isinstance(requested, int | float):
                budget = min(budget_usd, requested)
            request = LaunchRequest(
                scenario=scenario,
                overrides={**fields, "budget_usd": budget},
                by=f"{user_name()}, by an assistant",
            )
            status = await client.launch(request)
        return f"launched {status.run_id}, budget USD {budget:g}; {'; '.join(status.warnings)}"

    return launch_run


def _filters(**values: Any) -> dict[str, object]:
    return {
        name: value.astimezone().isoformat() if isinstance(value, datetime) else value
        for name, value in values.items()
        if value is not None
    }


def _json(value: object) -> str:
    from pydantic import TypeAdapter

    return TypeAdapter(type(value)).dump_json(value, by_alias=True).decode()
