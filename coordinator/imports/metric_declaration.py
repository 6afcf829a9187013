"""Declaration of the meaning of a device metric, to convert its values. Pure."""

from typing import Annotated, Final, Literal

import numpy as np
from pydantic import Field, model_validator

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.records.evidence import (
    FLOWS_COUNTED,
    FORMER_AGGREGATIONS,
    CounterDirection,
    CounterLayer,
)
from broadside.exchange.messages import Aggregation, Flow, Integer, Message, Number, renamed_values

Prefix = Literal["", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"]

PREFIX_FACTORS: Final = {
    **{prefix: 1000.0**power for power, prefix in enumerate(("", "k", "M", "G", "T"))},
    **{prefix: 1024.0**power for power, prefix in enumerate(("Ki", "Mi", "Gi", "Ti"), 1)},
}


class MetricDeclaration(Message):
    """Meaning of a metric's values. The defaults are those of Azure Firewall's Throughput."""

    unit: Literal["bits", "bytes"] = Field(default="bits", description="unit of the values")
    prefix: Prefix = Field(default="", description="prefix of the unit: k is 1000, Ki is 1024")
    aggregation: Annotated[Aggregation, renamed_values(FORMER_AGGREGATIONS)] = Field(
        default=Aggregation.MEAN,
        description="aggregation of the values in a bin; bytes can be computed from `mean` "
        "and `sum`, but not from the largest or smallest sample of a bin",
    )
    per: Literal["second", "bin"] | None = Field(
        default=None, description="null: `bin` for a total, otherwise `second`"
    )
    direction: CounterDirection = Field(
        default="both",
        description="`in`: from clients to servers; `out`: from servers to clients",
    )
    layer: CounterLayer = Field(
        default="unknown",
        description="`payload`, `ip` (IP packets) or `wire` (Ethernet frames without preamble and "
        "check sequence)",
    )
    mss_bytes: Annotated[Integer, Field(ge=88, le=65_535)] | None = Field(
        default=None, description="TCP payload of a full packet, as shown by `ss -i`"
    )
    mtu_bytes: Annotated[Integer, Field(ge=576, le=65_535)] | None = Field(
        default=None, description="MTU of the path, if the segment size is unknown"
    )
    counts_lost: bool | None = Field(
        default=None,
        description="true if packets are counted before drops, so that the values include "
        "bytes that are sent again (TCP) or lost (UDP); null: unknown",
    )
    lag_s: Annotated[Number, Field(ge=-900, le=900)] | None = Field(
        default=None,
        description="delay of the labels relative to the traffic, in seconds; null: estimated "
        "from the data",
    )

    @model_validator(mode="after")
    def _one_size(self) -> "MetricDeclaration":
        if self.mss_bytes is not None and self.mtu_bytes is not None:
            raise ValueError("mss_bytes and mtu_bytes: give one of the two")
        return self

    @property
    def flows(self) -> tuple[Flow, ...]:
        """The flows whose payload the metric counts."""
        return FLOWS_COUNTED[self.direction]

    @property
    def is_rate(self) -> bool:
        """True if a value is per second, False if it is the amount of a bin."""
        return self.per != "bin" and (
            self.per == "second" or self.aggregation is not Aggregation.SUM
        )

    @property
    def is_bit_rate(self) -> bool:
        """True if a value is a mean rate in bit/s."""
        return (self.unit, self.prefix, self.aggregation) == ("bits", "", Aggregation.MEAN) and (
            self.is_rate
        )

    def bytes_of(self, figures: Floats, bin_s: float) -> Floats:
        """Return the bytes of each bin.

        Args:
            figures: Value of the metric in each bin. NaN is unknown.
            bin_s: Length of a bin in seconds.

        Returns:
            Bytes by bin, with the shape of ``figures``. NaN stays NaN.
        """
        factor = PREFIX_FACTORS[self.prefix] * (1 / 8 if self.unit == "bits" else 1.0)
        return np.asarray(figures * factor * (bin_s if self.is_rate else 1.0))


DEFAULT: Final = MetricDeclaration()
