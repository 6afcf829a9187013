"""What the service says is wrong, wherever it says it."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError

from broadside.exchange.azure.wire import code_of

# As recorded of Table Storage in 2020 and 2021: status 409, and no x-ms-error-code.
CONFLICT = (
    '{"odata.error":{"code":"EntityAlreadyExists","message":{"lang":"en-US","value":"The specified '
    'entity already exists.\\nRequestId:0\\nTime:2020-09-16T21:51:27Z"}}}'
)
BLOB = '<?xml version="1.0"?><Error><Code>BlobNotFound</Code><Message>none</Message></Error>'
HEADER = {"x-ms-error-code": "TableNotFound"}


class Unread(HttpResponseError):
    """The SDK's, of a body that nobody read."""


def said(body: str | Exception, headers: Mapping[str, str]) -> Any:
    def text() -> str:
        if isinstance(body, Exception):
            raise body
        return body

    return SimpleNamespace(text=text, headers=headers, status_code=409, reason="Conflict")


@pytest.mark.parametrize(
    ("body", "headers", "code"),
    [
        (CONFLICT, {}, "EntityAlreadyExists"),
        (CONFLICT, HEADER, "EntityAlreadyExists"),
        (BLOB, {}, "BlobNotFound"),
        ("", HEADER, "TableNotFound"),
        ("<html>502</html>", HEADER, "TableNotFound"),
        ("[1]", {}, None),
        ('{"odata.error": {"code": 7}}', {}, None),
        (ValueError("Content is not read"), HEADER, "TableNotFound"),
        (Unread("not read"), {}, None),
    ],
)
def test_the_body_is_asked_first(
    body: str | Exception, headers: Mapping[str, str], code: str | None
) -> None:
    assert code_of(ResourceExistsError("Conflict", response=said(body, headers))) == code


def test_the_sdks_own_reading_is_the_last_resort() -> None:
    error = HttpResponseError("no answer")
    assert code_of(error) is None
    vars(error)["error_code"] = "ServerBusy"
    assert code_of(error) == "ServerBusy"
