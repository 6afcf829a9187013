"""What every source of a firewall's byte counts promises.

Errors::

    LedgerError       the source cannot be read; says which, why, and what to do
    └── LedgerBusy    it is throttling us, and says for how long
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

BUSY_MAX_S: Final = 600.0  # s for which a source may send us away: it is another's word


class LedgerError(Exception):
    """A ledger cannot be read."""


class LedgerBusy(LedgerError):
    """The source asks to be left alone for a while."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        bounded = 0 <= retry_after_s <= BUSY_MAX_S  # which no NaN is, either
        self.retry_after_s = retry_after_s if bounded else BUSY_MAX_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """How a source's newest figures come to rest."""

    settle_s: float  # s after a bin's end from which it should not change any more
    lag_s: float = 0.0  # s by which a bin's label may run behind the traffic it counts
    poll_s: float | None = None  # s between two reads that must agree; None: one read is enough
    patience_s: float = 60.0  # s after a run's end at which its figures are taken as they are


class LedgerSource(Protocol):
    """A device's byte counts over time."""

    @property
    def name(self) -> str:
        """What a plan promises and a reader looks up: ``lab``, ``azure-monitor Throughput``."""

    @property
    def freshness(self) -> Freshness: ...

    async def read(
        self, from_at: datetime, before_at: datetime, direction: Direction
    ) -> FirewallLedger:
        """The bins that overlap the span, as they are known now.

        A bin that is still being filled, or whose figure may be one that has not arrived yet, is
        NaN: unknown. Raises :class:`LedgerError`.
        """


@runtime_checkable
class LiveSource(LedgerSource, Protocol):
    """One whose device keeps no history: what was read goes with this process, but for what is
    kept of it with each burst."""

    async def watch(self) -> None:
        """Ask on a clock, until cancelled."""

    async def told(self, from_at: datetime, before_at: datetime) -> Witnessed:
        """The readings that stand for any part of a span; each names device and counter."""

    def ledger_of(self, told: Witnessed) -> FirewallLedger:
        """Bins of readings, whichever process took them. Raises :class:`LedgerError`: there is
        none."""


def open_ledger(settings: CoordinatorSettings) -> LedgerSource | None:
    """The source the settings ask for; nothing is read yet.

    Raises :class:`LedgerError` when they are half filled or wrong.
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
    """A source whose ledgers carry what the settings declare of them."""

    def __init__(self, source: LedgerSource, declared: Mapping[str, Any]) -> None:
        self.name, self.freshness = source.name, source.freshness
        self._source, self._declared = source, declared

    async def read(
        self, from_at: datetime, before_at: datetime, direction: Direction
    ) -> FirewallLedger:
        ledger = await self._source.read(from_at, before_at, direction)
        return replace(ledger, **self._declared)


class _DeclaredLive(_Declared):
    """The same of a source whose device keeps no history."""

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
    """The value of a setting without which a source cannot be. Raises :class:`LedgerError`."""
    if not value:
        raise LedgerError(
            f"{name}: not set, but ledger is {settings.ledger!r}; set BROADSIDE_{name.upper()}"
        )
    return value


def plain(secret: SecretStr | None) -> str | None:
    """A secret setting's text."""
    return secret.get_secret_value() if secret else None
