"""What is planted: a case is a seed and parameters; a kind of case is how they are drawn."""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final

import numpy as np

Rng = np.random.Generator


def moves(usual: float, low: float, high: float, *, whole: bool | None = None) -> Any:
    """A parameter that a climb may move between two bounds, to whole numbers where it is one."""
    if whole is None:
        whole = isinstance(usual, int)
    return field(default=usual, metadata={"moves": (low, high, whole)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A fleet, its device, its records, and what is wrong with them. The defaults are clean."""

    kind: str
    seed: int
    # The run -------------------------------------------------------------------------------
    pairs: int = moves(4, 1, 30)
    bursts: int = moves(2, 1, 12)
    burst_s: int = moves(30, 2, 600)
    period_s: int = 60
    streams: int = 8
    omit_s: int = moves(0, 0, 6)  # the engine's own warm-up
    interval_s: float = 1.0  # between the engine's readings
    scale: float = 1.0  # real rates are this many times the lab's
    reference: bool = False  # declared to pass the device by
    udp: bool = False
    loss: float = 0.0  # of datagrams
    direction: str = "forward"
    pair_gigabits: float = 2.0  # Gbit/s of payload that a pair carries
    # What is to be proven ------------------------------------------------------------------
    margin: float = moves(1.03, 0.9, 1.2)  # carried rate / limit
    tolerance: float = 0.05
    layer: str = "ip"
    residual_max: float = 0.05
    # What limits ---------------------------------------------------------------------------
    limiter: str = "device"
    caps_known: bool = True
    counters_known: bool = True  # hosts' CPU and NIC
    # Noise ---------------------------------------------------------------------------------
    noise: float = moves(0.02, 0, 0.1)  # relative, a pair a second
    common_noise: float = moves(0.004, 0, 0.05)  # relative, the fleet's sum a second
    rho: float = moves(0.0, 0, 0.9)  # AR(1) of both
    scatter: float = moves(0.002, 0, 0.05)  # relative, between bursts
    climb: float = moves(0.0, 0, 0.8)  # by which the first burst is under the last: scaling out
    shift: float = 0.0  # of every other burst: two groups of bursts that differ by so much
    # Shape ---------------------------------------------------------------------------------
    ramp_s: float = moves(0.0, 0, 15)
    head_share: float = moves(0.0, 0, 0.6)  # of the burst, at its beginning
    head_level: float = moves(1.0, 0, 2)
    fall_at: float = moves(1.0, 0.3, 1)  # share of the burst after which it falls
    fall_level: float = moves(1.0, 0.1, 1)
    dip_at: float = moves(0.0, 0, 0.8)
    dip_share: float = moves(0.0, 0, 0.5)
    dip_level: float = moves(1.0, 0, 1)
    tilt: float = moves(0.0, 0, 1)  # of the rate, by which the burst's end is under its beginning
    shape_bursts: float = 1.0  # share of bursts so shaped
    shape_pairs: float = moves(1.0, 0.1, 1)  # share of pairs
    # Pairs' fates --------------------------------------------------------------------------
    late: int = moves(0, 0, 5)
    null: int = moves(0, 0, 5)
    missing: int = moves(0, 0, 5)
    lost: int = moves(0, 0, 5)  # ran, no record but the claim
    killed: int = moves(0, 0, 5)  # clients that die half way
    unheard: int = moves(0, 0, 5)  # no server's record
    clientless: int = moves(0, 0, 5)  # servers' rows only
    busy: int = moves(0, 0, 5)  # busy with another run's test: the client sent nothing
    twin: int = moves(0, 0, 5)  # clients that tell another pair's test as theirs, and ran none
    phantom: int = moves(0, 0, 5)  # clients that tell of a test that never was
    strange_cookies: int = 0  # the server's record carries a cookie that no client named
    fate_bursts: float = 1.0  # share of bursts in which that happens
    start_spread_s: float = moves(0.03, 0, 0.99)
    gap_pairs: int = moves(0, 0, 5)
    gap_s: int = moves(0, 0, 30)
    gap_both: bool = False
    receivers_seconds: bool = True  # servers' seconds are on record
    doubled_pairs: int = moves(0, 0, 5)  # whose rows were all stored twice
    lost_bursts: int = moves(0, 0, 5)  # ran, nothing on record
    # Clocks --------------------------------------------------------------------------------
    offset_s: float = moves(0.002, 0, 0.05)  # true offsets of hosts, told within the bound
    bound_s: float = moves(0.001, 0, 0.5)
    lie_share: float = moves(0.0, 0, 1)  # of clients whose clock is off beyond what it says
    lie_s: float = moves(0.0, 0, 2)
    lie_both: bool = False  # both ends of a pair alike: one host, one wrong time server
    step_share: float = moves(0.0, 0, 1)  # of hosts whose clock steps in mid-burst
    step_s: float = moves(0.0, -2, 2)
    readings: str = "all"  # none, before, all
    # The ledger ----------------------------------------------------------------------------
    ledger: bool = True
    promised: bool = True
    grain_s: float = moves(1.0, 1, 300, whole=True)
    phase: float = moves(0.37, 0, 1)  # share of a grain by which labels are off the bursts
    lag_s: float = moves(0.0, 0, 300)
    lag_drift_s: float = moves(0.0, -60, 60)  # over the run
    lag_hint: bool = False
    hint_off_s: float = 0.0  # by which the hint is wrong
    ledger_noise: float = moves(0.002, 0, 0.02)
    ledger_jitter_s: float = moves(0.0, 0, 10)
    ledger_layer: str = "ip"
    layer_said: bool = True
    quiet_s: float = moves(300.0, 0, 1500)  # before and after the run that the ledger covers
    cover_from: float = moves(0.0, 0, 0.9)  # share of the run's span
    cover_to: float = moves(1.0, 0.1, 1)
    holes: float = moves(0.0, 0, 0.8)  # share of bins unknown
    resets: int = moves(0, 0, 4)  # bins of which only a part was counted
    unread_bins: int = moves(0, 0, 4)
    unread_zero: bool = False
    duplicate: bool = False
    ledger_scale: float = 1.0  # it counts so many bytes for each that crossed
    stalls: int = moves(0, 0, 5)  # readings that did not move; the next one holds theirs as well
    wraps: bool = False  # a counter of 32 bits, read once a bin
    repeats: int = 0  # bins told again, out of order
    # What else crosses the device, or does not ------------------------------------------------
    bypass: float = moves(0.0, 0, 0.6)  # share of the fleet's bytes
    bypass_pairs: bool = True  # whole pairs, as far as that goes
    bypass_bursts: float = moves(1.0, 0.1, 1)  # share of bursts in which that is so
    foreign: float = moves(0.0, 0, 0.8)  # steady, of the fleet's rate
    foreign_trend: float = moves(0.0, -0.5, 0.5)  # of the fleet's rate, by which that rises
    bursty: float = moves(0.0, 0, 0.6)  # mean, of the fleet's rate; comes and goes
    bursty_on_s: float = moves(20.0, 2, 300)
    bursty_duty: float = moves(0.3, 0.05, 0.9)
    in_bursts: float = 0.0  # only while bursts run
    yields: float = moves(0.0, 0, 1)  # share of the steady traffic that gives way while they run
    periodic: float = moves(
        0.0, 0, 0.6
    )  # of the fleet's rate, for half of each of the run's periods
    periodic_at: float = moves(
        0.0, -0.5, 0.5
    )  # share of a period after a burst at which that begins
    other_runs: int = moves(0, 0, 5)
    other_level: float = moves(0.5, 0, 2)
    others_known: bool = True
    # Headers -------------------------------------------------------------------------------
    mss: int = 1448
    mss_told: bool = True
    header_slack: float = moves(0.0005, 0, 0.001)  # of the bytes: packets that are not full
    # Forgery -------------------------------------------------------------------------------
    forged: int = moves(0, 0, 5)  # pairs whose server's rows are rewritten
    forge: str = "times"
    forge_by: float = 10.0

    def evolve(self, **changes: Any) -> "Case":
        return replace(self, **changes)

    def document(self) -> dict[str, Any]:
        """As JSON, without what is as usual."""
        usual = {each.name: each.default for each in fields(self)}
        return {name: told for name, told in asdict(self).items() if told != usual[name]}

    def rng(self, part: str) -> Rng:
        """Chance of one part's own, so that a parameter of another leaves it as it is."""
        return np.random.default_rng([self.seed, zlib.crc32(f"{self.kind} {part}".encode())])


Draw = Callable[[Rng], Any]  # of one parameter


@dataclass(frozen=True, slots=True)
class Of:
    """A parameter that rests on others, which stand before it."""

    draw: Callable[[Rng, Mapping[str, Any]], Any]


def pick(rng: Rng, *choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def between(low: float, high: float, digits: int = 4) -> Draw:
    return lambda rng: round(float(rng.uniform(low, high)), digits)


def whole(low: int, before: int) -> Draw:
    return lambda rng: int(rng.integers(low, before))


def chance(share: float) -> Draw:
    return lambda rng: bool(rng.random() < share)


def together(*choices: tuple[Any, ...]) -> Draw:
    """Several parameters, of which not every combination is one."""
    return lambda rng: pick(rng, *choices)


def any_of(*choices: Any) -> Draw:
    """One of them; those that are drawn are drawn first, whichever it is."""
    return lambda rng: pick(rng, *[drawn(choice, rng) for choice in choices])


def drawn(told: Any, rng: Rng) -> Any:
    """What is told of a case, in its order, on which every seed's cases rest.

    Parameters by name or by their names together, or one part over another.
    """
    if callable(told):
        return told(rng)
    if isinstance(told, tuple):
        return {name: value for part in told for name, value in drawn(part, rng).items()}
    if not isinstance(told, Mapping):
        return told
    found: dict[str, Any] = {}
    for name, value in told.items():
        made = value.draw(rng, found) if isinstance(value, Of) else drawn(value, rng)
        if isinstance(name, tuple):
            found |= zip(name, made, strict=True)
        else:
            found[name] = made
    return found


def margin(rng: Rng) -> float:
    """Near the limit, very near it, or with something to spare."""
    low, high = pick(rng, (0.97, 1.06), (0.99, 1.02), (1.03, 1.15))
    return float(between(low, high)(rng))


_BEAT: Final = ("burst_s", "period_s")


def _timing(rng: Rng) -> dict[str, Any]:
    """Grain, lag, bursts and duty, of little work."""
    which = rng.random()
    if which < 0.45:
        timing: dict[Any, Any] = {
            "burst_s": any_of(10, 15, 20, 30, 45),
            "grain_s": any_of(1.0, 1.0, 2.0, 5.0),
            "period_s": Of(lambda rng, told: told["burst_s"] + pick(rng, 6, 15, 30, 60)),
            "bursts": whole(1, 7),
            "lag_s": between(0, 6),
        }
    elif which < 0.65:
        timing = {
            "grain_s": 10.0,
            "burst_s": any_of(30, 60, 90),
            "period_s": any_of(100, 120, 180),
            "bursts": whole(1, 7),
            "lag_s": between(0, 60),
        }
    elif which < 0.92:
        timing = {
            _BEAT: together((30, 60), (60, 180), (120, 180), (280, 300), (280, 420)),
            "grain_s": 60.0,
            "bursts": whole(1, 9),
            "lag_s": between(0, 240),
            "ledger_jitter_s": between(0, 3),
            "quiet_s": 600.0,
        }
    else:
        timing = {
            _BEAT: together((280, 600), (600, 900), (120, 600)),
            "grain_s": 300.0,
            "bursts": whole(2, 7),
            "lag_s": between(0, 300),
            "quiet_s": 1500.0,
        }
    return dict(drawn(timing, rng))


_BASE: Final = (
    {
        "pairs": lambda rng: pick(rng, 1, 2, 3, 4, 5, 6, 8, 12) if rng.random() < 0.93 else 30,
        "pair_gigabits": between(0.2, 8),
        "streams": any_of(1, 4, 8, 64),
        "scale": any_of(1.0, 1.0, 1.0, 100.0),
        "omit_s": any_of(0, 0, 0, 0, 0, 3),
        "margin": margin,
        "tolerance": any_of(0.0, 0.02, 0.05),
        "layer": any_of("ip", "ip", "payload"),
        "limiter": any_of("device", "device", "none", "offered"),
        "noise": between(0.005, 0.06),
        "common_noise": between(0.001, 0.01),
        "rho": any_of(0.0, 0.0, 0.3, 0.6, 0.9),
        "scatter": between(0, 0.004),
        "start_spread_s": between(0.005, 0.08),
        "phase": between(0, 1),
        "ledger_noise": between(0, 0.004),
        "ledger_layer": any_of("ip", "ip", "wire"),
        "mss": any_of(1448, 1448, 1460, 1338, 8948),
        "header_slack": between(0, 0.0003),
        "ramp_s": any_of(0.0, 0.0, 1.0, 2.0),
    },
    _timing,
)


def draw(kind: str, seed: int) -> Case:
    """A case of one kind."""
    rng = np.random.default_rng([seed, zlib.crc32(kind.encode()), 1])
    chosen = drawn((_BASE, KINDS[kind]), rng) | {"kind": kind, "seed": seed}
    chosen["period_s"] = max(chosen["period_s"], chosen["burst_s"] + chosen["omit_s"] + 6)
    return Case(**chosen)


# Kinds whose parameters rest on one another ------------------------------------------------------


def _few(rng: Rng, pairs: int) -> int:
    return max(1, round(pairs * float(rng.uniform(0.03, 0.5))))


def _times(share: float, low: float, high: float) -> Draw:
    return lambda rng: round(share * float(rng.uniform(low, high)), 4)


def _foreign(rng: Rng) -> Any:
    """Other traffic and no bypass: right passes to be kept, wrong fails to be found."""
    name = pick(rng, "foreign", "foreign", "bursty", "in_bursts")
    return drawn({"margin": between(0.98, 1.10), name: between(0.01, 0.6), **_BURSTY}, rng)


def _made_up_for(low: float, high: float, name: str, by: tuple[float, float], **more: Draw) -> Draw:
    """A bypass, and other traffic that is about as much as passes by."""

    def made_up(rng: Rng) -> Any:
        share = between(low, high)(rng)
        return drawn((_BYPASS, {"bypass": share, name: _times(share, *by), **more}), rng)

    return made_up


def _unrecorded(rng: Rng) -> Any:
    """Bursts that ran and are not on record; of many, so few that a pass may stand."""
    bursts = int(rng.integers(3, 9))
    if rng.random() < 0.4:
        many = {
            "bursts": whole(25, 41),
            "burst_s": 10,
            "period_s": any_of(16, 30, 120),
            "pairs": any_of(1, 2, 3),
            "grain_s": any_of(1.0, 10.0, 60.0),
            "lag_s": between(0, 60),
            "lost_bursts": 1,
            "common_noise": between(0.001, 0.004),
            "ramp_s": 0.0,
            "omit_s": 0,
            "bypass": _SOMETIMES,
            "margin": between(1.0, 1.15),
        }
        return drawn(many, rng)
    few = {
        "bursts": bursts,
        "lost_bursts": whole(1, max(2, bursts // 2)),
        "bypass": _SOMETIMES,
        "margin": between(1.0, 1.06),
    }
    return drawn(few, rng)


def _fates(rng: Rng) -> Any:
    pairs = pick(rng, 2, 4, 6, 8, 12, 30)
    fate = pick(rng, "late", "null", "missing", "lost", "killed", "unheard", "clientless", "busy")
    return {
        "pairs": pairs,
        fate: min(_few(rng, pairs), pairs - 1),
        "fate_bursts": pick(rng, 1.0, 1.0, 0.3),
        "margin": between(0.95, 1.6)(rng) if rng.random() < 0.5 else margin(rng),
    }


def _invented(rng: Rng) -> Any:
    """Clients that tell of tests that were others', or never were."""
    pairs = pick(rng, 2, 4, 8, 12)
    invented = {
        "pairs": pairs,
        pick(rng, "twin", "phantom"): lambda rng: min(_few(rng, pairs), pairs - 1),
        "fate_bursts": any_of(1.0, 1.0, 0.3),
        "margin": between(0.5, 1.05),
        "ledger": chance(0.5),
        "promised": False,
    }
    return drawn(invented, rng)


def _bypass_trend(rng: Rng) -> Any:
    """Foreign traffic that rises or falls over the run, with or without a bypass."""
    share = any_of(0.0, between(0.05, 0.5))(rng)
    trend = {
        "bypass": share,
        "foreign": _times(max(share, 0.1), 0.8, 1.2),
        "foreign_trend": between(-0.3, 0.5),
    }
    return drawn((_BYPASS, trend), rng)


def _bypass_some_bursts(rng: Rng) -> Any:
    """A route that changes during the run, with steady traffic that makes up for it on average."""
    share, some = between(0.03, 0.6)(rng), between(0.1, 0.7)(rng)
    changing = {
        "bypass": share,
        "bypass_bursts": some,
        "bursts": any_of(3, 4, 6),
        "foreign": any_of(0.0, share * some),
    }
    return drawn((_BYPASS, changing), rng)


def _bypass_periodic(rng: Rng) -> Any:
    """Others' jobs on the run's own beat, on or beside its bursts."""
    share = any_of(0.0, between(0.03, 0.4))(rng)
    periodic = {
        "bypass": share,
        "periodic": _times(max(share, 0.05), 0.8, 1.3),
        "periodic_at": between(-0.5, 0.5),
    }
    return drawn((_BYPASS, periodic), rng)


def _counters(rng: Rng) -> Any:
    """Device counters that stall and catch up, wrap, repeat themselves or count too much."""
    trouble = any_of(
        {"stalls": whole(1, 6)},
        {"wraps": True},
        {"repeats": whole(1, 6)},
        {"ledger_scale": between(0.9, 1.4)},
        {"lag_hint": True, "hint_off_s": between(-300, 300)},
    )(rng)
    return drawn((_BYPASS, trouble, {"bypass": any_of(0.0, between(0.02, 0.4))}), rng)


def _anything(rng: Rng) -> Any:
    """Two or three troubles at once."""
    names = [name for name in KINDS if name not in ("anything", "compare", "limiter", "duty")]
    some = rng.choice(names, size=int(rng.integers(2, 4)), replace=False)
    return drawn(tuple(KINDS[str(name)] for name in some), rng)


# Every kind --------------------------------------------------------------------------------------

_SOMETIMES: Final = any_of(0.0, 0.0, between(0.05, 0.4))  # of the bytes
_BURSTY: Final = {"bursty_on_s": between(5, 120, 1), "bursty_duty": between(0.15, 0.7)}
_BYPASS: Final = {
    "margin": between(1.0, 1.08),
    "bypass": lambda rng: 1.0 if rng.random() < 0.1 else between(0.01, 0.6)(rng),
    "bypass_pairs": chance(0.5),
}
# For the operating characteristic: quiet fleets at every distance from the limit.
_CLEAN: Final = {
    "burst_s": any_of(30, 60, 120),
    "period_s": Of(lambda _, told: told["burst_s"] * 2),
    "margin": between(0.95, 1.10),
    "pairs": any_of(2, 4, 8),
    "bursts": any_of(2, 3, 4, 6),
    "noise": between(0.005, 0.03),
    "common_noise": between(0.001, 0.004),
    "rho": any_of(0.0, 0.3),
    "scatter": between(0, 0.001),
    "ramp_s": 0.0,
    "start_spread_s": between(0.005, 0.04),
    "grain_s": any_of(1.0, 1.0, 10.0),
    "lag_s": between(0, 5),
    "ledger_layer": "ip",
    "header_slack": between(0, 0.0002),
}
# Within-burst noise from white to rho 0.9; one level for all bursts.
_NOISY: Final = {
    "burst_s": any_of(20, 30, 60, 120, 300),
    "period_s": Of(lambda _, told: told["burst_s"] + 30),
    "bursts": any_of(1, 2, 3, 4),
    "rho": any_of(0.0, 0.3, 0.5, 0.7, 0.9),
    "common_noise": between(0.003, 0.03),
    "scatter": 0.0,
    "ramp_s": 0.0,
    "grain_s": any_of(1.0, 5.0),
    "lag_s": 0.0,
}
_LIMITERS: Final = (
    *("device", "device", "client-nic", "client-cpu", "server-cpu", "window", "single-flow"),
    *("offered", "policer", "none"),
)
KINDS: Final[dict[str, Any]] = {
    "clean": _CLEAN,
    "clean-no-ledger": (_CLEAN, {"ledger": False, "promised": False}),
    # As the seed's runs: one-minute points that lag.
    "clean-azure": (
        _CLEAN,
        {
            "grain_s": 60.0,
            "burst_s": 280,
            "period_s": any_of(300, 420, 600),
            "bursts": any_of(2, 3, 5),
            "lag_s": between(15, 135),
            "ledger_jitter_s": between(0, 2),
            "quiet_s": 600.0,
        },
    ),
    "noisy": _NOISY,
    # Rho 0.9 and long bursts.
    "long-memory": (
        _NOISY,
        {
            "burst_s": any_of(60, 280, 1740),
            "period_s": 1800,
            "bursts": 1,
            "pairs": any_of(2, 3),
            "rho": 0.9,
            "grain_s": any_of(1.0, 60.0),
        },
    ),
    # Bursts that differ from one another more than seconds do.
    "scattered": {
        "burst_s": any_of(20, 30, 60),
        "period_s": 120,
        "bursts": any_of(2, 3, 4, 6, 10),
        "scatter": between(0.005, 0.03),
        "ramp_s": 0.0,
        "grain_s": any_of(1.0, 5.0, 10.0),
        "lag_s": between(0, 4),
    },
    # Bursts of a few seconds.
    "short": {
        "burst_s": whole(2, 11),
        "period_s": 20,
        "bursts": any_of(1, 1, 2, 3, 8),
        "grain_s": 1.0,
        "lag_s": between(0, 3),
        "common_noise": between(0.005, 0.04),
        "ramp_s": any_of(0.0, 1.0),
    },
    "bypass": _BYPASS,
    # Within the residual's limit, and the device's own rate below the target.
    "bypass-small": {
        "bypass": between(0.015, 0.06),
        "margin": Of(lambda rng, told: _times(1 / (1 - told["bypass"]), 0.96, 0.993)(rng)),
        "bypass_pairs": False,
    },
    "bypass-steady": _made_up_for(0.05, 0.6, "foreign", (0.8, 1.2)),
    "bypass-bursty": _made_up_for(0.05, 0.4, "bursty", (0.8, 1.2), **_BURSTY),
    # What bytes alone cannot show.
    "bypass-in-bursts": _made_up_for(0.05, 0.4, "in_bursts", (0.9, 1.1)),
    "foreign": _foreign,
    "unrecorded": _unrecorded,
    # Other runs through the same device, known to the coordinator or not.
    "others": {
        "other_runs": whole(1, 5),
        "other_level": between(0.2, 2),
        "others_known": chance(0.5),
        "bypass": _SOMETIMES,
        "margin": between(1.0, 1.06),
    },
    "ledger-troubles": (
        any_of(
            {"holes": between(0.02, 0.6)},
            {"resets": whole(1, 4)},
            {"cover_to": between(0.1, 0.9)},
            {"cover_from": between(0.1, 0.9)},
            {"unread_bins": whole(1, 4), "unread_zero": chance(0.5)},
            {"lag_drift_s": between(-60, 60)},
            {"duplicate": True},
            {"quiet_s": 0.0},
            {"lag_s": 3600.0},
        ),
        {
            "bypass": any_of(0.0, between(0.05, 0.4)),
            "foreign": _SOMETIMES,
            "margin": between(1.0, 1.06),
        },
    ),
    # From 5 to 99 per cent, up to 100 bursts.
    "duty": {
        (*_BEAT, "bursts", "grain_s"): together(
            (600, 606, 4, 60.0),
            (600, 606, 4, 10.0),
            (30, 600, 6, 60.0),
            (10, 200, 10, 10.0),
            (10, 20, 100, 10.0),
            (10, 16, 30, 60.0),
            (1740, 1746, 2, 60.0),
        ),
        "bypass": any_of(0.0, between(0.05, 0.4)),
        "pairs": any_of(2, 3),
        "quiet_s": Of(lambda rng, told: pick(rng, 0.0, 2 * told["grain_s"], 600.0)),
        "lag_s": Of(lambda rng, told: between(0, told["grain_s"] * 2)(rng)),
        "foreign": Of(lambda rng, told: pick(rng, 0.0, told["bypass"])),
        "margin": between(1.0, 1.06),
    },
    "slow-head": {
        "head_share": between(0.05, 0.55),
        "head_level": between(0.05, 0.9),
        "shape_bursts": any_of(1.0, 1.0, 0.3),
        "margin": between(0.8, 1.05),
    },
    # A fall, a dip or a slow half; the mean near the limit all the same.
    "collapse": (
        any_of(
            {"fall_at": between(0.3, 0.8), "fall_level": between(0.3, 0.9)},
            {
                "dip_at": between(0.1, 0.6),
                "dip_share": between(0.05, 0.4),
                "dip_level": between(0.0, 0.8),
            },
        ),
        {
            "shape_bursts": any_of(1.0, 1.0, 0.3),
            "shape_pairs": any_of(1.0, 1.0, 0.5),
            "margin": between(0.97, 1.12),
        },
    ),
    "fates": _fates,
    # Two runs on one set of servers; this one's clients were told that they are busy.
    "busy": {
        "pairs": any_of(1, 2, 4, 8),
        "busy": Of(
            lambda rng, told: told["pairs"] if rng.random() < 0.5 else _few(rng, told["pairs"])
        ),
        "margin": between(1.0, 1.2),
        "ledger": chance(0.5),
        "promised": False,
        "readings": "all",
    },
    "invented": _invented,
    "cookies": {
        "pairs": any_of(2, 4, 8),
        "strange_cookies": Of(lambda rng, told: _few(rng, told["pairs"])),
        "margin": margin,
    },
    # An engine that reads more or less often than each second; rows that were stored twice.
    "readings": {
        "interval_s": any_of(0.5, 1.0, 2.0, 5.0),
        "burst_s": any_of(10, 30, 60),
        "period_s": 90,
        "grain_s": 1.0,
        "lag_s": between(0, 3),
        "omit_s": any_of(0, 5),
        "doubled_pairs": any_of(0, 1, 4),
        "ramp_s": 0.0,
        "margin": margin,
    },
    # Paced datagrams, some lost before the device; what was sent is more than what came.
    "udp": {
        "udp": True,
        "loss": any_of(0.0, between(0.0005, 0.2)),
        "limiter": "offered",
        "mss": any_of(1400, 1470, 8900),
        "header_slack": 0.0,
        "ramp_s": 0.0,
        "omit_s": 0,
        "margin": margin,
    },
    # A token bucket's credit, or a first part that is faster: what lasts is under the limit.
    "credit": {
        "head_share": between(0.05, 0.5),
        "head_level": between(1.1, 3),
        "margin": between(0.97, 1.2),
    },
    # Bursts that grow while the device adds instances; the last or the mean is enough.
    "scaling-out": {
        "bursts": any_of(3, 5, 8),
        "burst_s": any_of(20, 30, 60),
        "period_s": 90,
        "grain_s": 5.0,
        "lag_s": between(0, 5),
        "climb": between(0.02, 0.8),
        "margin": between(0.98, 1.4),
    },
    "bypass-trend": _bypass_trend,
    # A rate that sinks all along the burst: no cliff, and an end under the limit.
    "decline": {"tilt": between(0.05, 0.9), "margin": between(0.98, 1.3), "ramp_s": 0.0},
    "counters": _counters,
    "bypass-some-bursts": _bypass_some_bursts,
    "bypass-periodic": _bypass_periodic,
    # Others' traffic that gives way to the fleet's: the idle level is not what bursts meet.
    "foreign-yields": {
        "bypass": any_of(0.0, 0.0, between(0.03, 0.4)),
        "foreign": between(0.05, 0.6),
        "yields": between(0.1, 1.0),
        "margin": between(0.98, 1.10),
    },
    # Pairs whose two ends are wrong by the same: they agree, and began at another instant.
    "clocks-alike": {
        "lie_share": between(0.1, 1),
        "lie_s": between(0.05, 5),
        "lie_both": True,
        "margin": margin,
        "ledger": chance(0.5),
        "promised": False,
    },
    # A run that is declared to pass the device by, and does, or does not.
    "reference": {
        "reference": True,
        "bypass": any_of(1.0, 1.0, between(0.0, 0.95)),
        "bypass_pairs": chance(0.5),
        "foreign": any_of(0.0, between(0.02, 0.5)),
        "margin": between(0.97, 1.1),
    },
    "clocks": (
        any_of(
            {"offset_s": between(0.01, 0.05), "bound_s": between(0.001, 0.03)},
            {"bound_s": between(0.06, 2)},
            {"lie_share": between(0.1, 1), "lie_s": between(0.2, 1.5)},
            {"step_share": between(0.1, 1), "step_s": between(-2, 2)},
            {"readings": "none"},
            {"readings": "none", "lie_share": 0.5, "lie_s": 0.9},
            {"readings": "before"},
        ),
        {"margin": margin},
    ),
    # Seconds that are missing from records of pairs that ran.
    "gaps": {
        "pairs": any_of(4, 8, 12, 30),
        "gap_pairs": Of(lambda rng, told: int(rng.integers(1, max(2, told["pairs"] // 3)))),
        "gap_s": whole(1, 15),
        "gap_both": chance(0.7),
        "margin": margin,
    },
    # Segment sizes that nobody recorded; a ledger whose layer nobody said.
    "headers": {
        "mss": any_of(536, 1200, 1338, 1448, 8948),
        "mss_told": False,
        "header_slack": between(0, 0.002),
        "layer": "ip",
        "ledger_layer": any_of("ip", "wire"),
        "layer_said": chance(0.5),
        "margin": between(0.95, 1.06),
        "ledger": chance(0.6),
        "promised": False,
    },
    # Pairs that start hundreds of milliseconds apart.
    "spread": {"start_spread_s": between(0.1, 0.99), "margin": margin},
    # A ledger that was promised and never came; receivers' seconds that never came.
    "absent": (
        any_of({"ledger": False}, {"receivers_seconds": False}),
        {"margin": between(0.98, 1.1)},
    ),
    # Rows that cannot be true and lift the fleet over its limit.
    "forged": {
        "pairs": any_of(2, 4, 8),
        ("forge", "forge_by"): together(
            ("times", 10.0),
            ("times", 1.5),
            ("times", 1.1),
            ("huge", 1.0),
            ("repeat", 1.0),
            ("negative", 1.0),
            ("nan", 1.0),
            ("reverse", 1.0),
            ("shift", 7.0),
        ),
        "forged": Of(lambda rng, told: int(rng.integers(1, told["pairs"] + 1))),
        "margin": between(0.6, 1.03),
        "ledger": chance(0.5),
        "promised": False,
    },
    "directions": {"direction": any_of("reverse", "bidirectional"), "margin": margin},
    # Two conditions, burst by burst in turn.
    "compare": {
        "bursts": any_of(2, 4, 6, 8, 12, 20),
        "burst_s": any_of(20, 30, 60),
        "period_s": 90,
        "shift": any_of(0.0, 0.0, between(-0.05, 0.05)),
        "scatter": between(0.0, 0.02),
        "ramp_s": 0.0,
        "ledger": False,
        "promised": False,
    },
    # What holds the fleet back, with and without the counters that would tell.
    "limiter": {
        "limiter": any_of(*_LIMITERS),
        "pairs": any_of(4, 6, 8),
        "burst_s": any_of(20, 30, 60),
        "period_s": 90,
        "grain_s": 1.0,
        "lag_s": 0.0,
        "streams": Of(
            lambda rng, told: 1 if told["limiter"] == "single-flow" else pick(rng, 4, 8, 64)
        ),
        "caps_known": chance(0.7),
        "counters_known": chance(0.7),
        "ramp_s": 0.0,
        "rho": any_of(0.0, 0.3),
    },
    "anything": _anything,
}


_MOVED: Final = """
    pairs bursts burst_s margin noise common_noise rho scatter ramp_s head_share head_level
    fall_at fall_level dip_at dip_share dip_level tilt late null missing lost killed unheard
    clientless busy twin phantom shape_pairs start_spread_s gap_pairs gap_s lost_bursts
    offset_s bound_s lie_share lie_s step_s step_share grain_s phase lag_s lag_drift_s
    ledger_noise ledger_jitter_s quiet_s cover_from cover_to holes resets unread_bins stalls
    bypass bypass_bursts yields periodic periodic_at foreign foreign_trend climb omit_s
    doubled_pairs bursty bursty_on_s bursty_duty other_runs other_level header_slack forged
"""
# What a climb may move: low, high, and whether it is a whole number. A climb rests on their order.
_FIELDS: Final = {each.name: each for each in fields(Case)}
MOVES: Final[dict[str, tuple[float, float, bool]]] = {
    name: _FIELDS[name].metadata["moves"] for name in _MOVED.split()
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
