"""What things cost in Azure: a dated table, and quantities times its figures. Pure.

An unknown price or quantity stays unknown: it is named and left out of the total, which is then a
lower bound. A GB is 10^9 bytes.
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
    """One figure in US dollars, with its bounds and where it is from."""

    usd: _Usd
    low_usd: _Usd | None = None  # None: as usd
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
    """What one SKU costs."""

    gb: Price | None = None  # a GB processed
    deployment_hour: Price | None = None
    unit_hour: Price | None = None  # a capacity unit beyond those that the deployment pays for
    included_units_count: Annotated[float, Field(ge=0)] = 0
    unit_bits_per_second: Annotated[float, Field(gt=0)] | None = None  # that one unit carries


class Prices(Message):
    """A dated table of prices."""

    name: str
    as_of: date
    region: str = "unknown"
    firewall: Mapping[str, FirewallPrices] = {}  # by SKU, in small letters
    peering: Price | None = None  # a GB from client to server
    vcpu_hour: Mapping[str, Price] = {}  # by size, {} for its number of vCPUs
    vm_hour: Mapping[str, Price] = {}  # by size
    standing_hour: Mapping[str, Price] = {}  # what a range on Azure costs beside firewall and fleet

    def of_vm(self, size: str | None) -> Price | None:
        """An hour of one machine; size names are not case-sensitive. None: unknown."""
        if size is None:
            return None
        for name, price in self.vm_hour.items():
            if name.lower() == size.lower():
                return price
        for template, price in self.vcpu_hour.items():
            pattern = re.escape(template).replace(r"\{\}", r"(\d+)")
            found = re.fullmatch(pattern, size, re.IGNORECASE)
            if found:
                return _times(price, int(found[1]))
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A figure with its bounds; None is unknown."""

    value: float | None = None
    low: float | None = None
    high: float | None = None

    def times(self, factor: "Span | float") -> "Span":
        return self._with(factor, operator.mul)

    def beyond(self, included: float) -> "Span":
        """What is left after so much is taken off; never below 0."""
        return self._with(included, operator.sub).at_least(0.0)

    def at_least(self, floor: float) -> "Span":
        return self._with(floor, max)

    def add(self, other: "Span") -> "Span":
        """Part by part; what is unknown in one is unknown in the sum."""
        return self._with(other, operator.add)

    def _with(self, other: "Span | float", how: Callable[[float, float], float]) -> "Span":
        theirs = other if isinstance(other, Span) else exactly(other)
        value, low, high = (
            None if one is None or two is None else how(one, two)
            for one, two in zip(astuple(self), astuple(theirs), strict=True)
        )
        return Span(value=value, low=low, high=high)


def exactly(value: float | None) -> Span:
    return Span(value=value, low=value, high=value)


class Line(Message):
    """One thing that is paid for."""

    item: str
    quantity: float | None  # None: unknown
    unit: str
    usd_each: float | None
    usd: float | None  # None: quantity or price is unknown
    low_usd: float | None
    high_usd: float | None
    source: str | None = None
    as_of: date | None = None
    note: str | None = None


class Bill(Message):
    """Lines and their sum."""

    lines: tuple[Line, ...]
    total_usd: float | None  # of the known lines; None: none is known
    total_low_usd: float | None
    total_high_usd: float | None  # None: an upper bound is unknown
    unknown: tuple[str, ...] = ()  # items that are not in the total, which is then a lower bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What is to be paid for, at real scale."""

    ip_bytes: Span
    hours: float
    units_count: Span  # capacity units, on average over the hours
    machines: Mapping[str | None, int]  # how many of each size; None: size unknown
    sku: str | None


def charge(usage: Usage, prices: Prices) -> Bill:
    """Quantities times prices."""
    if usage.sku is None:  # not told: between the two that a fleet can be pointed at
        candidates = [prices.firewall[sku] for sku in ("standard", "premium")
                      if sku in prices.firewall]  # fmt: skip
    else:
        candidates = [prices.firewall.get(usage.sku, FirewallPrices())]
    gigabytes = usage.ip_bytes.times(1 / GB_BYTES)
    included_count = min((each.included_units_count for each in candidates), default=0.0)
    hours = exactly(usage.hours)
    lines = [
        _line("firewall data", "GB", gigabytes, _either(each.gb for each in candidates)),
        _line("peering data", "GB", gigabytes, prices.peering),
        _line(
            "firewall deployment", "hours", hours,
            _either(each.deployment_hour for each in candidates),
        ),
        _line(
            "firewall capacity units", "unit-hours",
            usage.units_count.beyond(included_count).times(usage.hours),
            _either(each.unit_hour for each in candidates),
        ),
    ]  # fmt: skip
    for size, count in sorted(usage.machines.items(), key=lambda item: str(item[0])):
        name = f"{count} VMs {size or 'of unknown size'}"
        lines.append(_line(name, "VM-hours", hours.times(count), prices.of_vm(size)))
    return _sum(lines)


def _times(price: Price, factor: float) -> Price:
    return price.model_copy(
        update={
            "usd": price.usd * factor,
            "low_usd": price.low * factor,
            "high_usd": price.high * factor,
        }
    )


def _either(prices: Iterable[Price | None]) -> Price | None:
    """One price for either of several: the dearest, bounded by the cheapest. None: one unknown."""
    known = list(prices)
    whole = [price for price in known if price is not None]
    if not whole or len(whole) < len(known):
        return None
    dearest = max(whole, key=lambda price: price.usd)
    low, high = min(price.low for price in whole), max(price.high for price in whole)
    return dearest.model_copy(update={"low_usd": low, "high_usd": high})


def _line(item: str, unit: str, quantity: Span, price: Price | None) -> Line:
    each = Span() if price is None else Span(value=price.usd, low=price.low, high=price.high)
    paid = quantity.times(each)
    return Line(
        item=item,
        quantity=quantity.value,
        unit=unit,
        usd_each=each.value,
        usd=paid.value,
        low_usd=paid.low,
        high_usd=paid.high,
        source=None if price is None else price.source,
        as_of=None if price is None else price.as_of,
        note="price unknown" if price is None else price.note,
    )


def _sum(lines: Sequence[Line]) -> Bill:
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
