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
from broadside.coordinator.request_errors import RequestError
from broadside.coordinator.views.tables.formats import CannotWrite, NotAcceptable
from broadside.exchange.ports import ExchangeError


class ErrorDescription(NamedTuple):
    """Description of one expected error.

    Attributes:
        status: HTTP status code.
        title: Short name for this kind of error.
        detail: One line to show to the user.
        fields: The fields that are wrong, each with ``field`` and ``message``.
    """

    status: int
    title: str
    detail: str
    fields: Sequence[Mapping[str, Any]] = ()


# Errors that other modules define: status, title and template for the detail.
EXPECTED: Final[Mapping[type[Exception], tuple[int, str, str]]] = {
    BadFile: (422, "Bad import", "{}"),
    NotAcceptable: (406, "Not acceptable", "{}"),
    CannotWrite: (422, "Cannot write", "{}"),
    TableTooLong: (422, "Too long", "{}"),
    BadPrices: (422, "Bad prices", "{}"),
    BadSchedule: (422, "Bad schedule", "{}"),
    scenarios.ScenarioError: (422, "Bad scenario", "{}"),
    ExchangeError: (503, "Exchange unavailable", "{}"),
    # Requests are validated earlier. The following errors are about stored data.
    ValidationError: (503, "Record unreadable", "{}"),
    json.JSONDecodeError: (503, "Record unreadable", "stored JSON: {}"),
    zlib.error: (503, "Record unreadable", "stored bytes: {}"),
}


def describe_error(error: Exception) -> ErrorDescription | None:
    """Return the description of an error, or None if the error is not an expected one."""
    if isinstance(error, Infeasible):
        fields = [
            {"field": problem.field, "message": problem.message, "fix": problem.fix}
            for problem in error.problems
        ]
        return ErrorDescription(409, "Not feasible", str(error), fields)
    if isinstance(error, RequestError):
        status, title, template = error.status, error.title, error.detail
    else:
        kind = next((kind for kind in type(error).__mro__ if kind in EXPECTED), None)
        if kind is None:
            return None
        status, title, template = EXPECTED[kind]
    wrong = list(_wrong_fields(error, template))
    return ErrorDescription(status, title, template.format(error), wrong)


def _wrong_fields(error: Exception, template: str) -> Iterator[Mapping[str, Any]]:
    """Yield each field that an error names, with its message and, if known, its value."""
    if template != "{}":
        name, separator, message = template.partition(" {}: ")
        # A template without ``{}: `` describes a state and names no field.
        if separator:
            yield {"field": name, "value": str(error), "message": message.format(error)}
        return
    for line in map(str, error.args):
        if named := _NAMED.match(line):
            for field in named["fields"].split(", "):
                yield {"field": field, "message": line[named.end() :]}


_NAMED: Final = re.compile(r"(?P<fields>[^\s:,]+(, [^\s:,]+)*).{0,300}?: ", re.DOTALL)
