"""Column profiles, which describe the columns of a table with their units and time format.

A profile is a TOML file. Those in the folder ``profiles`` ship with Broadside::

    original         iperf3 results of the original test
    original-http    vegeta results of the original test
    firewall-metric  a firewall's byte metric, as exported from Azure Monitor
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, get_args

from pydantic import Field, ValidationError, field_validator

from broadside.coordinator.imports import BadFile, RowField
from broadside.coordinator.imports.metric_declaration import MetricDeclaration
from broadside.coordinator.imports.time_text import parse_zone
from broadside.exchange.messages import Integer, Message, Number

_FOLDER: Final = Path(__file__).parent / "profiles"
# Profiles of result tables, in the order in which they are tried.
RESULT_PROFILES: Final = ("original", "original-http")
METRIC_PROFILE: Final = "firewall-metric"

ColumnUnit = Literal[
    "", "s", "ms", "us", "min", "bit/s", "kbit/s", "Mbit/s", "Gbit/s", "byte/s", "%"
]
FACTORS: Final[Mapping[ColumnUnit, float]] = dict(
    zip(get_args(ColumnUnit), (1, 1, 1e-3, 1e-6, 60, 1, 1e3, 1e6, 1e9, 8, 0.01), strict=True)
)


class ProfileColumn(Message):
    """A column of a table. Names are compared without case, the first one has priority."""

    names: Annotated[tuple[str, ...], Field(min_length=1)]
    unit: ColumnUnit = ""
    required: bool = True


class NamedMetric(Message):
    """Meaning of the metric columns with these names. No names: of all others."""

    names: tuple[str, ...]
    declaration: MetricDeclaration


class ColumnProfile(Message):
    """Columns of a table, and how its rows are read."""

    title: str
    engine: Literal["iperf3", "http"] = "iperf3"
    # Time zone of times without an offset.
    timezone: str = "UTC"
    # Format of times as for strptime. ISO 8601 can be read with every profile.
    time_format: str | None = None
    # Column with the name of the tool that wrote the row. Rows of other tools are skipped.
    tool_column: str | None = None
    tools: tuple[str, ...] = ("",)
    # Known columns that are not read.
    ignored: tuple[str, ...] = ()
    # If this column exists, durations are periods in minutes, with one minute less of traffic.
    minutes_column: str | None = None
    # Payload of one reply, for tables that count requests and not bytes.
    reply_bytes: Annotated[Integer, Field(ge=1)] | None = None
    columns: Mapping[RowField, ProfileColumn]
    metrics: tuple[NamedMetric, ...] = ()

    @field_validator("columns")
    @classmethod
    def _has_a_start(
        cls, columns: Mapping[RowField, ProfileColumn]
    ) -> Mapping[RowField, ProfileColumn]:
        if "started_at" not in columns:
            raise ValueError("started_at: add the column with the start times")
        return columns

    @field_validator("timezone")
    @classmethod
    def _is_a_zone(cls, timezone: str) -> str:
        parse_zone(timezone)
        return timezone

    def header_of(self, field: RowField) -> str:
        """Return the name of a field's column in the table, or the field if it has none."""
        return self.columns[field].names[0] if field in self.columns else field

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the columns that a table needs to have."""
        return tuple(column.names[0] for column in self.columns.values() if column.required)

    def in_unit(self, field: RowField, value: Number) -> str:
        """Format a value in the unit of its column.

        Args:
            field: The field of the value.
            value: Value in the unit of the field.

        Returns:
            Number without its unit.
        """
        unit: ColumnUnit = self.columns[field].unit if field in self.columns else ""
        return f"{value / FACTORS[unit]:g}"


def load_profile(name: str) -> ColumnProfile:
    """Load a profile.

    Args:
        name: Name of a profile that ships with Broadside, or path of a TOML file.

    Raises:
        BadFile: There is no such profile, or it is invalid.
    """
    path = Path(name) if name.endswith(".toml") else _FOLDER / f"{name}.toml"
    shipped = sorted(file.stem for file in _FOLDER.glob("*.toml"))
    if path.parent == _FOLDER and path.stem not in shipped:
        raise BadFile(
            f"profile {name!r}: no such profile; give one of {', '.join(shipped)}, or the path of "
            "a TOML file"
        )
    try:
        return ColumnProfile.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise BadFile(f"profile {path}: {error.strerror}; name a readable file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadFile(
            f"profile {path}: not valid TOML: {error}; compare it with original"
        ) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise BadFile(
            f"profile {path}: {field}: {first['msg']} (got {str(first['input'])[:60]!r}); compare "
            "it with the profile original"
        ) from None
