"""Service Bus with TLS and Azure-like tokens on this host, to be used for identity tests."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from broadside.exchange.azure.service_bus import ServiceBusAddress
from broadside.exchange.ports import Outgoing
from broadside.lab.broker_process import BrokerProcess
from broadside.lab.servicebus.queues import QueueSettings
from tests.live.certificates import Certificates, make_certificates
from tests.live.started import started

JWT_KEY: Final = "the lab's own signing key, long enough for HS256"
NAMESPACE: Final = "broadside.servicebus.windows.net"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsQueue:
    """Service Bus stub with a queue named `jobs`."""

    broker: BrokerProcess
    certificates: Certificates

    def address(self, client_id: str | None = None) -> ServiceBusAddress:
        return ServiceBusAddress(
            queue="jobs",
            namespace=NAMESPACE,
            endpoint=f"sb://127.0.0.1:{self.broker.port}",
            ca_file=self.certificates.authority,
            client_id=client_id,
        )

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment for a process to use the queue."""
        return {
            "BROADSIDE_FABRIC": "azure",
            "BROADSIDE_SERVICEBUS_NAMESPACE": NAMESPACE,
            "BROADSIDE_SERVICEBUS_ENDPOINT": f"sb://127.0.0.1:{self.broker.port}",
            "BROADSIDE_SERVICEBUS_CA_FILE": str(self.certificates.authority),
        }


@contextlib.contextmanager
def tls_queue(folder: Path, *, lock_s: float) -> Iterator[TlsQueue]:
    """Run the queue until the context ends, using ``folder`` for certificates and logs."""
    certificates = make_certificates(folder)
    (folder / "broker").mkdir()
    broker = BrokerProcess(
        folder / "broker",
        {"jobs": QueueSettings(lock_s=lock_s)},
        jwt_key=JWT_KEY,
        tls=(certificates.chain, certificates.key),
    )
    with started(broker):
        yield TlsQueue(broker=broker, certificates=certificates)


def outgoing() -> Outgoing:
    expires_at = datetime.now(UTC) + timedelta(minutes=5)
    return Outgoing(body=b"body", message_id=str(time.time_ns()), expires_at=expires_at)
