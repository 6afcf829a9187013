"""SNMP profiles, which map OIDs of vendor MIBs to quantities.

The built-in profiles are in profiles.toml. You can add more in your own file.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from broadside.coordinator.core.measure.telemetry import Quantity
from broadside.coordinator.device.telemetry.config import read_toml
from broadside.coordinator.device.telemetry.source import TelemetryError

Oid = Annotated[str, Field(pattern=r"^\.?\d+(\.\d+){3,60}$")]
BUILT_IN: Final = Path(__file__).with_name("profiles.toml")


class ProfileRead(BaseModel):
    """OIDs of one quantity, with the fields explained in profiles.toml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    quantity: Quantity
    oid: Oid
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    over_s: Annotated[float, Field(ge=0, le=3600)] = 0.0
    counter: Annotated[int, Field(ge=32, le=64)] | None = None
    free: Oid | None = None
    total: Oid | None = None
    left: Oid | None = None
    # Rows to read, and rows to skip. By default, all rows are read.
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()

    @property
    def oids(self) -> tuple[str, ...]:
        """Return all OIDs that the quantity needs."""
        candidates = (self.oid, self.free, self.total, self.left)
        return tuple(oid.lstrip(".") for oid in candidates if oid is not None)

    def compute(self, value: float, *others: float) -> float | None:
        """Return the value of the quantity.

        Args:
            value: Value of ``oid``.
            *others: Value of ``free``, ``total`` or ``left``.

        Returns:
            The value in the unit of the quantity. None if the divisor is not above 0.
        """
        other = others[0] if others else None
        if other is not None and self.free is not None:
            value, other = value, value + other
        if other is not None and self.left is not None:
            value, other = value - other, value
        if other is None:
            return value * self.scale
        return value / other * self.scale if other > 0 else None


class SnmpProfile(BaseModel):
    """OIDs to read from a type of device."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # Name of the MIB to show to the user.
    mib: str = ""
    read: Annotated[tuple[ProfileRead, ...], Field(min_length=1, max_length=64)]


@cache
def read_profiles(path: Path) -> Mapping[str, SnmpProfile]:
    """Return the profiles of a file by name.

    Raises:
        TelemetryError: The file cannot be read, or a field is invalid, which the message names.
    """
    by_name: dict[str, SnmpProfile] = {}
    document: dict[str, Any] = read_toml(path, "profiles_file")
    for name, table in document.items():
        try:
            by_name[name] = SnmpProfile.model_validate(table)
        except ValidationError as error:
            first = error.errors()[0]
            text = ".".join(map(str, first["loc"]))
            raise TelemetryError(
                f"profiles_file {path}: [{name}] {text}: {first['msg']}"
            ) from error
    return by_name


def find_profile(name: str, profiles_file: Path | None) -> SnmpProfile:
    """Return a profile by name.

    Args:
        name: Name of the profile.
        profiles_file: File with your own profiles, which override the built-in ones. ``None`` for
        built-in
            profiles only.

    Raises:
        TelemetryError: There is no such profile. The message lists all names.
    """
    known = {
        **read_profiles(BUILT_IN),
        **(read_profiles(profiles_file) if profiles_file is not None else {}),
    }
    if name not in known:
        raise TelemetryError(f"profile {name!r} is unknown; use one of {', '.join(sorted(known))}")
    return known[name]
