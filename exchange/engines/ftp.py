"""FTP downloads: lftp on the client, vsftpd on the server; one flow, or a file in segments.

- The file is fetched again and again until the burst's time is over; then lftp is stopped, and
  what a transfer had by then counts.
- Bytes are *what lftp read from its sockets*, by the kernel's account of the process
  (``/proc/<pid>/io``, ``rchar``), looked at every second: payload, with the replies on the control
  connection, some hundred bytes a transfer. In segments a connection runs on past its segment's
  end until it is closed; that was carried as well, and ``kept_ratio`` says how much of all was
  written out (``wchar``). Segments large against a path's buffers waste little.
- vsftpd's log gives the server's own account: a transfer's bytes, dated when its line was seen.
- There is no gate: lftp is started at the instant, connects and logs in; the start of data is the
  look before the counter moved.
"""

import re
from collections.abc import Iterator
from typing import Annotated, ClassVar, Final

from pydantic import Field

from broadside.exchange.engines.downloads import (
    FOLDER,
    DownloadReader,
    SessionReader,
    Whole,
    files,
    parse_options,
    read_counters,
    size_problems,
)
from broadside.exchange.engines.port import (
    ClientAsk,
    Engine,
    Event,
    File,
    Launch,
    Process,
    Program,
    ServerAsk,
    StartBasis,
    Started,
    Watch,
    host_word,
    word,
)
from broadside.exchange.installation import bring
from broadside.exchange.messages import Combine, Job, Measure, Message, Side, Traffic

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
PASSIVE_PORTS: Final = (50_000, 59_999)  # of data connections: firewalls must let them through
SEGMENT_LEAST_BYTES: Final = 65_536
PACED_LEAST_S: Final = 2  # of a paced file: what its connection still holds at its end is not paced
COMMANDS: Final = "ABOR,EPSV,FEAT,MDTM,NOOP,OPTS,PASV,PWD,QUIT,REST,RETR,SIZE,SYST,TYPE"  # no CWD
FLOWS_BYTES: Final = 4096  # written by lftp beyond its commands: data flows


class Options(Message):
    """``traffic.options`` of ftp."""

    file_bytes: Annotated[Whole, Field(gt=0)] = 1_000_000_000


class Ftp(Engine):
    """Downloads over FTP from the pair's server, in as many segments as there are streams."""

    name: ClassVar[str] = "ftp"
    title: ClassVar[str] = "FTP downloads, one flow or segments of one file"
    defaults: ClassVar[dict[str, object]] = {"direction": "reverse", "streams_count": 1}
    honours: ClassVar[frozenset[str]] = frozenset({"streams_count", "stream_bits_per_second"})
    client_programs: ClassVar[tuple[Program, ...]] = (LFTP,)
    server_programs: ClassVar[tuple[Program, ...]] = (VSFTPD,)

    def problems(self, traffic: Traffic) -> Iterator[str]:
        options = parse_options(Options, traffic)
        yield from size_problems("traffic.options.file_bytes", options.file_bytes)
        least = traffic.streams_count * SEGMENT_LEAST_BYTES
        if traffic.streams_count > 1 and options.file_bytes < least:
            yield (
                f"traffic.options.file_bytes: {options.file_bytes} bytes are too few for "
                f"{traffic.streams_count} segments; set at least {least}"
            )
        rate = traffic.stream_bits_per_second
        if rate is not None and traffic.streams_count > 1:
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
        how = "in one flow" if traffic.streams_count == 1 else "in segments of one file"
        return (
            f"lftp downloads files by FTP over TCP, {how}, without TLS, in a closed loop: the next "
            "file is asked for when the last one is there."
        )

    def measures(self, traffic: Traffic) -> frozenset[str]:
        return frozenset()

    # Client -----------------------------------------------------------------------------------

    def client(self, ask: ClientAsk) -> Launch:
        job, endpoint = ask.job, ask.job.endpoint
        options = parse_options(Options, job.traffic)
        address = host_word(endpoint.address, "endpoint.address")
        six = address.startswith("[")
        rate = job.traffic.stream_bits_per_second
        settings = {
            "net:max-retries": 2,
            "net:timeout": 8,
            "net:reconnect-interval-base": 1,
            "net:socket-bind-ipv6" if six else "net:socket-bind-ipv4": ask.bind,
            "net:limit-rate": None if rate is None else max(1, rate // 8),
            "net:limit-max": None if rate is None else max(1, rate // 80),  # 0.1 s at once
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
        script = [
            f"set {name} {word(value, name)}"
            for name, value in settings.items()
            if value is not None
        ]
        script.append(f"open -u anonymous,broadside ftp://{address}:{endpoint.port}")
        fetch = f"pget -n {job.traffic.streams_count} {options.file_bytes} -o /dev/null"
        script.append(f"repeat --while-ok -d 0 {fetch}")
        return Launch(
            processes=(
                Process(
                    argv=(*ask.tools["lftp"].argv, "--norc", "-f", f"{ask.folder}/script"),
                    env={"HOME": ask.folder, "LFTP_HOME": ask.folder},
                    watches=(Watch(name="io", path="/proc/{pid}/io"),),
                    stop_after_s=job.duration_s,
                    ends_at_alarm=True,
                ),
            ),
            files=(File(name="script", text="\n".join(script) + "\n"),),
            unprivileged=True,
        )

    def client_reader(self, job: Job) -> "CounterReader":
        return CounterReader(job)

    # Server -----------------------------------------------------------------------------------

    def server(self, ask: ServerAsk) -> Launch:
        six = ":" in (ask.address or "")
        settings = {
            "listen_ipv6" if six else "listen": "YES",
            "listen_address6" if six else "listen_address": ask.address,
            "listen_port": ask.port,
            "background": "NO",
            "run_as_launching_user": "YES",  # without root it cannot be shut into a folder, hence:
            "deny_file": "/",  # in a name: files beside it are all that can be named
            "cmds_allowed": COMMANDS,
            "seccomp_sandbox": "NO",
            "anonymous_enable": "YES",
            "anon_world_readable_only": "NO",
            "no_anon_password": "NO",
            "local_enable": "NO",
            "write_enable": "NO",
            "dirlist_enable": "NO",
            "anon_root": f"{ask.folder}/{FOLDER}",
            "port_enable": "NO",
            "pasv_enable": "YES",
            "pasv_min_port": PASSIVE_PORTS[0],
            "pasv_max_port": PASSIVE_PORTS[1],
            "max_clients": 0,
            "max_per_ip": 0,
            "idle_session_timeout": 60,
            "data_connection_timeout": 60,
            "xferlog_enable": "YES",
            "vsftpd_log_file": f"{ask.folder}/log",
        }
        lines = [
            f"{name}={word(value, name)}\n" for name, value in settings.items() if value is not None
        ]
        return Launch(
            processes=(
                Process(
                    argv=(*ask.tools["vsftpd"].argv, f"{ask.folder}/vsftpd.conf"),
                    watches=(Watch(name="log", path=f"{ask.folder}/log", tail=True),),
                ),
            ),
            files=(File(name="vsftpd.conf", text="".join(lines)), File(name="log"), *files()),
            unprivileged=True,
        )

    def server_reader(self) -> "TransferReader":
        return TransferReader("ftp", "server_transfers_count")


# Reading ---------------------------------------------------------------------------------------


class CounterReader(DownloadReader):
    """The client's side: the kernel's counters of lftp, and its words when it fails."""

    basis: ClassVar[StartBasis] = StartBasis.SAMPLES

    def __init__(self, job: Job) -> None:
        super().__init__("ftp", job)
        self._duration_s = float(job.duration_s)
        self._file_bytes = job.traffic.options.get("file_bytes", Options().file_bytes)
        self._first: tuple[int, int] | None = None  # (read, wrote) before anything
        self._last: tuple[float, int, int] | None = None  # epoch s, read, wrote
        self._flows = False
        self._kept_bytes = 0
        self._words: list[str] = []

    def feed(self, line: bytes, at_s: float) -> tuple[Event, ...]:
        self._words = [*self._words[-4:], line.decode(errors="replace")]
        return ()

    def sample(self, name: str, text: str, at_s: float) -> tuple[Event, ...]:
        counters = read_counters(text)
        if counters is None:
            return ()
        read_bytes, wrote_bytes = counters
        before, self._last = self._last, (at_s, read_bytes, wrote_bytes)
        if before is None or self._first is None:
            self._first = counters
            return ()
        started = not self._flows and wrote_bytes - self._first[1] > FLOWS_BYTES
        self._flows = self._flows or started
        if not self._flows:
            return ()
        then_s, read_before, wrote_before = before
        self._seconds.add(then_s, at_s, read_bytes - read_before)
        self._moved_bytes += read_bytes - read_before
        self._kept_bytes += wrote_bytes - wrote_before
        if not started:
            return ()
        return (Started(side=Side.CLIENT, started_at_s=then_s, expected_s=self._duration_s),)

    def _error(self, exit_code: int | None, stderr: str) -> str | None:
        """What lftp says of an end of its own; the agent tells other ends that are failures."""
        if exit_code is None or exit_code < 0:
            return None
        said = [*stderr.splitlines(), *self._words]
        fatal = [words.strip() for words in said if "error" in words.casefold()]
        other = [words.strip() for words in said if words.strip() and "allocation" not in words]
        return (fatal or other or [f"lftp ended with exit code {exit_code}"])[-1][:300]

    def _measures(self) -> tuple[Measure, ...]:
        if not self._moved_bytes:
            return ()
        return (
            Measure(
                name="kept_ratio",
                value=self._kept_bytes / self._moved_bytes,
                unit="ratio",
                combine=Combine.MEAN,
                weight=self._moved_bytes,
            ),
            Measure(
                name="files_count", value=self._kept_bytes / float(self._file_bytes), unit="count"
            ),
        )


_TRANSFER: Final = re.compile(
    r'(?m)^[^"]* (?:OK|FAIL) DOWNLOAD: Client "([^"]*)", '
    r'"[^"]*/\d+", (\d+) bytes, ([\d.]+)Kbyte/sec$'  # of our files: names are a stranger's words
)


class TransferReader(SessionReader):
    """vsftpd's log: a line a transfer."""

    def sample(self, name: str, text: str, at_s: float) -> tuple[Event, ...]:
        for found in _TRANSFER.finditer(text):
            sent_bytes, rate = int(found[2]), float(found[3]) * 1024
            start_s = at_s - (sent_bytes / rate if rate else 0.0)
            self.add(start_s, at_s, sent_bytes, found[1].removeprefix("::ffff:"))
        # The log is there: from now on a look a second is enough.
        return (Started(side=Side.SERVER, started_at_s=at_s),)


ENGINE: Final = Ftp()
