"""Byte counters of a firewall from an exported CSV file."""

import csv
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from broadside.coordinator.coordinator_settings import CoordinatorSettings, CsvUnit
from broadside.coordinator.core import words
from broadside.coordinator.core.measure.columns import Floats
from broadside.coordinator.core.measure.evidence import FirewallLedger, LedgerLayer
from broadside.coordinator.device.epoch import epoch_seconds
from broadside.coordinator.device.ledgers.source import Freshness, LedgerError, needed
from broadside.exchange.messages import Direction

# One year of one-minute rows takes about 16 MiB.
_FILE_MAX_BYTES: Final = 32 * 1_048_576
# The year 5138 in epoch nanoseconds.
_TIME_MAX: Final = 1e20
_BYTES_PER_S: Final[Mapping[str, float]] = {
    "bits_per_second": 1 / 8,
    "kilobits_per_second": 1e3 / 8,
    "megabits_per_second": 1e6 / 8,
    "gigabits_per_second": 1e9 / 8,
    "bytes_per_second": 1.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvForm:
    """Format of the CSV file.

    Attributes:
        time_column: Name of the column with times (ISO 8601 or epoch times).
        value_column: Name of the column with values.
        unit: Unit for ``value``s. ``bytes`` means bytes per bin, not a running total.
        zone: IANA time zone for times without an offset.
        label: Whether the time of a bin is its start or its end.
    """

    time_column: str = "time"
    value_column: str = "bytes"
    unit: CsvUnit = "bytes"
    zone: str = "UTC"
    label: Literal["start", "end"] = "start"


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFields:
    """Names of the fields in error messages, as the user configured them.

    Attributes:
        path: Setting for the path.
        time_column: Setting for the time column.
        value_column: Setting for the value column.
        zone: Setting for the time zone.
    """

    path: str = "ledger_path"
    time_column: str = "BROADSIDE_CSV_TIME_COLUMN"
    value_column: str = "BROADSIDE_CSV_VALUE_COLUMN"
    zone: str = "csv_zone"


class CsvLedger:
    """Bins of equal length from a file that is read again for each call.

    An empty cell is an unknown value. Raises :class:`LedgerError` for an unknown time zone.

    Attributes:
        name: Name in reports, with the file name.
        freshness: Time to wait until the newest values are stable.
    """

    def __init__(
        self,
        path: Path,
        form: CsvForm,
        *,
        fields: CsvFields = CsvFields(),
        layer: LedgerLayer = "unknown",
        settle_s: float = 0.0,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        try:
            self._zone = ZoneInfo(form.zone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise LedgerError(
                f"{fields.zone} {form.zone!r}: no such time zone; give one such as Europe/Berlin"
            ) from error
        self.name = f"csv {path.name}"
        self.freshness = Freshness(settle_s=settle_s, poll_s=5.0, patience_s=settle_s + 60)
        self._path = path
        self._form = form
        self._fields = fields
        self._what = f"{fields.path} {path}"
        self._layer = layer
        self._now = now

    async def read(
        self, from_at: datetime, before_at: datetime, direction: Direction
    ) -> FirewallLedger:
        """Return the bins in this time span (see :meth:`LedgerSource.read`)."""
        at_s, values = self.rows()
        if len(at_s) > 1 and np.diff(at_s).min() < 0.99 * np.median(np.diff(at_s)):
            raise LedgerError(f"{self._what}: its rows are not a regular interval apart")
        grain_s = float(np.median(np.diff(at_s))) if len(at_s) > 1 else 0.0
        if not grain_s:
            raise LedgerError(f"{self._what}: {len(at_s)} rows; give two or more")
        start_s = at_s - (grain_s if self._form.label == "end" else 0.0)
        rate = _BYTES_PER_S.get(self._form.unit)
        amount = 1 / 8 if self._form.unit == "bits" else 1.0
        counts = values * amount if rate is None else values * rate * grain_s
        inside = (start_s < before_at.timestamp()) & (start_s + grain_s > from_at.timestamp())
        return FirewallLedger(
            source=self.name,
            layer=self._layer,
            start_s=start_s[inside],
            end_s=start_s[inside] + grain_s,
            bytes=counts[inside],
            grain_s=grain_s,
            read_at=self._now(),
        )

    def rows(self) -> tuple[Floats, Floats]:
        """Return times in epoch seconds and unconverted values, sorted by time.

        Raises:
            LedgerError: The file cannot be read or a row is invalid.
        """
        try:
            with self._path.open("rb") as file:
                data = file.read(_FILE_MAX_BYTES + 1)
            text = data.decode("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise LedgerError(f"{self._what}: {reason}") from error
        if len(data) > _FILE_MAX_BYTES:
            raise LedgerError(
                f"{self._what}: over {words.size(_FILE_MAX_BYTES)}; cut it to the run"
            )
        try:
            return self._rows(text)
        except csv.Error as error:
            raise LedgerError(f"{self._what}: not CSV ({error})") from error

    def _rows(self, text: str) -> tuple[Floats, Floats]:
        """Parse and check every row and return times and values, sorted by time."""
        rows = csv.DictReader(io.StringIO(text))
        for setting, column in (
            (self._fields.time_column, self._form.time_column),
            (self._fields.value_column, self._form.value_column),
        ):
            if column not in (rows.fieldnames or ()):
                names = ", ".join(rows.fieldnames or ()) or "none"
                raise LedgerError(
                    f"{self._what}: no column {column!r}; it has {names}; set {setting}"
                )
        found: dict[float, float] = {}
        for row in rows:
            try:
                at_s = self._time(row[self._form.time_column] or "")
                if at_s in found:
                    raise ValueError(f"{row[self._form.time_column]!r} comes twice")
                found[at_s] = _value(row[self._form.value_column] or "")
            except ValueError as error:
                raise LedgerError(f"{self._what}, line {rows.line_num}: {error}") from error
        bins = np.array(sorted(found.items()), dtype=float).reshape(-1, 2)
        return bins[:, 0], bins[:, 1]

    def _time(self, text: str) -> float:
        """Return epoch seconds. Raises ``ValueError``."""
        try:
            number = float(text)
        except ValueError:
            pass
        else:
            if not 0 <= number < _TIME_MAX:
                raise ValueError(f"{text!r} is no time")
            return epoch_seconds(number)
        try:
            at = datetime.fromisoformat(text.strip())
        except ValueError:
            raise ValueError(
                f"{text!r} is no time; write ISO 8601 such as 2026-11-20T12:00:00Z, or epoch "
                "seconds"
            ) from None
        if at.tzinfo is not None:
            return at.timestamp()
        early, late = (at.replace(tzinfo=self._zone, fold=fold) for fold in (0, 1))
        if early.utcoffset() != late.utcoffset():
            raise ValueError(
                f"{text!r} comes twice or never in {self._form.zone}, where clocks change; write "
                "it with its offset"
            )
        return early.timestamp()


def _value(text: str) -> float:
    """Return a number, or NaN for an empty cell. Raises ``ValueError``."""
    if not text.strip():
        return float("nan")
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError(
            f"{text!r} is no figure; write plain digits, or nothing where it is unknown"
        )
    return value


def open_source(settings: CoordinatorSettings) -> CsvLedger:
    return CsvLedger(
        needed(settings, "ledger_path", settings.ledger_path),
        CsvForm(
            time_column=settings.csv_time_column,
            value_column=settings.csv_value_column,
            unit=settings.csv_unit,
            zone=settings.csv_zone,
            label=settings.csv_label,
        ),
        layer=settings.ledger_layer,
        settle_s=settings.ledger_settle_s or 0.0,
    )
