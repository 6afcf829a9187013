"""Parser for the log of a server daemon that assigns each log line to a test.

A daemon serves any client. Only the token in the log line identifies the test
(:mod:`broadside.exchange.engines.tokens`). Address, time and number of connections are not used.
If a line does not have a valid token, it will be skipped. A line with a time that is impossible for
its test is counted but not added to the intervals.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from broadside.exchange.engines.downloads import GONE_S, UNPLACED, DownloadReader
from broadside.exchange.engines.peer_seconds import PeerRates
from broadside.exchange.engines.port import DaemonTest, EngineResult, Reader
from broadside.exchange.engines.tokens import JobToken
from broadside.exchange.messages import (
    Direction,
    EngineReport,
    Measure,
    PeerSeconds,
    Side,
    peer_address,
)

# The maximum number of tests that are stored for one port. A port runs one test at a time, so older
# tests are finished.
TESTS_MAX_COUNT: Final = 16
# A timestamp can be this much later than the arrival of its line, because vsftpd writes whole
# seconds.
EARLY_S: Final = 2.0
# Most properties of connections in a report.
NEGOTIATED_MAX_COUNT: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Transfer of a log line.

    Attributes:
        start_s: Time of the first byte, in epoch seconds.
        end_s: Time of the last byte, in epoch seconds.
        moved_bytes: Bytes of the transfer.
        error_s: Largest error of the two timestamps, in seconds.
        is_upload: True if the server received the bytes.
    """

    start_s: float
    end_s: float
    moved_bytes: int
    error_s: float = 0.0
    is_upload: bool = False


class LoggedTest(DownloadReader):
    """Results of a test from the log of the server.

    Args:
        engine: The engine name.
        counted: The measure that counts transfers.
        token: Token in the requests of the test.
        at_s: Epoch second of the first log line of the test.
        quiet_max_s: Largest value of :attr:`quiet_s`, in seconds.
    """

    def __init__(
        self, engine: str, counted: str, token: JobToken, at_s: float, quiet_max_s: float
    ) -> None:
        super().__init__(engine, None, token)
        self._counted = counted
        self._transfers_count = 0
        self._unplaced_count = 0
        # Transfers by protocol property.
        self._negotiated: Counter[str] = Counter()
        self._from_s = at_s - token.lasts_s - GONE_S
        self._longest_s = 0.0
        self._quiet_max_s = quiet_max_s
        self._rates = PeerRates()
        self.opened_s = self.last_data_s = at_s
        self.until_s = at_s + token.lasts_s

    @property
    def cookie(self) -> str:
        """Return the job id."""
        return self._cookie

    @property
    def last_at_s(self) -> float | None:
        """Return the epoch second of the last byte, or None if there is no byte."""
        return self._seconds.last_s

    @property
    def quiet_s(self) -> float:
        """Return after how many seconds without a log line the test counts as ended.

        The daemon will log a transfer when it ends. There can be no line for as long as the longest
        transfer takes.
        """
        return min(self._quiet_max_s, max(QUIET_S, self._longest_s))

    @property
    def is_reported(self) -> bool:
        """Return True if the log contains a transfer of the test, not only its start."""
        return self._transfers_count + self._unplaced_count > 0

    def hear(self, at_s: float) -> None:
        """Record the time of a log line of the test, in epoch seconds."""
        self.last_data_s = max(self.last_data_s, at_s)

    def count_negotiated(self, names: Iterable[str]) -> None:
        """Count a transfer for each property of its connection, such as its TLS version."""
        self._negotiated.update(names)

    def add(self, transfer: Transfer, *, client: str, at_s: float) -> None:
        """Add a transfer.

        Args:
            transfer: Transfer to add.
            client: The client address.
            at_s: Epoch second at which the log line was read.
        """
        start_s, end_s, moved_bytes = transfer.start_s, transfer.end_s, transfer.moved_bytes
        direction = Direction.FORWARD if transfer.is_upload else Direction.REVERSE
        if not self._transfers_count:
            self._direction = direction
        self.hear(at_s)
        is_possible = self._from_s <= start_s and end_s <= at_s + EARLY_S
        is_possible = is_possible and direction is self._direction
        if not (is_possible and self._seconds.add(start_s, end_s, moved_bytes, transfer.error_s)):
            self._unplaced_count += 1
            return
        self._moved_bytes += moved_bytes
        self._transfers_count += 1
        self._longest_s = max(self._longest_s, end_s - start_s)
        self._client_address = client
        self._rates.add(peer_address(client), min(start_s, end_s), end_s, moved_bytes)

    def _peers(self) -> tuple[PeerSeconds, ...]:
        return self._rates.peers(zero_s=self._seconds.first_s or 0.0)

    def _measures(self) -> tuple[Measure, ...]:
        counts = {self._counted: self._transfers_count}
        if self._unplaced_count:
            counts[UNPLACED] = self._unplaced_count
        for name, count in self._negotiated.most_common(NEGOTIATED_MAX_COUNT):
            counts[f"{name}_count"] = count
        return tuple(Measure(name=name, value=n, unit="count") for name, n in counts.items())


# A test counts as ended after at least this time without a log line, in seconds.
QUIET_S: Final = 2.0


ServedT = TypeVar("ServedT", bound=DaemonTest)


class ServedTests(Reader, Generic[ServedT]):
    """Tests of one server by token. The results are only in ``tests``.

    Args:
        engine: The engine name.
    """

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._tests: dict[str, ServedT] = {}

    @property
    def tests(self) -> Mapping[str, ServedT]:
        """Return the tests by cookie."""
        return self._tests

    def find_or_add(self, token: JobToken, create: Callable[[], ServedT]) -> ServedT:
        """Return the test of a token, and create it for its first line.

        Args:
            token: Token in the line.
            create: Function that creates the test.
        """
        test = self._tests.get(token.job_id)
        if test is None:
            if len(self._tests) >= TESTS_MAX_COUNT:
                del self._tests[min(self._tests, key=lambda key: self._tests[key].last_data_s)]
            test = self._tests[token.job_id] = create()
        return test

    def finish(
        self,
        exit_code: int | None = None,
        *,
        stderr: str = "",
        released_at_s: float | None = None,
        server_ahead_s: float = 0.0,
    ) -> EngineResult:
        """Return a reading without results, because the results are in ``tests``.

        Args:
            exit_code: Exit code of the server. None if it did not exit.
            stderr: Not used.
            released_at_s: Not used. None is the same.
            server_ahead_s: Not used.
        """
        return EngineResult(
            report=EngineReport(engine=self._engine, exit_code=exit_code),
            side=Side.SERVER,
            intervals={},
            first_data_at_s=None,
            start_basis=None,
            started_at_s=None,
            client_address=None,
        )


class LogReader(ServedTests[LoggedTest]):
    """Parser that splits the log of a daemon into tests by token.

    Args:
        engine: The engine name.
        counted: The measure that counts transfers.
        quiet_max_s: A test will count as ended after at most this time without a log line, in
            seconds.
    """

    def __init__(self, engine: str, counted: str, quiet_max_s: float = QUIET_S) -> None:
        super().__init__(engine)
        self._counted = counted
        self._quiet_max_s = quiet_max_s

    def test_of(self, token: JobToken, at_s: float) -> LoggedTest:
        """Return the test of a log line, and create the test for its first line.

        Args:
            token: Token in the log line.
            at_s: Epoch second at which the line was read.
        """
        test = self.find_or_add(
            token,
            lambda: LoggedTest(self._engine, self._counted, token, at_s, self._quiet_max_s),
        )
        test.hear(at_s)
        return test
