"""Azure's services beside a lab: a Service Bus broker, Azurite, and a metrics endpoint.

All three are real wires: agents and coordinator reach them with the unmodified SDKs, the agents
over the lab's management network. Keys and tokens are made for each lab and die with it.
"""

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broadside.exchange.messages import Direction
from broadside.lab.azurite import ACCOUNT, Azurite
from broadside.lab.errors import LabBroken
from broadside.lab.monitor import MonitorServer, MonitorSpec
from broadside.lab.relay import Relay
from broadside.lab.servicebus.broker_process import BrokerProcess
from broadside.lab.servicebus.queues import QueueSettings
from broadside.lab.topology import Lab

QUEUE: Final = "jobs"
CONTAINER: Final = "broadside-raw"
RESOURCE_ID: Final = (
    "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/lab"
    "/providers/Microsoft.Network/azureFirewalls/lab"
)
GRAIN_S: Final = 1  # s; Azure's is 60: a demo's bursts would be smaller than one point
LAG_S: Final = 2.0  # s by which a point's label runs ahead of its bytes
LATE_S: Final = 2.0  # s in which the newest points say 0


JOBS: Final = QueueSettings(lock_s=10, max_delivery_count=5)  # as the range on Azure has it


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureInMiniature:
    """The services, and what agents and coordinator need to know to use them."""

    broker: BrokerProcess
    azurite: Azurite

    def fabric(self, tables: Relay | None = None, blobs: Relay | None = None) -> dict[str, str]:
        """As environment variables; requests go by way of the relays where there are any."""
        host = self.azurite.host
        storage = self.azurite.connection_string(
            f"http://{host}:{tables.port}/{ACCOUNT}" if tables else None,
            blob_endpoint=f"http://{host}:{blobs.port}/{ACCOUNT}" if blobs else None,
        )
        return {
            "BROADSIDE_FABRIC": "azure",
            "BROADSIDE_SERVICEBUS_CONNECTION_STRING": self.broker.connection_string,
            "BROADSIDE_SERVICEBUS_QUEUE": QUEUE,
            "BROADSIDE_TABLES_CONNECTION_STRING": storage,
            "BROADSIDE_BLOBS_CONNECTION_STRING": storage,
            "BROADSIDE_BLOBS_CONTAINER": CONTAINER,
        }


@contextlib.contextmanager
def standing(
    folder: Path, host: str = "127.0.0.1", queue: QueueSettings = JOBS
) -> Iterator[AzureInMiniature]:
    """Broker and storage, stopped at the end. Raises ``ToolMissing``, ``LabBroken``."""
    with contextlib.ExitStack() as stack:
        for name in ("broker", "azurite"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        key = secrets.token_urlsafe(32)
        broker = BrokerProcess(folder / "broker", {QUEUE: queue}, host=host, sas_key=key)
        azurite = Azurite(folder / "azurite", host=host)
        stack.callback(broker.stop)
        try:
            broker.start()
        except RuntimeError as error:
            raise LabBroken(str(error)) from error
        stack.callback(azurite.stop)
        azurite.start()
        azurite.create_tables()
        azurite.create_container(CONTAINER)
        yield AzureInMiniature(broker=broker, azurite=azurite)


@contextlib.contextmanager
def monitored(lab: Lab, direction: Direction) -> Iterator[dict[str, str]]:
    """A metrics endpoint over the lab's ledger, as a coordinator's environment variables."""
    if lab.ledger_path is None:
        yield {}
        return
    token = secrets.token_urlsafe(32)
    spec = MonitorSpec(
        csv_path=lab.ledger_path,
        token=token,
        grain_s=GRAIN_S,
        lag_s=LAG_S,
        late_s=LATE_S,
        flows=direction.flows,
        plays_healthy=False,  # a demo shows nothing that was not measured
    )
    with MonitorServer(spec) as monitor:
        yield {
            "BROADSIDE_LEDGER": "azure-monitor",
            "BROADSIDE_LEDGER_LAYER": "ip",
            "BROADSIDE_LEDGER_SETTLE_S": str(LAG_S + 2 * LATE_S),
            "BROADSIDE_AZURE_MONITOR_RESOURCE_ID": RESOURCE_ID,
            "BROADSIDE_AZURE_MONITOR_ENDPOINT": monitor.endpoint,
            "BROADSIDE_AZURE_MONITOR_GRAIN": f"PT{GRAIN_S}S",
            "BROADSIDE_AZURE_MONITOR_TOKEN": token,
        }
