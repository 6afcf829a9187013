"""Test that a server agent publishes the new endpoint if its address changes."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from broadside.exchange.fabric import FabricSettings, open_fabric
from broadside.exchange.messages import Presence
from tests.live.free_ports import free_port
from tests.live.live_site import ROOT
from tests.live.waiting import wait_for

pytestmark = pytest.mark.live

# Use a file for the default route, so that no interface of this host needs to change.
AGENT = """
import sys
from pathlib import Path
from broadside.agent import host, presence, run

def find_address():
    return Path(sys.argv[1]).read_text().strip()

host.find_address = presence.find_address = find_address
sys.exit(run.run_from_environment())
"""


def presences(data: Path) -> list[Presence]:
    async def read() -> list[Presence]:
        fabric = open_fabric(FabricSettings(data_dir=data))
        try:
            return list(await fabric.records.fleet.read_presences())
        finally:
            await fabric.close()

    return asyncio.run(read())


def test_publishes_new_address_instead_of_old_one(tmp_path: Path) -> None:
    (address := tmp_path / "address").write_text("127.0.0.1")
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if "BROADSIDE" not in name}
    environment |= {
        "BROADSIDE_DATA_DIR": str(tmp_path / "data"),
        "BROADSIDE_AGENT_ROLE": "server",
        "BROADSIDE_AGENT_AGENT_ID": "s1",
        "BROADSIDE_AGENT_PORTS": str(port),
        "BROADSIDE_AGENT_ECHO_PORT": "0",
        "BROADSIDE_AGENT_NIC": "lo",
        "BROADSIDE_AGENT_SPOOL_DIR": str(tmp_path / "spool"),
        "BROADSIDE_AGENT_HEARTBEAT_S": "1",
        "PYTHONPATH": str(ROOT),
    }
    with (tmp_path / "log").open("w") as log:
        agent = subprocess.Popen(
            [sys.executable, "-c", AGENT, str(address)], env=environment, stderr=log
        )
    try:

        def offers(wanted: str) -> bool:
            result = presences(tmp_path / "data")
            assert agent.poll() is None, (tmp_path / "log").read_text()
            assert len(result) <= 1, "both endpoints are published at the same time"
            return [(item.address, item.ports) for item in result] == [(wanted, (port,))]

        wait_for("the endpoint", lambda: offers("127.0.0.1"))
        address.write_text("127.0.0.2")
        wait_for("the new endpoint", lambda: offers("127.0.0.2"))
        with socket.create_connection(("127.0.0.2", port), 5):
            pass
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(60) == 0
        assert "the address changed from 127.0.0.1 to 127.0.0.2" in (tmp_path / "log").read_text()
        assert presences(tmp_path / "data") == []
    finally:
        agent.kill()
        agent.wait()
