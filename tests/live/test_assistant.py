"""Test `broadside mcp` with the client of the protocol over standard input and output."""

import json
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest

from tests.live.live_site import Site, wait_for_fleet

# The import would take a second for every pytest worker.
if TYPE_CHECKING:
    from mcp.client import Client

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

READING = {
    "list_runs",
    "sum_runs",
    "read_verdict",
    "compare_runs",
    "list_agents",
    "list_scenarios",
}


def token(site: Site, name: str, role: str) -> str:
    done = site.run("token", "add", name, "--role", role)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def assistant(site: Site, url: str, secret: str, *options: str) -> "Client":
    from mcp.client import Client
    from mcp.client.stdio import StdioServerParameters

    return Client(
        StdioServerParameters(
            command=sys.executable,
            args=["-m", "broadside.coordinator", "mcp", "--api", url, *options],
            env=site.environment | {"BROADSIDE_TOKEN": secret},
        )
    )


async def call_tool(client: "Client", tool: str, **arguments: Any) -> tuple[str, bool]:
    """Call a tool and return its text and whether it is an error."""
    from mcp_types import TextContent

    answer = await client.call_tool(tool, arguments)
    text = "".join(part.text for part in answer.content if isinstance(part, TextContent))
    return text, bool(answer.is_error)


async def test_viewer_reads_and_operator_launches_within_budget(site: Site) -> None:
    site.start_fleet(1)
    viewer, operator = token(site, "reader", "viewer"), token(site, "pilot", "operator")
    _, url = site.start_coordinator(BROADSIDE_SIGN_IN="on")
    async with assistant(site, url, viewer) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == READING
        assert client.server_info is not None
        assert client.server_info.version == version("broadside")
        assert all(
            tool.annotations is not None and tool.annotations.read_only_hint
            for tool in tools.values()
        )
        assert await call_tool(client, "list_runs") == ("[]", False)
        text, refused = await call_tool(client, "read_verdict", run="no-such-run")
        assert refused
        assert "no such run" in text
    async with assistant(site, url, viewer, "--launch-budget", "5") as client:
        text, refused = await call_tool(client, "launch_run", scenario="loopback")
        assert refused
        assert "token of an operator" in text
    short = {"bursts_count": 1, "burst_s": 3, "period_s": 10, "budget_usd": 900}
    async with assistant(site, url, operator, "--launch-budget", "5") as client:
        wait_for_fleet(url, 2, headers={"Authorization": f"Bearer {operator}"})
        text, refused = await call_tool(client, "launch_run", scenario="loopback", overrides=short)
        assert not refused, text
        assert "budget USD 5;" in text
        run_id = text.split()[1].rstrip(",")
        plan = json.loads(site.run("watch", run_id, "-o", "json").stdout)
        assert plan["run_id"] == run_id
        text, _ = await call_tool(client, "read_verdict")
        assert run_id in text
        assert "received rate by burst" in text
        text, _ = await call_tool(client, "sum_runs", group_by="month")
        assert json.loads(text)["groups"][0]["runs_count"] == 1
