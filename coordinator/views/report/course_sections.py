"""Report sections about availability, drift, disruptions and cost of a run. Pure."""

from broadside.coordinator.core.formatting import (
    count,
    dollars,
    dollars_each,
    instant,
    number,
    quantity,
    rate,
    ratio,
    signed,
    size,
    time,
)
from broadside.coordinator.core.plan.price import Bill
from broadside.coordinator.core.run_trends import bursts_of
from broadside.coordinator.core.summary import Trend
from broadside.coordinator.views.report.document import Section, tabled
from broadside.coordinator.views.report.stored_source import Source


def course_sections(source: Source) -> tuple[Section, ...]:
    """Return sections with availability, trends and disruptions. Empty if the summary has none."""
    course = source.summary.course
    if course is None:
        return ()
    up = course.availability
    facts = {}
    if up is not None:
        facts = {
            "load carried, of planned pair-seconds": ratio(up.up_ratio),
            "load carried, of known pair-seconds": ratio(up.known_ratio),
            "carried / below the floor / unknown": f"{count(up.up_s)} / {count(up.down_s)} / "
            f"{count(up.unknown_s)} pair-seconds",
        }
    shown, total = len(course.disruptions), course.disruptions_count
    facts["disruptions"] = count(total)
    tables = []
    if course.trends:
        tables.append(
            tabled(
                course.trends,
                {
                    "figure": lambda trend: trend.name.replace("_", " "),
                    "bursts": lambda trend: str(trend.bursts_count),
                    "median": _median,
                    "an hour": lambda trend: f"{signed(trend.percent_per_hour)} %",
                    "95 % interval": lambda trend: (
                        f"{signed(trend.low_percent_per_hour)} to "
                        f"{signed(trend.high_percent_per_hour)} %"
                    ),
                    "moved": lambda trend: "yes" if trend.moved else "no",
                },
                title="Drift over the bursts",
                note="Slopes as a share of the median, by pairwise medians; moved: the interval "
                "leaves zero out.",
            )
        )
    if course.disruptions:
        tables.append(
            tabled(
                course.disruptions,
                {
                    "burst": bursts_of,
                    "from": lambda each: instant(each.start_at),
                    "to": lambda each: f"{time(each.duration_s)} later",
                    "what": lambda each: each.kind.value,
                    "scope": lambda each: each.scope,
                    "pairs": lambda each: f"{each.pairs_count}: {', '.join(each.pairs)}",
                    "missing payload": lambda each: size(each.short_bytes),
                    "what the records say": lambda each: "; ".join(each.causes) or "nothing",
                },
                title="Disruption ledger",
                numeric_from=9,
                note=f"The gravest {shown} of {total}." if shown < total else None,
            )
        )
    return (
        Section(
            id="course",
            title="Availability and disruptions",
            paragraphs=(
                (
                    "A pair-second carries the load when it is at or above the pair's own running "
                    "median less the allowed drop. Seconds that nobody recorded are unknown, "
                    "neither carried nor not."
                ),
            ),
            facts=facts,
            tables=tuple(tables),
        ),
    )


def _median(trend: Trend) -> str:
    match trend.name:
        case "received":
            return rate(trend.median)
        case "rtt":
            return time(trend.median)
        case "retransmits":
            return ratio(trend.median, 4)
        case _:
            return number(trend.median)


def price_sections(source: Source) -> tuple[Section, ...]:
    """Return a section with the cost at real scale and the date of the prices. Empty if unknown."""
    price = source.price
    if price is None:
        return ()
    bill: Bill = price.spent
    facts = {
        "total": _between(bill.total_usd, bill.total_low_usd, bill.total_high_usd),
        "prices": f"{price.prices}, as of {price.prices_as_of}",
        "bytes at real scale, IP layer": size(price.real_ip_bytes),
        "budget": dollars(price.budget_usd) if price.budget_usd is not None else "none set",
    }
    if not price.charged:
        facts["charged"] = f"no: {price.not_charged_why}"
    if bill.unknown:
        facts["not in the total"] = ", ".join(bill.unknown)
    return (
        Section(
            id="price",
            title="Price",
            paragraphs=(
                "An estimate from the bytes on record and dated list prices, not an invoice.",
            ),
            facts=facts,
            tables=(
                tabled(
                    bill.lines,
                    {
                        "item": lambda line: line.item,
                        "quantity": lambda line: quantity(line.quantity, line.unit),
                        "each": lambda line: dollars_each(line.usd_each),
                        "sum": lambda line: _between(line.usd, line.low_usd, line.high_usd),
                        "source": lambda line: (
                            ", ".join(str(v) for v in (line.source, line.as_of) if v) or "unknown"
                        ),
                    },
                ),
            ),
        ),
    )


def _between(value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return "unknown"
    if low is None or high is None or (low == value == high):
        return dollars(value)
    return f"{dollars(value)} ({dollars(low)} to {dollars(high)})"
