"""Expected errors with their HTTP status, title and one-line detail.

Used for problem documents in the API and for error messages on the command line.
"""

import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from broadside.coordinator import scenarios
from broadside.coordinator.core.measure.grid.second_table import TableTooLong
from broadside.coordinator.core.plan.planner import Infeasible
from broadside.coordinator.core.plan.schedule import BadSchedule
from broadside.coordinator.imports import BadFile
from broadside.coordinator.prices import BadPrices
from broadside.coordinator.refusals import (
    BadStudy,
    BurstNotOver,
    EmptyGroup,
    KeyReused,
    LaunchUnderWay,
    NameTaken,
    NoChart,
    NoLedger,
    NoRaw,
    NotHere,
    OtherName,
    RunIsOver,
    RunNotOver,
    TooManyViewers,
    UnknownBurst,
    UnknownPair,
    UnknownRun,
    UnknownSchedule,
    UnknownStudy,
)
from broadside.coordinator.runs.dead_letters import CannotResend, UnknownDeadLetter
from broadside.coordinator.runs.listing import BadGrouping
from broadside.coordinator.views.exports.table_files import CannotWrite
from broadside.coordinator.views.series_formats import NotAcceptable
from broadside.exchange.ports import ExchangeError


class NotReady(Exception):
    """This coordinator cannot do its work just now."""


class Told(NamedTuple):
    """Description of one expected error.

    Attributes:
        status: HTTP status code.
        title: Short name for this kind of error.
        detail: One line to show to the user.
        faults: The fields that are wrong, each with ``field`` and ``message``.
    """

    status: int
    title: str
    detail: str
    faults: Sequence[Mapping[str, Any]] = ()


# Error class: status, title and template for the detail. ``{}`` is the error text.
EXPECTED: Final[Mapping[type[Exception], tuple[int, str, str]]] = {
    UnknownRun: (404, "Unknown run", "run {}: no such run; list them at /v1/runs"),
    NoRaw: (404, "No raw output", "{}"),
    RunIsOver: (409, "Over", "run {0} is over; read its verdict at /v1/runs/{0}/summary"),
    RunNotOver: (409, "Not over", "run {0} is not over yet; read /v1/runs/{0}"),
    NoChart: (404, "No such chart", "{}"),
    TooManyViewers: (503, "Too many viewers", "{}"),
    UnknownBurst: (404, "Unknown burst", "{}"),
    BurstNotOver: (409, "Not over", "{}"),
    BadFile: (422, "Bad import", "{}"),
    BadGrouping: (422, "Bad grouping", "{}"),
    KeyReused: (409, "Key reused", "{}"),
    LaunchUnderWay: (409, "Under way", "{}"),
    UnknownPair: (404, "Unknown pair", "{}"),
    NotReady: (503, "Not ready", "{}"),
    NoLedger: (404, "No ledger", "{}"),
    NotAcceptable: (406, "Not acceptable", "{}"),
    CannotWrite: (422, "Cannot write", "{}"),
    TableTooLong: (422, "Too long", "{}"),
    UnknownDeadLetter: (
        404,
        "Unknown dead letter",
        "dead letter {}: there is none; list them at /v1/deadletters",
    ),
    CannotResend: (409, "Not sent again", "{}"),
    BadPrices: (422, "Bad prices", "{}"),
    UnknownSchedule: (
        404,
        "Unknown schedule",
        "schedule {}: there is none; list them at /v1/schedules",
    ),
    NameTaken: (409, "Name taken", "{}"),
    BadSchedule: (422, "Bad schedule", "{}"),
    OtherName: (409, "Other name", "{}"),
    UnknownStudy: (404, "Unknown study", "study {}: no such study; list them at /v1/studies"),
    NotHere: (409, "Not here", "{}"),
    BadStudy: (422, "Bad study", "{}"),
    EmptyGroup: (422, "Empty group", "{}"),
    scenarios.ScenarioError: (422, "Bad scenario", "{}"),
    ExchangeError: (503, "Exchange unavailable", "{}"),
    # Requests are validated earlier. The following errors are about stored data.
    ValidationError: (503, "Record unreadable", "{}"),
    json.JSONDecodeError: (503, "Record unreadable", "stored JSON: {}"),
    zlib.error: (503, "Record unreadable", "stored bytes: {}"),
}


def told(error: Exception) -> Told | None:
    """Return the description of an error, or None if the error is not an expected one."""
    if isinstance(error, Infeasible):
        faults = [
            {"field": fault.field, "message": fault.message, "fix": fault.fix}
            for fault in error.problems
        ]
        return Told(409, "Not feasible", str(error), faults)
    for kind in type(error).__mro__:
        if kind in EXPECTED:
            status, title, template = EXPECTED[kind]
            return Told(status, title, template.format(error), list(_blamed(error, template)))
    return None


def _blamed(error: Exception, template: str) -> Iterator[Mapping[str, Any]]:
    """Yield each field that an error names, with its message and, if known, its value."""
    if template != "{}":
        what, found, why = template.partition(" {}: ")
        # A template without ``{}: `` describes a state and names no field.
        if found:
            yield {"field": what, "value": str(error), "message": why.format(error)}
        return
    for line in map(str, error.args):
        if named := _NAMED.match(line):
            for field in named["fields"].split(", "):
                yield {"field": field, "message": line[named.end() :]}


_NAMED: Final = re.compile(r"(?P<fields>[^\s:,]+(, [^\s:,]+)*).{0,300}?: ", re.DOTALL)
