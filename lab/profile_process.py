"""Changes the firewall's rate over time, for profiles that collapse, pause, grow or shrink.

``python -m broadside.lab.profile_process --broadside-lab=PREFIX FOLDER PROFILE`` runs until it is
killed by :func:`broadside.lab.profiles.apply` or ``lab down``.
"""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from broadside.lab import network, topology
from broadside.lab.byte_counter import ByteCounterReading, parse_counter
from broadside.lab.errors import LabBroken
from broadside.lab.profiles import PROFILES, LabProfile, note_fall, spread
from broadside.lab.topology import Lab

LOOK_EVERY_S: Final = 0.25
# Load above which the device grows.
GROW_LOAD_RATIO: Final = 0.6
# Load below which the device removes a unit.
SHRINK_LOAD_RATIO: Final = 0.3
# Load below which a collapsed firewall recovers.
IDLE_RATIO: Final = 0.02
# Bytes to read from the end of the byte counter, which is more than one line.
TAIL_BYTES: Final = 400
# Entries of the session table in this namespace.
SESSIONS_PATH: Final = Path("/proc/sys/net/netfilter/nf_conntrack_count")
# Share of the firewall's rate during a pause.
PAUSED_RATIO: Final = 0.002


def main(folder: Path, name: str) -> None:
    """Apply a profile until the process is killed.

    Args:
        folder: Folder of the lab.
        name: Name of the profile in ``PROFILES``.

    Raises:
        SystemExit: The folder has no finished lab, or the lab was removed.
    """
    spec = network.read_spec(folder)
    if spec is None:
        raise SystemExit(f"{folder}: no finished lab")
    lab, profile = topology.build_lab(spec, folder), PROFILES[name]
    try:
        if profile.cliff_ratio is not None:
            apply_cliff(lab, profile, profile.cliff_ratio)
        elif profile.table_count is not None:
            apply_table(lab, profile, profile.table_count)
        elif profile.pause_s:
            apply_pauses(lab, profile)
        elif profile.grow_after_s:
            apply_growth(lab, profile)
        elif profile.shrink_after_s:
            apply_until_quiet(lab, profile)
    # The lab has been removed, so we can stop.
    except LabBroken as error:
        raise SystemExit(str(error)) from error


def apply_cliff(lab: Lab, profile: LabProfile, cliff_ratio: float) -> None:
    """Reduce the firewall's rate after a high load, until the load is gone.

    Args:
        lab: The lab.
        profile: Profile with the duration and the reduced rate.
        cliff_ratio: Load above which the firewall collapses, as a share of its rate.
    """
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


def apply_table(lab: Lab, profile: LabProfile, most: int) -> None:
    """Reduce the firewall's rate while its session table is full.

    Args:
        lab: The lab.
        profile: Profile with the reduced rate.
        most: Number of entries above which the rate is reduced.
    """
    rate = rate_of(lab)
    slow = False
    while True:
        time.sleep(LOOK_EVERY_S)
        full = int(SESSIONS_PATH.read_text()) > most
        if full is not slow:
            slow = full
            network.set_firewall_rate(lab, round(rate * profile.cliff_to_ratio) if full else rate)
            note_fall(lab)


def apply_growth(lab: Lab, profile: LabProfile) -> None:
    """Raise the firewall's rate in steps under load, and reset it when idle.

    A step will follow when the load was above :data:`GROW_LOAD_RATIO` of the current rate for the
    time in the profile. Azure's firewalls also scale out at 60 %.

    Args:
        lab: The lab.
        profile: Profile with the first rate, the step and the time.
    """
    complete = rate_of(lab)
    ratio = profile.firewall_ratio
    due_s: float | None = None
    for load_bits_per_second in loads(lab):
        now_s = time.monotonic()
        if load_bits_per_second < complete * IDLE_RATIO:
            due_s = None
            if ratio > profile.firewall_ratio:
                ratio = profile.firewall_ratio
                network.set_firewall_rate(lab, round(complete * ratio))
        elif load_bits_per_second > complete * ratio * GROW_LOAD_RATIO and due_s is None:
            due_s = now_s + profile.grow_after_s
        if due_s is not None and now_s >= due_s and ratio < 1:
            due_s += profile.grow_after_s
            ratio = min(1.0, ratio + profile.grow_by_ratio)
            network.set_firewall_rate(lab, round(complete * ratio))
            note_fall(lab)


def apply_until_quiet(lab: Lab, profile: LabProfile) -> None:
    """Remove the second of two units when the load was high and then stays low for a while.

    Args:
        lab: The lab.
        profile: Profile with the time to wait.
    """
    complete = rate_of(lab)
    was_loaded = False
    due_s: float | None = None
    for load_bits_per_second in loads(lab):
        share = load_bits_per_second / complete
        was_loaded |= share > GROW_LOAD_RATIO
        if not was_loaded or not IDLE_RATIO < share < SHRINK_LOAD_RATIO:
            due_s = None
        elif due_s is None:
            due_s = time.monotonic() + profile.shrink_after_s
        elif time.monotonic() >= due_s:
            spread(lab, {"a": 1})
            note_fall(lab)
            return


def apply_pauses(lab: Lab, profile: LabProfile) -> None:
    """Reduce the firewall's rate to almost nothing at regular intervals.

    Args:
        lab: The lab.
        profile: Profile with the interval and the duration.
    """
    rate = rate_of(lab)
    while True:
        time.sleep(profile.pause_every_s - profile.pause_s)
        network.set_firewall_rate(lab, round(rate * PAUSED_RATIO))
        note_fall(lab)
        time.sleep(profile.pause_s)
        network.set_firewall_rate(lab, rate)


def rate_of(lab: Lab) -> int:
    """Return the firewall's full rate in bit/s. Exit if it is not limited.

    Raises:
        SystemExit: The firewall has no limit.
    """
    if lab.spec.firewall_bits_per_second is None:
        raise SystemExit("the lab's firewall has no rate limit; build the lab with one")
    return lab.spec.firewall_bits_per_second


def loads(lab: Lab) -> Iterator[float]:
    """Yield the higher rate of both directions in bit/s (IP layer), for each byte counter line.

    Raises:
        SystemExit: The lab has no byte counter.
    """
    if lab.counter_path is None:
        raise SystemExit("the lab has no firewall counter, so its load is unknown")
    last: ByteCounterReading | None = None
    while True:
        time.sleep(LOOK_EVERY_S)
        reading = newest(lab.counter_path)
        if reading is None or reading == last:
            continue
        if last is not None and reading.at_s > last.at_s:
            up_bytes = reading.up_bytes - last.up_bytes
            down_bytes = reading.down_bytes - last.down_bytes
            yield 8 * max(up_bytes, down_bytes) / (reading.at_s - last.at_s)
        last = reading


def newest(counter_path: Path) -> ByteCounterReading | None:
    """Return the last complete line of the byte counter, or ``None`` if there is none."""
    try:
        with counter_path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            readings = parse_counter(file.read().decode())
    except OSError:
        return None
    return readings[-1] if readings else None


if __name__ == "__main__":
    main(Path(sys.argv[2]), sys.argv[3])
