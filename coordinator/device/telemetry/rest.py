"""Byte counter and other quantities from a JSON document over HTTPS, with JMESPath expressions.

The byte counter is the sum of the entry's counters with the quantity ``in_bits_per_second``.
"""

import math
from collections.abc import Iterator, Mapping
from datetime import UTC
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import httpx
from pydantic import Field

from broadside.coordinator.core.measure.telemetry import Quantity
from broadside.coordinator.device.telemetry.config import parse_entry
from broadside.coordinator.device.telemetry.http_client import (
    bounded_client,
    get_bounded,
    partial_answer,
)
from broadside.coordinator.device.telemetry.polling import (
    PolledDevice,
    PolledSource,
    PolledValue,
    PollResult,
)
from broadside.coordinator.device.telemetry.source import Read, TelemetryError
from broadside.coordinator.device.telemetry.url_entry import UrlRequestEntry
from broadside.coordinator.imports.time_text import parse_time, to_utc
from broadside.exchange.strict_json import read_json

ANSWER_MAX_BYTES: Final = 1 << 20
ATTEMPT_S: Final = 5.0
# Time limit of the response in seconds. A slow response delays the next reading no more than a
# device that is off. 1 MiB in 5 s is 1.7 Mbit/s.
ANSWER_S: Final = ATTEMPT_S
ROWS_MAX_COUNT: Final = 512


class JsonRead(Read):
    """One quantity in the document (a number, a list, or an object with one number per instance).

    Attributes:
        path: JMESPath expression.
        counter: Width of a counter in bits, or ``None`` for a gauge.
    """

    path: Annotated[str, Field(min_length=1, max_length=1024)]
    counter: Annotated[int, Field(ge=32, le=64)] | None = None


class RestEntry(UrlRequestEntry):
    """Configuration of a source that reads JSON from a URL."""

    # Path of the document's timestamp, in epoch seconds or ISO 8601. Its offset from the
    # coordinator clock is estimated and corrected.
    at_path: str | None = None
    read: Annotated[tuple[JsonRead, ...], Field(min_length=1, max_length=64)]


class RestClient:
    """Reader of the document, with one GET request per round.

    It does not follow redirects, and it rejects compressed responses.
    """

    def __init__(self, entry: RestEntry, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """Check the entry. Raises TelemetryError for an invalid expression or URL."""
        import jmespath
        from jmespath.exceptions import JMESPathError

        self._entry = entry
        self._where = entry.check_url()
        self._headers = {"Accept": "application/json", **entry.secret_headers()}
        self._transport = transport
        paths = [*(read.path for read in entry.read), *([entry.at_path] if entry.at_path else [])]
        try:
            self._compiled = {path: jmespath.compile(path) for path in paths}
        except JMESPathError as error:
            reason = str(error).splitlines()[0]
            raise TelemetryError(f"telemetry {entry.device}: path: {reason}") from None

    async def poll(self) -> PollResult:
        """Return the readings of a round. Raises TelemetryError without a valid response."""
        document, partial = await self._get()
        readings: list[PolledValue] = []
        missing = []
        for read in self._entry.read:
            result = self._search(read.path, document)
            numbers = list(_numbers(result))
            if isinstance(result, dict | list) and len(result) > ROWS_MAX_COUNT:
                partial = f"{len(result)} values at {read.path}; only {ROWS_MAX_COUNT} are read"
            if not numbers:
                missing.append(f"{read.quantity}: nothing at {read.path}")
            readings += [
                PolledValue(
                    quantity=read.quantity,
                    instance=instance,
                    value=value * read.scale,
                    over_s=read.over_s,
                    counts_to=None if read.counter is None else 2.0**read.counter * read.scale,
                )
                for instance, value in numbers
            ]
        at_path = self._entry.at_path
        at_s = None if at_path is None else _timestamp(self._search(at_path, document))
        return PollResult(readings=readings, missing=missing, at_s=at_s, partial=partial)

    def _search(self, path: str, document: Any) -> Any:
        try:
            return self._compiled[path].search(document)
        # Functions of JMESPath raise various errors for unexpected data.
        except Exception as error:
            raise TelemetryError(f"{self._where}: {path}: {type(error).__name__}") from None

    async def _get(self) -> tuple[Any, str | None]:
        """Return the document, and the reason if it is known to be incomplete."""
        entry = self._entry
        async with bounded_client(
            self._headers, entry.ca_file, ATTEMPT_S, self._transport
        ) as client:
            response, body = await get_bounded(
                client, entry.url, ANSWER_MAX_BYTES, self._where, answer_s=ANSWER_S
            )
        if response.status_code not in (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT):
            raise TelemetryError(f"{self._where}: HTTP {response.status_code}")
        try:
            document = await read_json(body, ANSWER_MAX_BYTES)
        except (ValueError, RecursionError):
            raise TelemetryError(f"{self._where}: not JSON that can be read") from None
        return document, partial_answer(response, document)


def _numbers(result: Any) -> Iterator[tuple[str, float]]:
    """Yield instance and value for each number, with the index as instance in a list."""
    if isinstance(result, dict | list):
        named = result.items() if isinstance(result, dict) else enumerate(result)
        for name, value in list(named)[:ROWS_MAX_COUNT]:
            if (number := _number(value)) is not None:
                yield str(name), number
    elif (number := _number(result)) is not None:
        yield "", number


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _timestamp(value: Any) -> float:
    try:
        return to_utc(parse_time(str(value)), UTC).timestamp()
    except ValueError:
        raise TelemetryError("at_path: not a time; give epoch seconds or ISO 8601") from None


def open_source(entry: Mapping[str, Any]) -> PolledSource:
    """Return a source that polls a JSON document.

    Raises:
        TelemetryError: The entry is invalid, or it has a byte counter and counts no bits.
    """
    parsed = parse_entry(RestEntry, entry)
    counted = [read for read in parsed.read if read.quantity is Quantity.RECEIVED]
    if parsed.byte_counter is not None and not (counted and all(read.counter for read in counted)):
        raise TelemetryError(
            f"telemetry {parsed.device}: byte_counter: read in_bits_per_second with counter = 64 "
            "(or 32), and scale = 8 if the device counts bytes"
        )
    return PolledSource(
        parsed,
        PolledDevice(
            request=RestClient(parsed).poll,
            name=f"rest {urlsplit(parsed.url).hostname}",
            quantities=(read.quantity for read in parsed.read),
        ),
    )
