"""Reader of the raw output of traffic engines, for either end of a pair."""

import asyncio
from typing import Final

from broadside.coordinator.core.measure.records.server_tests import join_tests
from broadside.coordinator.core.run_spec import Plan
from broadside.coordinator.request_errors import NoRaw
from broadside.coordinator.runs.evidence_loader import read_rows, read_tests
from broadside.exchange.messages import RawPolicy, Side
from broadside.exchange.records import Records

_NOT_KEPT: Final = {
    RawPolicy.ALL: "",
    RawPolicy.FAILED: "raw = failed stores only outputs of failed clients and of pair 1; ",
    RawPolicy.NONE: "raw = none stores no output; ",
}
_NOT_KEPT_OF_SERVERS: Final = (
    "only outputs of failed tests are stored, unless BROADSIDE_AGENT_RAW is all; "
)


async def find_raw_output(
    records: Records, plan: Plan, pair: str, burst_index: int, side: Side
) -> bytes:
    """Return the raw engine output of one end of a pair in one burst.

    Args:
        records: Records to use for access to the tables.
        plan: The plan to use.
        pair: Name of the pair, or its number from 1.
        burst_index: Index to use, from 0.
        side: Client or server.

    Returns:
        The output of the engine in bytes, not decoded.

    Raises:
        NoRaw: The pair, burst or output does not exist. The message contains the reason.
    """
    called = {name: p for p in plan.pairs for name in (p.name, str(p.index + 1))}
    if pair not in called:
        names = [planned.name for planned in plan.pairs]
        raise NoRaw(f"pair {pair}: not in run {plan.run_id}, which has {names[0]} to {names[-1]}")
    if burst_index >= len(plan.bursts):
        raise NoRaw(
            f"burst {burst_index + 1}: not in run {plan.run_id}, which has {len(plan.bursts)}"
        )
    text = await read_raw(records, plan, burst_index, called[pair].index, side)
    if text is None:
        policy = _NOT_KEPT[plan.spec.raw] if side is Side.CLIENT else _NOT_KEPT_OF_SERVERS
        why = f"{policy}otherwise its agent did not run, was killed, or has not sent it yet"
        place = f"run {plan.run_id}, burst {burst_index + 1}, {called[pair].name}"
        raise NoRaw(f"{place}: no {side} output: {why}")
    return text


async def read_raw(
    records: Records, plan: Plan, burst_index: int, pair_index: int, side: Side
) -> bytes | None:
    """Return the raw engine output of one end in one burst.

    A server does not know the run or the pair. The output is stored with the server test, which is
    found using the same join as for measuring the burst.

    Args:
        records: Records to use for access to the tables.
        plan: The plan to use.
        burst_index: Index to use, from 0.
        pair_index: Pair index, from 0.
        side: Client or server.

    Returns:
        The output, not decoded. None if it is not stored.
    """
    if side is Side.CLIENT:
        return await records.bursts.read_raw(plan.run_id, burst_index, pair_index)
    burst = plan.bursts[burst_index]
    rows, tests = await asyncio.gather(
        read_rows(records, plan.run_id, burst_index), read_tests(records, plan, burst, plan.pairs)
    )
    join = join_tests(burst, plan.pairs, rows.claims, rows.reports, tests)
    record = join.records.get(pair_index)
    return None if record is None else await records.bursts.read_server_raw(record.test)
