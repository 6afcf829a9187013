"""Azure's services beside a lab: a Service Bus broker, Azurite, and a metrics endpoint.

All three are real wires: agents and coordinator reach them with the unmodified SDKs, the agents
over the lab's management network. Keys and tokens are made for each lab and die with it.
"""

import contextlib
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from exchange.messages import Direction
from lab.azurite import Azurite
from lab.errors import LabBroken
from lab.monitor import MonitorServer, MonitorSpec
from lab.servicebus.broker_process import BrokerProcess
from lab.servicebus.queues import QueueSettings
from lab.topology import Lab

QUEUE: Final = "jobs"
CONTAINER: Final = "broadside-raw"
RESOURCE_ID: Final = (
    "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/lab"
    "/providers/Microsoft.Network/azureFirewalls/lab"
)
GRAIN_S: Final = 1  # s; Azure's is 60: a demo's bursts would be smaller than one point
LAG_S: Final = 2.0  # s by which a point's label runs ahead of its bytes
LATE_S: Final = 2.0  # s in which the newest points say 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureInMiniature:
    """What agents and coordinator need to know to use it, as environment variables."""

    fabric: Mapping[str, str]  # for both
    ledger: Mapping[str, str]  # for the coordinator


@contextlib.contextmanager
def standing(lab: Lab, folder: Path, direction: Direction) -> Iterator[AzureInMiniature]:
    """The three services, stopped at the end. Raises ``ToolMissing``, ``LabBroken``."""
    host = lab.management_address or "127.0.0.1"
    folder.mkdir(parents=True, exist_ok=True)
    broker = BrokerProcess(
        folder,
        {QUEUE: QueueSettings(lock_s=10, max_delivery_count=5, duplicate_window_s=600)},
        host=host,
        sas_key=secrets.token_urlsafe(32),
    )
    azurite = Azurite(folder, host=host)
    with contextlib.ExitStack() as stack:
        stack.callback(broker.stop)
        try:
            broker.start()
        except RuntimeError as error:
            raise LabBroken(str(error)) from error
        stack.callback(azurite.stop)
        azurite.start()
        azurite.create_tables()
        azurite.create_container(CONTAINER)
        ledger: dict[str, str] = {}
        if lab.ledger_path is not None:
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
            monitor = stack.enter_context(MonitorServer(spec))
            ledger = {
                "BROADSIDE_LEDGER": "azure-monitor",
                "BROADSIDE_LEDGER_LAYER": "ip",
                "BROADSIDE_LEDGER_SETTLE_S": str(LAG_S + 2 * LATE_S),
                "BROADSIDE_AZURE_MONITOR_RESOURCE_ID": RESOURCE_ID,
                "BROADSIDE_AZURE_MONITOR_ENDPOINT": monitor.endpoint,
                "BROADSIDE_AZURE_MONITOR_GRAIN": f"PT{GRAIN_S}S",
                "BROADSIDE_AZURE_MONITOR_TOKEN": token,
            }
        yield AzureInMiniature(
            fabric={
                "BROADSIDE_FABRIC": "azure",
                "BROADSIDE_SERVICEBUS_CONNECTION_STRING": broker.connection_string,
                "BROADSIDE_SERVICEBUS_QUEUE": QUEUE,
                "BROADSIDE_TABLES_CONNECTION_STRING": azurite.connection_string(),
                "BROADSIDE_BLOBS_CONNECTION_STRING": azurite.connection_string(),
                "BROADSIDE_BLOBS_CONTAINER": CONTAINER,
            },
            ledger=ledger,
        )
