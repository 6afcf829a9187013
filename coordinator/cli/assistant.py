"""The ``broadside mcp`` command, a Model Context Protocol server.

An assistant can read everything that a viewer can read. It can launch runs only if the operator has
started this command with a budget and with an operator token.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broadside.coordinator.cli.connection import coordinator_client, operator_name, resolve_run
from broadside.coordinator.cli.exits import Exit, stop
from broadside.coordinator.cli.options import Api
from broadside.coordinator.cli.refused import ApiError
from broadside.exchange.installation import bring_extra
from broadside.exchange.version import version_number

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

    from broadside.coordinator.cli.verbs import Verbs

_INSTRUCTIONS = (
    "Broadside fires bursts of iperf3 at a firewall and judges them. Verdicts: pass, fail, "
    "inconclusive (the data cannot say), measured (no target was set). Rates are decimal bit/s, "
    "as measured, a lab's at its scale; but sums over runs are at real scale, times each run's. "
    "Null is unknown, never zero. What findings and labels say was written by others."
)


def mcp_server(
    launch_budget: Annotated[
        float | None,
        typer.Option(
            metavar="USD",
            min=0,
            help="let the assistant launch, each run with this budget at most; needs --api and an "
            "operator's token",
        ),
    ] = None,
    api: Api = None,
) -> None:
    """Answer an assistant on standard input and output (Model Context Protocol)."""
    if launch_budget is not None and api is None:
        stop("--launch-budget: needs --api, and the token of an operator there", Exit.USAGE)
    try:
        server = make_server(api, launch_budget)
    except ImportError:
        stop(f"mcp is not installed; {bring_extra('mcp')}", Exit.CANNOT_RUN)
    server.run("stdio")


def make_server(api: str | None, launch_budget_usd: float | None) -> "MCPServer[Any]":
    """Create the server with the tools that this caller is allowed to use.

    Args:
        api: Coordinator address. If None, the local fabric will be used.
        launch_budget_usd: Largest budget for a launched run. If None, the server will have no
            launch tool.

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
    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    for tool in _readers(api):
        server.add_tool(tool, annotations=reads, structured_output=False)
    if launch_budget_usd is not None:
        server.add_tool(
            _launcher(api, launch_budget_usd),
            annotations=ToolAnnotations(read_only_hint=False, idempotent_hint=False),
            structured_output=False,
        )
    return server


@asynccontextmanager
async def _coordinator(api: str | None) -> AsyncIterator["Verbs"]:
    """Yield a client. Its errors become error messages for the assistant."""
    from mcp.server.mcpserver.exceptions import ToolError

    try:
        async with coordinator_client(api) as client:
            yield client
    except ApiError as error:
        raise ToolError(str(error)) from error
    except typer.Exit as error:
        raise ToolError("refused; the command's standard error says why") from error


def _readers(api: str | None) -> list[Any]:
    async def list_runs(
        limit: Annotated[int, "1 to 200"] = 20,
        scenario: str | None = None,
        verdict: str | None = None,
        from_at: datetime | None = None,
        before_at: datetime | None = None,
    ) -> str:
        """List runs, newest first, with verdict and received rate; filter by traffic's time."""
        asked = _asked(scenario=scenario, verdict=verdict, from_at=from_at, before_at=before_at)
        async with _coordinator(api) as client:
            return _json(await client.runs(max(1, min(limit, 200)), **asked))

    async def sum_runs(
        group_by: str = "week",
        timezone: str = "UTC",
        scenario: str | None = None,
        label: str | None = None,
        from_at: datetime | None = None,
        before_at: datetime | None = None,
    ) -> str:
        """Sum runs: verdicts, mean rate with its 95 % interval, completeness, worst residual.

        group_by: hour, day, week, month, scenario, verdict, label:NAME or device:FIELD.
        label: NAME:VALUE. Times are of the traffic.
        """
        asked = _asked(
            scenario=scenario, label=label and [label], from_at=from_at, before_at=before_at
        )
        async with _coordinator(api) as client:
            return _json(await client.aggregate(group_by, timezone, **asked))

    async def read_verdict(run: str = "last") -> str:
        """A run's verdict with its figures and findings, as Markdown; `last` is the newest run."""
        from broadside.coordinator.views.markdown import verdict_markdown

        async with _coordinator(api) as client:
            summary = await client.summary(await resolve_run(client, run))
        return f"run {run}: not over yet" if summary is None else verdict_markdown(summary)

    async def compare_runs(a: str, b: str) -> str:
        """What changed from run a to run b, with 95 % intervals, as Markdown."""
        from broadside.coordinator.views.markdown import comparison_markdown
        from broadside.coordinator.views.requests import CompareRequest, Selection

        request = CompareRequest(a=Selection(run_ids=(a,)), b=Selection(run_ids=(b,)))
        async with _coordinator(api) as client:
            return comparison_markdown(await client.compare(request), ())

    async def list_agents() -> str:
        """The agents of the fleet: role, state, clock, what keeps one from working."""
        async with _coordinator(api) as client:
            return _json(await client.presences())

    async def list_scenarios() -> str:
        """The scenarios by name, and what each asks."""
        from broadside.coordinator import scenarios

        return "\n".join(
            f"{name}: {scenarios.load(name).description}" for name in scenarios.names()
        )

    return [list_runs, sum_runs, read_verdict, compare_runs, list_agents, list_scenarios]


def _launcher(api: str | None, budget_usd: float) -> Any:
    async def launch_run(scenario: str, overrides: dict[str, Any] | None = None) -> str:
        """Launch a scenario within the budget that the operator set; returns the run's id at once.

        It sends real traffic through a real firewall: ask the person first.
        """
        from mcp.server.mcpserver.exceptions import ToolError

        from broadside.coordinator import scenarios
        from broadside.coordinator.cli.client import Client
        from broadside.coordinator.views.requests import LaunchRequest

        async with _coordinator(api) as client:
            if not isinstance(client, Client) or not await client.is_operator():
                raise ToolError("launch: needs --api and an operator's token; this one may read")
            named = {scenarios.field_of(name): value for name, value in (overrides or {}).items()}
            asked = named.get("budget_usd")
            budget = min(budget_usd, asked) if isinstance(asked, int | float) else budget_usd
            request = LaunchRequest(
                scenario=scenario,
                overrides={**named, "budget_usd": budget},
                by=f"{operator_name()}, by an assistant",
            )
            status = await client.launch(request)
        return f"launched {status.run_id}, budget USD {budget:g}; {'; '.join(status.warnings)}"

    return launch_run


def _asked(**filters: Any) -> dict[str, object]:
    return {
        name: value.astimezone().isoformat() if isinstance(value, datetime) else value
        for name, value in filters.items()
        if value is not None
    }


def _json(value: object) -> str:
    from pydantic import TypeAdapter

    return TypeAdapter(type(value)).dump_json(value).decode()
