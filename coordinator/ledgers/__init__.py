"""Where the firewall's own byte counts come from: one module a source, chosen by settings."""

from coordinator.ledgers.kept import dump_ledger, load_ledger
from coordinator.ledgers.lab import LabLedger
from coordinator.ledgers.open import open_ledger
from coordinator.ledgers.source import Freshness, LedgerBusy, LedgerError, LedgerSource

__all__ = [
    "Freshness",
    "LabLedger",
    "LedgerBusy",
    "LedgerError",
    "LedgerSource",
    "dump_ledger",
    "load_ledger",
    "open_ledger",
]
