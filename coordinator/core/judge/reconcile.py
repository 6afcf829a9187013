"""Holds the firewall's ledger against the fleet's: lag, bytes, residual, and why.

The ledger's bin labelled ``[s, e)`` speaks of ``[s - lag, e - lag)``. The lag is the one at which
the fleet's own bytes, summed over the shifted bins, best explain the ledger's. Then bytes are
compared: over every bin that the fleet touched, edges included, or over the bins that lie wholly in
the steady window where there are three and they say it more surely. What remains is the residual;
it is named only when it is larger than its own uncertainty.

Of a run that was to pass the device by (a reference) the ledger is expected to hold nothing: the
residual is then what it shows above its idle level, in parts of what the fleet sent.

A ledger is a device's, not a run's: what other runs are known to have sent through it at the time
is taken off before the rest is held against this run.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import numpy as np

from coordinator.core.measure.aggregate import figure
from coordinator.core.measure.evidence import FirewallLedger, Floats
from coordinator.core.measure.headers import MSS_ASSUMED_BYTES, Headers
from coordinator.core.measure.series import BurstSeries
from coordinator.core.measure.steady import t95
from exchange.messages import VXLAN_BYTES, Message

LAG_MIN_S: Final = -60.0
LAG_MAX_S: Final = 300.0
FULL_BINS_MIN: Final = 3  # under so many full bins a burst is compared on bytes only
NOISE_BINS_MIN: Final = 5  # full bins that tell their own scatter
IDLE_BINS_MIN: Final = 3  # under so many, the firewall's idle level is not known
FITTED_BURSTS_MIN: Final = 3  # bursts from which an unknown layer's overhead is fitted
NOISE_ASSUMED_RATIO: Final = 0.02  # 95 % half width of one bin where too few tell
DOUBT_FACTOR: Final = 1.25  # a residual must exceed its uncertainty by this much to need a cause
DOUBT_FACTOR_OF_MANY: Final = 2.0  # and, of several bursts, one: some burst is always odd
PLATEAU_S: Final = 2.0  # s to either side that fit alike: no single best lag
AGREES_RATIO: Final = 0.005  # a residual this small needs no cause, whatever its uncertainty
OVERHEAD_KNOWN_RATIO: Final = 0.002  # uncertainty of header overhead from a recorded segment size
OVERHEAD_ASSUMED_RATIO: Final = 0.015  # and from an assumed one (1500 B or jumbo packets)
# Of a ledger that counts both ways: the other way's TCP acknowledgements. Measured in the lab: 0.1
# to 0.5 % of the payload, as receivers merge 7 to 40 segments before they answer; without that it
# would be one for two segments (RFC 5681, section 4.2), 1.8 %.
ACKNOWLEDGED_RATIO: Final = 0.005


CauseId = Literal[
    "lost-reports",
    "foreign-traffic",
    "bypass",
    "duplicate-counting",
    "unknown-bins",
    "unknown",
]


class Cause(Message):
    """One named reason for a residual."""

    id: CauseId
    share_ratio: float  # of the expected bytes that it would explain; signed like the residual
    confidence_ratio: float
    sentence: str


class Reconciliation(Message):
    """Two ledgers held together, over one burst or a whole run."""

    source: str
    layer: str
    grain_s: float
    basis: Literal["rate", "bytes"]  # over full bins of the steady window; over all bins touched
    lag_s: float | None = None  # None: the data does not tell; the source's hint, or 0, was used
    lag_uncertainty_s: float | None = None
    overhead_ratio: float  # ledger's layer / payload
    overhead_how: Literal["recorded", "assumed", "fitted"]  # from segment sizes, from 1500-byte
    # packets, or, where the ledger's layer is not known, from the run's own median burst
    firewall_bits_per_second: float | None = None  # at the ledger's layer
    firewall_bytes: float | None = None  # over the bins of `basis`
    expected_bytes: float | None = None  # fleet payload x overhead over the same bins
    residual_ratio: float | None = None  # firewall / expected - 1; bypassed: (firewall - idle
    # level) / what would be expected of a run that crosses it
    residual_uncertainty_ratio: float | None = None  # 95 %
    unknown_ratio: float = 0.0  # part of the fleet's bytes in bins that the ledger does not know
    baseline_bits_per_second: float | None = None  # ledger's level outside bursts
    full_bins_count: int = 0
    ledger_cov_ratio: float | None = None  # over full bins
    bypassed: bool = False  # the run was not to cross the device
    neighbours: tuple[str, ...] = ()  # other runs whose traffic this ledger counts too
    causes: tuple[Cause, ...] = ()


class Traffic(Protocol):
    """Payload second by second on the UTC grid, from ``start_s`` on (epoch s)."""

    @property
    def start_s(self) -> int: ...
    @property
    def received_bytes(self) -> Floats: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A burst of another run through the same device."""

    run_id: str
    burst_index: int
    start_s: int
    received_bytes: Floats  # of the flows that the ledger counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The fleet's cumulative payload over time: linear between knots, flat outside."""

    at_s: Floats  # epoch s, increasing
    total_bytes: Floats

    def between(self, start_s: Floats, end_s: Floats) -> Floats:
        """Payload bytes in each span."""
        return np.interp(end_s, self.at_s, self.total_bytes) - np.interp(
            start_s, self.at_s, self.total_bytes
        )


def fleet_curve(bursts: Sequence[Traffic]) -> Curve:
    """Sum bursts into one cumulative curve; bursts may overlap and come in any order."""
    seconds = np.concatenate(
        [burst.start_s + np.arange(len(burst.received_bytes)) for burst in bursts]
    )
    amounts = np.concatenate([burst.received_bytes for burst in bursts])
    unique, place = np.unique(seconds, return_inverse=True)
    summed = np.bincount(place, weights=amounts, minlength=len(unique))
    knots = np.empty(2 * len(unique))
    knots[0::2], knots[1::2] = unique, unique + 1
    totals = np.zeros(2 * len(unique))
    totals[1::2] = np.cumsum(summed)
    totals[2::2] = totals[1:-1:2]
    return Curve(at_s=knots, total_bytes=totals)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far the ledger's labels run behind, and how sure that is."""

    lag_s: float
    uncertainty_s: float
    known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What neighbours put into the ledger: their payload, and the ledger's bytes for each of it."""

    curve: Curve
    overhead_ratio: float

    def between(self, start_s: Floats, end_s: Floats) -> Floats:
        """The ledger's bytes in each span of true time."""
        return self.curve.between(start_s, end_s) * self.overhead_ratio


def estimate_lag(ledger: FirewallLedger, curve: Curve, beside: Beside | None = None) -> Lag:
    """Fit the ledger's lag over :data:`LAG_MIN_S` .. :data:`LAG_MAX_S`.

    For each lag the ledger's bins, less what is ``beside``, are explained as ``a x fleet bytes in
    the shifted bin + c x width`` by least squares; ``a`` takes up overhead and lost reports, ``c``
    steady foreign traffic, so neither bends the lag. The lag of the smallest residual wins, to a
    twentieth of a second. It is *known* when it explains at least half of the ledger's variance
    and no far lag fits as well; its uncertainty is half the span of those that do (profile
    likelihood).
    """
    known = ~np.isnan(ledger.bytes)
    reach = (ledger.end_s > curve.at_s[0] + LAG_MIN_S - ledger.grain_s) & (
        ledger.start_s < curve.at_s[-1] + LAG_MAX_S + ledger.grain_s
    )
    use = known & reach
    start, end, seen = ledger.start_s[use], ledger.end_s[use], ledger.bytes[use]
    hint = ledger.lag_hint_s if ledger.lag_hint_s is not None else 0.0
    nothing = Lag(lag_s=hint, uncertainty_s=ledger.grain_s, known=False)
    if len(seen) < 3 or seen.max() <= 0:
        return nothing
    lags = np.arange(LAG_MIN_S, LAG_MAX_S + 1.0)
    misfit = _misfits(lags, start, end, seen, curve, beside)
    best = int(np.argmin(misfit))
    spare = float(((seen - seen.mean()) ** 2).sum())
    if spare <= 0 or misfit[best] > 0.5 * spare:
        return nothing
    floor = max(float(misfit[best]), 1e-9 * spare)
    freedom = max(1, len(seen) - 3)
    near = lags[misfit <= floor * (1 + 4.0 / freedom) + 1e-12 * spare]
    low, high = float(near.min()), float(near.max())
    half = (high - low) / 2
    # Far lags that fit as well are an ambiguity of a periodic pattern: the hint decides.
    if high - low > 2 * ledger.grain_s:
        chosen = float(near[np.argmin(np.abs(near - hint))])
        return Lag(lag_s=chosen, uncertainty_s=half, known=False)
    if half > PLATEAU_S:
        # A burst inside one bin fits wherever the bin holds it: the hint or the middle is best.
        hinted = ledger.lag_hint_s is not None and low <= hint <= high
        return Lag(lag_s=hint if hinted else (low + high) / 2, uncertainty_s=half + 1, known=True)
    fine = np.arange(lags[best] - 1.0, lags[best] + 1.001, 0.05)
    fits = _misfits(fine, start, end, seen, curve, beside)
    return Lag(
        lag_s=float(fine[int(np.argmin(fits))]),
        uncertainty_s=max(half, 0.05, ledger.grain_s / 60),
        known=True,
    )


def _misfits(
    lags: Floats, start: Floats, end: Floats, seen: Floats, curve: Curve, beside: Beside | None
) -> Floats:
    """Residual sum of squares of ``seen - beside ~ a x fleet + c x width`` a lag, a, c >= 0."""
    width = end - start
    results = np.empty(len(lags))
    chunk = max(1, 2_000_000 // max(1, len(seen)))
    for first in range(0, len(lags), chunk):
        part = lags[first : first + chunk, None]
        shape = (len(part), len(seen))
        begin, stop = (start - part).ravel(), (end - part).ravel()
        fleet = curve.between(begin, stop).reshape(shape)
        own = np.broadcast_to(seen, shape)
        if beside is not None:
            own = own - beside.between(begin, stop).reshape(shape)
        ff = (fleet * fleet).sum(axis=1)
        fw = fleet @ width
        ww = float(width @ width)
        fy = (fleet * own).sum(axis=1)
        wy = own @ width
        det = ff * ww - fw**2
        sound = det > 1e-9 * ff * ww
        a = np.divide(fy * ww - wy * fw, det, out=np.zeros_like(ff), where=sound)
        c = np.divide(wy * ff - fy * fw, det, out=np.zeros_like(ff), where=sound)
        no_foreign = (c < 0) | ~sound
        alone = np.divide(fy, ff, out=np.zeros_like(ff), where=ff > 0)
        a = np.where(no_foreign, alone, a)
        c = np.where(no_foreign, 0.0, c)
        no_fleet = a <= 0
        a = np.where(no_fleet, 0.0, a)
        c = np.where(no_fleet, wy / ww, c)
        model = a[:, None] * fleet + c[:, None] * width
        results[first : first + chunk] = ((own - model) ** 2).sum(axis=1)
    return results


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """What of a burst the fleet's records lack, as the reconciliation may need to explain it."""

    pairs_count: int  # pairs with seconds that nobody saw, which may have sent all the same
    share_ratio: float  # their planned seconds x the mean measured pair's bytes / fleet's bytes
    planned_pairs_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Overhead:
    ratio: float
    uncertainty_ratio: float
    how: Literal["recorded", "assumed", "fitted"]


def _overhead(ledger: FirewallLedger, headers: Headers, seen_ratios: Sequence[float]) -> _Overhead:
    """The ledger's bytes for a byte of payload; ``seen_ratios`` are what bursts show.

    A ledger of unknown layer counts something between payload and frames: with three bursts or
    more their median decides, and then only differences between bursts are left to explain.
    """
    spare = OVERHEAD_ASSUMED_RATIO if headers.assumed else OVERHEAD_KNOWN_RATIO
    if len(ledger.flows) > 1:
        spare = math.hypot(spare, ACKNOWLEDGED_RATIO)
    how: Literal["recorded", "assumed"] = "assumed" if headers.assumed else "recorded"
    match ledger.layer:
        case "ip":
            return _Overhead(ratio=headers.ip_ratio, uncertainty_ratio=spare, how=how)
        case "wire":
            extra = VXLAN_BYTES / MSS_ASSUMED_BYTES if ledger.vxlan else 0.0
            return _Overhead(ratio=headers.wire_ratio + extra, uncertainty_ratio=spare, how=how)
        case "unknown":
            middle = float(np.median(seen_ratios)) if seen_ratios else 0.0
            if len(seen_ratios) >= FITTED_BURSTS_MIN and 1.0 <= middle <= headers.wire_ratio:
                return _Overhead(ratio=middle, uncertainty_ratio=OVERHEAD_KNOWN_RATIO, how="fitted")
            middle = (1 + headers.ip_ratio) / 2
            return _Overhead(
                ratio=middle, uncertainty_ratio=(headers.ip_ratio - 1) / 2 / middle, how=how
            )


def reconcile(
    bursts: Sequence[BurstSeries],
    ledger: FirewallLedger,
    headers: Headers,
    missing: Sequence[Missing],
    *,
    clock_bound_s: float = 0.0,
    neighbours: Sequence[Neighbour] = (),
    bypassed: bool = False,
) -> tuple[Reconciliation, tuple[Reconciliation, ...]]:
    """Reconcile a run: the whole, and each burst in the order given, under one common lag.

    ``missing`` has one element a burst; ``bypassed`` runs were not to cross the device. A bin that
    two bursts share is split by what each is expected to have in it; what ``neighbours`` put into
    it is taken off first.
    """
    curve = fleet_curve(bursts)
    beside = None
    if neighbours:
        ratio = _overhead(ledger, headers, []).ratio
        beside = Beside(curve=fleet_curve(neighbours), overhead_ratio=ratio)
    lag = estimate_lag(ledger, curve, beside)
    shift = _Shifted(ledger, curve, lag.lag_s, beside)
    shares = [_share(shift, fleet_curve([burst]), burst, lag) for burst in bursts]
    ratios = [share.ledger_bytes / share.fleet_bytes for share in shares if share.fleet_bytes > 0]
    whole = _sum(shares)
    held = _Held(
        ledger=ledger,
        lag=lag,
        overhead=_overhead(ledger, headers, ratios),
        idle_bytes_per_s=_idle_rate(ledger, fleet_curve([*bursts, *neighbours]), lag),
        bin_noise_ratio=_bin_noise(shift, whole.full_ratios),
        burst_noise_ratio=_burst_noise(ratios),
        clock_bound_s=clock_bound_s,
        neighbours=tuple(sorted({neighbour.run_id for neighbour in neighbours})),
        bypassed=bypassed,
    )
    gone = Missing(
        pairs_count=sum(part.pairs_count for part in missing),
        share_ratio=_weighted([m.share_ratio for m in missing], [s.fleet_bytes for s in shares]),
        planned_pairs_count=sum(part.planned_pairs_count for part in missing),
    )
    return (
        _account(held, whole, gone, DOUBT_FACTOR),
        tuple(
            _account(held, share, part, DOUBT_FACTOR if len(shares) == 1 else DOUBT_FACTOR_OF_MANY)
            for share, part in zip(shares, missing, strict=True)
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """What all bursts of a reconciliation have in common."""

    ledger: FirewallLedger
    lag: Lag
    overhead: _Overhead
    idle_bytes_per_s: float | None
    bin_noise_ratio: float  # 95 % half width of one bin's relative residual; NaN: too few bins
    burst_noise_ratio: float  # and of one burst's; NaN: too few bursts
    clock_bound_s: float
    neighbours: tuple[str, ...]
    bypassed: bool


def _weighted(values: Sequence[float], weights: Sequence[float]) -> float:
    total = sum(weights)
    return sum(v * w for v, w in zip(values, weights, strict=True)) / total if total else 0.0


class _Shifted:
    """The fleet's payload in each of the ledger's bins at one lag, and what the ledger says."""

    def __init__(
        self, ledger: FirewallLedger, curve: Curve, lag_s: float, beside: Beside | None
    ) -> None:
        self.start_s = ledger.start_s - lag_s
        self.end_s = ledger.end_s - lag_s
        self.fleet_bytes = curve.between(self.start_s, self.end_s)
        self.beside_bytes = np.zeros(len(ledger))
        if beside is not None:
            self.beside_bytes = beside.between(self.start_s, self.end_s)
        self.ledger_bytes = ledger.bytes - self.beside_bytes
        self.width_s = ledger.end_s - ledger.start_s
        self.known = ~np.isnan(ledger.bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """One burst's part in the ledger: over every bin it touched, and over those that lie wholly
    in its steady window."""

    total_bytes: float  # fleet payload of the burst, wherever it falls
    fleet_bytes: float  # of it, in bins that the ledger knows
    ledger_bytes: float  # the ledger's in those bins; a shared bin's by expected share
    beside_bytes: float  # neighbours' that were taken off those bins
    width_s: float
    bins_count: int
    unsure_bytes: float  # what the lag's uncertainty moves over the outer bins
    tail_bytes: float  # sent and never counted by a receiver: on the way when the test ended
    full_fleet_bytes: float
    full_bytes: float
    full_s: float
    full_rates: Floats  # the ledger's, bit/s
    full_ratios: Floats  # ledger / fleet payload, a bin
    fleet_bytes_per_s: float  # in the steady window


def _share(shift: _Shifted, own: Curve, burst: BurstSeries, lag: Lag) -> _Share:
    mine = own.between(shift.start_s, shift.end_s)
    total = float(own.total_bytes[-1])
    mine[mine < 1e-9 * max(1.0, total)] = 0.0
    part = np.divide(mine, shift.fleet_bytes, out=np.zeros_like(mine), where=shift.fleet_bytes > 0)
    use = (mine > 0) & shift.known
    fleet = float(mine[use].sum())
    moved = max(
        abs(float(own.between(shift.start_s + by_s, shift.end_s + by_s)[use].sum()) - fleet)
        for by_s in (-lag.uncertainty_s, lag.uncertainty_s)
    )
    received = burst.received_bytes
    full = np.zeros(len(mine), np.bool_)
    steady = received
    if burst.window is not None:
        first, stop = burst.start_s + burst.window[0], burst.start_s + burst.window[1]
        full = use & (shift.start_s >= first - 1e-6) & (shift.end_s <= stop + 1e-6)
        steady = received[burst.window[0] : burst.window[1]]
    sent = float(np.nansum([flow.sent_bytes for flow in burst.flows]))
    return _Share(
        total_bytes=total,
        fleet_bytes=fleet,
        ledger_bytes=float((part[use] * shift.ledger_bytes[use]).sum()),
        beside_bytes=float(shift.beside_bytes[use].sum()),
        width_s=float((part[use] * shift.width_s[use]).sum()),
        bins_count=int(use.sum()),
        unsure_bytes=moved,
        tail_bytes=max(0.0, sent - total),
        full_fleet_bytes=float(mine[full].sum()),
        full_bytes=float(shift.ledger_bytes[full].sum()),
        full_s=float(shift.width_s[full].sum()),
        full_rates=shift.ledger_bytes[full] * 8 / shift.width_s[full],
        full_ratios=shift.ledger_bytes[full] / mine[full],
        fleet_bytes_per_s=float(steady.mean()) if len(steady) else 0.0,
    )


def _sum(parts: Sequence[_Share]) -> _Share:
    def total(read: Callable[[_Share], float]) -> float:
        return sum(read(part) for part in parts)

    return _Share(
        total_bytes=total(lambda part: part.total_bytes),
        fleet_bytes=total(lambda part: part.fleet_bytes),
        ledger_bytes=total(lambda part: part.ledger_bytes),
        beside_bytes=total(lambda part: part.beside_bytes),
        width_s=total(lambda part: part.width_s),
        bins_count=sum(part.bins_count for part in parts),
        unsure_bytes=total(lambda part: part.unsure_bytes),
        tail_bytes=total(lambda part: part.tail_bytes),
        full_fleet_bytes=total(lambda part: part.full_fleet_bytes),
        full_bytes=total(lambda part: part.full_bytes),
        full_s=total(lambda part: part.full_s),
        full_rates=np.concatenate([part.full_rates for part in parts]),
        full_ratios=np.concatenate([part.full_ratios for part in parts]),
        fleet_bytes_per_s=total(lambda part: part.fleet_bytes_per_s) / len(parts),
    )


def _idle_rate(ledger: FirewallLedger, curve: Curve, lag: Lag) -> float | None:
    """Median bytes a second of the ledger where the fleet sent nothing; None under three bins."""
    margin = lag.uncertainty_s + 1.0
    near = curve.between(ledger.start_s - lag.lag_s - margin, ledger.end_s - lag.lag_s + margin)
    idle = (near <= 0) & ~np.isnan(ledger.bytes)
    if idle.sum() < IDLE_BINS_MIN:
        return None
    return float(np.median(ledger.bytes[idle] / (ledger.end_s - ledger.start_s)[idle]))


def _bin_noise(shift: _Shifted, full_ratios: Floats) -> float:
    """95 % half width of one bin's relative residual about its mean; NaN under three bins.

    Over full bins where there are enough, else over bins at least half as full as the fullest.
    """
    ratios = full_ratios
    if len(ratios) < NOISE_BINS_MIN:
        use = shift.known & (shift.fleet_bytes > 0.5 * shift.fleet_bytes.max(initial=0.0))
        ratios = shift.ledger_bytes[use] / shift.fleet_bytes[use]
    if len(ratios) < FULL_BINS_MIN:
        return math.nan
    # Of a device that was bypassed the mean says nothing; a byte of payload is at least a byte.
    return float(ratios.std(ddof=1) / max(1.0, ratios.mean())) * t95(len(ratios) - 1)


def _burst_noise(ratios: Sequence[float]) -> float:
    """95 % half width of one burst's relative residual, by the median absolute deviation (so that
    one odd burst stands out instead of hiding itself); NaN under four bursts."""
    if len(ratios) < 4:
        return math.nan
    middle = float(np.median(ratios))
    spread = float(np.median(np.abs(np.array(ratios) - middle))) * 1.4826
    return spread / max(1.0, middle) * t95(len(ratios) - 1)


def _account(held: _Held, share: _Share, missing: Missing, doubt_factor: float) -> Reconciliation:
    ledger, lag, overhead = held.ledger, held.lag, held.overhead
    unknown = 1 - share.fleet_bytes / share.total_bytes if share.total_bytes > 0 else 0.0
    full = len(share.full_rates)
    base = {
        "source": ledger.source,
        "layer": ledger.layer,
        "grain_s": ledger.grain_s,
        "lag_s": figure(round(lag.lag_s, 2) + 0.0) if lag.known else None,
        "lag_uncertainty_s": figure(lag.uncertainty_s) if lag.known else None,
        "overhead_ratio": figure(overhead.ratio),
        "overhead_how": overhead.how,
        "unknown_ratio": figure(max(0.0, unknown)) or 0.0,
        "baseline_bits_per_second": figure(
            None if held.idle_bytes_per_s is None else held.idle_bytes_per_s * 8
        ),
        "full_bins_count": full,
        "neighbours": held.neighbours,
        "bypassed": held.bypassed,
        "basis": "bytes",
    }
    if share.fleet_bytes <= 0 or share.bins_count == 0:
        return Reconciliation.model_validate(base)
    basis, ledger_bytes, fleet_bytes, residual, uncertainty = min(
        _crossings(held, share) if held.bypassed else _comparisons(held, share),
        key=lambda found: found[-1],
    )
    expected = share.fleet_bytes * overhead.ratio
    idle = held.idle_bytes_per_s
    if full >= FULL_BINS_MIN:
        rate = share.full_bytes * 8 / share.full_s
    else:
        # The fleet's own rate, corrected by how the bytes compare.
        rate = share.fleet_bytes_per_s * 8 * share.ledger_bytes / share.fleet_bytes
    return Reconciliation.model_validate(
        base
        | {
            "basis": basis,
            "firewall_bits_per_second": figure(rate),
            "firewall_bytes": figure(ledger_bytes),
            "expected_bytes": figure(fleet_bytes * overhead.ratio),
            "residual_ratio": figure(residual),
            "residual_uncertainty_ratio": figure(uncertainty),
            "ledger_cov_ratio": (
                figure(float(share.full_rates.std(ddof=1) / share.full_rates.mean()))
                if full >= FULL_BINS_MIN and share.full_rates.mean() > 0
                else None
            ),
            "causes": ()
            if held.bypassed
            else causes(
                residual,
                uncertainty,
                missing=missing,
                foreign_ratio=None if idle is None else idle * share.width_s / expected,
                foreign_bits_per_second=(idle or 0.0) * 8,
                unknown_ratio=max(0.0, unknown),
                doubt_factor=doubt_factor,
            ),
        }
    )


# Basis, ledger's bytes, fleet's, residual, uncertainty.
_Comparison = tuple[Literal["rate", "bytes"], float, float, float, float]


def _comparisons(held: _Held, share: _Share) -> list[_Comparison]:
    """The ways to hold the bytes together.

    Over every bin that the fleet touched, what was under way when receivers stopped counting is in
    the ledger and in nobody's seconds; it may be up to what was sent and not received, and half
    of that is allowed for. Over full bins nothing is under way, but there are fewer of them.
    """
    overhead = held.overhead
    noise = NOISE_ASSUMED_RATIO if math.isnan(held.bin_noise_ratio) else held.bin_noise_ratio
    all_noise = noise / math.sqrt(share.bins_count)
    if not math.isnan(held.burst_noise_ratio):
        # Bytes that a bin loses to its neighbour cancel within a burst: bursts agree better than
        # their bins do.
        all_noise = min(all_noise, max(held.burst_noise_ratio, 0.3 * all_noise))
    clock = held.clock_bound_s / max(1.0, share.width_s)
    beside = OVERHEAD_ASSUMED_RATIO * share.beside_bytes / share.fleet_bytes
    half_tail = share.tail_bytes / share.total_bytes / 2
    lag = share.unsure_bytes / share.fleet_bytes
    found: list[_Comparison] = [
        (
            "bytes",
            share.ledger_bytes,
            share.fleet_bytes * (1 + half_tail),
            share.ledger_bytes / (share.fleet_bytes * overhead.ratio * (1 + half_tail)) - 1,
            math.hypot(overhead.uncertainty_ratio, all_noise, lag, clock, half_tail, beside),
        )
    ]
    full = len(share.full_ratios)
    if full >= FULL_BINS_MIN:
        found.append(
            (
                "rate",
                share.full_bytes,
                share.full_fleet_bytes,
                share.full_bytes / (share.full_fleet_bytes * overhead.ratio) - 1,
                math.hypot(overhead.uncertainty_ratio, noise / math.sqrt(full), clock, beside),
            )
        )
    return found


def _crossings(held: _Held, share: _Share) -> list[_Comparison]:
    """The same of a run that was to pass the device by.

    What is unsure of bytes that crossed shrinks with them; the scatter of the ledger's bins and
    what is unsure of neighbours' bytes stay.
    """
    beside = OVERHEAD_ASSUMED_RATIO * share.beside_bytes / share.fleet_bytes
    noise = 0.0 if math.isnan(held.bin_noise_ratio) else held.bin_noise_ratio
    found: list[_Comparison] = []
    for basis, ledger, fleet, _, unsure in _comparisons(held, share):
        full = basis == "rate"
        width_s = share.full_s if full else share.width_s
        bins = len(share.full_ratios) if full else share.bins_count
        expected = fleet * held.overhead.ratio
        crossed = (ledger - (held.idle_bytes_per_s or 0.0) * width_s) / expected
        spread = math.hypot(unsure * min(1.0, abs(crossed)), noise / math.sqrt(bins), beside)
        found.append((basis, ledger, fleet, crossed, spread))
    return found


def causes(
    residual: float,
    uncertainty: float,
    *,
    missing: Missing,
    foreign_ratio: float | None,
    foreign_bits_per_second: float,
    unknown_ratio: float,
    doubt_factor: float = DOUBT_FACTOR,
) -> tuple[Cause, ...]:
    """Named reasons for a residual, likeliest first; none when it is within its uncertainty.

    Each candidate predicts a residual; the closer to what is there, the higher it stands. Traffic
    that the firewall shows while the fleet is silent needs no residual to be seen.
    """
    doubtful = abs(residual) <= max(doubt_factor * uncertainty, AGREES_RATIO)
    foreign = foreign_ratio is not None and foreign_ratio > AGREES_RATIO
    if doubtful and not foreign:
        return ()
    found: list[Cause] = []

    def offer(
        name: CauseId, predicted: float, sentence: str, *, least: float = 0.0, weight: float = 1.0
    ) -> None:
        """``least`` .. ``predicted`` is the range that the cause can explain."""
        low, high = sorted((least, predicted))
        gap = max(0.0, low - residual, residual - high)
        fit = math.exp(-((gap / max(2 * uncertainty, 0.25 * abs(residual))) ** 2))
        if fit * weight > 0.05:
            found.append(
                Cause(
                    id=name,
                    share_ratio=figure(min(max(residual, low), high)) or 0.0,
                    confidence_ratio=figure(round(fit * weight, 3)) or 0.0,
                    sentence=sentence,
                )
            )

    percent = f"{abs(residual) * 100:.1f} %"
    if foreign_ratio is not None and foreign_ratio > AGREES_RATIO / 2:
        offer(
            "foreign-traffic",
            foreign_ratio,
            f"the firewall carried {foreign_bits_per_second / 1e9:.3g} Gbit/s while the fleet was "
            f"silent, {foreign_ratio * 100:.1f} % of what the fleet accounts for",
            least=0.8 * foreign_ratio,
        )
    if doubtful:
        return tuple(found)
    if residual > 0 and missing.share_ratio > 0:
        offer(
            "lost-reports",
            missing.share_ratio * 1.3,
            f"{missing.pairs_count} of {missing.planned_pairs_count} planned results are null, cut "
            "short or gone; had those pairs sent like the others, the firewall would show "
            f"{missing.share_ratio * 100:.1f} % more than the fleet's records",
            weight=0.95,
        )
    if residual > 0.5:
        offer(
            "duplicate-counting",
            1.0,
            f"the firewall shows {1 + residual:.2f} times the fleet's bytes: each byte seems to "
            "be counted on its way in and on its way out",
            least=0.8,
        )
    if residual < 0:
        worth = -residual * missing.planned_pairs_count
        offer(
            "bypass",
            -1.0,
            f"the firewall saw {percent} less than the fleet received, about {worth:.1f} pairs' "
            "worth: some traffic did not cross it, or the ledger leaves something out",
            weight=0.9,
        )
    if unknown_ratio > AGREES_RATIO:
        offer(
            "unknown-bins",
            math.copysign(unknown_ratio, residual),
            f"{unknown_ratio * 100:.1f} % of the fleet's bytes fall into bins that the ledger does "
            "not know yet",
            weight=0.4,
        )
    best = max((cause.confidence_ratio for cause in found), default=0.0)
    if best < 0.5 and abs(residual) > 1.5 * uncertainty:
        found.append(
            Cause(
                id="unknown",
                share_ratio=figure(residual) or 0.0,
                confidence_ratio=0.1,
                sentence=f"{percent} of the fleet's bytes are "
                f"{'surplus' if residual > 0 else 'missing'} in the firewall's ledger and nothing "
                "on record explains it",
            )
        )
    return tuple(sorted(found, key=lambda cause: -cause.confidence_ratio))
