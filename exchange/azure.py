"""The fabric of production: Service Bus for the queue, Table Storage for the table."""

from exchange.azure_queue import Bounds, ServiceBusAddress, ServiceBusQueue, open_queue
from exchange.fabric import Fabric, FabricSettings
from exchange.ports import ExchangeMisconfigured

__all__ = ["Bounds", "ServiceBusAddress", "ServiceBusQueue", "open_azure", "open_queue"]


def open_azure(settings: FabricSettings) -> Fabric:
    """The fabric that ``settings`` name; nothing connects yet. Raises ExchangeMisconfigured."""
    open_queue(settings)
    raise ExchangeMisconfigured(
        "BROADSIDE_FABRIC=azure: not built in this version: its table half; use embedded"
    )
