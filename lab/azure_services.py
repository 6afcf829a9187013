"""Local services that replace those in Azure, for use beside a lab.

These are a Service Bus broker, Azurite and a metrics endpoint. You can use the unmodified SDKs to
connect to them using real sockets. The agents use the management network of the lab. Keys and
tokens will be created for each lab and will not be used again.
"""

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broadside.exchange.messages import Direction
from broadside.lab.azurite import ACCOUNT, Azurite
from broadside.lab.broker_process import BrokerProcess
from broadside.lab.errors import LabBroken
from broadside.lab.monitor import MonitorServer, MonitorSpec
from broadside.lab.relay import Relay
from broadside.lab.servicebus.queues import QueueSettings
from broadside.lab.telemetry_file import source_entry, write_telemetry_file
from broadside.lab.topology import Lab

QUEUE: Final = "jobs"
CONTAINER: Final = "broadside-raw"
VARIABLE: Final = "BROADSIDE_LAB_MONITOR_TOKEN"
RESOURCE_ID: Final = (
    "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/lab"
    "/providers/Microsoft.Network/azureFirewalls/lab"
)
# Azure uses 60 s, but this would be more than the duration of a burst in a demo.
GRAIN_S: Final = 1
# The label of a point is this much later than the traffic.
LAG_S: Final = 2.0
# The newest points are 0 for this long.
LATE_S: Final = 2.0


# Same settings as the test range on Azure.
JOBS: Final = QueueSettings(lock_s=10, max_delivery_count=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureInMiniature:
    """Running services, with the settings to connect to them.

    Attributes:
        broker: The Service Bus broker.
        azurite: The emulator for Azure Storage.
    """

    broker: BrokerProcess
    azurite: Azurite

    def fabric(self, tables: Relay | None = None, blobs: Relay | None = None) -> dict[str, str]:
        """Return the environment variables to use this fabric.

        Args:
            tables: Relay to use for requests to the tables, or ``None`` to connect directly.
            blobs: Relay to use for requests to the blobs, or ``None`` to connect directly.

        Returns:
            Variables by name, with connection strings.
        """
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
    """Start broker and storage, and stop them on exit.

    Args:
        folder: Folder for logs, keys and state.
        host: Address to listen on.
        queue: Settings for the job queue.

    Yields:
        The running services.

    Raises:
        ToolMissing: A program is not installed.
        LabBroken: A service did not start.
    """
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
def monitored(lab: Lab, direction: Direction, folder: Path) -> Iterator[dict[str, str]]:
    """Serve the lab's byte counter on a metrics endpoint.

    Args:
        lab: The lab. Without a byte counter, nothing is served.
        direction: Direction of the traffic to report.
        folder: Folder for the telemetry file.

    Yields:
        The environment variables for the coordinator, empty without a byte counter.
    """
    if lab.counter_path is None:
        yield {}
        return
    token = secrets.token_urlsafe(32)
    spec = MonitorSpec(
        csv_path=lab.counter_path,
        token=token,
        grain_s=GRAIN_S,
        lag_s=LAG_S,
        late_s=LATE_S,
        flows=direction.flows,
        # We should not show values that were not measured.
        plays_healthy=False,
    )
    with MonitorServer(spec) as monitor:
        entry = source_entry(
            {
                "device": "lab",
                "type": "azure-monitor",
                "resource_id": RESOURCE_ID,
                "endpoint": monitor.endpoint,
                "grain": f"PT{GRAIN_S}S",
                "settle_s": LAG_S + 2 * LATE_S,
                "token": {"env": VARIABLE},
                "byte_counter": {"layer": "ip"},
                # There are no other counters in the lab, so we cannot use other metrics.
                "read": [],
            }
        )
        yield write_telemetry_file(folder / "telemetry.toml", entry) | {VARIABLE: token}
