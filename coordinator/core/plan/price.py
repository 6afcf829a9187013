"""Dated Azure price table, and the bill for given quantities. Pure.

If a price or quantity is unknown, it will be listed and not included in the total, which is then a
lower bound. One GB is 10^9 bytes.
"""

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import date
from typing import Annotated, Any, Final

from pydantic import Field, model_validator

from broadside.exchange.messages import Message

GB_BYTES: Final = 1e9

_Usd = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Price(Message):
    """A price in US dollars, with bounds and source."""

    usd: _Usd
    # None means the same as ``usd``.
    low_usd: _Usd | None = None
    high_usd: _Usd | None = None
    as_of: date | None = None
    source: str = "your own figure"
    note: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _a_plain_number(cls, value: Any) -> Any:
        return {"usd": value} if isinstance(value, int | float) else value

    @property
    def low(self) -> float:
        return self.usd if self.low_usd is None else self.low_usd

    @property
    def high(self) -> float:
        return self.usd if self.high_usd is None else self.high_usd


class FirewallPrices(Message):
    """Prices for one firewall SKU."""

    # Price for one GB that is processed.
    gb: Price | None = None
    deployment_hour: Price | None = None
    # Price for a capacity unit that is not included in the deployment.
    unit_hour: Price | None = None
    included_units_count: Annotated[float, Field(ge=0)] = 0
    # Rate that one unit can carry, in bit/s.
    unit_bits_per_second: Annotated[float, Field(gt=0)] | None = None


class Prices(Message):
    """A dated price table."""

    name: str
    as_of: date
    region: str = "unknown"
    # Prices by SKU in lower case.
    firewall: Mapping[str, FirewallPrices] = {}
    # Price for one GB from client to server.
    peering: Price | None = None
    # Prices for one vCPU by VM size, with ``{}`` as placeholder for the number of vCPUs.
    vcpu_hour: Mapping[str, Price] = {}
    # Prices by VM size.
    vm_hour: Mapping[str, Price] = {}
    # Prices of other resources that are billed by the hour, such as ``bastion``.
    standing_hour: Mapping[str, Price] = {}

    def of_vm(self, size: str | None) -> Price | None:
        """Return the hourly price for a VM size (not case-sensitive), or None if unknown."""
        if size is None:
            return None
        for name, price in self.vm_hour.items():
            if name.lower() == size.lower():
                return price
        for template, price in self.vcpu_hour.items():
            pattern = re.escape(template).replace(r"\{\}", r"(\d+)")
            match = re.fullmatch(pattern, size, re.IGNORECASE)
            if match:
                return _times(price, int(match[1]))
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRange:
    """A value with its bounds. None means unknown.

    Attributes:
        value: The expected value.
        low: Lower bound.
        high: Upper bound.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None

    def times(self, factor: "CostRange | float") -> "CostRange":
        return self._with(factor, operator.mul)

    def beyond(self, included: float) -> "CostRange":
        """Subtract an included quantity, with 0 as the minimum."""
        return self._with(included, operator.sub).at_least(0.0)

    def at_least(self, floor: float) -> "CostRange":
        return self._with(floor, max)

    def add(self, other: "CostRange") -> "CostRange":
        """Add value and bounds. If one is unknown, the sum is unknown."""
        return self._with(other, operator.add)

    def _with(
        self, other: "CostRange | float", how: Callable[[float, float], float]
    ) -> "CostRange":
        theirs = other if isinstance(other, CostRange) else exactly(other)
        value, low, high = (
            None if one is None or two is None else how(one, two)
            for one, two in zip(astuple(self), astuple(theirs), strict=True)
        )
        return CostRange(value=value, low=low, high=high)


def exactly(value: float | None) -> CostRange:
    """Return the span of a value without uncertainty. None is an unknown value."""
    return CostRange(value=value, low=value, high=value)


class Line(Message):
    """One item of a bill.

    Attributes:
        item: Name of the item.
        quantity: Quantity in `unit`. None if unknown.
        unit: Unit of the quantity.
        unit_price_usd: Price of one unit in US dollars. None if unknown.
        usd: Expected cost in US dollars. None if the quantity or the price is unknown.
        low_usd: Lower bound of the cost in US dollars.
        high_usd: Upper bound of the cost in US dollars. None if unknown.
        source: Source of the price.
        as_of: Date of the price.
        note: Explanation of the item.
    """

    item: str
    quantity: float | None
    unit: str
    unit_price_usd: float | None
    usd: float | None
    low_usd: float | None
    high_usd: float | None
    source: str | None = None
    as_of: date | None = None
    note: str | None = None


class Bill(Message):
    """Items with their sum.

    Attributes:
        lines: Items.
        total_usd: Sum of the known items in US dollars. None if no item is known.
        total_low_usd: Lower bound of the sum in US dollars.
        total_high_usd: Upper bound of the sum in US dollars. None if an upper bound is unknown.
        unknown: Items that are not in the total. With such items, the total is a lower bound.
    """

    lines: tuple[Line, ...]
    total_usd: float | None
    total_low_usd: float | None
    total_high_usd: float | None
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Quantities to bill, at real scale.

    Attributes:
        ip_bytes: IP bytes through the firewall.
        hours: Time to bill.
        units_count: Mean number of capacity units over these hours.
        machines: Number of machines to bill by VM size. None is an unknown size.
        sku: SKU of the firewall, or None if unknown.
    """

    ip_bytes: CostRange
    hours: float
    units_count: CostRange
    machines: Mapping[str | None, int]
    sku: str | None


def compute_bill(usage: Usage, prices: Prices) -> Bill:
    """Return the bill for some usage.

    Args:
        usage: Quantities to bill.
        prices: The price table to use.
    """
    # With an unknown SKU, the price is between the prices of these two.
    if usage.sku is None:
        candidates = [prices.firewall[sku] for sku in ("standard", "premium")
                      if sku in prices.firewall]  # fmt: skip
    else:
        candidates = [prices.firewall.get(usage.sku, FirewallPrices())]
    gigabytes = usage.ip_bytes.times(1 / GB_BYTES)
    included_count = min((candidate.included_units_count for candidate in candidates), default=0.0)
    hours = exactly(usage.hours)
    lines = [
        bill_line(
            "firewall data", "GB", gigabytes, _either(candidate.gb for candidate in candidates)
        ),
        bill_line("peering data", "GB", gigabytes, prices.peering),
        bill_line(
            "firewall deployment", "hours", hours,
            _either(candidate.deployment_hour for candidate in candidates),
        ),
        bill_line(
            "firewall capacity units", "unit-hours",
            usage.units_count.beyond(included_count).times(usage.hours),
            _either(candidate.unit_hour for candidate in candidates),
        ),
    ]  # fmt: skip
    for size, count in sorted(usage.machines.items(), key=lambda item: str(item[0])):
        name = f"{count} VMs {size or 'of unknown size'}"
        lines.append(bill_line(name, "VM-hours", hours.times(count), prices.of_vm(size)))
    return sum_bill(lines)


def no_bill() -> Bill:
    """Return the bill of a run that costs nothing."""
    return Bill(lines=(), total_usd=0.0, total_low_usd=0.0, total_high_usd=0.0)


def _times(price: Price, factor: float) -> Price:
    return price.model_copy(
        update={
            "usd": price.usd * factor,
            "low_usd": price.low * factor,
            "high_usd": price.high * factor,
        }
    )


def _either(prices: Iterable[Price | None]) -> Price | None:
    """Return the highest price, with the lowest as lower bound, or None if one is unknown."""
    known = list(prices)
    complete = [price for price in known if price is not None]
    if not complete or len(complete) < len(known):
        return None
    dearest = max(complete, key=lambda price: price.usd)
    low, high = min(price.low for price in complete), max(price.high for price in complete)
    return dearest.model_copy(update={"low_usd": low, "high_usd": high})


def bill_line(item: str, unit: str, quantity: CostRange, price: Price | None) -> Line:
    """Return one item of a bill. Without a price its cost is unknown.

    Args:
        item: Name of the item.
        unit: Unit of the quantity, such as ``VM-hours``.
        quantity: Quantity in this unit, with bounds.
        price: Price of one unit in USD. None if it is unknown.
    """
    entry = (
        CostRange() if price is None else CostRange(value=price.usd, low=price.low, high=price.high)
    )
    paid = quantity.times(entry)
    return Line(
        item=item,
        quantity=quantity.value,
        unit=unit,
        unit_price_usd=entry.value,
        usd=paid.value,
        low_usd=paid.low,
        high_usd=paid.high,
        source=None if price is None else price.source,
        as_of=None if price is None else price.as_of,
        note="price unknown" if price is None else price.note,
    )


def sum_bill(lines: Sequence[Line]) -> Bill:
    """Return the bill of some items. Items of unknown cost are listed and not included."""
    known = [line for line in lines if line.usd is not None]
    highs = [line.high_usd for line in known]
    return Bill(
        lines=tuple(lines),
        total_usd=sum(line.usd or 0.0 for line in known) if known else None,
        total_low_usd=sum(line.low_usd or 0.0 for line in known) if known else None,
        total_high_usd=sum(high for high in highs if high is not None)
        if known and None not in highs
        else None,
        unknown=tuple(line.item for line in lines if line.usd is None),
    )
