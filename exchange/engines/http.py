"""HTTP downloads and uploads with vegeta on the client and nginx on the server.

- With a request rate, a slow response does not delay the next request (open loop). Without a rate,
  every connection sends the next request when its response is complete (closed loop).
- The bytes of the client are the *payload*, which is the bodies of complete responses (downloads),
  or of requests that nginx has read completely (uploads). Each body is spread evenly over the time
  from the request to the last byte. An incomplete body counts as zero.
- The server results come from the nginx log. It contains the body bytes that nginx passed to the
  kernel or read, for requests with the job token in the query. Other requests are not logged.
- nginx keeps the body of an upload in memory until it is complete. The ``mirror`` module makes it
  read the body before it answers. Then it drops it.
- A request is logged when it ends, so the readings of both ends are as long as their requests.
- There is no start gate. The agent starts vegeta at the start time, and the timestamp of the first
  request is the start.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, ClassVar, Final

from pydantic import Field, StrictBool

from broadside.exchange.engines.buckets import Buckets
from broadside.exchange.engines.downloads import (
    FOLDER,
    GONE_S,
    UPLOAD,
    DownloadReader,
    HostName,
    JsonInteger,
    JsonNumber,
    SizeMix,
    TlsCipher,
    TlsVersion,
    ZerosPercent,
    bodies_env,
    cipher_problems,
    direction_problems,
    file_name,
    files,
    negotiated_name,
    parse_options,
    read_counters,
    size_problems,
)
from broadside.exchange.engines.port import (
    ClientRequest,
    EndBy,
    Engine,
    EngineEvent,
    EngineFile,
    FileWatch,
    Launch,
    Process,
    Program,
    ServerRequest,
    Started,
    Unsupported,
    validate_argument,
    validate_host,
)
from broadside.exchange.engines.served_log import LogReader, Transfer
from broadside.exchange.engines.tokens import TOKEN_PATTERN, parse_token, token_of
from broadside.exchange.installation import bring
from broadside.exchange.messages import (
    Aggregation,
    Direction,
    Distribution,
    Job,
    Measure,
    Message,
    Side,
    Traffic,
)
from broadside.exchange.strict_json import parse_strict_json

VEGETA: Final = Program(
    name="vegeta",
    version_argv=("--version",),
    version_pattern=r"(?m)^Version: v?(\d+\.\d+\.\d+)",
    fix=bring("put vegeta 12 (https://github.com/tsenart/vegeta/releases) on PATH", target="tools"),
)
NGINX: Final = Program(
    name="nginx",
    version_argv=("-v",),
    version_pattern=r"nginx/(\d+\.\d+\.\d+)",
    fix=bring("apt-get install nginx-light", target="tools"),
)
# The maximum time to wait for a response, in seconds.
TIMEOUT_MAX_S: Final = 8
# The maximum number of concurrent requests.
WORKERS_MAX_COUNT: Final = 10_000
ERROR_KINDS_MAX_COUNT: Final = 8
# This must not exceed PIPE_BUF (pipe(7)). Writes up to that size to a pipe are atomic, so the lines
# of two workers do not mix.
LOG_BUFFER_BYTES: Final = 4096
# The largest size of all request bodies of a client together, and of those in a server's memory.
UPLOAD_MAX_BYTES: Final = 100_000_000
UPLOADS_MAX_BYTES: Final = 2**30
# Requests that nginx accepts at the same time in a connection with HTTP/2.
HTTP2_REQUESTS_COUNT: Final = 128
# If vegeta has moved this many bytes between two samples, data flows.
FLOWS_BYTES: Final = 4096
# The output has a line for each request. We need this limit to protect the disk. There will be
# enough lines to look at.
RAW_MAX_BYTES: Final = 4 * 2**20


class HttpOptions(Message):
    """``traffic.options`` of http and https."""

    # Request rate of a pair. None means as fast as the connections allow.
    requests_per_second: Annotated[JsonNumber, Field(gt=0, le=100_000)] | None = None
    # Size of each body.
    body_bytes: JsonInteger = 1_000_000
    # Sizes in bytes that the bodies have in turn, in place of body_bytes.
    body_mix: SizeMix | None = None
    # Share of zeros in the bodies. All other bytes are random.
    compressible_percent: ZerosPercent = 0
    # Name in the Host field and in TLS (SNI). The client connects to the address of its server.
    server_name: HostName | None = None
    # For https: HTTP/2 in place of HTTP/1.1.
    http2: StrictBool = False
    # For https: TLS version, and the only cipher suite (OpenSSL's name). A port of the server
    # enforces them.
    tls: TlsVersion = "any"
    tls_cipher: TlsCipher | None = None
    # For https: resume TLS sessions.
    tls_resume: StrictBool = False
    # If False, a new connection will be used for each request.
    keepalive: StrictBool = True
    # Seconds until a request counts as failed.
    timeout_s: Annotated[JsonNumber, Field(gt=0, le=TIMEOUT_MAX_S)] = 5.0
    # For https: True to reject a certificate that the client does not trust.
    verify: StrictBool = False

    @property
    def bodies_bytes(self) -> tuple[int, ...]:
        """Return the sizes of the bodies."""
        if self.body_mix is None:
            return (self.body_bytes,)
        return tuple(int(size) for size in self.body_mix.split(","))


class Http(Engine):
    """Downloads over HTTP from the pair's server, or uploads to it."""

    name: ClassVar[str] = "http"
    title: ClassVar[str] = "HTTP downloads or uploads at a rate of requests, or as fast as they go"
    defaults: ClassVar[dict[str, object]] = {"direction": "reverse", "streams_count": 10}
    supported_fields: ClassVar[frozenset[str]] = frozenset({"direction", "streams_count"})
    new_options: ClassVar[frozenset[str]] = frozenset(
        {
            *("body_mix", "compressible_percent", "direction", "http2", "server_name"),
            *("tls", "tls_cipher", "tls_resume"),
        }
    )
    client_programs: ClassVar[tuple[Program, ...]] = (VEGETA,)
    server_programs: ClassVar[tuple[Program, ...]] = (NGINX,)
    tls: ClassVar[bool] = False

    def problems(self, traffic: Traffic) -> Iterator[str]:
        options = parse_options(HttpOptions, traffic)
        if "body_bytes" in traffic.options and options.body_mix is not None:
            yield "traffic.options.body_bytes: body_mix replaces it; remove one of them"
        field = "body_bytes" if options.body_mix is None else "body_mix"
        for size_bytes in options.bodies_bytes:
            yield from size_problems(f"traffic.options.{field}", size_bytes)
        if options.verify and not self.tls:
            yield "traffic.options.verify: http has no certificate; drop it, or use engine https"
        for name in ("http2", "tls", "tls_cipher", "tls_resume"):
            if getattr(options, name) not in (False, None, "any") and not self.tls:
                yield f"traffic.options.{name}: http has no TLS; drop it, or use engine https"
        yield from cipher_problems(options.tls, options.tls_cipher)
        yield from direction_problems(self.name, traffic)
        if traffic.direction is Direction.FORWARD:
            yield from _upload_problems(f"traffic.options.{field}", options, traffic.streams_count)

    def statement(self, traffic: Traffic) -> str:
        options = _options(traffic)
        versions = "1.2 or 1.3" if options.tls == "any" else options.tls
        cipher = f" ({options.tls_cipher})" if options.tls_cipher else ""
        tls = f"in TLS {versions}{cipher}" if self.tls else "without TLS"
        what = "downloads replies from"
        if traffic.direction is Direction.FORWARD:
            what = "uploads bodies to"
        rate = options.requests_per_second
        version = "HTTP/2" if options.http2 else "HTTP/1.1"
        loop = (
            "in a closed loop: each connection asks again when it has its answer"
            if rate is None
            else f"in an open loop of {rate:g} requests a second a pair: a slow answer does not "
            "hold the next request back"
        )
        return f"vegeta {what} nginx by {version} over TCP, {tls}, {loop}."

    def service_problem(self, tls: str) -> str | None:
        if not tls or not self.tls:
            return super().service_problem(tls)
        version, _, cipher = tls.partition(":")
        options = {"tls": version} | ({"tls_cipher": cipher} if cipher else {})
        return next(self.problems(Traffic(engine=self.name, options=options)), None)

    def tls_of(self, traffic: Traffic) -> str:
        options = _options(traffic)
        if options.tls == "any":
            return ""
        return f"{options.tls}:{options.tls_cipher}" if options.tls_cipher else options.tls

    def measures(self, traffic: Traffic) -> frozenset[str]:
        return frozenset({"success", "latency"})

    def offered_bits_per_second(self, traffic: Traffic) -> int | None:
        options = _options(traffic)
        if options.requests_per_second is None:
            return None
        bodies = options.bodies_bytes
        return round(options.requests_per_second * sum(bodies) / len(bodies) * 8)

    def shutdown_grace_s(self, traffic: Traffic) -> float:
        return _options(traffic).timeout_s

    def scaled(self, traffic: Traffic, scale: float) -> Traffic:
        rate = _options(traffic).requests_per_second
        if rate is None or scale == 1:
            return traffic
        options = {**traffic.options, "requests_per_second": rate / scale}
        return traffic.model_copy(update={"options": options})

    # Client -----------------------------------------------------------------------------------

    def client(self, ask: ClientRequest) -> Launch:
        job, options = ask.job, _options(ask.job.traffic)
        binary, streams_count = ask.tools["vegeta"].argv, job.traffic.streams_count
        address = validate_host(job.endpoint.address, "endpoint.address")
        scheme, port = "https" if self.tls else "http", job.endpoint.port
        token = validate_argument(token_of(job, options.timeout_s), "job_id")
        site = f"{scheme}://{options.server_name or address}:{port}"
        arguments = [
            f"-targets={ask.folder}/targets",
            f"-duration={job.duration_s}s",
            f"-timeout={options.timeout_s:g}s",
            f"-connections={streams_count}",
            f"-max-connections={streams_count}",
            f"-workers={streams_count}",
            "-max-body=0",
            "-redirects=-1",
            f"-http2={str(options.http2).lower()}",
            f"-keepalive={str(options.keepalive).lower()}",
        ]
        if options.requests_per_second is None:
            arguments += ["-rate=0", f"-max-workers={streams_count}"]
        else:
            rate = round(options.requests_per_second * 1000)
            arguments += [f"-rate={max(1, rate)}/1000s", f"-max-workers={WORKERS_MAX_COUNT}"]
        if ask.bind is not None:
            arguments.append(f"-laddr={validate_argument(ask.bind, 'bind')}")
        arguments += ["-insecure"] if self.tls and not options.verify else []
        arguments += ["-session-tickets"] if options.tls_resume else []
        if options.server_name is not None:
            if ":" in address:
                raise Unsupported(
                    "traffic.options.server_name: vegeta connects a name to no IPv6 address; use "
                    "IPv4, or engine connections with mode=http"
                )
            arguments.append(f"-connect-to={options.server_name}:{port}:{address}:{port}")
        return Launch(
            processes=(
                Process(
                    argv=(*binary, "attack", *arguments),
                    pipe_to=(*binary, "encode", "-to=json"),
                    env={"TZ": "UTC", "HOME": ask.folder},
                    raw_max_bytes=RAW_MAX_BYTES,
                    # The output shows when a request ended, but not when its bytes arrived.
                    watches=(FileWatch(name="io", path="/proc/{pid}/io"),),
                ),
            ),
            files=tuple(_client_files(ask, options, site, token)),
            unprivileged=True,
        )

    def client_reader(self, job: Job) -> "ResultReader":
        return ResultReader(self.name, job)

    # Server -----------------------------------------------------------------------------------

    def server(self, ask: ServerRequest) -> Launch:
        argv = (*ask.tools["nginx"].argv, "-p", ask.folder, "-e", "stderr")
        return Launch(
            processes=(
                Process(
                    argv=(*argv, "-c", f"{ask.folder}/nginx.conf"),
                    env=bodies_env(ask.bodies, ask.folder),
                    # We need to use SIGTERM, so that nginx will stop its workers.
                    end_by=EndBy.TERM,
                ),
            ),
            files=(EngineFile(name="nginx.conf", text=self._configuration(ask)), *files()),
            unprivileged=True,
        )

    def _configuration(self, ask: ServerRequest) -> str:
        listen = "*" if ask.address is None else validate_host(ask.address, "address")
        folder = validate_argument(ask.folder, "folder")
        tls = ""
        if self.tls and ask.certificate is not None:
            tls = (
                f"ssl_certificate {validate_argument(ask.certificate.certificate, 'certificate')}; "
                f"ssl_certificate_key {validate_argument(ask.certificate.key, 'certificate_key')}; "
                f"{_tls_settings(ask.tls)}"
            )
        temporary = " ".join(
            f"{kind}_temp_path {folder}/{kind};"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        return f"""\
daemon off;
worker_processes {4 if self.tls else 2};
pid {folder}/nginx.pid;
error_log stderr crit;
events {{ worker_connections 4096; }}
http {{
  map $arg_job $token {{ default ""; "~^{TOKEN_PATTERN}$" $arg_job; }}
  log_format account '$msec $request_time $status $body_bytes_sent $remote_addr $token '
    '$server_protocol $ssl_protocol $ssl_cipher $ssl_session_reused $ssl_server_name '
    '$request_method $content_length $request_length';
  access_log /dev/stdout account buffer={LOG_BUFFER_BYTES} flush=1s if=$token;
  {temporary}
  sendfile on;
  tcp_nopush on;
  server_tokens off;
  default_type application/octet-stream;
  keepalive_requests 1000000000;
  keepalive_timeout 75s;
  send_timeout {GONE_S}s;
  server {{
    listen {listen}:{ask.port}{" ssl http2" if self.tls else ""} reuseport;
    {tls}
    root {folder}/{FOLDER};
    location = /{UPLOAD} {{
      client_max_body_size {UPLOAD_MAX_BYTES};
      client_body_buffer_size {UPLOAD_MAX_BYTES};
      mirror /dropped;
      error_page 404 = @received;
    }}
    location @received {{ return 200; }}
    location = /dropped {{ internal; access_log off; return 200; }}
  }}
}}
"""

    def server_reader(self) -> "RequestReader":
        return RequestReader(self.name, "server_requests_count", TIMEOUT_MAX_S)


def _upload_problems(field: str, options: HttpOptions, streams_count: int) -> Iterator[str]:
    total_bytes, largest_bytes = sum(options.bodies_bytes), max(options.bodies_bytes)
    if total_bytes > UPLOAD_MAX_BYTES:
        yield (
            f"{field}: a client stores the {total_bytes} bytes of its uploads in memory; set at "
            f"most {UPLOAD_MAX_BYTES}"
        )
    is_open_http2 = options.http2 and options.requests_per_second is not None
    count = streams_count * (HTTP2_REQUESTS_COUNT if is_open_http2 else 1)
    if largest_bytes * count > UPLOADS_MAX_BYTES:
        yield (
            f"{field}: a server keeps up to {count} uploads of {largest_bytes} bytes in memory; "
            f"set at most {UPLOADS_MAX_BYTES // count} bytes, or fewer streams"
        )


def _client_files(
    ask: ClientRequest, options: HttpOptions, site: str, token: str
) -> Iterator[EngineFile]:
    """Yield the requests of a client, and the files that it uploads."""
    percent, sizes_bytes = options.compressible_percent, options.bodies_bytes
    if ask.job.traffic.direction is Direction.REVERSE:
        lines = [f"GET {site}/{file_name(size, percent)}?job={token}\n" for size in sizes_bytes]
        yield EngineFile(name="targets", text="\n".join(lines))
        return
    url = f"{site}/{UPLOAD}?job={token}"
    lines = [f"POST {url}\n@{ask.folder}/{size}\n" for size in sizes_bytes]
    yield EngineFile(name="targets", text="\n".join(lines))
    for size in sorted(set(sizes_bytes)):
        yield EngineFile(name=str(size), size_bytes=size, zeros_percent=percent)


def _tls_settings(tls: str) -> str:
    version, _, cipher = tls.partition(":")
    if not version:
        return "ssl_protocols TLSv1.2 TLSv1.3;"
    suites = "ssl_conf_command Ciphersuites" if version == "1.3" else "ssl_ciphers"
    chosen = f" {suites} {validate_argument(cipher, 'tls_cipher')};" if cipher else ""
    return f"ssl_protocols TLSv{validate_argument(version, 'tls')};{chosen}"


def _options(traffic: Traffic) -> HttpOptions:
    try:
        return parse_options(HttpOptions, traffic)
    except Unsupported:
        # The launch has already rejected invalid options.
        return HttpOptions()


# Reading ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResult:
    """A request as vegeta reports it.

    Attributes:
        start_s: Start of the request, in epoch seconds.
        latency_s: Seconds to the last byte of the response.
        code: HTTP status, or 0 if there was no complete response.
        body_bytes: Size of the response's body.
        uploaded_bytes: Size of the request's body.
        error: Error message, or an empty string.
    """

    start_s: float
    latency_s: float
    code: int
    body_bytes: int
    uploaded_bytes: int
    error: str


def read_result(line: bytes) -> HttpResult | None:
    """Parse a line of ``vegeta encode -to=json``. Return None if it is not a result."""
    try:
        record = parse_strict_json(line, len(line))
        stamp = str(record["timestamp"])
        second_s = datetime.fromisoformat(stamp[:19] + "+00:00").timestamp()
        fraction = re.match(r"\.(\d+)", stamp[19:])
        code = int(record["code"])
        lengths = (record.get("headers") or {}).get("Content-Length") or ["0"]
        return HttpResult(
            start_s=second_s + (float(f"0.{fraction[1]}") if fraction else 0.0),
            latency_s=max(0.0, int(record["latency"]) / 1e9),
            code=code,
            body_bytes=max(0, int(lengths[0])) if code else 0,
            uploaded_bytes=max(0, int(record.get("bytes_out", 0))),
            error=str(record["error"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def error_kind(error: str) -> str:
    """Return a short category without addresses, such as ``connection_refused`` or ``http_503``."""
    status = re.match(r"(\d{3})\b", error)
    if status:
        return f"http_{status[1]}"
    if "deadline exceeded" in error or "imeout" in error:
        return "timeout"
    if "certificate" in error or "tls:" in error or "x509" in error:
        return "tls"
    last = error.rpartition(": ")[2]
    return re.sub(r"[^a-z0-9]+", "_", last.lower()).strip("_")[:32] or "unknown"


class ResultReader(DownloadReader):
    """Reader of the client, which writes a line for each request."""

    complete_at_end: ClassVar[bool] = True

    def __init__(self, engine: str, job: Job) -> None:
        super().__init__(engine, job, token_of(job, TIMEOUT_MAX_S))
        self._duration_s = float(job.duration_s)
        self._latencies = Buckets("latency", "s")
        self._errors: Counter[str] = Counter()
        # First error message of each category, as vegeta wrote it.
        self._words: dict[str, str] = {}
        self._requests_count = 0
        self._uploads = job.traffic.direction is Direction.FORWARD
        # Last sample as (epoch second, bytes moved).
        self._last: tuple[float, int] | None = None

    def sample(self, name: str, text: str, at_s: float) -> tuple[EngineEvent, ...]:
        counters = read_counters(text)
        if counters is None:
            return ()
        # Bytes written for an upload, and bytes read for a download.
        moved_bytes, before = counters[self._uploads], self._last
        self._last = (at_s, moved_bytes)
        started = self._arrivals.last_s is None
        if before is None or (started and moved_bytes - before[1] < FLOWS_BYTES):
            return ()
        self._arrivals.count(before[0], at_s, moved_bytes - before[1])
        return (Started(side=Side.CLIENT, started_at_s=before[0]),) if started else ()

    def feed(self, line: bytes, at_s: float) -> tuple[EngineEvent, ...]:
        result = read_result(line)
        if result is None:
            return ()
        self._requests_count += 1
        moved_bytes = result.body_bytes
        if self._uploads:
            moved_bytes = 0 if result.error else result.uploaded_bytes
        self._moved_bytes += moved_bytes
        end_s = result.start_s + result.latency_s
        self._seconds.add(result.start_s, end_s, moved_bytes)
        if result.error:
            kind = error_kind(result.error)
            if len(self._errors) >= ERROR_KINDS_MAX_COUNT and kind not in self._errors:
                kind = "other"
            self._errors[kind] += 1
            self._words.setdefault(kind, result.error[:200])
        else:
            self._latencies.add(result.latency_s)
        if self._requests_count > 1:
            return ()
        began_s = result.start_s
        return (Started(side=Side.CLIENT, started_at_s=began_s, expected_s=self._duration_s),)

    def _error(self, exit_code: int | None, stderr: str) -> str | None:
        """Return the reason if there is no result.

        If only some requests failed, they appear in the metrics and are not an error.
        """
        if self._requests_count and self._errors.total() == self._requests_count:
            kind, count = self._errors.most_common(1)[0]
            return (
                f"all {self._requests_count} requests failed, {count} of them: {self._words[kind]}"
            )
        if exit_code:
            arguments = stderr.strip().splitlines()
            return arguments[-1][:300] if arguments else f"vegeta ended with exit code {exit_code}"
        if exit_code == 0 and not self._requests_count:
            return "vegeta made no request"
        return None

    def _measures(self) -> tuple[Measure, ...]:
        count, failed_count = self._requests_count, self._errors.total()
        if not count:
            return ()
        return (
            Measure(name="requests_count", value=count, unit="count"),
            Measure(
                name="success_ratio",
                value=(count - failed_count) / count,
                unit="ratio",
                combine=Aggregation.MEAN,
                weight=count,
            ),
            Measure(name="requests_per_second", value=count / self._duration_s, unit="/s"),
            *(
                Measure(name=f"errors_{kind}_count", value=errors, unit="count")
                for kind, errors in sorted(self._errors.items())
            ),
        )

    def _distributions(self) -> tuple[Distribution, ...]:
        return self._latencies.distribution()


_REQUEST: Final = re.compile(
    r"(?P<end>\d+\.\d{3}) (?P<took>\d+\.\d{3}) \d{3} (?P<sent>\d+) (?P<client>\S+) (?P<token>\S+)"
    # Servers of releases before 1.1 do not write the rest.
    r"(?: (?P<protocol>\S+) (?P<tls>\S+ \S+) (?P<resumed>\S+) (?P<name>\S+)"
    r"(?: (?P<method>\S+) (?P<length>\S+) (?P<read>\d+))?)?"
)


def _negotiated(match: re.Match[str]) -> Iterator[str]:
    """Yield the properties of the connection of a request."""
    if match["protocol"] is None:
        return
    if match["protocol"].startswith("HTTP/2"):
        yield "server_http2"
    if name := negotiated_name(match["tls"]):
        yield name
    if match["resumed"] == "r":
        yield "server_resumed"
    if match["name"] != "-":
        yield "server_named"


class RequestReader(LogReader):
    """Parser for the nginx log, which has a line for each request with a token."""

    def feed(self, line: bytes, at_s: float) -> tuple[EngineEvent, ...]:
        match = _REQUEST.fullmatch(line.decode(errors="replace"))
        token = None if match is None else parse_token(match["token"])
        if match is None or token is None:
            return ()
        end_s, took_s = float(match["end"]), float(match["took"])
        moved_bytes, is_upload = int(match["sent"]), match["method"] == "POST"
        if is_upload:
            # An incomplete request was read up to here, with a head of about 200 bytes.
            length = match["length"]
            moved_bytes = min(int(match["read"]), int(length) if length.isdecimal() else 0)
        test = self.test_of(token, at_s)
        test.count_negotiated(_negotiated(match))
        test.add(
            Transfer(
                start_s=end_s - took_s,
                end_s=end_s,
                moved_bytes=moved_bytes,
                is_upload=is_upload,
            ),
            client=match["client"],
            at_s=at_s,
        )
        return ()


ENGINE: Final = Http()
