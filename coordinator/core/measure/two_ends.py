"""Offset between the clocks of the two ends of one test, estimated from the test itself. Pure.

Both ends of a test begin their engine time with one exchange over the control connection, so that
their zeros are one instant, give or take that exchange. The difference of the zeros' stamps is the
clocks' offset. Where the rate has features, the series of bytes narrow the interval, show a clock
that runs faster, or contradict the zeros: then the ends cannot be placed against each other.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from broadside.coordinator.core.measure.columns import Floats, TrackColumns
from broadside.exchange.messages import Side

# A lost control segment is sent again after the least retransmission time (RFC 6298, section 2.4).
CONTROL_S: Final = 1.0
# The most that chrony slews a clock by: its default `maxslewrate` of 83,333 ppm.
DRIFT_MAX_RATIO: Final = 1 / 12
# Of the variance of rows: a shift that explains less than half of it explains less than noise does.
EXPLAINED_RATIO: Final = 0.5
ROWS_MIN_COUNT: Final = 8  # rows of a part: a scale, a shift and their scatter come from them
SHIFTS_COUNT: Final = 81
WIDE_ROWS_COUNT: Final = 240  # rows to which longer series are added up for the search at any shift
_CHI_SQUARED: Final = 3.84  # 95 %, one degree of freedom
_SELDOM: Final = 0.01  # chance that any of the shifts tried fits so much better by luck
_COVERED_RATIO: Final = 0.99
# Bytes^2 a row: each of its two bounds cuts one of iperf3's writes (128 KiB) anywhere.
_BLOCK_VARIANCE: Final = 131_072**2 / 6
_CELLS_AT_ONCE: Final = 2**18  # shifts x rows that are held in memory at once


@dataclass(frozen=True, slots=True, kw_only=True)
class EndsOffset:
    """Where one end's seconds lie on the other end's clock.

    Attributes:
        offset_s: Server's clock minus the client's, at the start of the test.
        low_s: Lower end of its 95 % interval.
        high_s: Upper end.
        drift_ratio: By how much the server's clock runs faster than the client's.
        by_series: The series of bytes narrowed the interval; else the common start alone.
    """

    offset_s: float
    low_s: float
    high_s: float
    drift_ratio: float = 0.0
    by_series: bool = False

    @property
    def bound_s(self) -> float:
        """Half of the interval: the larger side."""
        return max(self.high_s - self.offset_s, self.offset_s - self.low_s)

    @property
    def is_apart(self) -> bool:
        """Whether the clocks surely differ."""
        return self.low_s > 0 or self.high_s < 0 or self.drift_ratio != 0

    def placed(self, track: TrackColumns) -> TrackColumns:
        """Return a server's track on the client's clock."""
        pace = 1 + self.drift_ratio
        return replace(
            track,
            first_data_at_s=track.first_data_at_s - self.offset_s,
            start_s=track.start_s / pace,
            end_s=track.end_s / pace,
        )


def place_ends(
    client: Sequence[TrackColumns],
    server: Sequence[TrackColumns],
    *,
    rtt_max_s: float = 0.0,
    stamps_s: float = 0.0,
) -> EndsOffset | None:
    """Estimate the offset between the clocks of a test's two ends.

    Args:
        client: The client's tracks.
        server: The server's tracks of the same test.
        rtt_max_s: Largest recorded round trip, s: what bytes may be late by at the receiver.
        stamps_s: What the difference of the two stamps may be off by, s.

    Returns:
        The offset, or None where the series contradict the common start.
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
        # Bytes are late at the receiver, by a round trip at most; whichever end that is.
        low, high = max(-reach_s, near.low_s - rtt_max_s), min(reach_s, near.high_s + rtt_max_s)
    apart_s = min(max(0.0, low), high)
    return EndsOffset(
        offset_s=float(stamped_s - apart_s),
        low_s=float(stamped_s - high - stamps_s),
        high_s=float(stamped_s - low + stamps_s),
        drift_ratio=float(drift),
        by_series=bool(high - low < 2 * reach_s),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """One flow: the rows of the end with the longer readings, and the other end's curve."""

    start_s: Floats
    end_s: Floats
    amount: Floats  # bytes of each row
    edges_s: Floats  # of the other end
    reached: Floats  # its bytes so far, at the edges
    absent_s: Floats  # its seconds so far that nobody recorded, at the edges
    side: Side  # whose the rows are

    @property
    def _sign(self) -> int:
        return -1 if self.side is Side.CLIENT else 1

    def rows(self, keep: slice) -> "_Piece":
        return replace(
            self, start_s=self.start_s[keep], end_s=self.end_s[keep], amount=self.amount[keep]
        )

    def paced(self, drift: float) -> "_Piece":
        """The same with the server's times on the client's pace."""
        pace = 1 + drift
        if self.side is Side.CLIENT:
            return replace(self, edges_s=self.edges_s / pace, absent_s=self.absent_s / pace)
        return replace(self, start_s=self.start_s / pace, end_s=self.end_s / pace)

    def predicted(self, shifts_s: Floats) -> tuple[Floats, Floats]:
        """Return bytes of the other end in each row, and where it recorded all of the row.

        Args:
            shifts_s: Server's zero minus the client's; shape (shifts,).
        """
        by_s = self._sign * shifts_s[:, None]
        begin, end = self.start_s + by_s, self.end_s + by_s

        def between(curve: Floats) -> Floats:
            return np.asarray(
                np.interp(end, self.edges_s, curve) - np.interp(begin, self.edges_s, curve)
            )

        inside = (begin >= self.edges_s[0]) & (end <= self.edges_s[-1])
        whole = between(self.absent_s) <= (1 - _COVERED_RATIO) * (end - begin)
        return between(self.reached), np.asarray(inside & whole)


def _pieces(client: Sequence[TrackColumns], server: Sequence[TrackColumns]) -> Iterator[_Piece]:
    """Yield each flow that both ends recorded, without its first and last row: there buffers fill
    at one end and empty at the other."""
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


def _curve(track: TrackColumns) -> tuple[Floats, Floats, Floats]:
    """Edges of rows and of the gaps between them; bytes and unrecorded seconds so far at each."""
    edges = np.column_stack((track.start_s, track.end_s)).ravel()
    bytes_of = np.column_stack((np.zeros(len(track)), track.transferred_bytes)).ravel()
    gaps = np.zeros(len(edges))
    gaps[2::2] = np.maximum(0.0, track.start_s[1:] - track.end_s[:-1])
    return edges, np.cumsum(bytes_of), np.cumsum(gaps)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    """The shift at which two series fit best."""

    shift_s: float = 0.0
    low_s: float = -math.inf
    high_s: float = math.inf
    explained_ratio: float = 0.0  # of the rows' variance
    misfit: float = math.inf  # n log(residual), of the best shift
    rows_count: int = 0


def _fit(pieces: Sequence[_Piece], shifts_s: Floats) -> _Fit:
    """Return the least-squares shift, with one scale a flow, and its likelihood interval."""
    left, variance, counts = np.zeros(len(shifts_s)), np.zeros(len(shifts_s)), 0
    for piece in pieces:
        at_once = max(1, _CELLS_AT_ONCE // max(1, len(piece.amount)))
        blocks = range(0, len(shifts_s), at_once)
        compared = [_compare(piece, shifts_s[at : at + at_once]) for at in blocks]
        residual, spread, count = map(np.concatenate, zip(*compared, strict=True))
        if not count.any():  # a flow with too few rows shows nothing, and hides no other one
            continue
        # Of shifts that lose rows, what they would come to.
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
    """Return the residual, the rows' own spread and their number, each of shape (shifts,)."""
    expected, use = piece.predicted(shifts_s)
    enough = max(ROWS_MIN_COUNT, len(piece.amount) / 2)
    use = use & (use.sum(axis=1) >= enough)[:, None]
    count = use.sum(axis=1)
    seen, told = np.where(use, piece.amount, 0.0), np.where(use, expected, 0.0)
    squares = (told**2).sum(axis=1)
    scale = (seen * told).sum(axis=1) / np.where(squares > 0, squares, 1.0)
    residual = ((seen - scale[:, None] * told) ** 2).sum(axis=1) + count * _BLOCK_VARIANCE
    spread = (seen**2).sum(axis=1) - seen.sum(axis=1) ** 2 / np.maximum(1, count)
    return residual, spread, count


def _spans_ratio(client: Sequence[TrackColumns], server: Sequence[TrackColumns]) -> float:
    """The length of the test by the server's clock, over that by the client's."""
    mine, theirs = (max(float(track.end_s[-1]) for track in end) for end in (client, server))
    ratio = theirs / mine if mine > 0 else 1.0
    return ratio if abs(ratio - 1) <= DRIFT_MAX_RATIO else 1.0


def _paced(pieces: Sequence[_Piece], drift: float) -> list[_Piece]:
    return [piece.paced(drift) for piece in pieces] if drift else list(pieces)


def _drift(pieces: Sequence[_Piece], reach_s: float, guess: float) -> float:
    """By how much the server's clock runs faster; ``guess`` where the series show nothing finer.

    The halves of the test fit at shifts that surely differ, on a line from the common start.
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
    """Whether the series are surely the same at a shift that the common start excludes."""
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
    """The same with at most :data:`WIDE_ROWS_COUNT` rows."""
    size = math.ceil(len(piece.amount) / WIDE_ROWS_COUNT)
    count = len(piece.amount) // size
    rows = slice(0, count * size)
    return replace(
        piece,
        start_s=piece.start_s[rows][::size],
        end_s=piece.end_s[rows][size - 1 :: size],
        amount=piece.amount[rows].reshape(count, size).sum(axis=1),
    )
