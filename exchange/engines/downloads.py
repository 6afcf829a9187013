"""Common parts of the engines that download and upload files.

This module contains the options, the file sizes, the bytes per second and the readers. Bytes come
from transfers and counters. They are assigned to whole UTC seconds without losing any. Servers
store a sparse file of each size, with content from ``agent/bodies.c``.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, ClassVar, Final, Literal, TypeVar

from pydantic import BeforeValidator, Field, StringConstraints, ValidationError
from pydantic_core import PydanticCustomError

from broadside.exchange.engines.buckets import LEAST_S
from broadside.exchange.engines.port import (
    EngineFile,
    EngineResult,
    Reader,
    StartBasis,
    Unsupported,
)
from broadside.exchange.engines.tokens import JobToken
from broadside.exchange.installation import bring_gate
from broadside.exchange.messages import (
    Direction,
    Distribution,
    EngineReport,
    Flow,
    FlowTotals,
    Interval,
    Job,
    Measure,
    Message,
    PeerSeconds,
    Protocol,
    Side,
    Traffic,
)

# Maximum time between the first and the last byte. It is longer than the longest burst.
SPAN_MAX_S: Final = 100_000.0
# At most this share of the bytes may belong to transfers that are longer than a reading. It is too
# small to hide a shortfall that the verdict must detect (core/measure/resolution.py, HIDDEN_RATIO).
LONGER_RATIO: Final = 0.01
# Name of the measure that counts lines of a server log with an impossible time for their test.
UNPLACED: Final = "server_unplaced_count"


class Seconds:
    """Bytes of transfers per second. The bytes of a transfer are spread evenly over its duration.

    For a transfer only the total is known, not how it is distributed over time. Readings are
    therefore at least one second long, and as long as the transfers that carried nearly all bytes
    (:data:`LONGER_RATIO`). For any input, the memory use is about one number per second.

    Args:
        span_max_s: Maximum seconds between the first and the last byte.

    Attributes:
        first_s: Epoch second of the earliest start.
        last_s: Epoch second of the latest end.
    """

    def __init__(self, span_max_s: float = SPAN_MAX_S) -> None:
        self._span_max_s = span_max_s
        # Bytes by epoch second.
        self._cells: dict[int, float] = {}
        # Bytes by length of the reading in seconds.
        self._carried: Counter[int] = Counter()
        # Cells that belong to the same reading as the previous cell.
        self._joined: set[int] = set()
        self.first_s: float | None = None
        self.last_s: float | None = None

    def add(self, start_s: float, end_s: float, amount_bytes: int, error_s: float = 0.0) -> bool:
        """Spread the bytes of a transfer evenly over its duration.

        If the duration is 0, all bytes belong to one instant.

        Args:
            start_s: Time of the first byte, in epoch seconds.
            end_s: Time of the last byte, in epoch seconds.
            amount_bytes: Bytes of the transfer.
            error_s: Largest error of the two timestamps, in seconds.

        Returns:
            False if the timestamps are impossible for this test. Then nothing is added.
        """
        start_s = min(start_s, end_s)
        if not self._spread(start_s, end_s, amount_bytes):
            return False
        self._carried[_reading_s(end_s - start_s + error_s)] += amount_bytes
        return True

    def count(self, start_s: float, end_s: float, amount_bytes: int) -> bool:
        """Add the increase of a counter between two samples, as a separate reading.

        Args:
            start_s: Time of the first sample, in epoch seconds.
            end_s: Time of the second sample, in epoch seconds.
            amount_bytes: Increase of the counter.

        Returns:
            False if the timestamps are impossible for this test. Then nothing is added.
        """
        if not self._spread(start_s, end_s, amount_bytes):
            return False
        if _reading_s(end_s - start_s) > 1:
            self._joined.update(range(math.floor(start_s) + 1, math.ceil(end_s)))
        return True

    def _spread(self, start_s: float, end_s: float, amount_bytes: int) -> bool:
        first_s = start_s if self.first_s is None else min(start_s, self.first_s)
        last_s = end_s if self.last_s is None else max(end_s, self.last_s)
        if last_s - first_s > self._span_max_s:
            return False
        self.first_s, self.last_s = first_s, last_s
        length_s = end_s - start_s
        first, last = math.floor(start_s), math.floor(end_s)
        if length_s < LEAST_S or first == last:
            self._cells[first] = self._cells.get(first, 0.0) + amount_bytes
            return True
        for cell in range(first, last + 1):
            inside_s = min(end_s, cell + 1) - max(start_s, cell)
            self._cells[cell] = self._cells.get(cell, 0.0) + amount_bytes * inside_s / length_s
        return True

    @property
    def reading_s(self) -> int:
        """Return the length of the readings in seconds."""
        left = sum(self._carried.values()) * LONGER_RATIO
        for length_s in sorted(self._carried, reverse=True):
            left -= self._carried[length_s]
            if left < 0:
                return length_s
        return 1

    def shaped(self, counted: "Seconds") -> "Seconds":
        """Return the same bytes, distributed over time like the samples of a counter.

        The counter includes headers and TLS, a few thousandths of its bytes. If it ended early, the
        bytes that it lacks are added to the seconds from its last sample on.

        Args:
            counted: A counter of about the same bytes, which was read about once a second.

        Returns:
            The bytes per second, or this object if there is no counter.
        """
        until_s = counted.last_s
        if until_s is None or self.first_s is None or self.last_s is None:
            return self
        made = Seconds(self._span_max_s)
        # Seconds between two samples that are more than a second apart.
        made._joined = set(counted._joined)
        made.first_s, made.last_s = self.first_s, max(self.last_s, until_s)
        first = math.floor(self.first_s)
        last = min(math.floor(until_s), math.ceil(made.last_s) - 1)
        cells = {cell: amount for cell, amount in counted._cells.items() if cell >= first}
        total, cells_total = sum(self._cells.values()), sum(cells.values())
        if cells_total <= 0:
            return self
        if total < cells_total:
            made._cells = {cell: amount * total / cells_total for cell, amount in cells.items()}
            return made
        late = {cell: amount for cell, amount in self._cells.items() if cell >= last} or {last: 1.0}
        made._cells = cells
        for cell, amount in late.items():
            share = amount / (sum(late.values()) or 1.0)
            cells[cell] = cells.get(cell, 0.0) + (total - cells_total) * share
        return made

    def intervals(self, until_s: float | None = None) -> tuple[Interval, ...]:
        """Return the readings in whole UTC seconds, from the first byte to ``until_s``.

        The bytes of the intervals are integers and their sum is the sum of all added bytes.

        Args:
            until_s: Epoch second of the end. None means the last byte.

        Returns:
            The intervals. Their times are relative to :attr:`first_s`.
        """
        if self.first_s is None or self.last_s is None:
            return ()
        zero_s, end_s = self.first_s, max(self.last_s, until_s or self.last_s)
        first, size = math.floor(zero_s), self.reading_s
        intervals: list[Interval] = []
        begun_s, total, counted = zero_s, 0.0, 0
        for cell in range(first, math.ceil(end_s)):
            total += self._cells.get(cell, 0.0)
            after = cell + 1
            inside = (after - first) % size or after in self._joined
            # A short remainder at the end is added to the last reading.
            if after < end_s and (inside or (size > 1 and end_s - after < size / 2)):
                continue
            reached, until = round(total), min(end_s, after)
            intervals.append(
                Interval(
                    start_s=begun_s - zero_s,
                    end_s=until - zero_s,
                    transferred_bytes=reached - counted,
                )
            )
            begun_s, counted = until, reached
        return tuple(intervals)


def _reading_s(length_s: float) -> int:
    """Return the whole seconds of a reading for a transfer of this length.

    As in all other modules, a reading of up to 1.5 s counts as one second.
    """
    return max(1, math.ceil(length_s - 0.5))


def read_counters(text: str) -> tuple[int, int] | None:
    """Return the bytes read and written from the text of ``/proc/<pid>/io``, or None if missing."""
    read = re.search(r"(?m)^rchar: (\d+)$", text)
    wrote = re.search(r"(?m)^wchar: (\d+)$", text)
    return (int(read[1]), int(wrote[1])) if read and wrote else None


def _refuse_flag(value: object) -> object:
    if isinstance(value, bool):
        raise PydanticCustomError("flag", "Input should be a number")
    return value


def _number_as_text(value: object) -> object:
    return str(value) if type(value) in (int, float) else value


JsonInteger = Annotated[int, BeforeValidator(_refuse_flag)]
JsonNumber = Annotated[float, BeforeValidator(_refuse_flag)]


HostName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]{0,252}$")]
# Several sizes in bytes, which are used in turn.
SizeMix = Annotated[str, StringConstraints(pattern=r"^\d{1,9}(,\d{1,9}){1,15}$")]


TlsVersion = Annotated[Literal["any", "1.2", "1.3"], BeforeValidator(_number_as_text)]
TlsCipher = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]


def cipher_problems(version: str, cipher: str | None) -> Iterator[str]:
    """Yield an error if a cipher suite does not belong to the chosen TLS version.

    Args:
        version: The TLS version, or any.
        cipher: OpenSSL's name of the cipher suite, or None.

    Yields:
        An error text ``field: problem; fix``.
    """
    if cipher is None:
        return
    needed = "1.3" if cipher.startswith("TLS_") else "1.2"
    if version != needed:
        yield f"traffic.options.tls_cipher: {cipher} belongs to TLS {needed}; set tls={needed}"


def direction_problems(engine: str, traffic: Traffic) -> Iterator[str]:
    """Yield an error if traffic has both directions.

    Args:
        engine: Name of the engine, for the text.
        traffic: Traffic to check.
    """
    if traffic.direction is Direction.BIDIRECTIONAL:
        yield (
            f"traffic.direction: {engine} moves bytes one way; set reverse (download) or forward "
            "(upload), or give some pairs the other direction with mix"
        )


def negotiated_name(text: str) -> str:
    """Return the name of a measure for a version and cipher suite, or ``""`` if there is none.

    Args:
        text: Both as OpenSSL names them, for example ``TLSv1.3 TLS_AES_128_GCM_SHA256``.
    """
    name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:40]
    return name if name.startswith("tls") else ""


FOLDER: Final = "files"
# Folder of the blocks that are repeated as the content of sparse files. See agent/bodies.c.
BLOCKS: Final = "blocks"
BLOCK_BYTES: Final = 1_024_000
STEP_PERCENT: Final = 25
LEAST_BYTES: Final = 1_000
MOST_BYTES: Final = 100_000_000_000

SIZES_BYTES: Final = tuple(
    sorted(
        size
        for size in (
            *(2**power for power in range(64)),
            *(digit * 10**power for power in range(18) for digit in (1, 2, 5)),
        )
        if LEAST_BYTES <= size <= MOST_BYTES
    )
)


def size_problems(field: str, size_bytes: int) -> Iterator[str]:
    """Yield an error if servers do not have a file of this size.

    Args:
        field: The field name.
        size_bytes: The file size.

    Yields:
        An error text ``field: problem; fix``.
    """
    if size_bytes not in SIZES_BYTES:
        near = min(SIZES_BYTES, key=lambda size: abs(size - size_bytes))
        yield (
            f"{field}: {size_bytes} bytes are not possible; set 1, 2 or 5 times a power of ten or "
            f"a power of two, {LEAST_BYTES} to {MOST_BYTES}, such as {near}"
        )


# Name of the file on a server to which clients upload.
UPLOAD: Final = "upload"
# Share of zeros in the payload.
ZerosPercent = Annotated[JsonInteger, Field(ge=0, le=100, multiple_of=STEP_PERCENT)]


def file_name(size_bytes: int, zeros_percent: int) -> str:
    """Return the name of a file with this size and content on a server.

    Args:
        size_bytes: Size of the file in bytes.
        zeros_percent: Part of the content that is zeros, 0 to 100.
    """
    return f"{size_bytes}-{zeros_percent}" if zeros_percent else f"{size_bytes}"


def block(zeros_percent: int) -> EngineFile:
    """Return the file with the block for a share of zeros."""
    name = f"{BLOCKS}/{zeros_percent}"
    return EngineFile(name=name, size_bytes=BLOCK_BYTES, zeros_percent=zeros_percent)


def files() -> Iterator[EngineFile]:
    """Return the files of all sizes and shares of zeros, and the blocks that are their content.

    The blocks need 5 MB. Each other file needs an inode but no disk space.
    """
    for percent in range(0, 101, STEP_PERCENT):
        yield block(percent)
        for size in SIZES_BYTES:
            name = f"{FOLDER}/{file_name(size, percent)}"
            yield EngineFile(name=name, size_bytes=size, zeros_percent=percent, is_sparse=True)


def bodies_env(bodies: str | None, folder: str) -> dict[str, str]:
    """Return the environment in which a program reads the content of sparse files.

    Args:
        bodies: Path of the library, if it was built. None if it was not built.
        folder: Folder with the files.

    Returns:
        Variables to add to the environment of the program.

    Raises:
        Unsupported: There is no library.
    """
    if bodies is None:
        raise Unsupported(f"libbodies, the content of files, was not built; {bring_gate()}")
    return {"LD_PRELOAD": bodies, "BROADSIDE_BODIES": f"{folder}/{BLOCKS}"}


_Options = TypeVar("_Options", bound=Message)


def parse_options(kind: type[_Options], traffic: Traffic) -> _Options:
    """Return the validated ``traffic.options`` of an engine.

    Args:
        kind: Class of the engine's options.
        traffic: The traffic with the options.

    Raises:
        Unsupported: An option is invalid. The message describes the first invalid option.
    """
    try:
        return kind.model_validate(dict(traffic.options))
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in fault["loc"])
        wrong = f"{fault['msg']} (got {fault['input']!r}); correct it"
        if fault["type"] == "extra_forbidden":
            known = ", ".join(kind.model_fields)
            wrong = f"{traffic.engine} does not have this option; use one of {known}"
        raise Unsupported(f"traffic.options.{field}: {wrong}") from error


# A server can log a transfer up to this time after the end of its test. It is the send_timeout of
# nginx and the data_connection_timeout of vsftpd, after which they close a lost client.
GONE_S: Final = 60


class DownloadReader(Reader):
    """Results of downloads or uploads of a test, at the client of its job or at a server.

    Args:
        engine: The engine name.
        job: The job at the client, None at the server.
        token: Token in the requests of the test.

    Attributes:
        basis: Source of the start time.
        complete_at_end: True if the output covers the whole test. If it then ends without data,
            no data arrived.
    """

    basis: ClassVar[StartBasis] = StartBasis.STAMPS
    complete_at_end: ClassVar[bool] = False

    def __init__(self, engine: str, job: Job | None, token: JobToken) -> None:
        self._engine = engine
        self._job = job
        self._cookie = token.job_id
        self._seconds = Seconds(token.lasts_s + GONE_S)
        # The same bytes from the kernel's counter, if it is read.
        self._arrivals = Seconds()
        self._moved_bytes = 0
        self._client_address: str | None = None
        self._direction = Direction.REVERSE if job is None else job.traffic.direction
        self._streams_count = None if job is None else job.traffic.streams_count

    def finish(
        self,
        exit_code: int | None = None,
        *,
        stderr: str = "",
        released_at_s: float | None = None,
        server_ahead_s: float = 0.0,
    ) -> EngineResult:
        job, zero_s = self._job, self._seconds.first_s
        until_s = None
        if self.complete_at_end and job is not None and zero_s is not None and exit_code == 0:
            until_s = zero_s + job.duration_s
        intervals = self._seconds.shaped(self._arrivals).intervals(until_s)
        length_s = intervals[-1].end_s if intervals else None
        (flow,) = self._direction.flows
        moved_bytes = self._moved_bytes
        if (job is None) == (flow is Flow.DOWN):
            totals = FlowTotals(flow=flow, sent_bytes=moved_bytes, sent_s=length_s)
        else:
            totals = FlowTotals(flow=flow, received_bytes=moved_bytes, received_s=length_s)
        return EngineResult(
            report=EngineReport(
                engine=self._engine,
                cookie=self._cookie,
                protocol=Protocol.TCP,
                direction=self._direction,
                streams_count=self._streams_count,
                duration_s=None if job is None else job.duration_s,
                totals=() if zero_s is None else (totals,),
                error=self._error(exit_code, stderr),
                truncated=job is not None and exit_code is None,
                exit_code=None if job is None else exit_code,
                measures=self._measures(),
                distributions=self._distributions(),
                peers=self._peers(),
            ),
            side=Side.SERVER if job is None else Side.CLIENT,
            intervals={flow: intervals} if intervals else {},
            first_data_at_s=zero_s,
            start_basis=None if zero_s is None else self.basis,
            started_at_s=zero_s,
            client_address=self._client_address,
            is_sent_only=job is not None and flow is Flow.UP,
        )

    def _error(self, exit_code: int | None, stderr: str) -> str | None:
        """Return the reason if there is no result."""
        return None

    def _peers(self) -> tuple[PeerSeconds, ...]:
        return ()

    def _measures(self) -> tuple[Measure, ...]:
        return ()

    def _distributions(self) -> tuple[Distribution, ...]:
        return ()
