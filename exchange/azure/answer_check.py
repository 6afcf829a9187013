"""Checks that a response is from the storage service, and not from a proxy or portal before it.

A response is used only with what the service always sends: its request id, the content type of the
operation, and in an error its code. Any other response is handled like a broken connection, so it
is retried and never means "no row" or "written".
"""

import re
from typing import Any, Final

from azure.core.exceptions import AzureError, ServiceResponseError

from broadside.exchange.strict_json import parse_strict_json

# Transient status codes below 500.
PASSING: Final = (408, 429)
# Error code in the XML of Blob Storage. Table Storage also sends XML if the request accepts it.
_XML_CODE: Final = re.compile(r"<(?:m:)?[Cc]ode>(\w+)<")
# Error code inside a change set, whose body has several parts.
_PART_CODE: Final = re.compile(r'"odata\.error":\s*\{\s*"code":\s*"(\w+)"')
_INNER_STATUS: Final = re.compile(r"^HTTP/1\.1 (\d{3})\b", re.MULTILINE)
_INNER_RETRY: Final = re.compile(r"^Retry-After: *(\S+)", re.MULTILINE | re.IGNORECASE)
_TEXTS: Final = ("application/json", "application/xml", "text/xml", "application/atom+xml")
_BATCH: Final = "/$batch"
# Status codes of success, by method, for Table Storage and for Blob Storage.
_TABLE_DONE: Final = {"GET": (200,), "PUT": (204,), "POST": (201, 204), "DELETE": (204,)}
_BLOB_DONE: Final = {"GET": (200, 206), "PUT": (201,), "DELETE": (202,)}


class ForeignAnswer(ServiceResponseError):
    """Response that the storage service does not send."""


def is_transient(status: int | None) -> bool:
    """Return True if an HTTP status is transient."""
    return status is not None and (status >= 500 or status in PASSING)


def code_in_body(response: Any) -> str | None:
    """Return the error code in a body, or None if it has none or was not read."""
    try:
        body: str = response.text()
    except (ValueError, AzureError):
        # The body was not read, or is not text.
        return None
    if match := _XML_CODE.search(body) or _PART_CODE.search(body):
        return match[1]
    try:
        document = parse_strict_json(body, len(body))
        code = (document.get("odata.error") or document.get("error") or document)["code"]
    except (ValueError, LookupError, TypeError, AttributeError):
        # The response came from a gateway.
        return None
    return code if isinstance(code, str) else None


async def checked(request: Any, response: Any, *, is_table: bool) -> Any:
    """Return a response of the service. A retriable error in a change set becomes its status.

    Args:
        request: Request of the SDK.
        response: Response of the SDK, whose body may be unread.
        is_table: True for Table Storage, False for Blob Storage.

    Raises:
        ForeignAnswer: Another server has sent it.
    """
    try:
        await _check(request, response, request.url.partition("?")[0], is_table=is_table)
    except ForeignAnswer:
        # An unread body would keep the connection open.
        await _read(response)
        raise
    return response


async def _check(request: Any, response: Any, path: str, *, is_table: bool) -> None:
    status = response.status_code
    if is_transient(status) or request.method == "HEAD":
        return
    if 200 <= status < 300:
        _require(response, "x-ms-request-id" in response.headers, "no request id")
        _check_success(request, response, path, is_table=is_table)
        if path.endswith(_BATCH):
            await _read(response)
            _raise_inner_status(response)
        return
    _require(response, status >= 400, "a redirection")
    # Downloads and change sets are streamed, so the body was not read.
    await _read(response)
    has_code = _type(response) in _TEXTS and code_in_body(response) is not None
    _require(response, has_code, "no error code of the service")


async def _read(response: Any) -> None:
    if not response.is_stream_consumed:
        await response.read()


def _check_success(request: Any, response: Any, path: str, *, is_table: bool) -> None:
    is_batch = path.endswith(_BATCH)
    done = (202,) if is_batch else (_TABLE_DONE if is_table else _BLOB_DONE)[request.method]
    _require(response, response.status_code in done, "another status of success")
    if is_batch:
        _require(response, _type(response) == "multipart/mixed", "no parts of a change set")
    elif request.method == "GET":
        wanted = "application/json" if is_table else "application/xml"
        is_list = is_table or "comp=list" in request.url
        _require(response, not is_list or _type(response) == wanted, f"not {wanted}")
    elif request.method in ("PUT", "POST"):
        _require(response, "ETag" in response.headers, "a write without an ETag")


def _raise_inner_status(response: Any) -> None:
    """Give a response the status of a change set that can be retried, with its ``Retry-After``."""
    text = response.text()
    statuses = [int(status) for status in _INNER_STATUS.findall(text)]
    _require(response, bool(statuses), "a change set without a result")
    for status in statuses:
        if is_transient(status):
            response.status_code = status
            if after := _INNER_RETRY.search(text):
                response.headers["Retry-After"] = after[1]


def _type(response: Any) -> str:
    return str(response.headers.get("Content-Type") or "").partition(";")[0].strip().lower()


def _require(response: Any, condition: bool, reason: str) -> None:
    if not condition:
        kind = _type(response) or "no content type"
        raise ForeignAnswer(
            f"a response that is not the service's ({response.status_code}, {kind}: {reason}); "
            "check proxies and the endpoint"
        )
