"""Writes docs/azure-limits.md from the code's own constants: ``python docs/azure_limits.py``."""

import math
from collections.abc import Mapping
from pathlib import Path

from agent.agent_settings import AgentSettings
from exchange.pacing import (
    CONTROL_PAIRS_COUNT,
    PAIRS_PER_S,
    TURN_MAX_S,
    control_copies_count,
)
from exchange.second_rows import CHUNK_S

PAGE = Path(__file__).parent / "azure-limits.md"
FLEETS = (30, 300, 1_000, 3_000)  # pairs
BURST_S, BURSTS_A_DAY = 280, 96

# Documented (2026-11): rows a second of a partition and of an account, Service Bus's credits.
PARTITION_PER_S, ACCOUNT_PER_S, CREDITS_PER_S = 2_000, 20_000, 1_000
# List prices of West Europe, from memory and unverified: $ a request, a blob's write, an operation;
# a namespace's hour.
TABLE_PRICE, BLOB_PRICE, BUS_PRICE = 0.00036 / 1e4, 0.055 / 1e4, 0.80 / 1e6
STANDARD_HOUR, PREMIUM_HOUR = 0.0135, 0.928


def setting(name: str) -> float:
    """An agent's setting as it is where nobody sets it."""
    return float(AgentSettings.model_fields[name].default)


def loads(pairs: int) -> Mapping[str, tuple[float, float]]:
    """What a fleet asks in the worst second, by where: rows a second, and what is to be had."""
    turns_per_s = min(pairs, PAIRS_PER_S)
    # Pairs past a turn's length begin again beside the first ones.
    rounds = math.ceil(pairs / (PAIRS_PER_S * TURN_MAX_S))
    end_rows = 1 + 1 + math.ceil(BURST_S / CHUNK_S)  # report, probes, seconds
    upload_s = setting("upload_s")
    upload_rounds = math.ceil(pairs / (PAIRS_PER_S * upload_s))
    control = min(pairs, CONTROL_PAIRS_COUNT) / setting("control_poll_s")
    return {
        "control: one copy of the control row": (control, PARTITION_PER_S),
        "control: jobs' digests, as jobs become visible": (turns_per_s * rounds, PARTITION_PER_S),
        "results: presence": (2 * pairs / setting("heartbeat_s"), PARTITION_PER_S),
        "results: the burst, claims": (turns_per_s * rounds, PARTITION_PER_S),
        "results: the burst, seconds while it runs": (turns_per_s * upload_rounds, PARTITION_PER_S),
        "results: the burst, its end": (turns_per_s * rounds * end_rows, PARTITION_PER_S),
        "results: servers' tests, its end": (pairs * (1 + end_rows - 2), PARTITION_PER_S),
        "account, its end": (
            turns_per_s * rounds * end_rows
            + pairs * (end_rows - 1)
            + pairs / setting("control_poll_s")
            + 2 * pairs / setting("heartbeat_s"),
            ACCOUNT_PER_S,
        ),
        "Service Bus, receive and settle": (2 * turns_per_s * rounds, CREDITS_PER_S),
        "blobs, two outputs a pair": (2 * turns_per_s * rounds, ACCOUNT_PER_S),
    }


def day(pairs: int) -> Mapping[str, float]:
    """Requests of a day of bursts, by service."""
    upload_s, bursts = setting("upload_s"), pairs * BURSTS_A_DAY
    in_burst = BURST_S / upload_s + BURST_S / setting("control_poll_s")
    tables = bursts * (in_burst + 9) + 2 * pairs * 86_400 / setting("heartbeat_s")
    return {"tables": tables, "blobs": 2 * bursts, "bus": 3 * bursts}


def cost(pairs: int) -> tuple[float, float]:
    """$ a day: on Standard, on one unit of Premium."""
    asked = day(pairs)
    storage = asked["tables"] * TABLE_PRICE + asked["blobs"] * BLOB_PRICE
    standard = 24 * STANDARD_HOUR + asked["bus"] * BUS_PRICE
    return storage + standard, storage + 24 * PREMIUM_HOUR


def first_limit(pairs: int) -> tuple[str, float]:
    """Where most of what is to be had is taken, and the part of it."""
    taken = {where: asked / limit for where, (asked, limit) in loads(pairs).items()}
    where = max(taken, key=lambda name: taken[name])
    return where, taken[where]


def page() -> str:
    """The page as Markdown."""
    head = " | ".join(f"{pairs:,} pairs" for pairs in FLEETS)
    rule = " | ".join("---:" for _ in FLEETS)
    lines = [
        "# What a fleet asks of Azure, and what there is",
        "",
        "Requests, or rows, in the worst second of a burst, by partition; the limit beside it.",
        "Written by `python docs/azure_limits.py` from the code's own constants: agents' default",
        "settings, `exchange/pacing.py`, and the seconds that a row holds. The last row says where",
        "the greatest part of what is to be had is taken: over 100 % it is throttled.",
        "",
        f"| where | {head} | limit a second |",
        f"| --- | {rule} | ---: |",
    ]
    fleets = [loads(pairs) for pairs in FLEETS]
    for where, (_, limit) in fleets[0].items():
        asked = " | ".join(f"{fleet[where][0]:,.0f}" for fleet in fleets)
        lines.append(f"| {where} | {asked} | {limit:,} |")
    copies = " | ".join(f"{control_copies_count(pairs)}" for pairs in FLEETS)
    limits = [first_limit(pairs) for pairs in FLEETS]
    lines += [
        f"| copies of the control row | {copies} | |",
        "| **first limit met** | "
        + " | ".join(f"{where}: {part:.0%}" for where, part in limits)
        + " | 100% |",
        "",
        f"## A day of {BURSTS_A_DAY} bursts of {BURST_S} s",
        "",
        f"| | {head} |",
        f"| --- | {rule} |",
    ]
    for name, words in (
        ("tables", "requests to tables"),
        ("blobs", "blobs written"),
        ("bus", "queue operations"),
    ):
        lines.append(f"| {words} | " + " | ".join(f"{day(p)[name]:,.0f}" for p in FLEETS) + " |")
    for place, words in ((0, "$ on Standard"), (1, "$ on one Premium unit")):
        lines.append(f"| {words} | " + " | ".join(f"{cost(p)[place]:,.2f}" for p in FLEETS) + " |")
    return (
        "\n".join(lines)
        + f"""

Limits are documented ones (2026-11): {PARTITION_PER_S:,} rows a second of a table's partition,
{ACCOUNT_PER_S:,} requests a second of an account, {CREDITS_PER_S:,} credits a second of a Standard
namespace (a settlement counted as one); a Premium unit has no credits and is bound by its CPU,
which is not computed here. Prices are West Europe's list prices from memory, unverified; the
firewall, its gigabytes and the VMs are in `broadside estimate`.

What is over its limit is throttled (503, 429), not lost: the SDK comes again as it is told, and
what it gives up on stays in the agent's spool. Servers write their tests as these end, in no turns,
for they know no pair: from about {PARTITION_PER_S // (1 + math.ceil(BURST_S / CHUNK_S)):,} pairs on
that is the first limit met, taken here as one second. An idle agent's receive is a link that waits;
readiness and metrics peek no jobs.
"""
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
