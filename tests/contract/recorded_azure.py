"""Azure Table and Blob services that respond as recorded.

Azurite returns more than the service (an error code header for a conflict) and less (it has no
empty pages). Here a response has the status, the header names and the body format recorded by
Microsoft's SDKs from the real services. The error responses are in a table (:class:`Answers`).
The first page for a query or listing will be empty, with a continuation token. The service
documentation allows this at any time.

Rows and blobs are stored in memory. Threads in this process are used to serve the requests,
without authentication. See :attr:`RecordedAzure.asked` for the request log with table and
partition. Features not used by the ports are missing, for example MERGE, ACLs, leases and
blocks.
"""

import base64
import json
import re
import threading
import time
import tomllib
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

# Maximum number of rows or blobs per page.
PAGE_MAX_COUNT: Final = 1000
_ENTITY_MAX_BYTES: Final = 1 << 20
_PROPERTY_MAX_BYTES: Final = 1 << 16
_PROPERTY_MAX_COUNT: Final = 252
_BATCH_MAX_BYTES: Final = 4 << 20
_BATCH_MAX_COUNT: Final = 100

_ENTITY: Final = re.compile(
    r"(\w+)\(PartitionKey='((?:[^']|'')*)',RowKey='((?:[^']|'')*)'\)", re.DOTALL
)
_TERM: Final = re.compile(r"(PartitionKey|RowKey) (eq|ge|lt) '((?:[^']|'')*)'")
_JSON: Final = "application/json;odata=minimalmetadata;streaming=true;charset=utf-8"
_TABLE_HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Server": "Windows-Azure-Table/1.0 Microsoft-HTTPAPI/2.0",
    "X-Content-Type-Options": "nosniff",
    **dict.fromkeys(("x-ms-client-request-id", "x-ms-request-id", "x-ms-version"), ""),
}
_BLOB_HEADERS: Final = {
    "Server": "Windows-Azure-Blob/1.0 Microsoft-HTTPAPI/2.0",
    **dict.fromkeys(("x-ms-client-request-id", "x-ms-request-id", "x-ms-version"), ""),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Response from a service. A header with the value "" will be set when it is sent."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Logged request with the status of its response.

    Attributes:
        at_s: Time of the request, monotonic clock.
        what: Table, container or other path.
        partition: Partition of the rows, or None if the request has none.
        rows_count: Number of rows written by the request or batch.
    """

    at_s: float
    method: str
    what: str
    partition: str | None
    rows_count: int
    status: int


class Answers:
    """Table with the recorded error responses, by name and by code."""

    def __init__(self, path: Path) -> None:
        document = tomllib.loads(path.read_text("utf-8"))
        self.rows: dict[str, dict[str, Any]] = {row["name"]: row for row in document["answers"]}
        self.repositories: dict[str, str] = document["repositories"]
        self._shapes: dict[str, dict[str, Any]] = document["shapes"]

    def named(self, name: str) -> Answer:
        row = self.rows[name]
        return self._build(row, name, row.get("index"))

    def coded(self, code: str, shape: str, index: int | None = None) -> Answer:
        """Return the response with this code in this shape.

        If there is no such row, a row with this code in another shape will be used.
        """
        rows = [row for row in self.rows.values() if row.get("code") == code]
        row = next((row for row in rows if row["shape"] == shape), rows[0])
        return self._build({**row, "shape": shape, "headers": {}}, row["name"], index)

    def _build(self, row: Mapping[str, Any], said: str, index: int | None) -> Answer:
        shape = self._shapes[row["shape"]]
        at = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}0Z"
        parts = {
            "code": row.get("code", ""),
            "said": said if index is None else f"{index}:{said}",
            "id": str(uuid.uuid4()),
            "at": at,
            "status": row["status"],
            "reason": HTTPStatus(row["status"]).phrase,
        }
        headers = {**shape["headers"], **row.get("headers", {})}
        return Answer(
            status=202 if row["shape"] == "batch" else row["status"],
            headers={name: _fill(value, parts) for name, value in headers.items()},
            body=_fill(shape["body"], parts).encode(),
        )


class RecordedAzure:
    """Context manager to serve tables and containers. They need to be created first."""

    def __init__(self, answers: Answers) -> None:
        self.asked: list[Asked] = []
        # Resource of the Resource Manager, or None.
        self.resource: Mapping[str, Any] | None = None
        self._answers = answers
        self._tables: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
        self._containers: dict[str, dict[str, tuple[bytes, str, str]]] = {}
        self._lock = threading.Lock()
        self._ticks = 0
        self._next: tuple[Answer, int, str] | None = None
        azure = self

        class Handler(_Handler):
            def answer(self, method: str, body: bytes) -> Answer:
                return azure._answer(method, self.path, self.headers, body)

        self._server = _Server(("127.0.0.1", 0), Handler)

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def connection_string(self) -> str:
        return (
            f"AccountName=recorded;AccountKey=bGFi;TableEndpoint={self.url}/tables;"
            f"BlobEndpoint={self.url}/blobs;"
        )

    def create(self, *names: str) -> None:
        """Create an empty table and an empty container for each name."""
        for name in names:
            self._tables[name] = {}
            self._containers[name] = {}

    def answer_with(self, answer: Answer | None, count: int = 1 << 30, *, method: str = "") -> None:
        """Send ``answer`` to the next ``count`` requests with this method, or stop if it is None.

        The empty method can be used to match any method.
        """
        self._next = (answer, count, method) if answer else None

    # Requests.

    def _answer(self, method: str, target: str, headers: Any, body: bytes) -> Answer:
        parts = urlsplit(target)
        _, service, path = (*parts.path.split("/", 2), "")[:3]
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        at_s = time.monotonic()
        with self._lock:
            if self._next is not None and self._next[2] in ("", method):
                answer, count, of = self._next
                self._next = (answer, count - 1, of) if count > 1 else None
            elif service == "tables":
                answer = self._table(method, unquote(path), query, headers, body)
            elif service == "blobs":
                answer = self._blob(method, unquote(path), query, headers, body)
            elif self.resource is not None and method == "GET":
                headers = {"Content-Type": "application/json; charset=utf-8", "ETag": 'W/"1"'}
                answer = Answer(status=200, headers=headers, body=_to_json(self.resource))
            else:
                answer = self._answers.named("a firewall that is not there")
            what, partition, rows_count = _request_target(method, unquote(path), query, body)
            self.asked.append(
                Asked(
                    at_s=at_s,
                    method=method,
                    what=what,
                    partition=partition,
                    rows_count=rows_count,
                    status=answer.status,
                )
            )
        return answer

    # Tables.

    def _table(
        self, method: str, path: str, query: Mapping[str, str], headers: Any, body: bytes
    ) -> Answer:
        try:
            if path == "$batch":
                return self._batch(body)
            if method == "GET" and path.endswith("()"):
                return self._query(path[:-2], query)
            return self._row(method, path, headers, body, "table")
        except _ServiceError as wrong:
            return self._answers.coded(wrong.code, "table")

    def _row(self, method: str, path: str, headers: Any, body: bytes, shape: str) -> Answer:
        """Read, write or delete a row."""
        result = _ENTITY.fullmatch(path)
        name = result[1] if result else path
        if (table := self._tables.get(name)) is None:
            raise _ServiceError("TableNotFound")
        sent = json.loads(body) if body else {}
        key = (
            tuple(part.replace("''", "'") for part in result.groups()[1:])
            if result
            else (sent.get("PartitionKey"), sent.get("RowKey"))
        )
        current = table.get(key)  # type: ignore[arg-type]  # a pair either way
        match = headers.get("If-Match")
        if method == "POST" and current is not None:
            raise _ServiceError("EntityAlreadyExists")
        if method in ("GET", "DELETE") or (method == "PUT" and match is not None):
            if current is None:
                raise _ServiceError("ResourceNotFound")
            if match not in (None, "*", current["odata.etag"]):
                raise _ServiceError("UpdateConditionNotSatisfied")
        if method == "GET":
            return self._row_answer(current or {}, f"{name}/@Element")
        if method == "DELETE":
            del table[key]  # type: ignore[arg-type]
            return Answer(status=204, headers=_TABLE_HEADERS)
        _check(sent, body)
        etag, at = self._stamp()
        stored = {"odata.etag": etag, **sent, "PartitionKey": key[0], "RowKey": key[1]}
        table[key] = {**_without_default_types(stored), "Timestamp": at}  # type: ignore[index]
        if method == "POST" and headers.get("Prefer") != "return-no-content":
            return self._row_answer(table[key], f"{name}/@Element", 201)  # type: ignore[index]
        return Answer(status=204, headers={**_TABLE_HEADERS, "ETag": etag})

    def _query(self, name: str, query: Mapping[str, str]) -> Answer:
        if (table := self._tables.get(name)) is None:
            raise _ServiceError("TableNotFound")
        terms = _TERM.findall(query.get("$filter", ""))
        if " and ".join(f"{a} {b} '{c}'" for a, b, c in terms) != query.get("$filter", ""):
            raise _ServiceError("InvalidInput")
        wanted = [(what, sign, key.replace("''", "'")) for what, sign, key in terms]
        rows = [row for _, row in sorted(table.items()) if _matches(row, wanted)]
        more = {**_TABLE_HEADERS, "Content-Type": _JSON, "Transfer-Encoding": "chunked"}
        # The first page is empty, with a continuation token.
        page: list[dict[str, Any]] = []
        if after := query.get("NextRowKey"):
            at = _from_token(query["NextPartitionKey"]), _from_token(after)
            rows = [row for row in rows if (row["PartitionKey"], row["RowKey"]) >= at]
            page = rows[: min(int(query.get("$top", PAGE_MAX_COUNT)), PAGE_MAX_COUNT)]
        if len(page) < len(rows):
            following = rows[len(page)]
            more["x-ms-continuation-NextPartitionKey"] = _to_token(following["PartitionKey"])
            more["x-ms-continuation-NextRowKey"] = _to_token(following["RowKey"])
        if select := query.get("$select"):
            chosen = {"odata.etag", *select.split(",")}
            page = [
                {what: value for what, value in row.items() if what.split("@")[0] in chosen}
                for row in page
            ]
        fields = {"odata.metadata": f"{self.url}/tables/$metadata#{name}", "value": page}
        return Answer(status=200, headers=more, body=_to_json(fields))

    def _row_answer(self, row: Mapping[str, Any], of: str, status: int = 200) -> Answer:
        headers = {
            **_TABLE_HEADERS,
            "Content-Type": _JSON,
            "ETag": row["odata.etag"],
            "Transfer-Encoding": "chunked",
        }
        fields = {"odata.metadata": f"{self.url}/tables/$metadata#{of}", **row}
        return Answer(status=status, headers=headers, body=_to_json(fields))

    def _batch(self, body: bytes) -> Answer:
        """Execute a complete change set. If it fails, return the first error and change nothing."""
        if len(body) > _BATCH_MAX_BYTES:
            return self._answers.coded("RequestBodyTooLarge", "table-door")
        changes = list(_changes(body))
        name = changes[0][1].partition("(")[0]
        before = dict(self._tables.get(name, {}))
        answers, seen = [], set[str]()
        for index, (method, path, headers, sent) in enumerate(changes):
            try:
                if index >= _BATCH_MAX_COUNT:
                    raise _ServiceError("InvalidInput")
                if path in seen:
                    raise _ServiceError("InvalidDuplicateRow")
                seen.add(path)
                answers.append(self._row(method, path, headers, sent, "batch"))
            except _ServiceError as wrong:
                if name in self._tables:
                    self._tables[name] = before
                rows = self._answers.rows.values()
                indexed = any(
                    row.get("code") == wrong.code and "index" in row and row["shape"] == "batch"
                    for row in rows
                )
                return self._answers.coded(wrong.code, "batch", index if indexed else None)
        mark = str(uuid.uuid4())
        lines = [
            f"--batchresponse_{mark}",
            f"Content-Type: multipart/mixed; boundary=changesetresponse_{mark}",
            "",
        ]
        for change in answers:
            lines += [
                f"--changesetresponse_{mark}",
                "Content-Type: application/http",
                "Content-Transfer-Encoding: binary",
                "",
                "HTTP/1.1 204 No Content",
                "X-Content-Type-Options: nosniff",
                "Cache-Control: no-cache",
                "DataServiceVersion: 1.0;",
                *([f"ETag: {change.headers['ETag']}"] if "ETag" in change.headers else []),
                "",
                "",
            ]
        lines += [f"--changesetresponse_{mark}--", f"--batchresponse_{mark}--", ""]
        kind = f"multipart/mixed; boundary=batchresponse_{mark}"
        headers = {**_TABLE_HEADERS, "Content-Type": kind, "Transfer-Encoding": "chunked"}
        return Answer(status=202, headers=headers, body="\r\n".join(lines).encode())

    def _stamp(self) -> tuple[str, str]:
        """Return a new unique ETag and its time, both without trailing zeros."""
        self._ticks = max(self._ticks + 1, time.time_ns() // 100)
        seconds, ticks = divmod(self._ticks, 10_000_000)
        fraction = f".{ticks:07}".rstrip("0.")
        at = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}{fraction}Z"
        return f"W/\"datetime'{quote(at)}'\"", at

    # Blobs.

    def _blob(
        self, method: str, path: str, query: Mapping[str, str], headers: Any, body: bytes
    ) -> Answer:
        container, _, name = path.partition("/")
        if (blobs := self._containers.get(container)) is None:
            return self._answers.coded("ContainerNotFound", "blob")
        if query.get("comp") == "list":
            return self._listing(container, blobs, query)
        current = blobs.get(name)
        if method == "PUT":
            if current is not None and headers.get("If-None-Match") == "*":
                return self._answers.coded("BlobAlreadyExists", "blob")
            self._stamp()
            etag, at = f'"0x{self._ticks:X}"', formatdate(usegmt=True)
            blobs[name] = (body, etag, at)
            fields = {"ETag": etag, "Last-Modified": at, "x-ms-request-server-encrypted": "true"}
            return Answer(status=201, headers={**_BLOB_HEADERS, **fields})
        if current is None:
            return self._answers.coded("BlobNotFound", "blob")
        if method == "DELETE":
            del blobs[name]
            return Answer(
                status=202, headers=_BLOB_HEADERS | {"x-ms-delete-type-permanent": "true"}
            )
        complete, etag, at = current
        first, _, last = headers.get("x-ms-range", "bytes=0-").removeprefix("bytes=").partition("-")
        part = complete[int(first) : int(last) + 1 if last else None]
        fields = {
            "Accept-Ranges": "bytes",
            "Content-Range": f"bytes {first}-{int(first) + len(part) - 1}/{len(complete)}",
            "Content-Type": "application/gzip",
            "ETag": etag,
            "Last-Modified": at,
            "x-ms-blob-type": "BlockBlob",
            "x-ms-creation-time": at,
            "x-ms-lease-state": "available",
            "x-ms-lease-status": "unlocked",
            "x-ms-server-encrypted": "true",
        }
        return Answer(status=206, headers={**_BLOB_HEADERS, **fields}, body=part)

    def _listing(
        self, container: str, blobs: Mapping[str, tuple[bytes, str, str]], query: Mapping[str, str]
    ) -> Answer:
        prefix, marker = query.get("prefix", ""), query.get("marker")
        names = [name for name in sorted(blobs) if name.startswith(prefix)]
        names = [name for name in names if name >= _from_token(marker)] if marker else names
        page = names[:PAGE_MAX_COUNT] if marker else []
        rest = names[len(page) :]
        text = "".join(
            f"<Blob><Name>{escape(name)}</Name><Properties><Last-Modified>{blobs[name][2]}"
            f"</Last-Modified><Etag>{escape(blobs[name][1][1:-1])}</Etag><Content-Length>"
            f"{len(blobs[name][0])}</Content-Length><BlobType>BlockBlob</BlobType></Properties>"
            "</Blob>"
            for name in page
        )
        following = f"<NextMarker>{_to_token(rest[0])}</NextMarker>" if rest else "<NextMarker />"
        body = (
            '\ufeff<?xml version="1.0" encoding="utf-8"?><EnumerationResults ServiceEndpoint='
            f'"{self.url}/blobs/" ContainerName="{container}"><Prefix>{escape(prefix)}</Prefix>'
            f"<Blobs>{text}</Blobs>{following}</EnumerationResults>"
        )
        kind = {"Content-Type": "application/xml", "Transfer-Encoding": "chunked"}
        return Answer(status=200, headers={**_BLOB_HEADERS, **kind}, body=body.encode())


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """Ignore disconnected clients."""


class _Handler(BaseHTTPRequestHandler):
    """HTTP/1.1 handler to send the headers in their given order, and a date."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def answer(self, method: str, body: bytes) -> Answer:
        raise NotImplementedError

    def _serve(self) -> None:
        answer = self.answer(self.command, self.rfile.read(self._length()))
        chunked = "Transfer-Encoding" in answer.headers
        self.send_response_only(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value or self._header_value(name))
        self.send_header("Date", formatdate(usegmt=True))
        body = answer.body
        if chunked:
            body = b"%x\r\n%s\r\n" % (len(body), body) * bool(body) + b"0\r\n\r\n"
        elif answer.status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = _serve

    def _length(self) -> int:
        return int(self.headers.get("Content-Length", 0))

    def _header_value(self, name: str) -> str:
        """Return the value for a header that depends on the request."""
        if name == "x-ms-request-id":
            return str(uuid.uuid4())
        return str(self.headers.get(name, "0"))

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, because :attr:`RecordedAzure.asked` is used as the log."""


class _ServiceError(Exception):
    """Error to be returned for an operation on a row."""

    def __init__(self, code: str) -> None:
        self.code = code
        super().__init__(code)


def _fill(text: str, values: Mapping[str, Any]) -> str:
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def _request_target(
    method: str, path: str, query: Mapping[str, str], body: bytes
) -> tuple[str, str | None, int]:
    """Return the table or container, the partition and the number of rows to write."""
    if path == "$batch":
        targets = [_ENTITY.fullmatch(target) for _, target, _, _ in _changes(body)]
        keys = [match.groups() for match in targets if match]
        return keys[0][0], keys[0][1], len(keys)
    match = _ENTITY.fullmatch(path)
    if match:
        return match[1], match[2].replace("''", "'"), int(method != "GET")
    if path.endswith("()"):
        wanted = [key for what, sign, key in _TERM.findall(query.get("$filter", ""))
                  if (what, sign) == ("PartitionKey", "eq")]  # fmt: skip
        return path[:-2], wanted[0].replace("''", "'") if wanted else None, 0
    if method == "POST" and body:
        return path, json.loads(body).get("PartitionKey"), 1
    return path.split("/")[0], None, int(method != "GET")


def _changes(body: bytes) -> Iterator[tuple[str, str, Mapping[str, str], bytes]]:
    """Yield the method, path, headers and body for each request in a change set."""
    mark = re.search(rb"boundary=\"?(changeset_[\w-]+)", body)
    for part in body.split(b"--" + mark[1])[1:-1] if mark else ():
        _, request = part.split(b"\r\n\r\n", 1)
        head, _, sent = request.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        method, target, _ = first.split(" ", 2)
        headers = dict(line.split(": ", 1) for line in lines if ": " in line)
        yield method, unquote(urlsplit(target).path.split("/", 2)[2]), headers, sent.strip()


def _check(sent: Mapping[str, Any], body: bytes) -> None:
    """Raise the service error if a limit is exceeded."""
    properties = {
        name: value
        for name, value in sent.items()
        if "@" not in name and name not in ("PartitionKey", "RowKey", "Timestamp")
    }
    if len(properties) > _PROPERTY_MAX_COUNT:
        raise _ServiceError("TooManyProperties")
    for name, value in properties.items():
        if len(name) > 255:
            raise _ServiceError("PropertyNameTooLong")
        binary = sent.get(f"{name}@odata.type") == "Edm.Binary"
        text = value if isinstance(value, str) else ""
        size = len(base64.b64decode(text)) if binary else 2 * len(text)
        if size > _PROPERTY_MAX_BYTES:
            raise _ServiceError("PropertyValueTooLarge")
    if len(body) > _ENTITY_MAX_BYTES:
        raise _ServiceError("EntityTooLarge")


def _without_default_types(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with minimal metadata, without the types that are already given in JSON."""
    plain = {
        f"{name}@odata.type"
        for name, value in row.items()
        if isinstance(value, bool | float)
        or (isinstance(value, str) and row.get(f"{name}@odata.type") == "Edm.String")
    }
    return {name: value for name, value in row.items() if name not in plain}


def _matches(row: Mapping[str, Any], wanted: list[tuple[str, str, str]]) -> bool:
    return all(
        {"eq": row[what] == key, "ge": row[what] >= key, "lt": row[what] < key}[sign]
        for what, sign, key in wanted
    )


def _to_token(key: str) -> str:
    """Return a key as a continuation token, with its length and its base64 form."""
    packed = base64.b64encode(key.encode()).decode().replace("=", "-")
    return f"1!{len(packed)}!{packed}"


def _from_token(token: str) -> str:
    return base64.b64decode(token.rpartition("!")[2].replace("-", "=")).decode()


def _to_json(fields: object) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
