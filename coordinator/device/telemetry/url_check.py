"""Checks of a URL behind the device, such as the health page of a production service.

Each round sends one GET request. It fails without a response in time, or if the status is not the
expected one. The response time of a failed request is unknown.
"""

import time
from collections.abc import Mapping
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import httpx
from pydantic import Field

from broadside.coordinator.core.measure.telemetry import Quantity
from broadside.coordinator.device.telemetry.config import parse_entry
from broadside.coordinator.device.telemetry.http_client import bounded_client, get_bounded
from broadside.coordinator.device.telemetry.polling import (
    PolledDevice,
    PolledSource,
    PolledValue,
    PollResult,
)
from broadside.coordinator.device.telemetry.source import TelemetryError
from broadside.coordinator.device.telemetry.url_entry import UrlRequestEntry

ANSWER_MAX_BYTES: Final = 1 << 20


class UrlEntry(UrlRequestEntry):
    """Configuration of a source that checks a URL."""

    # Status of a response that counts as successful.
    status: Annotated[int, Field(ge=100, le=599)] = 200
    # Time after which a request has failed.
    timeout_s: Annotated[float, Field(ge=0.1, le=30)] = 1.0
    poll_s: Annotated[float, Field(ge=0.2, le=3600)] = 1.0
    byte_counter: None = None


class UrlCheck:
    """Client that requests one URL, without redirects."""

    def __init__(self, entry: UrlEntry, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """Check the entry.

        Raises:
            TelemetryError: The URL is invalid, or the secret would be sent without encryption.
        """
        self._entry = entry
        self._where = entry.check_url()
        self._headers = entry.secret_headers()
        self._transport = transport

    async def poll(self) -> PollResult:
        """Return the readings of one request. A failed request is a reading too."""
        entry, sent_s, began_s = self._entry, time.time(), time.monotonic()
        failed = False
        async with bounded_client(
            self._headers, entry.ca_file, entry.timeout_s, self._transport
        ) as client:
            try:
                response, _ = await get_bounded(
                    client, entry.url, ANSWER_MAX_BYTES, self._where, answer_s=entry.timeout_s
                )
                failed = response.status_code != entry.status
            except TelemetryError:
                failed = True
        took_s = time.monotonic() - began_s
        at_s = sent_s + took_s
        readings = [PolledValue(quantity=Quantity.URL_FAILED, value=float(failed), at_s=at_s)]
        if not failed:
            readings.append(
                PolledValue(quantity=Quantity.URL_TIME, value=took_s, at_s=at_s, bound_s=took_s)
            )
        return PollResult(readings=readings)


def open_source(entry: Mapping[str, Any]) -> PolledSource:
    """Return a source that requests a URL.

    Raises:
        TelemetryError: The entry is invalid.
    """
    parsed = parse_entry(UrlEntry, entry)
    return PolledSource(
        parsed,
        PolledDevice(
            request=UrlCheck(parsed).poll,
            name=f"url {urlsplit(parsed.url).hostname}",
            quantities=[Quantity.URL_TIME, Quantity.URL_FAILED],
        ),
    )
