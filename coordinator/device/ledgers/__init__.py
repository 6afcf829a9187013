"""Where the firewall's own byte counts come from: one module a source, chosen by settings."""

from coordinator.device.ledgers.kept import dump_ledger, load_ledger
from coordinator.device.ledgers.lab_ledger import LabLedger
from coordinator.device.ledgers.open import open_ledger
from coordinator.device.ledgers.source import Freshness, LedgerBusy, LedgerError, LedgerSource

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
