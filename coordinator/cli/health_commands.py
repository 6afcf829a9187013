"""The ``broadside healthy`` and ``broadside emulators-ready`` commands for containers and units."""

import asyncio
import os
import socket
import time
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Final

import typer

from broadside.coordinator.cli.exits import Exit, stop

HEARTBEAT_AGE_MAX_S: Final = 30.0
READY_WITHIN_S: Final = 180.0
_ANSWER_TIMEOUT_S: Final = 4.0


class Service(StrEnum):
    """Service that can run in a container or a systemd unit."""

    COORDINATOR = "coordinator"
    AGENT = "agent"


def healthy(
    service: Annotated[Service, typer.Argument(help="what this container or unit runs")],
) -> None:
    """Exit 0 if this host's coordinator or agent works, else print why and exit 1."""
    match service:
        case Service.COORDINATOR:
            problem = coordinator_problem(os.environ.get("BROADSIDE_PORT") or "8080")
        case Service.AGENT:
            agent_id = os.environ.get("BROADSIDE_AGENT_AGENT_ID") or socket.gethostname()
            problem = asyncio.run(agent_problem(agent_id))
    if problem is not None:
        stop(f"{service}: {problem}", Exit.FAIL)


def coordinator_problem(port: str) -> str | None:
    """Return the reason why the API on loopback does not work, or None if it works."""
    url = f"http://127.0.0.1:{port}/healthz"
    return _silence(url)


def _silence(url: str) -> str | None:
    """Return the reason why an address does not respond with success, or None if it does."""
    import httpx

    from broadside.exchange.http.bounded import ask_now

    try:
        answer = ask_now(url, None, _ANSWER_TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        return f"{url}: {error or type(error).__name__}"
    return None if answer.is_success else f"{url}: HTTP {answer.status_code}"


async def agent_problem(agent_id: str) -> str | None:
    """Return the agent problem in its newest heartbeat, or None.

    Raises:
        ExchangeError: Queue and tables cannot be opened or read.
    """
    from broadside.exchange.fabric import environment_settings, open_fabric

    fabric = open_fabric(environment_settings())
    try:
        presences = await fabric.records.fleet.read_presences()
    finally:
        await fabric.close()
    own = [presence for presence in presences if presence.agent_id == agent_id]
    if not own:
        return f"no heartbeat of {agent_id} was ever stored; see the log of the agent"
    newest = max(own, key=lambda presence: presence.beat_at)
    age_s = (datetime.now(UTC) - newest.beat_at).total_seconds()
    if age_s >= HEARTBEAT_AGE_MAX_S:
        return f"the last heartbeat of {agent_id} is {age_s:.0f} s old; see the log of the agent"
    return newest.problem


def emulators_ready(
    url: Annotated[str, typer.Argument(help="health address of the Service Bus emulator")],
) -> None:
    """Wait for the Service Bus emulator, then create the tables in Azurite."""
    from broadside.exchange.azure.emulator_tables import create_tables
    from broadside.exchange.fabric import environment_settings

    wait_for_answer(url)
    create_tables(environment_settings())


def wait_for_answer(url: str) -> None:
    """Wait until ``url`` responds with success. Exit if the time limit is reached."""
    if not url.startswith(("http://", "https://")):
        stop(f"{url}: not an address; write http://HOST:PORT/PATH", Exit.USAGE)
    end_s = time.monotonic() + READY_WITHIN_S
    while True:
        if (why := _silence(url)) is None:
            return
        if time.monotonic() > end_s:
            stop(f"{why}: no success within {READY_WITHIN_S:g} s", Exit.CANNOT_RUN)
        time.sleep(1)
