"""Azure Blob SDK, imported at the first call because most agents store no raw output."""

from typing import Any, Final

from azure.storage.blob import ContentSettings
from azure.storage.blob.aio import ContainerClient, ExponentialRetry

from broadside.exchange.azure.wire import StorageBounds

__all__ = ["GZIP", "ContainerClient", "Retries"]

GZIP: Final = ContentSettings(content_type="application/gzip")


class Retries(ExponentialRetry):
    """Retry policy that follows ``Retry-After`` and otherwise pauses like the table client."""

    def __init__(self, bounds: StorageBounds) -> None:
        super().__init__(**bounds.tries)
        self._bounds = bounds

    def get_backoff_time(self, settings: dict[str, Any]) -> float:
        try:
            return float(settings["history"][-1].http_response.headers["Retry-After"])
        except (AttributeError, LookupError, ValueError):
            # No response, or no valid header in the response.
            again_count = len(settings["history"])
        doubled_s = self._bounds.backoff_s * 2 ** (again_count - 1)
        return min(doubled_s, self._bounds.backoff_max_s) if again_count > 1 else 0.0
