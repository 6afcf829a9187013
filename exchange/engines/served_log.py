"""A daemon's own log of what it served, taken apart by the token that each request carries.

A daemon serves anybody. What belongs to a test is told by the token in the daemon's own log
(:mod:`broadside.exchange.engines.tokens`), and by nothing else: not by who is connected, from
where, or when. Lines of others are skipped. A line whose time cannot be of its test is counted
and not placed.
"""

from collections.abc import Mapping
from typing import Final

from broadside.exchange.engines.downloads import GONE_S, UNPLACED, DownloadReader
from broadside.exchange.engines.port import Event, Reading
from broadside.exchange.engines.tokens import Token
from broadside.exchange.messages import EngineReport, Measure, Side

# Tests of one port that are remembered. A port has one test at a time; older ones are finished.
TESTS_MAX_COUNT: Final = 16
EARLY_S: Final = 2.0  # s by which a stamp may lie after the arrival of its line: vsftpd's are whole


class LoggedTest(DownloadReader):
    """A server's account of one test, by its log.

    Args:
        engine: The engine's name.
        counted: Name of the measure that counts transfers.
        token: What the test's requests carry.
        at_s: Epoch second at which the log first named it.
        quiet_max_s: Seconds without a line, at most, before the test counts as over.
    """

    def __init__(
        self, engine: str, counted: str, token: Token, at_s: float, quiet_max_s: float
    ) -> None:
        super().__init__(engine, None, token)
        self._counted = counted
        self._transfers_count = 0
        self._unplaced_count = 0
        self._from_s = at_s - token.lasts_s - GONE_S
        self._longest_s = 0.0
        self._quiet_max_s = quiet_max_s
        self.opened_s = self.heard_s = at_s
        self.until_s = at_s + token.lasts_s

    @property
    def cookie(self) -> str:
        """The job's id."""
        return self._cookie

    @property
    def last_at_s(self) -> float | None:
        """Epoch second of the last byte; None without one."""
        return self._seconds.last_s

    @property
    def quiet_s(self) -> float:
        """Seconds without a line after which the test counts as over.

        A log tells of a transfer at its end, so as long as the longest transfer nothing may come.
        """
        return min(self._quiet_max_s, max(QUIET_S, self._longest_s))

    @property
    def is_told(self) -> bool:
        """Whether the log says more of it than that it began."""
        return self._transfers_count + self._unplaced_count > 0

    def hear(self, at_s: float) -> None:
        """Take note of a line that names the test."""
        self.heard_s = max(self.heard_s, at_s)

    def add(
        self,
        start_s: float,
        end_s: float,
        sent_bytes: int,
        *,
        client: str,
        at_s: float,
        error_s: float = 0.0,
    ) -> None:
        """Take one transfer, of which the log told at ``at_s`` (epoch seconds, all three)."""
        self.hear(at_s)
        is_possible = self._from_s <= start_s and end_s <= at_s + EARLY_S
        if not (is_possible and self._seconds.add(start_s, end_s, sent_bytes, error_s)):
            self._unplaced_count += 1
            return
        self._moved_bytes += sent_bytes
        self._transfers_count += 1
        self._longest_s = max(self._longest_s, end_s - start_s)
        self._client_address = client

    def _measures(self) -> tuple[Measure, ...]:
        counted = Measure(name=self._counted, value=self._transfers_count, unit="count")
        if not self._unplaced_count:
            return (counted,)
        return (counted, Measure(name=UNPLACED, value=self._unplaced_count, unit="count"))


QUIET_S: Final = 2.0  # s


class LogReader:
    """Reads a daemon's log into tests by their tokens.

    Args:
        engine: The engine's name.
        counted: Name of the measure that counts transfers.
        quiet_max_s: Seconds without a line, at most, before a test counts as over.
    """

    def __init__(self, engine: str, counted: str, quiet_max_s: float = QUIET_S) -> None:
        self._engine = engine
        self._counted = counted
        self._quiet_max_s = quiet_max_s
        self._tests: dict[str, LoggedTest] = {}

    @property
    def tests(self) -> Mapping[str, LoggedTest]:
        """The tests by cookie."""
        return self._tests

    def test_of(self, token: Token, at_s: float) -> LoggedTest:
        """Return the test that a line names, a new one where it is the first."""
        test = self._tests.get(token.job_id)
        if test is None:
            if len(self._tests) >= TESTS_MAX_COUNT:
                oldest = min(self._tests.values(), key=lambda test: test.heard_s)
                del self._tests[oldest.cookie]
            test = LoggedTest(self._engine, self._counted, token, at_s, self._quiet_max_s)
            self._tests[token.job_id] = test
        test.hear(at_s)
        return test

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
        """Return a reading without a test: those are in :attr:`tests`."""
        return Reading(
            report=EngineReport(engine=self._engine, exit_code=exit_code),
            side=Side.SERVER,
            intervals={},
            first_data_at_s=None,
            start_basis=None,
            started_at_s=None,
            client_address=None,
        )
