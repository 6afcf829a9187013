"""Test the rights of an identity on queue and tables by trying each operation.

If an identity has too many rights, no error shows it. Each identity therefore also tries operations
that it must not be allowed to do, for example to read a token. Only a rejection by the service
proves that the right is missing. If the service is unavailable, the test proves nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Final
from uuid import uuid4

from broadside.exchange.checks import HostCheck
from broadside.exchange.fabric import Fabric, FabricSettings, open_fabric
from broadside.exchange.messages import Role
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import (
    Entity,
    EntityRefused,
    ExchangeError,
    ExchangeRefused,
    ExchangeUnavailable,
    JobQueue,
    Outgoing,
    Table,
)
from broadside.exchange.records.keys import TOKENS

# Partition of the test rows.
PROBE: Final = "doctor"
# We schedule the test message for this time, and then cancel it.
PROBE_AFTER: Final = timedelta(days=7)
# If the test message could not be cancelled, it will expire after this time.
PROBE_LIFE: Final = timedelta(seconds=1)


class Identity(StrEnum):
    """Identities that can be tested."""

    COORDINATOR = "coordinator"
    CLIENT = Role.CLIENT.value
    SERVER = Role.SERVER.value


_ALL: Final = frozenset(Identity)
_COORDINATOR: Final = frozenset({Identity.COORDINATOR})


async def try_send(queue: JobQueue) -> str:
    """Test the right to send. The test message is scheduled far ahead and then cancelled.

    Returns:
        The result as text.

    Raises:
        ExchangeUnavailable: The message could not be cancelled.
    """
    enqueue_at = utc_now() + PROBE_AFTER
    probe = Outgoing(
        body=PROBE.encode(),
        message_id=f"{PROBE}-{uuid4().hex}",
        expires_at=enqueue_at + PROBE_LIFE,
        enqueue_at=enqueue_at,
    )
    cancelled_count = await queue.cancel(await queue.send([probe]))
    if not cancelled_count:
        raise ExchangeUnavailable("a scheduled message could not be cancelled again")
    return "a message was scheduled and cancelled"


async def try_listen(queue: JobQueue) -> str:
    """Test the right to listen by counting messages, without locking any."""
    counts = await queue.counts()
    dead = "many" if counts.dead_count is None else str(counts.dead_count)
    return f"messages can be looked at; {dead} of them dead letters" + (
        ", see `broadside deadletters list`" if dead != "0" else ""
    )


async def try_table(table: Table) -> str:
    """Test the right to write, read and delete rows. The test row is deleted again.

    Returns:
        The result as text.

    Raises:
        ExchangeUnavailable: The row read back differs from the row written.
    """
    now = utc_now()
    probe = Entity(partition_key=PROBE, row_key=uuid4().hex, properties={"at": now})
    await table.insert(probe)
    there = await table.get(probe.partition_key, probe.row_key)
    await table.delete(probe.partition_key, probe.row_key)
    if there is None or there.properties != probe.properties:
        raise ExchangeUnavailable("a row that was just written does not read back")
    return "a row was written, read and removed"


async def _read(table: Table, partition: str) -> str:
    """Test the right to read rows of a partition."""
    row_keys = [row.row_key async for row in table.scan(partition, limit=1)]
    return f"{'a row' if row_keys else 'no row'} of {partition} was there, and could be seen"


_Trial = Callable[[Fabric], Awaitable[str]]

# Operation, function that tests it, and the identities that must have the right.
_TRIALS: Final[Sequence[tuple[str, _Trial, frozenset[Identity]]]] = (
    ("read a plan", lambda fabric: _read(fabric.control, PROBE), _ALL),
    ("write a plan", lambda fabric: try_table(fabric.control), _COORDINATOR),
    ("write a report", lambda fabric: try_table(fabric.results), _ALL),
    ("read a token", lambda fabric: _read(fabric.private, TOKENS), _COORDINATOR),
    ("write a token", lambda fabric: try_table(fabric.private), _COORDINATOR),
    ("send a job", lambda fabric: try_send(fabric.queue), _COORDINATOR),
    ("take a job", lambda fabric: try_listen(fabric.queue), _ALL - {Identity.SERVER}),
)


async def _reach(fabric: Fabric) -> str:
    await fabric.queue.ping()
    return "its coordinator answers"


async def _peek_dead_letters(fabric: Fabric) -> str:
    return f"{len(await fabric.queue.dead_letters(1))} of the dead letters could be seen"


# Tests for agents that connect over HTTPS. The coordinator identifies each agent by its credential
# and rejects the rows of other agents.
_AGENTS: Final = _ALL - _COORDINATOR
_NOBODY: Final[frozenset[Identity]] = frozenset()
_TRIALS_OVER_HTTPS: Final[Sequence[tuple[str, _Trial, frozenset[Identity]]]] = (
    ("reach its coordinator", _reach, _AGENTS),
    ("list plans", lambda fabric: _read(fabric.control, PROBE), _NOBODY),
    ("write a plan", lambda fabric: try_table(fabric.control), _NOBODY),
    ("write another's rows", lambda fabric: try_table(fabric.results), _NOBODY),
    ("read a token", lambda fabric: _read(fabric.private, TOKENS), _NOBODY),
    ("write a token", lambda fabric: try_table(fabric.private), _NOBODY),
    ("send a job", lambda fabric: try_send(fabric.queue), _NOBODY),
    ("read dead letters", _peek_dead_letters, _NOBODY),
)


async def rights_checks(identity: Identity, settings: FabricSettings) -> list[HostCheck]:
    """Run all tests of rights for ``identity``.

    Each test opens a separate connection. After one successful call on a connection, the adapter
    treats a later rejection as an outage.

    Args:
        identity: Identity to test.
        settings: Fabric settings with the credentials of this identity.

    Returns:
        One check for each right that the identity must have or must not have.

    Raises:
        ExchangeMisconfigured: A setting is missing or invalid.
    """
    if settings.fabric == "embedded":
        return [
            HostCheck(
                name=f"{identity}'s rights",
                ok=False,
                detail="the embedded fabric has no identities: every user with access to the files "
                "of BROADSIDE_DATA_DIR (only this user) can do everything",
                required=False,
            )
        ]
    trials = _TRIALS
    if settings.fabric == "http":
        if (problem := _another(identity, settings)) is not None:
            return [problem]
        trials = _TRIALS_OVER_HTTPS
    return list(await asyncio.gather(*(_tried(identity, *trial, settings) for trial in trials)))


def _another(identity: Identity, settings: FabricSettings) -> HostCheck | None:
    """Return a failed check if this host is enrolled with another role, otherwise return None."""
    from broadside.exchange.http.credential import load_credential

    path = settings.credential_file
    credential = None if path is None else load_credential(path)
    if credential is None or credential.role == identity:
        return None
    return HostCheck(
        name=f"{identity}'s rights",
        ok=False,
        detail=f"this host is enrolled as {credential.role}.{credential.agent_id}",
        fix=f"run `broadside doctor --as {credential.role}`",
    )


async def _tried(
    identity: Identity,
    what: str,
    trial: _Trial,
    allowed: frozenset[Identity],
    settings: FabricSettings,
) -> HostCheck:
    """Run one test and compare the result with the allowed identities."""
    may = identity in allowed
    name = f"{identity} {'can' if may else 'cannot'} {what}"
    fabric = open_fabric(settings)
    try:
        done = await trial(fabric)
    except (ExchangeRefused, EntityRefused) as error:
        detail, _, fix = str(error).partition("; ")
        return HostCheck(name=name, ok=not may, detail=detail, fix=fix if may else None)
    except ExchangeError as error:
        return HostCheck(name=name, ok=False, detail=f"could not be tested: {error}")
    finally:
        await fabric.close()
    fix = (
        f"remove the role that allows this identity to {what} "
        "(/docs/azure.html of the coordinator, 'Roles')"
    )
    return HostCheck(name=name, ok=may, detail=done, fix=None if may else fix)
