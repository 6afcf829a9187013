"""Rules for the key, properties and identifying fields of every row that an agent writes.

The key of a row identifies its agent, run, burst, pair or port, but readers join rows by their
content. Each field that identifies an agent, endpoint, run, pair, burst, test or time should have a
rule here, so that we can compare it with the key. We use this table for:

- The service for agents on other hosts rejects rows that violate a rule.
- The readers (:mod:`broadside.exchange.records`) skip such rows on all fabrics, and the coordinator
  reports them as a finding.
- The page of agent records (tests/docs_build) is generated from the table.

If there is no rule for a field, it should be a number or a text. You need to add a new field to the
list in the test.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from broadside.exchange.messages import (
    Claim,
    HostInfo,
    JobReport,
    Message,
    Presence,
    Role,
    ServerTest,
    Side,
    Tunnel,
    inner_addresses,
)
from broadside.exchange.ports import Entity, RecordUnreadable
from broadside.exchange.records.keys import (
    ANSWER,
    ASK,
    CANARY,
    CHUNK,
    CLAIM,
    PASSPORT,
    PRESENCE,
    PROBE,
    REPORT,
    TEST_CHUNK,
    epoch_ms,
    server_raw_folder,
    server_tests_partition,
)
from broadside.exchange.rows import leave_out, row_name
from broadside.exchange.second_rows import TAIL

# If there are more violations than this, we will not record them.
BROKEN_MAX_COUNT: Final = 1_000


class RowKind(StrEnum):
    """Kind of row or engine output that agents write."""

    CLAIM = "claim"
    REPORT = "report"
    CHUNK = "seconds of a client"
    PROBE = "probes"
    CANARY = "canaries"
    TEST = "test of a server"
    TEST_CHUNK = "seconds of a server"
    PRESENCE = "heartbeat"
    PASSPORT = "passport"
    ASK = "request for a tunnel"
    ANSWER = "answer to a request for a tunnel"
    RAW = "output of a client's engine"
    SERVER_RAW = "output of a server's engine"


class FieldCondition(StrEnum):
    """Condition for the value of a field."""

    KEY = "repeats the row's key"
    WRITER = "is the writer: the agent of the credential, and of the pair's claim"
    JOB = "is that of the job that the agent received, and of the plan"
    HELD = "is an endpoint that no other live agent announced first, and the planned one"
    ANNOUNCED = "is the address of the writer's own heartbeat"
    UNSET = "is not set: the coordinator alone sets it"
    SIDE = "is the writer's own end"
    PLACED = "is placed in the pair's own burst, or not counted"
    LIVE = "is within 15 s of the coordinator's clock, else no plan uses the agent"
    OWN = "counts for the writer's own pair or host alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRule:
    """Rule for one field.

    Attributes:
        names: What the field identifies: agent, endpoint, run, pair, burst, test, tunnel or time.
        rule: The condition for the value.
        fact: The name of the expected value. Empty if ``rule`` is not an equality.
    """

    names: str
    rule: FieldCondition
    fact: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRule:
    """Rules for one kind of row.

    Attributes:
        place: Partition and row key, or folder and file, as shown in the documentation.
        role: The role of the agents that write the rows. None means both roles.
        model: The message in the ``json`` property. None if the row has separate properties.
        foreign: Pattern of property names that only other kinds of rows have.
        fields: Rules by dotted field or property name. ``*`` stands for each item of a sequence.
    """

    place: str
    role: Role | None
    model: type[Message] | None
    foreign: str
    fields: Mapping[str, FieldRule]

    def foreign_property(self, names: Iterable[str]) -> str | None:
        """Return the first property that belongs to another kind of row, or None."""
        return next((name for name in names if re.fullmatch(self.foreign, name)), None)


def _key(names: str, fact: str) -> FieldRule:
    return FieldRule(names=names, rule=FieldCondition.KEY, fact=fact)


_WRITER: Final = FieldRule(names="agent", rule=FieldCondition.WRITER, fact="agent")
_TIME: Final = FieldRule(names="time", rule=FieldCondition.PLACED)
_OWN_TEST: Final = FieldRule(names="test", rule=FieldCondition.OWN)
_OWN_ENDPOINT: Final = FieldRule(names="endpoint", rule=FieldCondition.OWN)
_HELD: Final = FieldRule(names="endpoint", rule=FieldCondition.HELD)
_UNSET: Final = FieldRule(names="endpoint", rule=FieldCondition.UNSET, fact="unset")
_OWN_BOOT: Final = FieldRule(names="agent", rule=FieldCondition.OWN)


def _clock(name: str) -> dict[str, FieldRule]:
    return {f"{name}.read_at": _TIME, f"{name}.boot_id": _OWN_BOOT}


_TROUBLES: Final = {"troubles.*.from_at": _TIME, "troubles.*.to_at": _TIME}
_ENGINE: Final = {
    "engine.cookie": _OWN_TEST,
    "engine.processes.*.cookie": _OWN_TEST,
    "engine.silent_streams.*.client_port": _OWN_ENDPOINT,
    "engine.processes.*.silent_streams.*.client_port": _OWN_ENDPOINT,
    "engine.peers.*.address": _OWN_ENDPOINT,
    "engine.processes.*.peers.*.address": _OWN_ENDPOINT,
}
# Properties of packed seconds.
_COLUMNS: Final = "(?:client|server)_.*|host_.*"
_BURST: Final = "burst.<run>.<burst>"
_TESTS: Final = "tests.<UTC hour>.<share>"


def _tracks(side: Side) -> dict[str, FieldRule]:
    """Return the rules for the properties of packed seconds from one end."""
    return {
        f"{side}_<flow>_<n>": FieldRule(names="pair's end", rule=FieldCondition.SIDE),
        f"{side}_<flow>_first_data_at_s": _TIME,
        "host_<n>": FieldRule(names="time", rule=FieldCondition.OWN),
    }


ROW_RULES: Final[Mapping[RowKind, RowRule]] = {
    RowKind.CLAIM: RowRule(
        place=f"{_BURST} / {CLAIM}<pair>",
        role=Role.CLIENT,
        model=Claim,
        foreign=_COLUMNS,
        fields={
            "job_id": _key("run, burst, pair", "job"),
            "agent_id": _WRITER,
            "claimed_at": _TIME,
            "armed_at": _TIME,
            "running_at": _TIME,
            "cookie": _OWN_TEST,
            "address": _OWN_ENDPOINT,
            **_clock("clock"),
        },
    ),
    RowKind.REPORT: RowRule(
        place=f"{_BURST} / {REPORT}<pair>",
        role=Role.CLIENT,
        model=JobReport,
        foreign=_COLUMNS,
        fields={
            "job_id": _key("run, burst, pair", "job"),
            "run_id": _key("run", "run"),
            "burst_index": _key("burst", "burst"),
            "pair_index": _key("pair", "pair"),
            "agent_id": _WRITER,
            "planned_start_at": FieldRule(
                names="time", rule=FieldCondition.JOB, fact="planned_start_at"
            ),
            "process_start_at": _TIME,
            "first_data_at": _TIME,
            "ended_at": _TIME,
            "reported_at": _TIME,
            "delivered_at": _TIME,
            **_ENGINE,
            **_clock("clock_before"),
            **_clock("clock_after"),
            **_TROUBLES,
        },
    ),
    RowKind.CHUNK: RowRule(
        place=f"{_BURST} / {CHUNK}<pair>.<n>",
        role=Role.CLIENT,
        model=None,
        foreign=f"json|{Side.SERVER}_.*",
        fields=_tracks(Side.CLIENT),
    ),
    RowKind.PROBE: RowRule(
        place=f"{_BURST} / {PROBE}<pair>.<n>",
        role=Role.CLIENT,
        model=None,
        foreign="json",
        fields={"first_at_s": _TIME},
    ),
    RowKind.CANARY: RowRule(
        place=f"{_BURST} / {CANARY}<pair>.<n>",
        role=Role.CLIENT,
        model=None,
        foreign="json",
        fields={"first_at_s": _TIME},
    ),
    RowKind.TEST: RowRule(
        place=f"{_TESTS} / <epoch ms>.<agent>.<port>",
        role=Role.SERVER,
        model=ServerTest,
        foreign=_COLUMNS,
        fields={
            "agent_id": _key("agent", "agent"),
            "endpoint.agent_id": _key("agent", "agent"),
            "endpoint.address": _HELD,
            "endpoint.port": _key("endpoint", "port"),
            "endpoint.more_ports": _UNSET,
            "endpoint.echo_port": _UNSET,
            "client_address": _OWN_ENDPOINT,
            "started_at": _key("time", "started_ms"),
            "first_data_at": _TIME,
            "ended_at": _TIME,
            **_ENGINE,
            **_clock("clock_before"),
            **_clock("clock_after"),
            **_TROUBLES,
        },
    ),
    RowKind.TEST_CHUNK: RowRule(
        place=f"{_TESTS} / <epoch ms>.<agent>.<port>.chunk.<n>",
        role=Role.SERVER,
        model=None,
        foreign=f"json|{Side.CLIENT}_.*",
        fields=_tracks(Side.SERVER),
    ),
    RowKind.PRESENCE: RowRule(
        place=f"{PRESENCE} / <role>.<agent>",
        role=None,
        model=Presence,
        foreign=_COLUMNS,
        fields={
            "agent_id": _key("agent", "agent"),
            "role": _key("agent", "role"),
            "beat_at": FieldRule(names="time", rule=FieldCondition.LIVE),
            "started_at": _TIME,
            "address": _HELD,
            "ports": _HELD,
            "busy_ports": _HELD,
            "engines.*.ports": _HELD,
            "echo_port": _HELD,
            "canary_ports": _HELD,
            "allowed_networks": _OWN_ENDPOINT,
            **_clock("clock"),
        },
    ),
    RowKind.PASSPORT: RowRule(
        place=f"{PASSPORT} / <role>.<agent>",
        role=None,
        model=HostInfo,
        foreign=_COLUMNS,
        fields={},
    ),
    RowKind.ASK: RowRule(
        place=f"tunnel.<server agent> / {ASK}.<vni>.<job>",
        role=Role.CLIENT,
        model=Tunnel,
        foreign=_COLUMNS,
        fields={
            "vni": _key("tunnel", "vni"),
            "opened_by": _key("run, burst, pair", "job"),
            "port": FieldRule(names="endpoint", rule=FieldCondition.JOB, fact="tunnel_port"),
            "ports": FieldRule(names="endpoint", rule=FieldCondition.JOB, fact="ports"),
            "client_address": FieldRule(
                names="endpoint", rule=FieldCondition.ANNOUNCED, fact="announced_address"
            ),
            "inner_client_address": _key("endpoint", "inner_client"),
            "inner_server_address": _key("endpoint", "inner_server"),
        },
    ),
    RowKind.ANSWER: RowRule(
        place=f"tunnel.<server agent> / {ANSWER}.<vni>.<job>",
        role=Role.SERVER,
        model=None,
        foreign=f"json|{_COLUMNS}",
        fields={},
    ),
    RowKind.RAW: RowRule(
        place="raw.<run>.<burst> / client.<pair>",
        role=Role.CLIENT,
        model=None,
        foreign=".*",
        fields={},
    ),
    RowKind.SERVER_RAW: RowRule(
        place="raw.tests.<UTC hour> / <epoch ms>.<agent>.<port>",
        role=Role.SERVER,
        model=None,
        foreign=".*",
        fields={},
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowKey:
    """Values from the key of a row.

    Attributes:
        kind: The kind of row.
        facts: Values that the fields of the row must have too, by name (``run``, ``burst``,
            ``pair``, ``job``, ``agent``, ``role``, ``port``, ...).
    """

    kind: RowKind
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """Row that violates a rule.

    Attributes:
        row: Partition and row key.
        field: The name of the field, or "key" if agents write no rows with this key.
        place: Values from the key. They are also set if the row is in a wrong partition. None if
            the key contains no values.
        message: The row content, if it is readable.
    """

    row: str
    field: str
    place: RowKey | None
    message: Message | None = None


_IN_BURST: Final = re.compile(r"burst\.([a-z0-9][a-z0-9-]{0,62})\.([0-9]{5})")
_PAIR_ROWS: Final = (
    (RowKind.CLAIM, re.compile(rf"{re.escape(CLAIM)}([0-9]{{5}})")),
    (RowKind.REPORT, re.compile(rf"{re.escape(REPORT)}([0-9]{{5}})")),
    (RowKind.CHUNK, re.compile(rf"{re.escape(CHUNK)}([0-9]{{5}})\.(?:[0-9]{{3}}|{TAIL})")),
    (RowKind.PROBE, re.compile(rf"{re.escape(PROBE)}([0-9]{{5}})\.[0-9]{{3}}")),
    (RowKind.CANARY, re.compile(rf"{re.escape(CANARY)}([0-9]{{5}})\.[0-9]{{3}}")),
)
_RAW_FOLDER: Final = re.compile(r"raw\.([a-z0-9][a-z0-9-]{0,62})\.([0-9]{5})")
_RAW_FILE: Final = re.compile(r"client\.([0-9]{5})")
_TUNNEL: Final = re.compile(r"tunnel\.(.+)")
_TUNNEL_ROW: Final = re.compile(
    rf"({ASK}|{ANSWER})\.([0-9]{{8}})\.(([a-z0-9][a-z0-9-]{{0,62}})\.([0-9]{{5}})\.([0-9]{{5}}))"
)
_AGENT: Final = re.compile(r"(client|server)\.(.+)")
_TEST_ROW: Final = re.compile(r"([0-9]{13})\.(.+)\.([1-9][0-9]{0,4})")
_CHUNK_ROW: Final = re.compile(rf"(.+){re.escape(TEST_CHUNK)}\.(?:[0-9]{{3}}|{TAIL})")


def place_of(partition: str, key: str) -> RowKey | None:
    """Return the values from a row's key.

    Args:
        partition: The partition key for all rows.
        key: The row key.

    Returns:
        Values, or None if agents write no rows with this key.
    """
    if burst := _IN_BURST.fullmatch(partition):
        for kind, form in _PAIR_ROWS:
            if named := form.fullmatch(key):
                return _of_pair(kind, burst[1], burst[2], named[1])
        return None
    if partition in (PRESENCE, PASSPORT):
        kind = RowKind.PRESENCE if partition == PRESENCE else RowKind.PASSPORT
        named = _AGENT.fullmatch(key)
        return named and RowKey(kind=kind, facts={"role": named[1], "agent": named[2]})
    if tunnel := _TUNNEL.fullmatch(partition):
        return _of_tunnel(tunnel[1], key)
    test = _test_place(key)
    # Earlier versions used one partition for all tests of an hour.
    matches = test and partition in (test.facts["partition"], test.facts["hour"])
    return test if matches else None


def _test_place(key: str) -> RowKey | None:
    """Return the values from the key of a test or of its seconds."""
    # We should test for a chunk first, because the name of the agent can end like a chunk key.
    if chunk := _CHUNK_ROW.fullmatch(key):
        return _of_test(RowKind.TEST_CHUNK, chunk[1])
    return _of_test(RowKind.TEST, key)


def raw_place(folder: str, file: str) -> RowKey | None:
    """Return the values from the name of an engine output.

    Args:
        folder: Folder in the raw store.
        file: The name in the folder.

    Returns:
        Values, or None if agents write no output with this name.
    """
    burst, pair = _RAW_FOLDER.fullmatch(folder), _RAW_FILE.fullmatch(file)
    if burst and pair:
        return _of_pair(RowKind.RAW, burst[1], burst[2], pair[1])
    test = None if _CHUNK_ROW.fullmatch(file) else _of_test(RowKind.SERVER_RAW, file)
    return test if test and folder == test.facts["folder"] else None


def _of_pair(kind: RowKind, run: str, burst: str, pair: str) -> RowKey:
    facts = {"run": run, "burst": int(burst), "pair": int(pair), "job": f"{run}.{burst}.{pair}"}
    return RowKey(kind=kind, facts=facts)


def _of_tunnel(server: str, key: str) -> RowKey | None:
    named = _TUNNEL_ROW.fullmatch(key)
    if named is None:
        return None
    kind = RowKind.ASK if named[1] == ASK else RowKind.ANSWER
    vni = int(named[2])
    inner_client, inner_server = inner_addresses(vni)
    place = _of_pair(kind, named[4], named[5], named[6])
    expected = {"server": server, "vni": vni}
    inner = {"inner_client": inner_client, "inner_server": inner_server}
    return RowKey(kind=kind, facts={**place.facts, **expected, **inner})


def _of_test(kind: RowKind, key: str) -> RowKey | None:
    """Return the values from a test's key, including the partition of the row."""
    named = _TEST_ROW.fullmatch(key)
    if named is None:
        return None
    agent, started_ms = named[2], int(named[1])
    try:
        at = datetime.fromtimestamp(started_ms / 1000, UTC)
    except (ValueError, OverflowError):
        return None
    folder = server_raw_folder(at)
    facts = {
        "agent": agent,
        "port": int(named[3]),
        "started_ms": started_ms,
        "partition": server_tests_partition(at, agent),
        "hour": folder.removeprefix("raw."),
        "folder": folder,
    }
    return RowKey(kind=kind, facts=facts)


def wrong_field(kind: RowKind, message: Message, facts: Mapping[str, Any]) -> str | None:
    """Return the first field that violates its rule.

    Args:
        kind: The kind of row.
        message: The row content.
        facts: Expected values from key, credential and job, by name. A field without an expected
            value is not checked.

    Returns:
        Dotted name of the field, or None if there is no violation.
    """
    for path, field in ROW_RULES[kind].fields.items():
        is_known = field.fact in facts or field.rule is FieldCondition.UNSET
        if is_known and not _equals(list(_values(message, path.split("."))), field, facts):
            return path
    return None


def _values(value: Any, path: list[str]) -> Iterator[Any]:
    """Yield all values at a path. Missing values are skipped."""
    if not path:
        yield value
    elif value is None:
        return
    elif path[0] == "*":
        for item in value:
            yield from _values(item, path[1:])
    else:
        yield from _values(getattr(value, path[0]), path[1:])


def _equals(values: list[Any], field: FieldRule, facts: Mapping[str, Any]) -> bool:
    if field.rule is FieldCondition.UNSET:
        return not any(values)
    values_in_key = [epoch_ms(value) if field.fact == "started_ms" else value for value in values]
    return values_in_key == [facts[field.fact]]


def check_row(row: Entity, message: Message | None) -> Violation | None:
    """Compare a stored row with its key.

    Args:
        row: The row to check.
        message: The row content. None if the row has separate properties.

    Returns:
        Violation, or None if the row follows the rules.
    """
    place = place_of(row.partition_key, row.row_key)
    field = _broken_field(row, place, message)
    if field is None:
        return None
    named = place or _test_place(row.row_key)
    return Violation(row=row_name(row), field=field, place=named, message=message)


def _broken_field(row: Entity, place: RowKey | None, message: Message | None) -> str | None:
    if place is None:
        return "key"
    rule = ROW_RULES[place.kind]
    if (name := rule.foreign_property(row.properties)) is not None:
        return name
    if rule.model is None or message is None:
        return None
    return wrong_field(place.kind, message, place.facts)


def keeps_rules(
    row: Entity, message: Message | None, broken: list[Violation] | None = None
) -> bool:
    """Return True if a stored row matches its key. A violation will only be logged once.

    Args:
        row: The row to check.
        message: The row content. None if the row has separate properties.
        broken: List to which the violation is appended. None only logs it.
    """
    violation = check_row(row, message)
    if violation is None:
        return True
    if broken is not None and len(broken) < BROKEN_MAX_COUNT:
        broken.append(violation)
    leave_out(
        RecordUnreadable(f"row {violation.row}: {violation.field} does not match the row's key")
    )
    return False
