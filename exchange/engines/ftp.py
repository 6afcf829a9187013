"""FTP downloads and uploads with lftp on the client and vsftpd on the server.

- The client downloads or uploads the file repeatedly until the burst ends. The agent then stops
  lftp. The bytes of the unfinished transfer count.
- The bytes of the client are the bytes that lftp *read from its sockets*, or wrote to them. They
  come from the kernel counters of the process (``/proc/<pid>/io``, ``rchar`` or ``wchar``), which
  are read once a second. They include some hundred bytes per transfer on the control connection.
- Uploads are written to ``/dev/null``. Each stream is a process, because the jobs of one lftp delay
  each other.
- With segments, a connection continues after the end of its segment until it is closed. These bytes
  count, because they were transferred. ``kept_ratio`` is the share of all bytes that lftp wrote
  (``wchar``). It is near 1 if the segments are large compared with the buffers of the path.
- The server results come from the vsftpd log. If the password of a login is the job token, the log
  will contain the bytes and the rate of each transfer. Timestamps are whole seconds. vsftpd logs a
  transfer when it ends, so the readings of the server are as long as its transfers.
- There is no start gate. The agent starts lftp at the start time, and lftp then connects and logs
  in. The start of data is the last sample before the counter increased.
"""

import calendar
import re
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Final

from pydantic import Field

from broadside.exchange.engines.downloads import (
    FOLDER,
    GONE_S,
    UPLOAD,
    DownloadReader,
    JsonInteger,
    ZerosPercent,
    block,
    bodies_env,
    direction_problems,
    file_name,
    files,
    parse_options,
    read_counters,
    size_problems,
)
from broadside.exchange.engines.port import (
    ClientRequest,
    Engine,
    EngineEvent,
    EngineFile,
    FileWatch,
    Launch,
    Process,
    Program,
    ServerRequest,
    StartBasis,
    Started,
    validate_argument,
    validate_host,
)
from broadside.exchange.engines.served_log import LogReader, Transfer
from broadside.exchange.engines.tokens import JobToken, parse_token, token_of
from broadside.exchange.installation import bring
from broadside.exchange.messages import (
    Aggregation,
    Direction,
    EngineReport,
    Job,
    Measure,
    Message,
    Side,
    Traffic,
)

LFTP: Final = Program(
    name="lftp",
    version_argv=("--version",),
    version_pattern=r"LFTP \| Version (\d+\.\d+\.\d+)",
    fix=bring("apt-get install lftp", target="tools"),
)
VSFTPD: Final = Program(
    name="vsftpd",
    version_argv=("-v",),
    version_pattern=r"vsftpd: version (\d+\.\d+\.\d+)",
    fix=bring("apt-get install vsftpd", target="tools"),
)
# Ports of the data connections. You need to allow them in firewalls.
PASSIVE_PORTS: Final = (50_000, 59_999)
SEGMENT_LEAST_BYTES: Final = 65_536
# With a rate limit, the transfer of a file must take at least this time, in seconds. The data in
# the connection at the end of the file is not rate limited.
PACED_LEAST_S: Final = 2
# Allowed commands. CWD is not allowed.
COMMANDS: Final = "ABOR,ALLO,EPSV,FEAT,MDTM,NOOP,OPTS,PASV,PWD,QUIT,REST,RETR,SIZE,STOR,SYST,TYPE"
COUNTED: Final = "server_transfers_count"
# Replies to a login and a transfer: ten lines of at most a hundred characters (RFC 959).
REPLIES_BYTES: Final = 1024
# If lftp has written more than this, we know that data is being sent, because commands do not need
# so much.
FLOWS_BYTES: Final = 4096

_CLIENT_SETTINGS: Final[Mapping[str, object]] = {
    "net:max-retries": 2,
    "net:timeout": 8,
    "net:reconnect-interval-base": 1,
    "net:connection-limit": 0,
    "ftp:ssl-allow": "no",
    "ftp:passive-mode": "yes",
    "pget:save-status": "never",
    "pget:min-chunk-size": 1,
    "xfer:clobber": "yes",
    "xfer:log": "no",
    "cmd:fail-exit": "yes",
    "cache:enable": "no",
}
_SERVER_SETTINGS: Final[Mapping[str, object]] = {
    "background": "NO",
    # Without root there is no chroot. The next option therefore rejects every name with
    # a slash. Only files in the folder itself are then accessible, and none can be added.
    "run_as_launching_user": "YES",
    "deny_file": "/",
    "cmds_allowed": COMMANDS,
    "seccomp_sandbox": "NO",
    "anonymous_enable": "YES",
    "anon_world_readable_only": "NO",
    "no_anon_password": "NO",
    "local_enable": "NO",
    "write_enable": "YES",
    "anon_upload_enable": "YES",
    "anon_other_write_enable": "YES",
    # All uploads use the same file.
    "lock_upload_files": "NO",
    "dirlist_enable": "NO",
    "port_enable": "NO",
    "pasv_enable": "YES",
    "pasv_min_port": PASSIVE_PORTS[0],
    "pasv_max_port": PASSIVE_PORTS[1],
    # Address translation in the device can give one client several addresses.
    "pasv_promiscuous": "YES",
    "max_clients": 0,
    "max_per_ip": 0,
    "idle_session_timeout": 60,
    "data_connection_timeout": GONE_S,
    "xferlog_enable": "YES",
    "use_localtime": "NO",
}


class FtpOptions(Message):
    """``traffic.options`` of ftp."""

    file_bytes: Annotated[JsonInteger, Field(gt=0)] = 1_000_000_000
    # Share of zeros in the file. All other bytes are random.
    compressible_percent: ZerosPercent = 0


class Ftp(Engine):
    """Downloads over FTP from the pair's server, with a segment for each stream, or uploads."""

    name: ClassVar[str] = "ftp"
    title: ClassVar[str] = "FTP downloads, one flow or segments of one file, or uploads"
    defaults: ClassVar[dict[str, object]] = {"direction": "reverse", "streams_count": 1}
    supported_fields: ClassVar[frozenset[str]] = frozenset(
        {"direction", "streams_count", "stream_bits_per_second"}
    )
    new_options: ClassVar[frozenset[str]] = frozenset({"compressible_percent", "direction"})
    client_programs: ClassVar[tuple[Program, ...]] = (LFTP,)
    server_programs: ClassVar[tuple[Program, ...]] = (VSFTPD,)

    def problems(self, traffic: Traffic) -> Iterator[str]:
        options = parse_options(FtpOptions, traffic)
        yield from size_problems("traffic.options.file_bytes", options.file_bytes)
        yield from direction_problems(self.name, traffic)
        segments_count = traffic.streams_count if traffic.direction is Direction.REVERSE else 1
        least = segments_count * SEGMENT_LEAST_BYTES
        if segments_count > 1 and options.file_bytes < least:
            yield (
                f"traffic.options.file_bytes: {options.file_bytes} bytes are too few for "
                f"{segments_count} segments; set at least {least}"
            )
        rate = traffic.stream_bits_per_second
        if rate is not None and segments_count > 1:
            yield (
                "traffic.stream_bits_per_second: lftp does not pace a file in segments, since "
                "their connections run on past their ends; drop it, or set streams_count=1"
            )
        elif rate is not None and options.file_bytes < rate / 8 * PACED_LEAST_S:
            yield (
                f"traffic.options.file_bytes: {options.file_bytes} bytes are over within "
                f"{PACED_LEAST_S} s at {rate} bit/s, too soon to be paced; "
                f"set at least {rate * PACED_LEAST_S // 8}"
            )

    def statement(self, traffic: Traffic) -> str:
        count = traffic.streams_count
        if traffic.direction is Direction.FORWARD:
            what, how = "uploads", f"{count} at a time"
        else:
            what, how = "downloads", "in one flow" if count == 1 else "in segments of one file"
        return (
            f"lftp {what} files by FTP over TCP, {how}, without TLS, in a closed loop: the next "
            "file is requested when the previous one was received."
        )

    def measures(self, traffic: Traffic) -> frozenset[str]:
        return frozenset()

    def uncounted_bytes(self, served: EngineReport) -> int:
        """Return the maximum size of the replies on the control connections."""
        counts = (m.value for m in served.measures if m.name == COUNTED)
        return REPLIES_BYTES * (round(sum(counts)) + 1)

    # Client -----------------------------------------------------------------------------------

    def client(self, ask: ClientRequest) -> Launch:
        job, endpoint = ask.job, ask.job.endpoint
        options = parse_options(FtpOptions, job.traffic)
        address = validate_host(endpoint.address, "endpoint.address")
        six = address.startswith("[")
        rate = job.traffic.stream_bits_per_second
        token = validate_argument(token_of(job), "job_id")
        settings = {
            "net:socket-bind-ipv6" if six else "net:socket-bind-ipv4": ask.bind,
            "net:limit-rate": None if rate is None else max(1, rate // 8),
            # lftp may exceed the rate limit by at most 0.1 s of data.
            "net:limit-max": None if rate is None else max(1, rate // 80),
            **_CLIENT_SETTINGS,
        }
        script = [
            f"set {name} {validate_argument(value, name)}"
            for name, value in settings.items()
            if value is not None
        ]
        script.append(f"open -u anonymous,{token} ftp://{address}:{endpoint.port}")
        count, percent = job.traffic.streams_count, options.compressible_percent
        env, sent = {"HOME": ask.folder, "LFTP_HOME": ask.folder}, tuple[EngineFile, ...]()
        if job.traffic.direction is Direction.FORWARD:
            name = f"{FOLDER}/{file_name(options.file_bytes, percent)}"
            script.append(f"repeat --while-ok -d 0 put {ask.folder}/{name} -o {UPLOAD}")
            file = EngineFile(
                name=name, size_bytes=options.file_bytes, zeros_percent=percent, is_sparse=True
            )
            env, sent = env | bodies_env(ask.bodies, ask.folder), (file, block(percent))
        else:
            fetch = f"pget -n {count} {file_name(options.file_bytes, percent)} -o /dev/null"
            script.append(f"repeat --while-ok -d 0 {fetch}")
        process = Process(
            argv=(*ask.tools["lftp"].argv, "--norc", "-f", f"{ask.folder}/script"),
            env=env,
            watches=(FileWatch(name="io", path="/proc/{pid}/io"),),
            stop_after_s=job.duration_s,
            ends_at_alarm=True,
        )
        return Launch(
            processes=(process,) * (count if sent else 1),
            files=(EngineFile(name="script", text="\n".join(script) + "\n"), *sent),
            unprivileged=True,
        )

    def client_reader(self, job: Job) -> "CounterReader":
        return CounterReader(job)

    # Server -----------------------------------------------------------------------------------

    def server(self, ask: ServerRequest) -> Launch:
        six = ":" in (ask.address or "")
        settings = {
            "listen_ipv6" if six else "listen": "YES",
            "listen_address6" if six else "listen_address": ask.address,
            "listen_port": ask.port,
            "anon_root": f"{ask.folder}/{FOLDER}",
            "vsftpd_log_file": f"{ask.folder}/log",
            **_SERVER_SETTINGS,
        }
        lines = [
            f"{name}={validate_argument(value, name)}\n"
            for name, value in settings.items()
            if value is not None
        ]
        return Launch(
            processes=(
                Process(
                    argv=(*ask.tools["vsftpd"].argv, f"{ask.folder}/vsftpd.conf"),
                    env=bodies_env(ask.bodies, ask.folder),
                    watches=(FileWatch(name="log", path=f"{ask.folder}/log", tail=True),),
                ),
            ),
            files=(
                EngineFile(name="vsftpd.conf", text="".join(lines)),
                EngineFile(name="log"),
                *files(),
                EngineFile(name=f"{FOLDER}/{UPLOAD}", link_to="/dev/null"),
                EngineFile(name=FOLDER, is_closed_folder=True),
            ),
            unprivileged=True,
        )

    def server_reader(self) -> "TransferReader":
        return TransferReader("ftp", COUNTED)


# Reading ---------------------------------------------------------------------------------------


class CounterReader(DownloadReader):
    """Reader of the client, using the kernel counters of lftp and its error messages."""

    basis: ClassVar[StartBasis] = StartBasis.SAMPLES

    def __init__(self, job: Job) -> None:
        super().__init__("ftp", job, token_of(job))
        self._duration_s = float(job.duration_s)
        self._file_bytes = job.traffic.options.get("file_bytes", FtpOptions().file_bytes)
        self._uploads = job.traffic.direction is Direction.FORWARD
        if self._uploads:
            # There is a process for each stream.
            self._streams_count = 1
        # Bytes moved and bytes written in the first sample. Bytes are moved by reads in a download,
        # and by writes in an upload.
        self._first: tuple[int, int] | None = None
        # Last sample as (epoch second, bytes moved, bytes written).
        self._last: tuple[float, int, int] | None = None
        self._flows = False
        self._kept_bytes = 0
        self._words: list[str] = []

    def feed(self, line: bytes, at_s: float) -> tuple[EngineEvent, ...]:
        self._words = [*self._words[-4:], line.decode(errors="replace")]
        return ()

    def sample(self, name: str, text: str, at_s: float) -> tuple[EngineEvent, ...]:
        counters = read_counters(text)
        if counters is None:
            return ()
        wrote_bytes = counters[1]
        moved_bytes = counters[self._uploads]
        before, self._last = self._last, (at_s, moved_bytes, wrote_bytes)
        if before is None or self._first is None:
            self._first = counters
            return ()
        started = not self._flows and wrote_bytes - self._first[1] > FLOWS_BYTES
        self._flows = self._flows or started
        if not self._flows:
            return ()
        then_s, moved_before, wrote_before = before
        self._seconds.count(then_s, at_s, moved_bytes - moved_before)
        self._moved_bytes += moved_bytes - moved_before
        self._kept_bytes += wrote_bytes - wrote_before
        if not started:
            return ()
        return (Started(side=Side.CLIENT, started_at_s=then_s, expected_s=self._duration_s),)

    def _error(self, exit_code: int | None, stderr: str) -> str | None:
        """Return lftp's message if lftp ended by itself. The agent reports other failures."""
        if exit_code is None or exit_code < 0:
            return None
        lines = [*stderr.splitlines(), *self._words]
        fatal = [line.strip() for line in lines if "error" in line.casefold()]
        other = [line.strip() for line in lines if line.strip() and "allocation" not in line]
        return (fatal or other or [f"lftp ended with exit code {exit_code}"])[-1][:300]

    def _measures(self) -> tuple[Measure, ...]:
        if not self._moved_bytes:
            return ()
        files = Measure(
            name="files_count", value=self._kept_bytes / float(self._file_bytes), unit="count"
        )
        ratio = Measure(
            name="kept_ratio",
            value=self._kept_bytes / self._moved_bytes,
            unit="ratio",
            combine=Aggregation.MEAN,
            weight=self._moved_bytes,
        )
        return (files,) if self._uploads else (ratio, files)


# A client should not be able to insert text before a match, because names and passwords follow the
# verb.
_LINE: Final = (
    r"(?m)^\w{3} (?P<stamp>\w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}) \[pid (?P<pid>\d+)\] \[ftp\] "
)
_EVENT: Final = re.compile(
    _LINE
    + r'(?:OK LOGIN: Client "[^"]*", anon password "(?P<token>.*)"'
    + r'|(?:OK|FAIL) (?P<what>DOWNLOAD|UPLOAD): Client "(?P<client>[^"]*)", '
    + rf'"[^"]*/(?:[\d-]+|{UPLOAD})", (?P<moved>\d+) bytes, (?P<rate>[\d.]+)Kbyte/sec)$'
)
# The maximum number of stored connections. It is enough for 64 segments and waiting logins.
LOGINS_MAX_COUNT: Final = 4096
# Largest error of the timestamps, which are whole seconds.
STAMP_ERROR_S: Final = 1.0


class TransferReader(LogReader):
    """Parser for the vsftpd log.

    The log has a line for each login with the token, and a line for each transfer. One process
    serves one connection (``run_as_launching_user``). All lines of a connection therefore have the
    same process ID. After a login with another password, the process ID has no token any more.
    """

    def __init__(self, engine: str, counted: str) -> None:
        super().__init__(engine, counted)
        # Token by process ID.
        self._tokens: OrderedDict[str, JobToken | None] = OrderedDict()

    def sample(self, name: str, text: str, at_s: float) -> tuple[EngineEvent, ...]:
        events = list(_EVENT.finditer(text))
        for event in events:
            if event["token"] is not None:
                self._log_in(event["pid"], parse_token(event["token"]), at_s)
                continue
            token = self._tokens.get(event["pid"])
            if token is None:
                continue
            moved_bytes, rate = int(event["moved"]), float(event["rate"]) * 1024
            stamp_s = _stamp_s(event["stamp"])
            # The last line of the log was written now. Other lines were written within the second
            # of their timestamp.
            end_s = max(stamp_s, min(at_s, stamp_s + 1))
            self.test_of(token, at_s).add(
                Transfer(
                    start_s=end_s - (moved_bytes / rate if rate else 0.0),
                    end_s=end_s,
                    moved_bytes=moved_bytes,
                    error_s=0.0 if event is events[-1] else STAMP_ERROR_S,
                    is_upload=event["what"] == "UPLOAD",
                ),
                client=event["client"].removeprefix("::ffff:"),
                at_s=at_s,
            )
        # The log exists, so we only need to read it once a second now.
        return (Started(side=Side.SERVER, started_at_s=at_s),)

    def _log_in(self, pid: str, token: JobToken | None, at_s: float) -> None:
        self._tokens.pop(pid, None)
        self._tokens[pid] = token
        if len(self._tokens) > LOGINS_MAX_COUNT:
            self._tokens.popitem(last=False)
        if token is not None:
            self.test_of(token, at_s)


def _stamp_s(text: str) -> float:
    """Return the epoch second of a UTC timestamp such as ``Nov 26 17:35:38 2026``."""
    return float(calendar.timegm(time.strptime(text, "%b %d %H:%M:%S %Y")))


ENGINE: Final = Ftp()
