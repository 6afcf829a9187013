"""Reference page of the load on Azure's services, computed from constants of the code."""

import math
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime

from broadside.agent.agent_settings import AgentSettings
from broadside.exchange.messages import Endpoint, Job, Traffic
from broadside.exchange.pacing import (
    ARMED_TURN_MAX_S,
    BEAT_SPREAD_S,
    CONTROL_PAIRS_COUNT,
    PAIRS_PER_S,
    SERVER_SHARES_COUNT,
    TURN_MAX_S,
    control_copies_count,
    server_share,
)
from broadside.exchange.second_rows import CHUNK_S

# Numbers of pairs.
FLEETS = (30, 300, 1_000, 3_000)
BURST_S, BURSTS_A_DAY = 280, 96

# Rows of one end, with their tail.
SECONDS_ROWS = math.ceil(BURST_S / CHUNK_S) + 1
# Rows of a test in one write: its row, its open chunk and its tail.
SERVER_ROWS = 1 + SECONDS_ROWS
# Rows that a client end writes at once. Once a minute these are its open chunk and its tail. The
# first write contains the claim.
UPLOAD_ROWS = 2

# Documented limits (2026-11): rows per second of a partition and of an account, and Service Bus
# credits.
PARTITION_PER_S, ACCOUNT_PER_S, CREDITS_PER_S = 2_000, 20_000, 1_000
# Throughput of a Premium unit, in and out, as Microsoft measured it
# (service-bus-performance-improvements, 2025-04). Scheduling uses more CPU, which only the metric
# of the namespace shows.
PREMIUM_BYTES_PER_S = 4_000_000
# Headers and properties of a message on the wire.
FRAME_BYTES = 512
# Requests per second of a coordinator while idle and during one run. They were counted in a run of
# a small fleet. tests/live/test_azure_requests.py counts them again.
IDLE_PER_S = 5
RUN_PER_S = {"private": 15, "results": 5, "control": 1}
# Requests to one partition in the second of a launch or a verdict.
LAUNCH_PER_S = 30
# Sequential requests. The SDK uses 1.25 ms of a fast core for a request.
IN_TURN_PER_S = 800
# Rows of a query page.
PAGE_ROWS = 1_000
# List prices of West Europe, unverified: $ per request, per blob write, per operation, and per hour
# of a namespace.
TABLE_PRICE, BLOB_PRICE, BUS_PRICE = 0.00036 / 1e4, 0.055 / 1e4, 0.80 / 1e6
STANDARD_HOUR, PREMIUM_HOUR = 0.0135, 0.928


def setting(name: str) -> float:
    """Return the default of an agent's setting."""
    return float(AgentSettings.model_fields[name].default)


def job_bytes() -> int:
    """Return the size of a job message."""
    job = Job(
        run_id="20261123-120000-scale-180g-0000",
        burst_index=95,
        pair_index=2_999,
        endpoint=Endpoint(agent_id="server-2999", address="10.200.200.200", port=5201),
        traffic=Traffic(),
        planned_start_at=datetime(2026, 11, 23, 12, tzinfo=UTC),
        duration_s=BURST_S,
    )
    return len(job.body) + FRAME_BYTES


def loads(pairs: int) -> Mapping[str, tuple[float, float]]:
    """Return rows per second in the busiest second by partition, with the limits."""
    turns_per_s = min(pairs, PAIRS_PER_S)
    # If there are more pairs than start slots, several pairs start together.
    rounds = math.ceil(pairs / (PAIRS_PER_S * TURN_MAX_S))
    # Report and probes are one row each.
    end_rows = 1 + 1 + SECONDS_ROWS
    upload_s = setting("upload_s")
    upload_rounds = math.ceil(pairs / (PAIRS_PER_S * upload_s))
    armed_rounds = math.ceil(pairs / (PAIRS_PER_S * ARMED_TURN_MAX_S))
    control = min(pairs, CONTROL_PAIRS_COUNT) / setting("control_poll_s")
    share = max(Counter(server_share(f"server-{n:04d}") for n in range(pairs)).values())
    beats = pairs / BEAT_SPREAD_S + max(turns_per_s * rounds, pairs / setting("heartbeat_s"))
    return {
        "control: one copy of the control row": (control, PARTITION_PER_S),
        "control: jobs' digests, as jobs become visible": (turns_per_s * rounds, PARTITION_PER_S),
        "results: presence, as servers are taken and clients take": (beats, PARTITION_PER_S),
        "results: the burst, claims": (turns_per_s * rounds, PARTITION_PER_S),
        "results: the burst, armed": (turns_per_s * armed_rounds, PARTITION_PER_S),
        "results: the burst, seconds while it runs": (
            turns_per_s * upload_rounds * UPLOAD_ROWS,
            PARTITION_PER_S,
        ),
        "results: the burst, its end": (turns_per_s * rounds * end_rows, PARTITION_PER_S),
        "results: a share of servers' tests": (share * SERVER_ROWS, PARTITION_PER_S),
        "account, its end": (
            turns_per_s * rounds * end_rows
            + pairs * SERVER_ROWS
            + pairs / setting("control_poll_s")
            + beats
            + sum(RUN_PER_S.values()),
            ACCOUNT_PER_S,
        ),
        "Service Bus, receive and settle": (2 * turns_per_s * rounds, CREDITS_PER_S),
        "Service Bus, bytes of one Premium unit": (
            turns_per_s * rounds * job_bytes(),
            PREMIUM_BYTES_PER_S,
        ),
        "private: the coordinator, for a run in progress": (RUN_PER_S["private"], PARTITION_PER_S),
        "private: endpoints reserved and released": (
            min(2 * pairs, IN_TURN_PER_S),
            PARTITION_PER_S,
        ),
        "results: reads of a burst by the coordinator": (
            RUN_PER_S["results"] * math.ceil(3 * pairs / PAGE_ROWS),
            PARTITION_PER_S,
        ),
        "blobs, two outputs a pair": (2 * turns_per_s * rounds, ACCOUNT_PER_S),
    }


def most_of(pairs: int, kind: str) -> float:
    """Return the highest value of the partitions of one kind, for example ``results: burst``."""
    prefixes = {
        "control: run": ("control: one copy of the control row", "control: jobs' digests"),
        "results: burst": ("results: the burst", "results: reads of a burst"),
        "results: presence": ("results: presence",),
        "results: tests": ("results: a share", "results: reads of a burst"),
        "private: reservations": ("private: endpoints",),
    }.get(kind, ("private: the coordinator",))
    return LAUNCH_PER_S + sum(
        max(requested for place, (requested, _) in loads(pairs).items() if place.startswith(start))
        for start in prefixes
    )


def day(pairs: int) -> Mapping[str, float]:
    """Return the requests of a day of bursts by service."""
    upload_s, bursts = setting("upload_s"), pairs * BURSTS_A_DAY
    in_burst = BURST_S / upload_s + BURST_S / setting("control_poll_s")
    tables = bursts * (in_burst + 9) + 2 * pairs * 86_400 / setting("heartbeat_s")
    tables += IDLE_PER_S * 86_400 + sum(RUN_PER_S.values()) * BURST_S * BURSTS_A_DAY
    return {"tables": tables, "blobs": 2 * bursts, "bus": 3 * bursts}


def cost(pairs: int) -> tuple[float, float]:
    """Return the cost in $ per day on Standard and on one unit of Premium."""
    requested = day(pairs)
    storage = requested["tables"] * TABLE_PRICE + requested["blobs"] * BLOB_PRICE
    standard = 24 * STANDARD_HOUR + requested["bus"] * BUS_PRICE
    return storage + standard, storage + 24 * PREMIUM_HOUR


def first_limit(pairs: int) -> tuple[str, float]:
    """Return the partition with the highest share of its limit, and this share."""
    taken = {place: requested / limit for place, (requested, limit) in loads(pairs).items()}
    place = max(taken, key=lambda name: taken[name])
    return place, taken[place]


def page() -> str:
    """Return the page as Markdown."""
    head = " | ".join(f"{pairs:,} pairs" for pairs in FLEETS)
    rule = " | ".join("---:" for _ in FLEETS)
    lines = [
        "# Load on Azure's services",
        "",
        "Requests, or rows, in the busiest second of a burst, for each partition, with the limit.",
        "The numbers are computed from default settings of agents and from `exchange/pacing.py`.",
        "The last row is the resource with the highest share of its limit. Above 100 % it is",
        "throttled.",
        "",
        f"| where | {head} | limit a second |",
        f"| --- | {rule} | ---: |",
    ]
    fleets = [loads(pairs) for pairs in FLEETS]
    for location, (_, limit) in fleets[0].items():
        text = " | ".join(f"{fleet[location][0]:,.0f}" for fleet in fleets)
        lines.append(f"| {location} | {text} | {limit:,} |")
    copies = " | ".join(f"{control_copies_count(pairs)}" for pairs in FLEETS)
    limits = [first_limit(pairs) for pairs in FLEETS]
    lines += [
        f"| copies of the control row | {copies} | |",
        "| **first limit met** | "
        + " | ".join(f"{location}: {part:.0%}" for location, part in limits)
        + " | 100% |",
        "",
        f"## A day of {BURSTS_A_DAY} bursts of {BURST_S} s",
        "",
        f"| | {head} |",
        f"| --- | {rule} |",
    ]
    for name, parts in (
        ("tables", "requests to tables"),
        ("blobs", "blobs written"),
        ("bus", "queue operations"),
    ):
        lines.append(f"| {parts} | " + " | ".join(f"{day(p)[name]:,.0f}" for p in FLEETS) + " |")
    for place, parts in ((0, "$ on Standard"), (1, "$ on one Premium unit")):
        lines.append(f"| {parts} | " + " | ".join(f"{cost(p)[place]:,.2f}" for p in FLEETS) + " |")
    return (
        "\n".join(lines)
        + f"""

Limits are from Microsoft's documentation (2026-11): {PARTITION_PER_S:,} rows per second for a table
partition, {ACCOUNT_PER_S:,} requests per second for an account, {CREDITS_PER_S:,} credits per
second for a Standard namespace (a settlement is counted as one credit). A Premium unit is limited
by its CPU. Microsoft measured about {PREMIUM_BYTES_PER_S / 1e6:g} MB/s in and out, which is
{PREMIUM_BYTES_PER_S // job_bytes():,} jobs of {job_bytes():,} bytes per second. Scheduled messages
and duplicate detection, which Broadside uses, need more CPU: add a unit when its CPU metric is
above 70 %. Prices are unverified list prices of West Europe.

Requests above a limit are throttled (503, 429) and not lost. The SDK retries, and the agent's spool
keeps the rest. Servers write their tests without pacing, so all of them are counted in one second.
The tests of an hour are in {SERVER_SHARES_COUNT} partitions, chosen by the agent's name. A
heartbeat that is caused by a change is delayed by up to {BEAT_SPREAD_S:g} s.

An idle coordinator sends {IDLE_PER_S} requests per second to `private`. During a run it also sends
{RUN_PER_S["private"]} to `private`, {RUN_PER_S["results"]} to `results` and
{RUN_PER_S["control"]} to `control`. `tests/live/test_azure_requests.py` counts them in a small run.
"""
    )
