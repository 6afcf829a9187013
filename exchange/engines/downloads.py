"""What download engines share: options, the sizes they fetch, bytes over time, what each end read.

Bytes come from transfers and counters, and lie in cells of whole UTC seconds that conserve them.
Servers keep one sparse file of each size.
"""

import math
import re
from collections.abc import Iterator
from typing import Annotated, ClassVar, Final, TypeVar

from pydantic import BeforeValidator, ValidationError
from pydantic_core import PydanticCustomError

from broadside.exchange.engines.buckets import LEAST_S
from broadside.exchange.engines.port import Event, File, Reading, StartBasis, Unsupported
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
    Protocol,
    Side,
    Traffic,
)

SPAN_MAX_S: Final = 100_000.0  # s of cells that are kept: more than the longest burst


class Seconds:
    """Amounts spread evenly over the time that each took, gathered by second.

    Memory is a number a second, whatever comes in.
    """

    def __init__(self) -> None:
        self._cells: dict[int, float] = {}  # bytes by epoch second
        self.first_s: float | None = None  # epoch s of the earliest start
        self.last_s: float | None = None  # epoch s of the latest end

    def add(self, start_s: float, end_s: float, amount_bytes: int) -> None:
        """Spread bytes over a span of epoch seconds; a span of no length is a moment."""
        start_s = min(start_s, end_s)
        if self.first_s is not None and abs(start_s - self.first_s) > SPAN_MAX_S:
            return  # a stamp that no test can have
        self.first_s = min(start_s, start_s if self.first_s is None else self.first_s)
        self.last_s = max(end_s, end_s if self.last_s is None else self.last_s)
        length_s = end_s - start_s
        first, last = math.floor(start_s), math.floor(end_s)
        if length_s < LEAST_S or first == last:
            self._cells[first] = self._cells.get(first, 0.0) + amount_bytes
            return
        for cell in range(first, last + 1):
            inside_s = min(end_s, cell + 1) - max(start_s, cell)
            self._cells[cell] = self._cells.get(cell, 0.0) + amount_bytes * inside_s / length_s

    def shaped(self, counted: "Seconds") -> "Seconds":
        """Return the same bytes, shared out over seconds as a counter saw them.

        What the counter saw beyond the payload (headers, TLS) is some thousandths. What came after
        its last reading is put there.

        Args:
            counted: Counts of about the same bytes, read at seconds' bounds.
        """
        until_s = counted.last_s
        if until_s is None or self.first_s is None or self.last_s is None:
            return self
        made = Seconds()
        made.first_s, made.last_s = self.first_s, max(self.last_s, until_s)
        first = math.floor(self.first_s)
        last = min(math.floor(until_s), math.ceil(made.last_s) - 1)
        cells = {cell: each for cell, each in counted._cells.items() if cell >= first}
        total, whole = sum(self._cells.values()), sum(cells.values())
        if whole <= 0:
            return self
        if total < whole:
            made._cells = {cell: each * total / whole for cell, each in cells.items()}
            return made
        late = {cell: each for cell, each in self._cells.items() if cell >= last} or {last: 1.0}
        made._cells = cells
        for cell, each in late.items():
            share = each / (sum(late.values()) or 1.0)
            cells[cell] = cells.get(cell, 0.0) + (total - whole) * share
        return made

    def intervals(self, until_s: float | None = None) -> tuple[Interval, ...]:
        """One interval a UTC second from the first byte to ``until_s`` (default: the last).

        Their bytes are whole numbers that sum to what was added; time is counted from
        :attr:`first_s`.
        """
        if self.first_s is None or self.last_s is None:
            return ()
        zero_s, end_s = self.first_s, max(self.last_s, until_s or self.last_s)
        intervals = []
        total, told = 0.0, 0
        for cell in range(math.floor(zero_s), math.ceil(end_s)):
            total += self._cells.get(cell, 0.0)
            reached = round(total)
            intervals.append(
                Interval(
                    start_s=max(zero_s, cell) - zero_s,
                    end_s=min(end_s, cell + 1) - zero_s,
                    transferred_bytes=reached - told,
                )
            )
            told = reached
        return tuple(intervals)


def read_counters(text: str) -> tuple[int, int] | None:
    """Bytes that a process read and wrote, from its ``/proc/<pid>/io``; None where it says none."""
    read = re.search(r"(?m)^rchar: (\d+)$", text)
    wrote = re.search(r"(?m)^wchar: (\d+)$", text)
    return (int(read[1]), int(wrote[1])) if read and wrote else None


def _refuse_flag(value: object) -> object:
    if isinstance(value, bool):
        raise PydanticCustomError("flag", "Input should be a number")
    return value


Whole = Annotated[int, BeforeValidator(_refuse_flag)]
Number = Annotated[float, BeforeValidator(_refuse_flag)]


FOLDER: Final = "files"
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
    """What is wrong with a size, as ``field: problem; fix``; nothing where it is one of them."""
    if size_bytes not in SIZES_BYTES:
        near = min(SIZES_BYTES, key=lambda size: abs(size - size_bytes))
        yield (
            f"{field}: no server keeps {size_bytes} bytes; set 1, 2 or 5 times a power of ten or a "
            f"power of two, {LEAST_BYTES} to {MOST_BYTES}, such as {near}"
        )


def files() -> Iterator[File]:
    """Every one of them: sparse, so they take an inode each and no room."""
    return (File(name=f"{FOLDER}/{size}", size_bytes=size) for size in SIZES_BYTES)


_Options = TypeVar("_Options", bound=Message)


def parse_options(kind: type[_Options], traffic: Traffic) -> _Options:
    """``traffic.options`` of an engine. Raises :class:`Unsupported`, which says what is wrong with
    the first wrong one."""
    try:
        return kind.model_validate(dict(traffic.options))
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in fault["loc"])
        wrong = f"{fault['msg']} (got {fault['input']!r}); mend it"
        if fault["type"] == "extra_forbidden":
            known = ", ".join(kind.model_fields)
            wrong = f"{traffic.engine} has no such option; set of {known}"
        raise Unsupported(f"traffic.options.{field}: {wrong}") from error


class DownloadReader:
    """One end's account: the client's of its job; without one the server's of a session."""

    basis: ClassVar[StartBasis] = StartBasis.STAMPS  # what the first byte's instant rests on
    tells_to_the_end: ClassVar[bool] = False  # that nothing is told means that nothing came

    def __init__(self, engine: str, job: Job | None) -> None:
        self._engine = engine
        self._job = job
        self._seconds = Seconds()
        self._arrivals = Seconds()  # the same bytes as the kernel counts them, where it is asked
        self._moved_bytes = 0
        self._client_address: str | None = None

    def feed(self, line: bytes, at_s: float) -> tuple[Event, ...]:
        return ()

    def sample(self, name: str, text: str, at_s: float) -> tuple[Event, ...]:
        return ()

    def finish(
        self,
        exit_code: int | None = None,
        *,
        stderr: str = "",
        released_at_s: float | None = None,
        server_ahead_s: float = 0.0,
    ) -> Reading:
        job, zero_s = self._job, self._seconds.first_s
        until_s = None
        if self.tells_to_the_end and job is not None and zero_s is not None and exit_code == 0:
            until_s = zero_s + job.duration_s
        intervals = self._seconds.shaped(self._arrivals).intervals(until_s)
        length_s = intervals[-1].end_s if intervals else None
        if job is None:
            totals = FlowTotals(flow=Flow.DOWN, sent_bytes=self._moved_bytes, sent_s=length_s)
        else:
            totals = FlowTotals(
                flow=Flow.DOWN, received_bytes=self._moved_bytes, received_s=length_s
            )
        return Reading(
            report=EngineReport(
                engine=self._engine,
                protocol=Protocol.TCP,
                direction=Direction.REVERSE,
                streams_count=None if job is None else job.traffic.streams_count,
                duration_s=None if job is None else job.duration_s,
                totals=() if zero_s is None else (totals,),
                error=self._error(exit_code, stderr),
                truncated=job is not None and exit_code is None,
                exit_code=None if job is None else exit_code,
                measures=self._measures(),
                distributions=self._distributions(),
            ),
            side=Side.SERVER if job is None else Side.CLIENT,
            intervals={Flow.DOWN: intervals} if intervals else {},
            first_data_at_s=zero_s,
            start_basis=None if zero_s is None else self.basis,
            started_at_s=zero_s,
            client_address=self._client_address,
        )

    def _error(self, exit_code: int | None, stderr: str) -> str | None:
        """Why there is no result."""
        return None

    def _measures(self) -> tuple[Measure, ...]:
        return ()

    def _distributions(self) -> tuple[Distribution, ...]:
        return ()


class SessionReader(DownloadReader):
    """A server's side: what it logs of one session after another."""

    def __init__(self, engine: str, counted: str) -> None:
        super().__init__(engine, None)
        self._counted = counted
        self._transfers_count = 0

    @property
    def last_at_s(self) -> float | None:
        return self._seconds.last_s

    def close(self) -> None:
        self._seconds = Seconds()
        self._moved_bytes = self._transfers_count = 0
        self._client_address = None

    def add(self, start_s: float, end_s: float, sent_bytes: int, client: str | None) -> None:
        """Take one transfer."""
        self._seconds.add(start_s, end_s, sent_bytes)
        self._moved_bytes += sent_bytes
        self._transfers_count += 1
        self._client_address = client

    def _measures(self) -> tuple[Measure, ...]:
        return (Measure(name=self._counted, value=self._transfers_count, unit="count"),)
