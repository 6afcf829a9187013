"""What is planted: a case is a seed and parameters; a kind of case is how they are drawn."""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

import numpy as np

Rng = np.random.Generator


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A fleet, its device, its records, and what is wrong with them. The defaults are clean."""

    kind: str
    seed: int
    # The run -------------------------------------------------------------------------------
    pairs: int = 4
    bursts: int = 2
    burst_s: int = 30
    period_s: int = 60
    streams: int = 8
    omit_s: int = 0  # the engine's own warm-up
    interval_s: float = 1.0  # between the engine's readings
    scale: float = 1.0  # real rates are this many times the lab's
    reference: bool = False  # declared to pass the device by
    udp: bool = False
    loss: float = 0.0  # of datagrams
    direction: str = "forward"
    pair_gigabits: float = 2.0  # Gbit/s of payload that a pair carries
    # What is to be proven ------------------------------------------------------------------
    margin: float = 1.03  # carried rate / limit
    tolerance: float = 0.05
    layer: str = "ip"
    residual_max: float = 0.05
    # What limits ---------------------------------------------------------------------------
    limiter: str = "device"
    caps_known: bool = True
    counters_known: bool = True  # hosts' CPU and NIC
    # Noise ---------------------------------------------------------------------------------
    noise: float = 0.02  # relative, a pair a second
    common_noise: float = 0.004  # relative, the fleet's sum a second
    rho: float = 0.0  # AR(1) of both
    scatter: float = 0.002  # relative, between bursts
    climb: float = 0.0  # by which the first burst is under the last: a device that scales out
    shift: float = 0.0  # of every other burst: two groups of bursts that differ by so much
    # Shape ---------------------------------------------------------------------------------
    ramp_s: float = 0.0
    head_share: float = 0.0  # of the burst, at its beginning
    head_level: float = 1.0
    fall_at: float = 1.0  # share of the burst after which it falls
    fall_level: float = 1.0
    dip_at: float = 0.0
    dip_share: float = 0.0
    dip_level: float = 1.0
    tilt: float = 0.0  # of the rate, by which the burst's end is under its beginning
    shape_bursts: float = 1.0  # share of bursts so shaped
    shape_pairs: float = 1.0  # share of pairs
    # Pairs' fates --------------------------------------------------------------------------
    late: int = 0
    null: int = 0
    missing: int = 0
    lost: int = 0  # ran, no record but the claim
    killed: int = 0  # clients that die half way
    unheard: int = 0  # no server's record
    clientless: int = 0  # servers' rows only
    busy: int = 0  # the server was busy with another run's test: the client sent nothing
    twin: int = 0  # clients that tell another pair's test as theirs; none of their own ran
    phantom: int = 0  # clients that tell of a test that never was
    strange_cookies: int = 0  # the server's record carries a cookie that no client named
    fate_bursts: float = 1.0  # share of bursts in which that happens
    start_spread_s: float = 0.03
    gap_pairs: int = 0
    gap_s: int = 0
    gap_both: bool = False
    receivers_seconds: bool = True  # servers' seconds are on record
    doubled_pairs: int = 0  # whose rows were all stored twice
    lost_bursts: int = 0  # ran, nothing on record
    # Clocks --------------------------------------------------------------------------------
    offset_s: float = 0.002  # true offsets of hosts, told within the bound
    bound_s: float = 0.001
    lie_share: float = 0.0  # of clients whose clock is off beyond what it says
    lie_s: float = 0.0
    lie_both: bool = False  # both ends of a pair alike: one host, one wrong time server
    step_share: float = 0.0  # of hosts whose clock steps in mid-burst
    step_s: float = 0.0
    readings: str = "all"  # none, before, all
    # The ledger ----------------------------------------------------------------------------
    ledger: bool = True
    promised: bool = True
    grain_s: float = 1.0
    phase: float = 0.37  # share of a grain by which labels are off the bursts
    lag_s: float = 0.0
    lag_drift_s: float = 0.0  # over the run
    lag_hint: bool = False
    hint_off_s: float = 0.0  # by which the hint is wrong
    ledger_noise: float = 0.002
    ledger_jitter_s: float = 0.0
    ledger_layer: str = "ip"
    layer_said: bool = True
    quiet_s: float = 300.0  # before and after the run that the ledger covers
    cover_from: float = 0.0  # share of the run's span
    cover_to: float = 1.0
    holes: float = 0.0  # share of bins unknown
    resets: int = 0  # bins of which only a part was counted
    unread_bins: int = 0
    unread_zero: bool = False
    duplicate: bool = False
    ledger_scale: float = 1.0  # it counts so many bytes for each that crossed
    stalls: int = 0  # readings that did not move; the next one holds theirs as well
    wraps: bool = False  # a counter of 32 bits, read once a bin
    repeats: int = 0  # bins told again, out of order
    # What else crosses the device, or does not ------------------------------------------------
    bypass: float = 0.0  # share of the fleet's bytes
    bypass_pairs: bool = True  # whole pairs, as far as that goes
    bypass_bursts: float = 1.0  # share of bursts in which that is so
    foreign: float = 0.0  # steady, of the fleet's rate
    foreign_trend: float = 0.0  # of the fleet's rate, by which that rises over the run
    bursty: float = 0.0  # mean, of the fleet's rate; comes and goes
    bursty_on_s: float = 20.0
    bursty_duty: float = 0.3
    in_bursts: float = 0.0  # only while bursts run
    yields: float = 0.0  # share of the steady traffic that gives way while they run
    periodic: float = 0.0  # of the fleet's rate, for half of each of the run's own periods
    periodic_at: float = 0.0  # share of a period after a burst's instant at which that begins
    other_runs: int = 0
    other_level: float = 0.5
    others_known: bool = True
    # Headers -------------------------------------------------------------------------------
    mss: int = 1448
    mss_told: bool = True
    header_slack: float = 0.0005  # of the bytes: packets that are not full
    # Forgery -------------------------------------------------------------------------------
    forged: int = 0  # pairs whose server's rows are rewritten
    forge: str = "times"
    forge_by: float = 10.0

    def evolve(self, **changes: Any) -> "Case":
        return replace(self, **changes)

    def document(self) -> dict[str, Any]:
        """As JSON, without what is as usual."""
        usual = {field.name: field.default for field in fields(self)}
        return {name: told for name, told in asdict(self).items() if told != usual[name]}

    def rng(self, part: str) -> Rng:
        """Chance of one part's own, so that a parameter of another leaves it as it is."""
        return np.random.default_rng([self.seed, zlib.crc32(f"{self.kind} {part}".encode())])


def pick(rng: Rng, *choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def _between(rng: Rng, low: float, high: float, digits: int = 4) -> float:
    return round(float(rng.uniform(low, high)), digits)


def _margin(rng: Rng) -> float:
    """Near the limit, very near it, or with something to spare."""
    return _between(rng, *pick(rng, (0.97, 1.06), (0.99, 1.02), (1.03, 1.15)))


def _timing(rng: Rng) -> dict[str, Any]:
    """Grain, lag, bursts and duty, of little work."""
    which = rng.random()
    if which < 0.45:
        burst_s = int(pick(rng, 10, 15, 20, 30, 45))
        return {
            "grain_s": float(pick(rng, 1, 1, 2, 5)),
            "burst_s": burst_s,
            "period_s": burst_s + int(pick(rng, 6, 15, 30, 60)),
            "bursts": int(rng.integers(1, 7)),
            "lag_s": _between(rng, 0, 6),
        }
    if which < 0.65:
        return {
            "grain_s": 10.0,
            "burst_s": int(pick(rng, 30, 60, 90)),
            "period_s": int(pick(rng, 100, 120, 180)),
            "bursts": int(rng.integers(1, 7)),
            "lag_s": _between(rng, 0, 60),
        }
    if which < 0.92:
        burst_s, period_s = pick(rng, (30, 60), (60, 180), (120, 180), (280, 300), (280, 420))
        return {
            "grain_s": 60.0,
            "burst_s": burst_s,
            "period_s": period_s,
            "bursts": int(rng.integers(1, 9)),
            "lag_s": _between(rng, 0, 240),
            "ledger_jitter_s": _between(rng, 0, 3),
            "quiet_s": 600.0,
        }
    burst_s, period_s = pick(rng, (280, 600), (600, 900), (120, 600))
    return {
        "grain_s": 300.0,
        "burst_s": burst_s,
        "period_s": period_s,
        "bursts": int(rng.integers(2, 7)),
        "lag_s": _between(rng, 0, 300),
        "quiet_s": 1500.0,
    }


def _base(rng: Rng) -> dict[str, Any]:
    return {
        "pairs": int(pick(rng, 1, 2, 3, 4, 5, 6, 8, 12)) if rng.random() < 0.93 else 30,
        "pair_gigabits": _between(rng, 0.2, 8),
        "streams": int(pick(rng, 1, 4, 8, 64)),
        "scale": float(pick(rng, 1, 1, 1, 100)),
        "omit_s": int(pick(rng, 0, 0, 0, 0, 0, 3)),
        "margin": _margin(rng),
        "tolerance": float(pick(rng, 0.0, 0.02, 0.05)),
        "layer": str(pick(rng, "ip", "ip", "payload")),
        "limiter": str(pick(rng, "device", "device", "none", "offered")),
        "noise": _between(rng, 0.005, 0.06),
        "common_noise": _between(rng, 0.001, 0.01),
        "rho": float(pick(rng, 0.0, 0.0, 0.3, 0.6, 0.9)),
        "scatter": _between(rng, 0, 0.004),
        "start_spread_s": _between(rng, 0.005, 0.08),
        "phase": _between(rng, 0, 1),
        "ledger_noise": _between(rng, 0, 0.004),
        "ledger_layer": str(pick(rng, "ip", "ip", "wire")),
        "mss": int(pick(rng, 1448, 1448, 1460, 1338, 8948)),
        "header_slack": _between(rng, 0, 0.0003),
        "ramp_s": float(pick(rng, 0.0, 0.0, 1.0, 2.0)),
    } | _timing(rng)


Draw = Callable[[Rng], Mapping[str, Any]]
KINDS: Final[dict[str, Draw]] = {}


def _kind(name: str) -> Callable[[Draw], Draw]:
    def keep(draw: Draw) -> Draw:
        KINDS[name] = draw
        return draw

    return keep


def draw(kind: str, seed: int) -> Case:
    """A case of one kind."""
    rng = np.random.default_rng([seed, zlib.crc32(kind.encode()), 1])
    chosen = _base(rng) | dict(KINDS[kind](rng)) | {"kind": kind, "seed": seed}
    chosen["period_s"] = max(chosen["period_s"], chosen["burst_s"] + chosen["omit_s"] + 6)
    return Case(**chosen)


def _few(rng: Rng, pairs: int) -> int:
    return max(1, round(pairs * float(rng.uniform(0.03, 0.5))))


@_kind("clean")
def _clean(rng: Rng) -> Mapping[str, Any]:
    """For the operating characteristic: quiet fleets at every distance from the limit."""
    burst_s = int(pick(rng, 30, 60, 120))
    return {
        "margin": _between(rng, 0.95, 1.10),
        "pairs": int(pick(rng, 2, 4, 8)),
        "bursts": int(pick(rng, 2, 3, 4, 6)),
        "burst_s": burst_s,
        "period_s": burst_s * 2,
        "noise": _between(rng, 0.005, 0.03),
        "common_noise": _between(rng, 0.001, 0.004),
        "rho": float(pick(rng, 0.0, 0.3)),
        "scatter": _between(rng, 0, 0.001),
        "ramp_s": 0.0,
        "start_spread_s": _between(rng, 0.005, 0.04),
        "grain_s": float(pick(rng, 1, 1, 10)),
        "lag_s": _between(rng, 0, 5),
        "ledger_layer": "ip",
        "header_slack": _between(rng, 0, 0.0002),
    }


@_kind("clean-no-ledger")
def _clean_no_ledger(rng: Rng) -> Mapping[str, Any]:
    return dict(_clean(rng)) | {"ledger": False, "promised": False}


@_kind("clean-azure")
def _clean_azure(rng: Rng) -> Mapping[str, Any]:
    """As the seed's runs: one-minute points that lag."""
    return dict(_clean(rng)) | {
        "grain_s": 60.0,
        "burst_s": 280,
        "period_s": int(pick(rng, 300, 420, 600)),
        "bursts": int(pick(rng, 2, 3, 5)),
        "lag_s": _between(rng, 15, 135),
        "ledger_jitter_s": _between(rng, 0, 2),
        "quiet_s": 600.0,
    }


@_kind("noisy")
def _noisy(rng: Rng) -> Mapping[str, Any]:
    """Within-burst noise from white to rho 0.9; one level for all bursts."""
    burst_s = int(pick(rng, 20, 30, 60, 120, 300))
    return {
        "burst_s": burst_s,
        "period_s": burst_s + 30,
        "bursts": int(pick(rng, 1, 2, 3, 4)),
        "rho": float(pick(rng, 0.0, 0.3, 0.5, 0.7, 0.9)),
        "common_noise": _between(rng, 0.003, 0.03),
        "scatter": 0.0,
        "ramp_s": 0.0,
        "grain_s": float(pick(rng, 1, 5)),
        "lag_s": 0.0,
    }


@_kind("long-memory")
def _long_memory(rng: Rng) -> Mapping[str, Any]:
    """Rho 0.9 and long bursts."""
    return dict(_noisy(rng)) | {
        "burst_s": int(pick(rng, 60, 280, 1740)),
        "period_s": 1800,
        "bursts": 1,
        "pairs": int(pick(rng, 2, 3)),
        "rho": 0.9,
        "grain_s": float(pick(rng, 1, 60)),
    }


@_kind("scattered")
def _scattered(rng: Rng) -> Mapping[str, Any]:
    """Bursts that differ from one another more than seconds do."""
    return {
        "burst_s": int(pick(rng, 20, 30, 60)),
        "period_s": 120,
        "bursts": int(pick(rng, 2, 3, 4, 6, 10)),
        "scatter": _between(rng, 0.005, 0.03),
        "ramp_s": 0.0,
        "grain_s": float(pick(rng, 1, 5, 10)),
        "lag_s": _between(rng, 0, 4),
    }


@_kind("short")
def _short(rng: Rng) -> Mapping[str, Any]:
    """Bursts of a few seconds."""
    return {
        "burst_s": int(rng.integers(2, 11)),
        "period_s": 20,
        "bursts": int(pick(rng, 1, 1, 2, 3, 8)),
        "grain_s": 1.0,
        "lag_s": _between(rng, 0, 3),
        "common_noise": _between(rng, 0.005, 0.04),
        "ramp_s": float(pick(rng, 0.0, 1.0)),
    }


@_kind("bypass")
def _bypass(rng: Rng) -> Mapping[str, Any]:
    return {
        "margin": _between(rng, 1.0, 1.08),
        "bypass": 1.0 if rng.random() < 0.1 else _between(rng, 0.01, 0.6),
        "bypass_pairs": bool(rng.random() < 0.5),
    }


@_kind("bypass-small")
def _bypass_small(rng: Rng) -> Mapping[str, Any]:
    """Within the residual's limit, and the device's own rate below the target."""
    share = _between(rng, 0.015, 0.06)
    return {
        "margin": round(1 / (1 - share) * float(rng.uniform(0.96, 0.993)), 4),
        "bypass": share,
        "bypass_pairs": False,
    }


@_kind("bypass-steady")
def _bypass_steady(rng: Rng) -> Mapping[str, Any]:
    share = _between(rng, 0.05, 0.6)
    return dict(_bypass(rng)) | {
        "bypass": share,
        "foreign": round(share * float(rng.uniform(0.8, 1.2)), 4),
    }


@_kind("bypass-bursty")
def _bypass_bursty(rng: Rng) -> Mapping[str, Any]:
    share = _between(rng, 0.05, 0.4)
    return dict(_bypass(rng)) | {
        "bypass": share,
        "bursty": round(share * float(rng.uniform(0.8, 1.2)), 4),
        "bursty_on_s": _between(rng, 5, 120, 1),
        "bursty_duty": _between(rng, 0.15, 0.7),
    }


@_kind("bypass-in-bursts")
def _bypass_in_bursts(rng: Rng) -> Mapping[str, Any]:
    """What bytes alone cannot show."""
    share = _between(rng, 0.05, 0.4)
    return dict(_bypass(rng)) | {
        "bypass": share,
        "in_bursts": round(share * float(rng.uniform(0.9, 1.1)), 4),
    }


@_kind("foreign")
def _foreign(rng: Rng) -> Mapping[str, Any]:
    """Other traffic and no bypass: right passes to be kept, wrong fails to be found."""
    field = str(pick(rng, "foreign", "foreign", "bursty", "in_bursts"))
    return {
        "margin": _between(rng, 0.98, 1.10),
        field: _between(rng, 0.01, 0.6),
        "bursty_on_s": _between(rng, 5, 120, 1),
        "bursty_duty": _between(rng, 0.15, 0.7),
    }


@_kind("unrecorded")
def _unrecorded(rng: Rng) -> Mapping[str, Any]:
    """Bursts that ran and are not on record; of many, so few that a pass may stand."""
    bursts = int(rng.integers(3, 9))
    if rng.random() < 0.4:
        return {
            "bursts": int(rng.integers(25, 41)),
            "burst_s": 10,
            "period_s": int(pick(rng, 16, 30, 120)),
            "pairs": int(pick(rng, 1, 2, 3)),
            "grain_s": float(pick(rng, 1, 10, 60)),
            "lag_s": _between(rng, 0, 60),
            "lost_bursts": 1,
            "common_noise": _between(rng, 0.001, 0.004),
            "ramp_s": 0.0,
            "omit_s": 0,
            "bypass": float(pick(rng, 0.0, 0.0, _between(rng, 0.05, 0.4))),
            "margin": _between(rng, 1.0, 1.15),
        }
    return {
        "bursts": bursts,
        "lost_bursts": int(rng.integers(1, max(2, bursts // 2))),
        "bypass": float(pick(rng, 0.0, 0.0, _between(rng, 0.05, 0.4))),
        "margin": _between(rng, 1.0, 1.06),
    }


@_kind("others")
def _others(rng: Rng) -> Mapping[str, Any]:
    """Other runs through the same device, known to the coordinator or not."""
    return {
        "other_runs": int(rng.integers(1, 5)),
        "other_level": _between(rng, 0.2, 2),
        "others_known": bool(rng.random() < 0.5),
        "bypass": float(pick(rng, 0.0, 0.0, _between(rng, 0.05, 0.4))),
        "margin": _between(rng, 1.0, 1.06),
    }


@_kind("ledger-troubles")
def _ledger_troubles(rng: Rng) -> Mapping[str, Any]:
    trouble: dict[str, Any] = pick(
        rng,
        {"holes": _between(rng, 0.02, 0.6)},
        {"resets": int(rng.integers(1, 4))},
        {"cover_to": _between(rng, 0.1, 0.9)},
        {"cover_from": _between(rng, 0.1, 0.9)},
        {"unread_bins": int(rng.integers(1, 4)), "unread_zero": bool(rng.random() < 0.5)},
        {"lag_drift_s": _between(rng, -60, 60)},
        {"duplicate": True},
        {"quiet_s": 0.0},
        {"lag_s": 3600.0},
    )
    return trouble | {
        "bypass": float(pick(rng, 0.0, _between(rng, 0.05, 0.4))),
        "foreign": float(pick(rng, 0.0, 0.0, _between(rng, 0.05, 0.4))),
        "margin": _between(rng, 1.0, 1.06),
    }


@_kind("duty")
def _duty(rng: Rng) -> Mapping[str, Any]:
    """From 5 to 99 per cent, up to 100 bursts."""
    burst_s, period_s, bursts, grain_s = pick(
        rng,
        (600, 606, 4, 60.0),
        (600, 606, 4, 10.0),
        (30, 600, 6, 60.0),
        (10, 200, 10, 10.0),
        (10, 20, 100, 10.0),
        (10, 16, 30, 60.0),
        (1740, 1746, 2, 60.0),
    )
    share = float(pick(rng, 0.0, _between(rng, 0.05, 0.4)))
    return {
        "burst_s": burst_s,
        "period_s": period_s,
        "bursts": bursts,
        "grain_s": grain_s,
        "pairs": int(pick(rng, 2, 3)),
        "quiet_s": float(pick(rng, 0.0, 2 * grain_s, 600.0)),
        "lag_s": _between(rng, 0, grain_s * 2),
        "bypass": share,
        "foreign": float(pick(rng, 0.0, share)),
        "margin": _between(rng, 1.0, 1.06),
    }


@_kind("slow-head")
def _slow_head(rng: Rng) -> Mapping[str, Any]:
    return {
        "head_share": _between(rng, 0.05, 0.55),
        "head_level": _between(rng, 0.05, 0.9),
        "shape_bursts": float(pick(rng, 1.0, 1.0, 0.3)),
        "margin": _between(rng, 0.8, 1.05),
    }


@_kind("collapse")
def _collapse(rng: Rng) -> Mapping[str, Any]:
    """A fall, a dip or a slow half; the mean near the limit all the same."""
    shape: dict[str, Any] = pick(
        rng,
        {"fall_at": _between(rng, 0.3, 0.8), "fall_level": _between(rng, 0.3, 0.9)},
        {
            "dip_at": _between(rng, 0.1, 0.6),
            "dip_share": _between(rng, 0.05, 0.4),
            "dip_level": _between(rng, 0.0, 0.8),
        },
    )
    return shape | {
        "shape_bursts": float(pick(rng, 1.0, 1.0, 0.3)),
        "shape_pairs": float(pick(rng, 1.0, 1.0, 0.5)),
        "margin": _between(rng, 0.97, 1.12),
    }


@_kind("fates")
def _fates(rng: Rng) -> Mapping[str, Any]:
    pairs = int(pick(rng, 2, 4, 6, 8, 12, 30))
    fate = str(
        pick(rng, "late", "null", "missing", "lost", "killed", "unheard", "clientless", "busy")
    )
    return {
        "pairs": pairs,
        fate: min(_few(rng, pairs), pairs - 1),
        "fate_bursts": float(pick(rng, 1.0, 1.0, 0.3)),
        "margin": _between(rng, 0.95, 1.6) if rng.random() < 0.5 else _margin(rng),
    }


@_kind("busy")
def _busy(rng: Rng) -> Mapping[str, Any]:
    """Two runs on one set of servers; this one's clients were told that they are busy."""
    pairs = int(pick(rng, 1, 2, 4, 8))
    return {
        "pairs": pairs,
        "busy": pairs if rng.random() < 0.5 else _few(rng, pairs),
        "margin": _between(rng, 1.0, 1.2),
        "ledger": bool(rng.random() < 0.5),
        "promised": False,
        "readings": "all",
    }


@_kind("invented")
def _invented(rng: Rng) -> Mapping[str, Any]:
    """Clients that tell of tests that were others', or never were."""
    pairs = int(pick(rng, 2, 4, 8, 12))
    told = str(pick(rng, "twin", "phantom"))
    return {
        "pairs": pairs,
        told: min(_few(rng, pairs), pairs - 1),
        "fate_bursts": float(pick(rng, 1.0, 1.0, 0.3)),
        "margin": _between(rng, 0.5, 1.05),
        "ledger": bool(rng.random() < 0.5),
        "promised": False,
    }


@_kind("cookies")
def _cookies(rng: Rng) -> Mapping[str, Any]:
    pairs = int(pick(rng, 2, 4, 8))
    return {"pairs": pairs, "strange_cookies": _few(rng, pairs), "margin": _margin(rng)}


@_kind("readings")
def _readings(rng: Rng) -> Mapping[str, Any]:
    """An engine that reads more or less often than each second; rows that were stored twice."""
    return {
        "interval_s": float(pick(rng, 0.5, 1.0, 2.0, 5.0)),
        "burst_s": int(pick(rng, 10, 30, 60)),
        "period_s": 90,
        "grain_s": 1.0,
        "lag_s": _between(rng, 0, 3),
        "omit_s": int(pick(rng, 0, 5)),
        "doubled_pairs": int(pick(rng, 0, 1, 4)),
        "ramp_s": 0.0,
        "margin": _margin(rng),
    }


@_kind("udp")
def _udp(rng: Rng) -> Mapping[str, Any]:
    """Paced datagrams, some lost before the device; what was sent is more than what came."""
    return {
        "udp": True,
        "loss": float(pick(rng, 0.0, _between(rng, 0.0005, 0.2))),
        "limiter": "offered",
        "mss": int(pick(rng, 1400, 1470, 8900)),
        "header_slack": 0.0,
        "ramp_s": 0.0,
        "omit_s": 0,
        "margin": _margin(rng),
    }


@_kind("credit")
def _credit(rng: Rng) -> Mapping[str, Any]:
    """A token bucket's credit, or a first part that is faster: what lasts is under the limit."""
    return {
        "head_share": _between(rng, 0.05, 0.5),
        "head_level": _between(rng, 1.1, 3),
        "margin": _between(rng, 0.97, 1.2),
    }


@_kind("scaling-out")
def _scaling_out(rng: Rng) -> Mapping[str, Any]:
    """Bursts that grow while the device adds instances; the last or the mean is enough."""
    return {
        "bursts": int(pick(rng, 3, 5, 8)),
        "burst_s": int(pick(rng, 20, 30, 60)),
        "period_s": 90,
        "grain_s": 5.0,
        "lag_s": _between(rng, 0, 5),
        "climb": _between(rng, 0.02, 0.8),
        "margin": _between(rng, 0.98, 1.4),
    }


@_kind("bypass-trend")
def _bypass_trend(rng: Rng) -> Mapping[str, Any]:
    """Foreign traffic that rises or falls over the run, with or without a bypass."""
    share = float(pick(rng, 0.0, _between(rng, 0.05, 0.5)))
    return dict(_bypass(rng)) | {
        "bypass": share,
        "foreign": round(max(share, 0.1) * float(rng.uniform(0.8, 1.2)), 4),
        "foreign_trend": _between(rng, -0.3, 0.5),
    }


@_kind("decline")
def _decline(rng: Rng) -> Mapping[str, Any]:
    """A rate that sinks all along the burst: no cliff, and an end under the limit."""
    return {"tilt": _between(rng, 0.05, 0.9), "margin": _between(rng, 0.98, 1.3), "ramp_s": 0.0}


@_kind("counters")
def _counters(rng: Rng) -> Mapping[str, Any]:
    """Device counters that stall and catch up, wrap, repeat themselves or count too much."""
    trouble: dict[str, Any] = pick(
        rng,
        {"stalls": int(rng.integers(1, 6))},
        {"wraps": True},
        {"repeats": int(rng.integers(1, 6))},
        {"ledger_scale": _between(rng, 0.9, 1.4)},
        {"lag_hint": True, "hint_off_s": _between(rng, -300, 300)},
    )
    return (
        dict(_bypass(rng)) | trouble | {"bypass": float(pick(rng, 0.0, _between(rng, 0.02, 0.4)))}
    )


@_kind("bypass-some-bursts")
def _bypass_some_bursts(rng: Rng) -> Mapping[str, Any]:
    """A route that changes during the run, with steady traffic that makes up for it on average."""
    share, some = _between(rng, 0.03, 0.6), _between(rng, 0.1, 0.7)
    return dict(_bypass(rng)) | {
        "bypass": share,
        "bypass_bursts": some,
        "bursts": int(pick(rng, 3, 4, 6)),
        "foreign": float(pick(rng, 0.0, share * some)),
    }


@_kind("bypass-periodic")
def _bypass_periodic(rng: Rng) -> Mapping[str, Any]:
    """Others' jobs on the run's own beat, on or beside its bursts."""
    share = float(pick(rng, 0.0, _between(rng, 0.03, 0.4)))
    return dict(_bypass(rng)) | {
        "bypass": share,
        "periodic": round(max(share, 0.05) * float(rng.uniform(0.8, 1.3)), 4),
        "periodic_at": _between(rng, -0.5, 0.5),
    }


@_kind("foreign-yields")
def _foreign_yields(rng: Rng) -> Mapping[str, Any]:
    """Others' traffic that gives way to the fleet's: the idle level is not what bursts meet."""
    share = float(pick(rng, 0.0, 0.0, _between(rng, 0.03, 0.4)))
    return {
        "foreign": _between(rng, 0.05, 0.6),
        "yields": _between(rng, 0.1, 1.0),
        "bypass": share,
        "margin": _between(rng, 0.98, 1.10),
    }


@_kind("clocks-alike")
def _clocks_alike(rng: Rng) -> Mapping[str, Any]:
    """Pairs whose two ends are wrong by the same: they agree, and began at another instant."""
    return {
        "lie_share": _between(rng, 0.1, 1),
        "lie_s": _between(rng, 0.05, 5),
        "lie_both": True,
        "margin": _margin(rng),
        "ledger": bool(rng.random() < 0.5),
        "promised": False,
    }


@_kind("reference")
def _reference(rng: Rng) -> Mapping[str, Any]:
    """A run that is declared to pass the device by, and does, or does not."""
    return {
        "reference": True,
        "bypass": float(pick(rng, 1.0, 1.0, _between(rng, 0.0, 0.95))),
        "bypass_pairs": bool(rng.random() < 0.5),
        "foreign": float(pick(rng, 0.0, _between(rng, 0.02, 0.5))),
        "margin": _between(rng, 0.97, 1.1),
    }


@_kind("clocks")
def _clocks(rng: Rng) -> Mapping[str, Any]:
    trouble: dict[str, Any] = pick(
        rng,
        {"offset_s": _between(rng, 0.01, 0.05), "bound_s": _between(rng, 0.001, 0.03)},
        {"bound_s": _between(rng, 0.06, 2)},
        {"lie_share": _between(rng, 0.1, 1), "lie_s": _between(rng, 0.2, 1.5)},
        {"step_share": _between(rng, 0.1, 1), "step_s": _between(rng, -2, 2)},
        {"readings": "none"},
        {"readings": "none", "lie_share": 0.5, "lie_s": 0.9},
        {"readings": "before"},
    )
    return trouble | {"margin": _margin(rng)}


@_kind("gaps")
def _gaps(rng: Rng) -> Mapping[str, Any]:
    """Seconds that are missing from records of pairs that ran."""
    pairs = int(pick(rng, 4, 8, 12, 30))
    return {
        "pairs": pairs,
        "gap_pairs": int(rng.integers(1, max(2, pairs // 3))),
        "gap_s": int(rng.integers(1, 15)),
        "gap_both": bool(rng.random() < 0.7),
        "margin": _margin(rng),
    }


@_kind("headers")
def _headers(rng: Rng) -> Mapping[str, Any]:
    """Segment sizes that nobody recorded; a ledger whose layer nobody said."""
    return {
        "mss": int(pick(rng, 536, 1200, 1338, 1448, 8948)),
        "mss_told": False,
        "header_slack": _between(rng, 0, 0.002),
        "layer": "ip",
        "ledger_layer": str(pick(rng, "ip", "wire")),
        "layer_said": bool(rng.random() < 0.5),
        "margin": _between(rng, 0.95, 1.06),
        "ledger": bool(rng.random() < 0.6),
        "promised": False,
    }


@_kind("spread")
def _spread(rng: Rng) -> Mapping[str, Any]:
    """Pairs that start hundreds of milliseconds apart."""
    return {"start_spread_s": _between(rng, 0.1, 0.99), "margin": _margin(rng)}


@_kind("absent")
def _absent(rng: Rng) -> Mapping[str, Any]:
    """A ledger that was promised and never came; receivers' seconds that never came."""
    trouble: dict[str, Any] = pick(rng, {"ledger": False}, {"receivers_seconds": False})
    return trouble | {"margin": _between(rng, 0.98, 1.1)}


@_kind("forged")
def _forged(rng: Rng) -> Mapping[str, Any]:
    """Rows that cannot be true and lift the fleet over its limit."""
    pairs = int(pick(rng, 2, 4, 8))
    forge, by = pick(
        rng,
        ("times", 10.0),
        ("times", 1.5),
        ("times", 1.1),
        ("huge", 1.0),
        ("repeat", 1.0),
        ("negative", 1.0),
        ("nan", 1.0),
        ("reverse", 1.0),
        ("shift", 7.0),
    )
    return {
        "pairs": pairs,
        "forged": int(rng.integers(1, pairs + 1)),
        "forge": forge,
        "forge_by": by,
        "margin": _between(rng, 0.6, 1.03),
        "ledger": bool(rng.random() < 0.5),
        "promised": False,
    }


@_kind("directions")
def _directions(rng: Rng) -> Mapping[str, Any]:
    return {"direction": str(pick(rng, "reverse", "bidirectional")), "margin": _margin(rng)}


@_kind("compare")
def _compare(rng: Rng) -> Mapping[str, Any]:
    """Two conditions, burst by burst in turn."""
    return {
        "bursts": int(pick(rng, 2, 4, 6, 8, 12, 20)),
        "burst_s": int(pick(rng, 20, 30, 60)),
        "period_s": 90,
        "shift": float(pick(rng, 0.0, 0.0, _between(rng, -0.05, 0.05))),
        "scatter": _between(rng, 0.0, 0.02),
        "ramp_s": 0.0,
        "ledger": False,
        "promised": False,
    }


@_kind("limiter")
def _limiter(rng: Rng) -> Mapping[str, Any]:
    """What holds the fleet back, with and without the counters that would tell."""
    limiter = str(
        pick(
            rng,
            "device",
            "device",
            "client-nic",
            "client-cpu",
            "server-cpu",
            "window",
            "single-flow",
            "offered",
            "policer",
            "none",
        )
    )
    return {
        "limiter": limiter,
        "pairs": int(pick(rng, 4, 6, 8)),
        "burst_s": int(pick(rng, 20, 30, 60)),
        "period_s": 90,
        "grain_s": 1.0,
        "lag_s": 0.0,
        "streams": 1 if limiter == "single-flow" else int(pick(rng, 4, 8, 64)),
        "caps_known": bool(rng.random() < 0.7),
        "counters_known": bool(rng.random() < 0.7),
        "ramp_s": 0.0,
        "rho": float(pick(rng, 0.0, 0.3)),
    }


@_kind("anything")
def _anything(rng: Rng) -> Mapping[str, Any]:
    """Two or three troubles at once."""
    names = [name for name in KINDS if name not in ("anything", "compare", "limiter", "duty")]
    chosen: dict[str, Any] = {}
    for name in rng.choice(names, size=int(rng.integers(2, 4)), replace=False):
        chosen |= KINDS[str(name)](rng)
    return chosen


# What a climb may move: low, high, and whether it is a whole number.
MOVES: Final[dict[str, tuple[float, float, bool]]] = {
    "pairs": (1, 30, True),
    "bursts": (1, 12, True),
    "burst_s": (2, 600, True),
    "margin": (0.9, 1.2, False),
    "noise": (0, 0.1, False),
    "common_noise": (0, 0.05, False),
    "rho": (0, 0.9, False),
    "scatter": (0, 0.05, False),
    "ramp_s": (0, 15, False),
    "head_share": (0, 0.6, False),
    "head_level": (0, 2, False),
    "fall_at": (0.3, 1, False),
    "fall_level": (0.1, 1, False),
    "dip_at": (0, 0.8, False),
    "dip_share": (0, 0.5, False),
    "dip_level": (0, 1, False),
    "tilt": (0, 1, False),
    "late": (0, 5, True),
    "null": (0, 5, True),
    "missing": (0, 5, True),
    "lost": (0, 5, True),
    "killed": (0, 5, True),
    "unheard": (0, 5, True),
    "clientless": (0, 5, True),
    "busy": (0, 5, True),
    "twin": (0, 5, True),
    "phantom": (0, 5, True),
    "shape_pairs": (0.1, 1, False),
    "start_spread_s": (0, 0.99, False),
    "gap_pairs": (0, 5, True),
    "gap_s": (0, 30, True),
    "lost_bursts": (0, 5, True),
    "offset_s": (0, 0.05, False),
    "bound_s": (0, 0.5, False),
    "lie_share": (0, 1, False),
    "lie_s": (0, 2, False),
    "step_s": (-2, 2, False),
    "step_share": (0, 1, False),
    "grain_s": (1, 300, True),
    "phase": (0, 1, False),
    "lag_s": (0, 300, False),
    "lag_drift_s": (-60, 60, False),
    "ledger_noise": (0, 0.02, False),
    "ledger_jitter_s": (0, 10, False),
    "quiet_s": (0, 1500, False),
    "cover_from": (0, 0.9, False),
    "cover_to": (0.1, 1, False),
    "holes": (0, 0.8, False),
    "resets": (0, 4, True),
    "unread_bins": (0, 4, True),
    "stalls": (0, 5, True),
    "bypass": (0, 0.6, False),
    "bypass_bursts": (0.1, 1, False),
    "yields": (0, 1, False),
    "periodic": (0, 0.6, False),
    "periodic_at": (-0.5, 0.5, False),
    "foreign": (0, 0.8, False),
    "foreign_trend": (-0.5, 0.5, False),
    "climb": (0, 0.8, False),
    "omit_s": (0, 6, True),
    "doubled_pairs": (0, 5, True),
    "bursty": (0, 0.6, False),
    "bursty_on_s": (2, 300, False),
    "bursty_duty": (0.05, 0.9, False),
    "other_runs": (0, 5, True),
    "other_level": (0, 2, False),
    "header_slack": (0, 0.001, False),
    "forged": (0, 5, True),
}


def moved(case: Case, rng: Rng) -> Case:
    """A neighbour of a case: one to three parameters a little, or much, elsewhere."""
    changes: dict[str, Any] = {}
    planted = case.document()
    names = [name for name in MOVES if name in planted or rng.random() < 0.2] or list(MOVES)
    for name in rng.choice(names, size=min(len(names), int(rng.integers(1, 4))), replace=False):
        low, high, whole = MOVES[str(name)]
        now = float(getattr(case, str(name)))
        step = (high - low) * float(rng.choice([0.02, 0.1, 0.4])) * float(rng.standard_normal())
        told = min(high, max(low, now + step))
        changes[str(name)] = round(told) if whole else round(told, 4)
    if "grain_s" in changes:
        changes["grain_s"] = float(changes["grain_s"])
    burst_s = changes.get("burst_s", case.burst_s)
    changes["period_s"] = max(case.period_s, burst_s + case.omit_s + 6)
    if rng.random() < 0.3:
        changes["seed"] = int(rng.integers(1 << 40))
    return case.evolve(**changes)
