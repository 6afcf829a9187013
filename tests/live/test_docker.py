"""Test the commands for docker-compose.yml, without using the image."""

import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from broadside.agent.sockets import read_ports
from broadside.exchange.azure.service_bus import open_queue
from broadside.exchange.fabric_settings import FabricSettings
from broadside.exchange.messages import Role
from broadside.exchange.ports import JobQueue, Outgoing
from broadside.lab.azurite import Azurite
from broadside.lab.broker_process import BrokerProcess
from broadside.lab.servicebus.queues import QueueSettings
from tests.live.engines import PATIENCE_S
from tests.live.http_service import Answer, serving
from tests.live.live_site import ROOT, Site, kill, wait_for_fleet
from tests.live.started import started
from tests.live.waiting import until, wait_for

pytestmark = pytest.mark.live

BROADSIDE = ROOT / ".venv" / "bin" / "broadside"


def command(site: Site, name: str, *arguments: str, **variables: str) -> tuple[int, str]:
    """Run a command of the package, to return its exit code and last line on standard error."""
    done = subprocess.run(
        [BROADSIDE, name, *arguments],
        env=site.environment | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, (done.stderr.strip().splitlines() or [""])[-1]


def test_health_check_follows_agent_and_coordinator(site: Site) -> None:
    coordinator, url = site.start_coordinator()
    agent = site.start_agent(Role.CLIENT, "c1")
    wait_for_fleet(url, 1)
    port = url.rpartition(":")[2]
    assert command(site, "healthy", "agent", BROADSIDE_AGENT_AGENT_ID="c1") == (0, "")
    assert command(site, "healthy", "coordinator", BROADSIDE_PORT=port) == (0, "")
    stranger = command(site, "healthy", "agent", BROADSIDE_AGENT_AGENT_ID="c2")
    assert stranger == (
        1,
        "broadside: agent: agent c2 has never stored a heartbeat; see the log of the agent",
    )
    agent.terminate()
    agent.wait(15)
    kill(coordinator)
    wait_for(
        "the removal of the agent's presence",
        lambda: command(site, "healthy", "agent", BROADSIDE_AGENT_AGENT_ID="c1")[0] == 1,
    )
    assert command(site, "healthy", "coordinator", BROADSIDE_PORT=port)[0] == 1


def test_creates_table_when_emulators_are_healthy(site: Site) -> None:
    # The emulator should be unhealthy at first, as if it were waiting for its database.
    health = iter((503, 503))
    folder = site.folder / "azurite"
    folder.mkdir()
    with (
        serving(lambda _: Answer(status=next(health, 200))) as emulator,
        started(Azurite(folder)) as azurite,
    ):
        site.environment |= {
            "BROADSIDE_FABRIC": "azure",
            "BROADSIDE_SERVICEBUS_CONNECTION_STRING": "Endpoint=sb://127.0.0.1:9;"
            "SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true",
            "BROADSIDE_TABLES_CONNECTION_STRING": azurite.connection_string(),
        }
        # At the second start the table will already exist.
        for _ in range(2):
            assert command(site, "emulators-ready", f"{emulator}/health") == (0, "")
        assert command(site, "healthy", "agent")[0] == 1


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with started(BrokerProcess(tmp_path, {"jobs": QueueSettings()}, sas_key="emulated")) as broker:
        yield broker


def queue_of(connection_string: str) -> JobQueue:
    """Open the queue as a container would, using this connection string."""
    settings = {
        "fabric": "azure",
        "servicebus_connection_string": connection_string,
        "tables_connection_string": "not used",
    }
    return open_queue(FabricSettings.model_validate(settings))


async def test_three_pairs_and_doctor_need_at_most_ten_connections(
    broker: BrokerProcess,
) -> None:
    def message(name: str, minutes: float | None = None) -> Outgoing:
        now = datetime.now(UTC)
        return Outgoing(
            body=b"job",
            message_id=name,
            expires_at=now + timedelta(hours=1),
            enqueue_at=None if minutes is None else now + timedelta(minutes=minutes),
        )

    async def have(connections_count: int) -> None:
        await until(
            f"{connections_count} connections",
            lambda: read_ports([broker.port])[broker.port].tcp_count == connections_count,
            PATIENCE_S,
        )

    queues = [queue_of(broker.connection_string) for _ in range(5)]
    coordinator, doctor, *clients = queues
    try:
        await coordinator.send([message(name) for name in ("first", "poison", "third")])
        for client in clients:
            delivery = await client.receive(5)
            assert delivery is not None
            if delivery.message_id == "poison":
                await client.dead_letter(delivery, "poison", "nobody can read it")
            else:
                await client.complete(delivery)
        await coordinator.cancel(await coordinator.send([message("later", 5)]))
        await coordinator.ping()
        (letter,) = await coordinator.dead_letters()
        again_until_at = datetime.now(UTC) + timedelta(hours=1)
        assert await coordinator.resend(letter.sequence_number, again_until_at)
        await have(6)
        await doctor.cancel(await doctor.send([message("probe", 5)]))
        await doctor.counts()
        await have(9)
    finally:
        for queue in queues:
            await queue.close()
