"""What the containers run, run outside of them: no image is built here."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from exchange.messages import Role
from lab.azurite import Azurite
from tests.live.site import ROOT, Site, kill, wait_for, wait_for_fleet

pytestmark = pytest.mark.live

DOCKER = ROOT / "deploy" / "docker"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path) as standing:
        yield standing


def script(site: Site, name: str, *arguments: str, **variables: str) -> tuple[int, str]:
    """Exit code and last words of one of the containers' scripts."""
    done = subprocess.run(
        [sys.executable, str(DOCKER / name), *arguments],
        env=site.environment | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, (done.stderr.strip().splitlines() or [""])[-1]


def test_health_follows_the_agent_and_the_coordinator(site: Site) -> None:
    coordinator, url = site.start_coordinator()
    agent = site.start_agent(Role.CLIENT, "c1")
    wait_for_fleet(url, 1)
    port = url.rpartition(":")[2]
    assert script(site, "healthy.py", "agent", BROADSIDE_AGENT_AGENT_ID="c1") == (0, "")
    assert script(site, "healthy.py", "coordinator", BROADSIDE_PORT=port) == (0, "")
    stranger = script(site, "healthy.py", "agent", BROADSIDE_AGENT_AGENT_ID="c2")
    assert stranger == (1, "c2 was never heard of")
    agent.terminate()
    agent.wait(15)
    kill(coordinator)
    wait_for(
        "the agent's goodbye",
        lambda: script(site, "healthy.py", "agent", BROADSIDE_AGENT_AGENT_ID="c1")[0] == 1,
    )
    assert script(site, "healthy.py", "coordinator", BROADSIDE_PORT=port)[0] == 1


class _Health(BaseHTTPRequestHandler):
    """Unwell at first, as an emulator is that waits for its database."""

    answers = iter((503, 503))

    def do_GET(self) -> None:
        self.send_response(next(self.answers, 200))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_the_table_is_made_once_the_emulators_are_well(site: Site) -> None:
    server = HTTPServer(("127.0.0.1", 0), _Health)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    folder = site.folder / "azurite"
    folder.mkdir()
    azurite = Azurite(folder)
    azurite.start()
    try:
        site.environment |= {
            "BROADSIDE_FABRIC": "azure",
            "BROADSIDE_SERVICEBUS_CONNECTION_STRING": "Endpoint=sb://127.0.0.1:9;"
            "SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true",
            "BROADSIDE_TABLES_CONNECTION_STRING": azurite.connection_string(),
        }
        health = f"http://127.0.0.1:{server.server_port}/health"
        for _ in range(2):  # a second start finds the table there
            assert script(site, "emulators_ready.py", health) == (0, "")
        assert script(site, "healthy.py", "agent")[1].endswith("was never heard of")
    finally:
        azurite.stop()
        server.shutdown()
        server.server_close()
