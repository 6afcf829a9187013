"""What of a profile moves: a firewall that collapses, pauses, grows or shrinks.

``python -m broadside.lab.keeper --broadside-lab=PREFIX FOLDER PROFILE`` runs until it is killed,
which :func:`broadside.lab.profiles.apply` and ``lab down`` do.
"""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from broadside.lab import network, topology
from broadside.lab.errors import LabBroken
from broadside.lab.ledger import LedgerReading, parse_ledger
from broadside.lab.profiles import PROFILES, Profile, note_fall, spread
from broadside.lab.topology import Lab

LOOK_EVERY_S: Final = 0.25
GROW_LOAD_RATIO: Final = 0.6  # load above which a device that grows is growing
SHRINK_LOAD_RATIO: Final = 0.3  # load below which a device gives a unit back
IDLE_RATIO: Final = 0.02  # load below which a collapsed firewall has recovered
TAIL_BYTES: Final = 400  # of the ledger: more than a line
PAUSED_RATIO: Final = 0.002  # of the firewall's rate while it pauses


def main(folder: Path, name: str) -> None:
    spec = network.read_spec(folder)
    if spec is None:
        raise SystemExit(f"{folder}: no finished lab")
    lab, profile = topology.build_lab(spec, folder), PROFILES[name]
    try:
        if profile.cliff_ratio is not None:
            keep_cliff(lab, profile, profile.cliff_ratio)
        elif profile.pause_s:
            keep_pauses(lab, profile)
        elif profile.grow_after_s:
            keep_growth(lab, profile)
        elif profile.shrink_after_s:
            keep_until_quiet(lab, profile)
    except LabBroken as error:  # the lab was taken down under us
        raise SystemExit(str(error)) from error


def keep_cliff(lab: Lab, profile: Profile, cliff_ratio: float) -> None:
    """Cut the firewall's rate once the load on it has stayed above the cliff, until it is idle."""
    rate = rate_of(lab)
    collapsed = False
    above_since_s: float | None = None
    for load_bits_per_second in loads(lab):
        now_s = time.monotonic()
        if load_bits_per_second <= rate * cliff_ratio:
            above_since_s = None
        elif above_since_s is None:
            above_since_s = now_s
        long_enough = above_since_s is not None and now_s - above_since_s >= profile.cliff_after_s
        if not collapsed and long_enough:
            network.set_firewall_rate(lab, round(rate * profile.cliff_to_ratio))
            note_fall(lab)
            collapsed = True
        elif collapsed and load_bits_per_second < rate * IDLE_RATIO:
            network.set_firewall_rate(lab, rate)
            collapsed = False


def keep_growth(lab: Lab, profile: Profile) -> None:
    """Raise the firewall's rate step by step while it is loaded; idle, it falls back to the first.

    A step comes when the load has stayed above :data:`GROW_LOAD_RATIO` of what there is for the
    profile's time, as Azure's firewalls scale out at 60 %.
    """
    whole = rate_of(lab)
    ratio = profile.firewall_ratio
    due_s: float | None = None
    for load_bits_per_second in loads(lab):
        now_s = time.monotonic()
        if load_bits_per_second < whole * IDLE_RATIO:
            due_s = None
            if ratio > profile.firewall_ratio:
                ratio = profile.firewall_ratio
                network.set_firewall_rate(lab, round(whole * ratio))
        elif load_bits_per_second > whole * ratio * GROW_LOAD_RATIO and due_s is None:
            due_s = now_s + profile.grow_after_s
        if due_s is not None and now_s >= due_s and ratio < 1:
            due_s += profile.grow_after_s
            ratio = min(1.0, ratio + profile.grow_by_ratio)
            network.set_firewall_rate(lab, round(whole * ratio))
            note_fall(lab)


def keep_until_quiet(lab: Lab, profile: Profile) -> None:
    """Take the second of two units away once there was much load, and then little for a while."""
    whole = rate_of(lab)
    was_loaded = False
    due_s: float | None = None
    for load_bits_per_second in loads(lab):
        share = load_bits_per_second / whole
        was_loaded |= share > GROW_LOAD_RATIO
        if not was_loaded or not IDLE_RATIO < share < SHRINK_LOAD_RATIO:
            due_s = None
        elif due_s is None:
            due_s = time.monotonic() + profile.shrink_after_s
        elif time.monotonic() >= due_s:
            spread(lab, {"a": 1})
            note_fall(lab)
            return


def keep_pauses(lab: Lab, profile: Profile) -> None:
    """Cut the firewall's rate to next to nothing again and again."""
    rate = rate_of(lab)
    while True:
        time.sleep(profile.pause_every_s - profile.pause_s)
        network.set_firewall_rate(lab, round(rate * PAUSED_RATIO))
        note_fall(lab)
        time.sleep(profile.pause_s)
        network.set_firewall_rate(lab, rate)


def rate_of(lab: Lab) -> int:
    """The whole firewall's rate, bit/s."""
    if lab.spec.firewall_bits_per_second is None:
        raise SystemExit("the lab's firewall has no rate to lose, to grow or to be held against")
    return lab.spec.firewall_bits_per_second


def loads(lab: Lab) -> Iterator[float]:
    """The larger of the two ways' IP-layer rates, over each second of the firewall's ledger."""
    if lab.ledger_path is None:
        raise SystemExit("the lab has no ledger to read the load from")
    last: LedgerReading | None = None
    while True:
        time.sleep(LOOK_EVERY_S)
        reading = newest(lab.ledger_path)
        if reading is None or reading == last:
            continue
        if last is not None and reading.at_s > last.at_s:
            up_bytes = reading.up_bytes - last.up_bytes
            down_bytes = reading.down_bytes - last.down_bytes
            yield 8 * max(up_bytes, down_bytes) / (reading.at_s - last.at_s)
        last = reading


def newest(ledger_path: Path) -> LedgerReading | None:
    """The ledger's last whole line; None: there is none."""
    try:
        with ledger_path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            readings = parse_ledger(file.read().decode())
    except OSError:
        return None
    return readings[-1] if readings else None


if __name__ == "__main__":
    main(Path(sys.argv[2]), sys.argv[3])
