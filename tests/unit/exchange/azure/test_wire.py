"""Tests to read the error code from an Azure response."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError

from broadside.exchange.azure.wire import code_of

# Recorded from Table Storage in 2020 and 2021. Status 409, without x-ms-error-code.
CONFLICT = (
    '{"odata.error":{"code":"EntityAlreadyExists","message":{"lang":"en-US","value":"The specified '
    'entity already exists.\\nRequestId:0\\nTime:2020-09-16T21:51:27Z"}}}'
)
BLOB = '<?xml version="1.0"?><Error><Code>BlobNotFound</Code><Message>none</Message></Error>'
HEADER = {"x-ms-error-code": "TableNotFound"}


class UnreadBodyError(HttpResponseError):
    """SDK error for a body that was not read."""


def make_response(body: str | Exception, headers: Mapping[str, str]) -> Any:
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
        (UnreadBodyError("not read"), {}, None),
    ],
)
def test_error_code_is_read_from_the_body_first(
    body: str | Exception, headers: Mapping[str, str], code: str | None
) -> None:
    assert code_of(ResourceExistsError("Conflict", response=make_response(body, headers))) == code


def test_error_code_of_the_sdk_is_the_fallback() -> None:
    error = HttpResponseError("no answer")
    assert code_of(error) is None
    vars(error)["error_code"] = "ServerBusy"
    assert code_of(error) == "ServerBusy"
