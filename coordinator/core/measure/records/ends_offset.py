"""Estimation of the clock offset between both ends of a test, from the test itself.

To start their engine time, both ends use the same exchange on the control connection. So both zeros
are at the same time, give or take this exchange, and the clock offset is the difference between
their time stamps. If the rate varies, byte series can be used to get a smaller interval, or to
detect a clock that runs faster. They can also contradict the zeros. In this case, the ends cannot
be placed against each other. This module does no input or output.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.records.columns import IntervalColumns
from broadside.exchange.messages import Side

# Seconds. If a control segment is lost, it will be sent again after the minimum retransmission
# timeout (RFC 6298, section 2.4).
CONTROL_S: Final = 1.0
# The maximum rate that chrony uses to slew a clock. By default, ``maxslewrate`` is 83,333 ppm.
DRIFT_MAX_RATIO: Final = 1 / 12
# Share of the rows' variance. If a shift explains less than half of it, noise explains more than
# this.
EXPLAINED_RATIO: Final = 0.5
# Number of rows that we need to estimate a scale, a shift and their scatter.
ROWS_MIN_COUNT: Final = 8
SHIFTS_COUNT: Final = 81
# To search for any shift, longer series will be added up to this number of rows.
WIDE_ROWS_COUNT: Final = 240
# 95 %, with a single degree of freedom.
_CHI_SQUARED: Final = 3.84
# Probability that any of the tested shifts fits so much better by chance.
_SELDOM: Final = 0.01
_COVERED_RATIO: Final = 0.99
# Bytes squared per row. Both row bounds can cut an iperf3 write (128 KiB) anywhere.
_BLOCK_VARIANCE: Final = 131_072**2 / 6
# How many cells (shifts x rows) can be in memory at once.
_CELLS_AT_ONCE: Final = 2**18


@dataclass(frozen=True, slots=True, kw_only=True)
class EndsOffset:
    """Offset to place the server's seconds on the client's clock.

    Attributes:
        offset_s: Server's clock minus client's clock in seconds, at the start of the test.
        low_s: Lower bound of the 95 % interval.
        high_s: Upper bound of the 95 % interval.
        drift_ratio: How much faster the server's clock runs, as a ratio.
        by_series: True if byte series were used to get a smaller interval, false if only the common
            start was used.
    """

    offset_s: float
    low_s: float
    high_s: float
    drift_ratio: float = 0.0
    by_series: bool = False

    @property
    def bound_s(self) -> float:
        """Half the interval, using its larger side."""
        return max(self.high_s - self.offset_s, self.offset_s - self.low_s)

    @property
    def is_significant(self) -> bool:
        """True if there is a significant difference between the clocks."""
        return self.low_s > 0 or self.high_s < 0 or self.drift_ratio != 0

    def placed(self, track: IntervalColumns) -> IntervalColumns:
        """Return a server's track on the client's clock."""
        pace = 1 + self.drift_ratio
        return replace(
            track,
            first_data_at_s=track.first_data_at_s - self.offset_s,
            start_s=track.start_s / pace,
            end_s=track.end_s / pace,
        )


def place_ends(
    client: Sequence[IntervalColumns],
    server: Sequence[IntervalColumns],
    *,
    rtt_max_s: float = 0.0,
    stamps_s: float = 0.0,
) -> EndsOffset | None:
    """Estimate the clock offset between both ends of a test.

    Args:
        client: The client's tracks.
        server: The server's tracks for the same test.
        rtt_max_s: Longest recorded round-trip time in seconds. Bytes can be late by this time.
        stamps_s: Error of the difference between both time stamps, in seconds.

    Returns:
        The offset, or ``None`` if the series contradict the common start.
    """
    stamped_s = server[0].first_data_at_s - client[0].first_data_at_s
    reach_s = CONTROL_S + rtt_max_s
    pieces = list(_pieces(client, server))
    shifts = np.linspace(-reach_s, reach_s, SHIFTS_COUNT)
    drift, near = 0.0, _Fit()
    for guess in (0.0, _spans_ratio(client, server) - 1):
        tried = _drift(pieces, reach_s, guess)
        fit = _fit(_paced(pieces, tried), shifts)
        if near.explained_ratio == 0 or fit.misfit < near.misfit - _CHI_SQUARED:
            drift, near = tried, fit
    if near.explained_ratio < EXPLAINED_RATIO:
        drift = 0.0
    pieces = _paced(pieces, drift)
    if near.explained_ratio < EXPLAINED_RATIO:
        if _fits_elsewhere(pieces, near, reach_s):
            return None
        low, high = -reach_s, reach_s
    else:
        # Bytes can be up to a round trip late at the receiver, which can be either end.
        low, high = max(-reach_s, near.low_s - rtt_max_s), min(reach_s, near.high_s + rtt_max_s)
    difference_s = min(max(0.0, low), high)
    return EndsOffset(
        offset_s=float(stamped_s - difference_s),
        low_s=float(stamped_s - high - stamps_s),
        high_s=float(stamped_s - low + stamps_s),
        drift_ratio=float(drift),
        by_series=bool(high - low < 2 * reach_s),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """Flow with rows from the end that has longer readings, and the other end's curve.

    Attributes:
        start_s: Row starts in seconds.
        end_s: Row ends in seconds.
        amount: Bytes per row.
        edges_s: Row edges from the other end in seconds.
        reached: Bytes that the other end has reached at these edges.
        absent_s: Seconds that the other end has not recorded up to these edges.
        side: The end to which the rows belong.
    """

    start_s: Floats
    end_s: Floats
    amount: Floats
    edges_s: Floats
    reached: Floats
    absent_s: Floats
    side: Side

    @property
    def _sign(self) -> int:
        return -1 if self.side is Side.CLIENT else 1

    def rows(self, selection: slice) -> "_Piece":
        return replace(
            self,
            start_s=self.start_s[selection],
            end_s=self.end_s[selection],
            amount=self.amount[selection],
        )

    def paced(self, drift: float) -> "_Piece":
        """Return a copy with the server's times at the client's clock rate."""
        pace = 1 + drift
        if self.side is Side.CLIENT:
            return replace(self, edges_s=self.edges_s / pace, absent_s=self.absent_s / pace)
        return replace(self, start_s=self.start_s / pace, end_s=self.end_s / pace)

    def predicted(self, shifts_s: Floats) -> tuple[Floats, Floats]:
        """Return the other end's bytes per row, and a mask for rows that it fully recorded.

        Args:
            shifts_s: Server's zero minus client's zero in seconds, with shape (shifts,).

        Returns:
            Two arrays with shape (shifts, rows).
        """
        by_s = self._sign * shifts_s[:, None]
        begin, end = self.start_s + by_s, self.end_s + by_s

        def between(curve: Floats) -> Floats:
            return np.asarray(
                np.interp(end, self.edges_s, curve) - np.interp(begin, self.edges_s, curve)
            )

        inside = (begin >= self.edges_s[0]) & (end <= self.edges_s[-1])
        complete = between(self.absent_s) <= (1 - _COVERED_RATIO) * (end - begin)
        return between(self.reached), np.asarray(inside & complete)


def _pieces(
    client: Sequence[IntervalColumns], server: Sequence[IntervalColumns]
) -> Iterator[_Piece]:
    """Yield flows that both ends recorded, without the first and last row.

    In these rows, a buffer can be filled at one end and emptied at the other.
    """
    for mine in client:
        for theirs in server:
            if mine.flow is not theirs.flow or min(len(mine), len(theirs)) < 3:
                continue
            coarse, fine = mine, theirs
            if np.median(theirs.end_s - theirs.start_s) > np.median(mine.end_s - mine.start_s):
                coarse, fine = theirs, mine
            edges, reached, absent = _curve(fine)
            yield _Piece(
                start_s=coarse.start_s[1:-1],
                end_s=coarse.end_s[1:-1],
                amount=coarse.transferred_bytes[1:-1],
                edges_s=edges,
                reached=reached,
                absent_s=absent,
                side=coarse.side,
            )


def _curve(track: IntervalColumns) -> tuple[Floats, Floats, Floats]:
    """Return edges of rows and gaps, with bytes and unrecorded seconds up to each."""
    edges = np.column_stack((track.start_s, track.end_s)).ravel()
    bytes_of = np.column_stack((np.zeros(len(track)), track.transferred_bytes)).ravel()
    gaps = np.zeros(len(edges))
    gaps[2::2] = np.maximum(0.0, track.start_s[1:] - track.end_s[:-1])
    return edges, np.cumsum(bytes_of), np.cumsum(gaps)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    """Shift that has the best fit for two series.

    Attributes:
        shift_s: Best shift in seconds.
        low_s: Lower bound of its interval.
        high_s: Upper bound of its interval.
        explained_ratio: Explained share of the rows' variance.
        misfit: n log(residual) for the best shift.
        rows_count: Number of rows.
    """

    shift_s: float = 0.0
    low_s: float = -math.inf
    high_s: float = math.inf
    explained_ratio: float = 0.0
    misfit: float = math.inf
    rows_count: int = 0


def _fit(pieces: Sequence[_Piece], shifts_s: Floats) -> _Fit:
    """Return the least-squares shift and its likelihood interval, using a scale per flow."""
    left, variance, counts = np.zeros(len(shifts_s)), np.zeros(len(shifts_s)), 0
    for piece in pieces:
        at_once = max(1, _CELLS_AT_ONCE // max(1, len(piece.amount)))
        blocks = range(0, len(shifts_s), at_once)
        compared = [_compare(piece, shifts_s[at : at + at_once]) for at in blocks]
        residual, spread, count = map(np.concatenate, zip(*compared, strict=True))
        # If a flow has too few rows, it cannot be used. This should not affect any other flow.
        if not count.any():
            continue
        # If a shift has fewer rows, its residual will need to be scaled up to all rows.
        least = len(piece.amount) / np.maximum(1, count)
        left += np.where(count > 0, residual * least, np.inf)
        variance += np.where(count > 0, spread * least, 0.0)
        counts += len(piece.amount)
    explained = np.where(variance > 0, 1 - left / np.where(variance > 0, variance, 1.0), 0.0)
    if not counts or not np.isfinite(left).any():
        return _Fit()
    best = int(np.argmin(left))
    misfit = counts * np.log(left)
    close = shifts_s[misfit <= misfit[best] + _CHI_SQUARED]
    step_s = float(shifts_s[1] - shifts_s[0])
    return _Fit(
        shift_s=float(shifts_s[best]),
        low_s=float(close.min()) - step_s,
        high_s=float(close.max()) + step_s,
        explained_ratio=float(explained[best]),
        misfit=float(misfit[best]),
        rows_count=counts,
    )


def _compare(piece: _Piece, shifts_s: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the residual, the rows' spread and their number, each with shape (shifts,)."""
    expected, use = piece.predicted(shifts_s)
    enough = max(ROWS_MIN_COUNT, len(piece.amount) / 2)
    use = use & (use.sum(axis=1) >= enough)[:, None]
    count = use.sum(axis=1)
    seen, reported = np.where(use, piece.amount, 0.0), np.where(use, expected, 0.0)
    squares = (reported**2).sum(axis=1)
    scale = (seen * reported).sum(axis=1) / np.where(squares > 0, squares, 1.0)
    residual = ((seen - scale[:, None] * reported) ** 2).sum(axis=1) + count * _BLOCK_VARIANCE
    spread = (seen**2).sum(axis=1) - seen.sum(axis=1) ** 2 / np.maximum(1, count)
    return residual, spread, count


def _spans_ratio(client: Sequence[IntervalColumns], server: Sequence[IntervalColumns]) -> float:
    """Return the test length by the server's clock divided by that by the client's."""
    mine, theirs = (max(float(track.end_s[-1]) for track in end) for end in (client, server))
    ratio = theirs / mine if mine > 0 else 1.0
    return ratio if abs(ratio - 1) <= DRIFT_MAX_RATIO else 1.0


def _paced(pieces: Sequence[_Piece], drift: float) -> list[_Piece]:
    return [piece.paced(drift) for piece in pieces] if drift else list(pieces)


def _drift(pieces: Sequence[_Piece], reach_s: float, guess: float) -> float:
    """Return how much faster the server's clock runs, or ``guess`` if we cannot improve it.

    To get a better value, both halves of the test need to fit at significantly different shifts,
    on a line from the common start.
    """
    pieces = [_added_up(piece) for piece in _paced(pieces, guess)]
    rows_count = min((len(piece.amount) for piece in pieces), default=0)
    if rows_count < 2 * ROWS_MIN_COUNT:
        return guess
    half = rows_count // 2
    parts = [[piece.rows(slice(0, half)) for piece in pieces]]
    parts.append([piece.rows(slice(half, None)) for piece in pieces])
    middles, fits = [], []
    for part in parts:
        begin_s = min(float(piece.start_s[0]) for piece in part)
        end_s = max(float(piece.end_s[-1]) for piece in part)
        middles.append((begin_s + end_s) / 2)
        most_s = reach_s + DRIFT_MAX_RATIO * middles[-1]
        count = min(1001, 2 * math.ceil(10 * most_s) + 1)
        fits.append(_fit(part, np.linspace(-most_s, most_s, count)))
    early, late = fits
    if min(early.explained_ratio, late.explained_ratio) < EXPLAINED_RATIO:
        return guess
    if early.low_s <= late.high_s and late.low_s <= early.high_s:
        return guess
    drift = (early.shift_s - late.shift_s) / (middles[1] - middles[0])
    at_start_s = early.shift_s + drift * middles[0]
    if abs(at_start_s) > reach_s or abs(drift) > DRIFT_MAX_RATIO:
        return guess
    return (1 + guess) * (1 + drift) - 1


def _fits_elsewhere(pieces: Sequence[_Piece], near: _Fit, reach_s: float) -> bool:
    """Return true if the series fit clearly better at a shift that should not be possible."""
    coarse = [_added_up(piece) for piece in pieces]
    if not coarse:
        return False
    most_s = max(float(piece.end_s[-1] - piece.start_s[0]) for piece in coarse)
    shifts = np.linspace(-most_s, most_s, 2 * WIDE_ROWS_COUNT + 1)
    wide = _fit(coarse, shifts)
    here = _fit(coarse, np.linspace(-reach_s, reach_s, SHIFTS_COUNT))
    by_luck = 2 * math.log(len(shifts) / _SELDOM)
    return (
        near.rows_count > 0
        and wide.explained_ratio >= EXPLAINED_RATIO > here.explained_ratio
        and here.misfit - wide.misfit > by_luck
    )


def _added_up(piece: _Piece) -> _Piece:
    """Return a copy with no more than ``WIDE_ROWS_COUNT`` rows."""
    size = math.ceil(len(piece.amount) / WIDE_ROWS_COUNT)
    count = len(piece.amount) // size
    rows = slice(0, count * size)
    return replace(
        piece,
        start_s=piece.start_s[rows][::size],
        end_s=piece.end_s[rows][size - 1 :: size],
        amount=piece.amount[rows].reshape(count, size).sum(axis=1),
    )
