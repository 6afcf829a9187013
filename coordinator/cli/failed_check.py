"""Conversion of errors to failed checks for ``broadside doctor``."""

from broadside.coordinator.cli.exits import wrong_setting
from broadside.coordinator.device.telemetry.source import TelemetryError
from broadside.exchange.checks import Check
from broadside.exchange.ports import ExchangeMisconfigured


def failed(name: str, error: Exception, fix: str | None = None) -> Check:
    """Return a failed check.

    Args:
        name: Name to use for the check.
        error: The error. If it contains its own fix after the last "; ", that fix is used.
        fix: Fix to use when the error does not contain one.
    """
    if (wrong := wrong_setting(error)) is not None:
        variable, what = wrong
        return Check(name=name, ok=False, detail=what, fix=f"mend or unset {variable}")
    said = " ".join(str(error).split())
    if isinstance(error, (ExchangeMisconfigured, TelemetryError)) and "; " in said:
        detail, _, own = said.rpartition("; ")
        return Check(name=name, ok=False, detail=detail, fix=own)
    return Check(name=name, ok=False, detail=said, fix=fix)
