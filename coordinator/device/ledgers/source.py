"""Interface of all sources of a firewall's byte counters.

Errors::

    LedgerError       the source cannot be read. The message has source, reason and fix.
    └── LedgerBusy    the source throttles requests and gives a time to wait.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

from pydantic import SecretStr

from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.coordinator.core.measure.evidence import FLOWS_COUNTED, FirewallLedger
from broadside.coordinator.core.measure.testimony import Witnessed
from broadside.coordinator.device.ledgers import module_of
from broadside.exchange.installation import bring_extra
from broadside.exchange.messages import Direction

# Limit for a wait that a source requests, because its value is external input.
BUSY_MAX_S: Final = 600.0


class LedgerError(Exception):
    """Failed read of a ledger."""


class LedgerBusy(LedgerError):
    """Throttled read of a ledger.

    Attributes:
        retry_after_s: Time to wait in seconds, at most ``BUSY_MAX_S``.
    """

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        # The comparison is also false for NaN.
        bounded = 0 <= retry_after_s <= BUSY_MAX_S
        self.retry_after_s = retry_after_s if bounded else BUSY_MAX_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """Time to wait until the newest values from a source are stable.

    Attributes:
        settle_s: Time in seconds after the end of a bin from which its value should not change.
        lag_s: Maximum delay in seconds between traffic and the label of its bin.
        poll_s: Seconds between two reads that must agree. ``None`` means that one read is enough.
        patience_s: Seconds after the end of a run at which the values are used as they are.
    """

    settle_s: float
    lag_s: float = 0.0
    poll_s: float | None = None
    patience_s: float = 60.0


class LedgerSource(Protocol):
    """Byte counters of a device over time."""

    @property
    def name(self) -> str:
        """Name for plans and reports, for example ``lab`` or ``azure-monitor Throughput``."""

    @property
    def freshness(self) -> Freshness: ...

    async def read(
        self, from_at: datetime, before_at: datetime, direction: Direction
    ) -> FirewallLedger:
        """Return the bins that overlap the span, with the values known now.

        A bin is NaN (unknown) if it has not ended or if its value may not have arrived yet.

        Args:
            from_at: Start time.
            before_at: End time.
            direction: Direction of the traffic.

        Raises:
            LedgerError: The source could not be read.
        """


@runtime_checkable
class LiveSource(LedgerSource, Protocol):
    """Source of a device without history.

    Readings are lost when the process ends, except for those stored with each burst.
    """

    async def watch(self) -> None:
        """Poll the device until cancelled."""

    async def told(self, from_at: datetime, before_at: datetime) -> Witnessed:
        """Return the readings that overlap a span, with the device and counter of each."""

    def ledger_of(self, told: Witnessed) -> FirewallLedger:
        """Return a ledger from readings of this or another process.

        Raises:
            LedgerError: There are no readings.
        """


def open_ledger(settings: CoordinatorSettings) -> LedgerSource | None:
    """Return the source that the settings select, or ``None`` for ``none``. Nothing is read yet.

    Raises:
        LedgerError: Settings are incomplete or invalid, or a package is not installed.
    """
    if settings.ledger == "none":
        return None
    try:
        module = importlib.import_module(module_of(settings.ledger))
    except ModuleNotFoundError as error:
        extra = "azure" if settings.ledger.startswith("azure") else "witnesses"
        raise LedgerError(
            f"ledger {settings.ledger}: {error.name} is missing; {bring_extra(extra)}"
        ) from error
    source: LedgerSource = module.open_source(settings)
    declared: dict[str, Any] = {}
    if settings.ledger_direction != "both":
        declared["flows"] = FLOWS_COUNTED[settings.ledger_direction]
    if settings.ledger_mss_bytes is not None:
        declared["mss_bytes"] = settings.ledger_mss_bytes
    if settings.ledger_counts_lost is not None:
        declared["counts_lost"] = settings.ledger_counts_lost
    if settings.ledger_aggregation != "average":
        declared["extreme"] = settings.ledger_aggregation
    if settings.ledger_lag_s is not None:
        declared["lag_hint_s"] = settings.ledger_lag_s
    if not declared:
        return source
    if isinstance(source, LiveSource):
        return _DeclaredLive(source, declared)
    return _Declared(source, declared)


class _Declared:
    """Source with properties that the settings declare, for example the MSS."""

    def __init__(self, source: LedgerSource, declared: Mapping[str, Any]) -> None:
        self.name, self.freshness = source.name, source.freshness
        self._source, self._declared = source, declared

    async def read(
        self, from_at: datetime, before_at: datetime, direction: Direction
    ) -> FirewallLedger:
        ledger = await self._source.read(from_at, before_at, direction)
        return replace(ledger, **self._declared)


class _DeclaredLive(_Declared):
    """Same as ``_Declared`` for a source of a device without history."""

    def __init__(self, source: LiveSource, declared: Mapping[str, Any]) -> None:
        super().__init__(source, declared)
        self._live = source

    async def watch(self) -> None:
        await self._live.watch()

    async def told(self, from_at: datetime, before_at: datetime) -> Witnessed:
        return await self._live.told(from_at, before_at)

    def ledger_of(self, told: Witnessed) -> FirewallLedger:
        return replace(self._live.ledger_of(told), **self._declared)


_Value = TypeVar("_Value")


def needed(settings: CoordinatorSettings, name: str, value: _Value | None) -> _Value:
    """Return the value of a required setting.

    Args:
        settings: All settings.
        name: Setting name in messages.
        value: Value of the setting.

    Raises:
        LedgerError: The value is missing.
    """
    if not value:
        raise LedgerError(
            f"{name}: not set, but ledger is {settings.ledger!r}; set BROADSIDE_{name.upper()}"
        )
    return value


def plain(secret: SecretStr | None) -> str | None:
    """Return the text of a secret setting, or ``None``."""
    return secret.get_secret_value() if secret else None
