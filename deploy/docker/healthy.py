"""A container's health: ``healthy.py coordinator`` or ``healthy.py agent``; exits 0 when well."""

import asyncio
import os
import socket
import sys
import urllib.request
from datetime import UTC, datetime
from typing import Final

from broadside.exchange.fabric import open_fabric

BEAT_AGE_MAX_S: Final = 30.0


def coordinator() -> str | None:
    """What is wrong with the API, or None."""
    port = os.environ.get("BROADSIDE_PORT", "8080")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=4) as answer:
        return None if answer.status == 200 else f"HTTP {answer.status}"


async def agent() -> str | None:
    """What is wrong with this host's agent by its own heartbeat, or None."""
    agent_id = os.environ.get("BROADSIDE_AGENT_AGENT_ID") or socket.gethostname()
    fabric = open_fabric()
    try:
        presences = await fabric.records.fleet.read_presences()
    finally:
        await fabric.close()
    for presence in presences:
        if presence.agent_id == agent_id:
            age_s = (datetime.now(UTC) - presence.beat_at).total_seconds()
            return presence.problem if age_s < BEAT_AGE_MAX_S else f"last beat {age_s:.0f} s ago"
    return f"{agent_id} was never heard of"


if __name__ == "__main__":
    sys.exit(coordinator() if sys.argv[1:] == ["coordinator"] else asyncio.run(agent()))
