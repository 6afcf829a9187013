"""What was tried and went wrong, as a line of ``broadside doctor``."""

from broadside.coordinator.cli.exits import wrong_setting
from broadside.coordinator.device.ledgers.source import LedgerError
from broadside.exchange.checks import Check
from broadside.exchange.ports import ExchangeMisconfigured


def failed(name: str, error: Exception, fix: str | None = None) -> Check:
    """An error's line as a check; one that knows better what to do says it last."""
    if (wrong := wrong_setting(error)) is not None:
        variable, what = wrong
        return Check(name=name, ok=False, detail=what, fix=f"mend or unset {variable}")
    said = " ".join(str(error).split())
    if isinstance(error, (ExchangeMisconfigured, LedgerError)) and "; " in said:
        detail, _, own = said.rpartition("; ")
        return Check(name=name, ok=False, detail=detail, fix=own)
    return Check(name=name, ok=False, detail=said, fix=fix)
