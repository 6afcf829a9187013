"""Functions to forge or remove records from one source."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tests.worlds.record_format import EndRecord, Floats, PairRecord, Recording, Rows
from tests.worlds.world import Manipulation, World

EndChange = Callable[[PairRecord, EndRecord], EndRecord | None]


def _change_ends(recording: Recording, change: EndChange) -> Recording:
    """Return the recording with all ends replaced. `None` removes an end."""
    pairs = []
    for record in recording.pairs:
        ends = tuple(new for end in record.ends if (new := change(record, end)) is not None)
        pairs.append(replace(record, ends=ends))
    return replace(recording, pairs=tuple(pairs))


def _select(rows: Rows, selected: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Rows:
    def cut(values: Floats | None) -> Floats | None:
        return None if values is None else values[selected]

    return Rows(
        start_s=rows.start_s[selected],
        end_s=rows.end_s[selected],
        bytes=rows.bytes[selected],
        packets=cut(rows.packets),
        lost=cut(rows.lost),
        retransmits=cut(rows.retransmits),
        rtt_s=cut(rows.rtt_s),
        cwnd_bytes=cut(rows.cwnd_bytes),
    )


def scale(world: World, source: str, factor: float, with_totals: bool = True) -> World:
    """Multiply the bytes of one source.

    Args:
        world: World to change.
        source: `sender`, `receiver`, `device` or `host`.
        factor: Factor to use for the bytes.
        with_totals: Set to True to multiply the engine totals too.

    Returns:
        The world with changed records.
    """
    recording = world.recording
    if source == "device":
        changed = replace(
            recording,
            devices=tuple(replace(d, value=np.floor(d.value * factor)) for d in recording.devices),
        )
    elif source == "host":
        changed = replace(
            recording,
            hosts=tuple(
                replace(h, rx_bytes=h.rx_bytes * factor, tx_bytes=h.tx_bytes * factor)
                for h in recording.hosts
            ),
        )
    else:

        def change(record: PairRecord, end: EndRecord) -> EndRecord:
            del record
            if end.side != source:
                return end
            total = end.total_bytes
            if total is not None and with_totals:
                total = float(np.floor(total * factor))
            rows = replace(end.rows, bytes=np.floor(end.rows.bytes * factor))
            return replace(end, rows=rows, total_bytes=total)

        changed = _change_ends(recording, change)
    return world.with_recording(
        changed,
        Manipulation(
            name="scale", source=source, amount=factor, raises=factor > 1, lowers=factor < 1
        ),
    )


def shift(world: World, source: str, by_s: float) -> World:
    """Shift the timestamps of one source.

    Args:
        world: World to change.
        source: `clients`, `servers`, `group` (both hosts in every second pair), `all` (all ends)
            or `device`.
        by_s: Seconds to add to all timestamps.

    Returns:
        The world with changed records.
    """
    recording = world.recording
    if source == "device":
        changed = replace(
            recording,
            devices=tuple(
                replace(d, start_s=d.start_s + by_s, end_s=d.end_s + by_s)
                for d in recording.devices
            ),
        )
    else:

        def moved(host: str, pair: int) -> bool:
            if source == "all":
                return True
            if source == "group":
                return pair % 2 == 0
            return host.startswith(source.removesuffix("s"))

        def change(record: PairRecord, end: EndRecord) -> EndRecord:
            if end.began_at_s is None or not moved(end.host, record.pair):
                return end
            return replace(end, began_at_s=end.began_at_s + by_s)

        changed = _change_ends(recording, change)
        changed = replace(
            changed,
            hosts=tuple(
                replace(h, at_s=h.at_s + by_s) if moved(h.host, int(h.host[-2:])) else h
                for h in changed.hosts
            ),
        )
    return world.with_recording(
        changed,
        Manipulation(
            name="shift", source=source, amount=by_s, lowers=source not in ("all", "device")
        ),
    )


def remove_source(world: World, source: str) -> World:
    """Remove the records from `sender`, `receiver`, `device`, `host`, `clocks` or `telemetry`."""
    recording = world.recording
    if source == "device":
        changed = replace(recording, devices=())
    elif source == "host":
        changed = replace(recording, hosts=())
    elif source == "clocks":
        changed = replace(recording, clocks=())
    elif source == "telemetry":
        changed = replace(recording, telemetry=())
    else:
        changed = _change_ends(recording, lambda record, end: None if end.side == source else end)
    return world.with_recording(
        changed,
        Manipulation(name="remove-source", source=source, amount=1.0, lowers=source == "receiver"),
    )


def remove_rows(world: World, source: str, share: float) -> World:
    """Remove a share of the rows (`sender`, `receiver`) or of the bins (`device`).

    The rows with the fewest bytes are removed first, as if to hide a drop.
    """
    recording = world.recording
    if source == "device":
        devices = []
        for device in recording.devices:
            count = int(share * device.value.size)
            value = device.value.copy()
            value[np.argsort(value)[:count]] = np.nan
            devices.append(replace(device, value=value))
        changed = replace(recording, devices=tuple(devices))
    else:

        def change(record: PairRecord, end: EndRecord) -> EndRecord:
            del record
            if end.side != source:
                return end
            count = int(np.ceil(share * end.rows.bytes.size))
            selected = np.ones(end.rows.bytes.size, dtype=np.bool_)
            selected[np.argsort(end.rows.bytes, kind="stable")[:count]] = False
            return replace(end, rows=_select(end.rows, selected))

        changed = _change_ends(recording, change)
    return world.with_recording(
        changed,
        Manipulation(name="remove-rows", source=source, amount=share, lowers=source == "receiver"),
    )


def add_rows(world: World, source: str, count: int) -> World:
    """Append copies of the last rows to all ends of one side."""

    def change(record: PairRecord, end: EndRecord) -> EndRecord:
        del record
        rows = end.rows
        if end.side != source or rows.bytes.size < 2:
            return end
        full = rows.bytes.size - 2
        length = rows.end_s[full] - rows.start_s[full]
        start = rows.end_s[-1] + length * np.arange(count)

        def more(values: Floats | None) -> Floats | None:
            return None if values is None else np.append(values, np.full(count, values[full]))

        new = Rows(
            start_s=np.append(rows.start_s, start),
            end_s=np.append(rows.end_s, start + length),
            bytes=np.append(rows.bytes, np.full(count, rows.bytes[full])),
            packets=more(rows.packets),
            lost=more(rows.lost),
            retransmits=more(rows.retransmits),
            rtt_s=more(rows.rtt_s),
            cwnd_bytes=more(rows.cwnd_bytes),
        )
        total = None if end.total_bytes is None else float(new.bytes.sum())
        return replace(end, rows=new, total_bytes=total)

    return world.with_recording(
        _change_ends(world.recording, change),
        Manipulation(name="add-rows", source=source, amount=float(count), raises=True),
    )


def cut_outages(world: World, source: str, below_ratio: float = 0.7) -> World:
    """Remove rows far below the median for an end, and close the gap."""

    def change(record: PairRecord, end: EndRecord) -> EndRecord:
        del record
        rows = end.rows
        if end.side != source or rows.bytes.size < 3:
            return end
        length = rows.end_s - rows.start_s
        rate = rows.bytes / length
        selected = rate >= below_ratio * np.median(rate)
        remaining = _select(rows, selected)
        ends = np.cumsum(length[selected])
        return replace(
            end,
            rows=replace(remaining, start_s=ends - length[selected], end_s=ends),
            total_bytes=None if end.total_bytes is None else float(remaining.bytes.sum()),
            total_s=None if end.total_s is None or not ends.size else float(ends[-1]),
        )

    return world.with_recording(
        _change_ends(world.recording, change),
        Manipulation(name="cut-outages", source=source, amount=below_ratio, raises=True),
    )


def flatten(world: World, source: str) -> World:
    """Set all rows, or all bins with traffic, to their mean."""
    recording = world.recording
    if source == "device":
        devices = []
        for device in recording.devices:
            value = device.value.copy()
            busy = np.isfinite(value) & (value > 0.3 * np.nanmax(value))
            value[busy] = np.floor(value[busy].mean())
            devices.append(replace(device, value=value))
        changed = replace(recording, devices=tuple(devices))
    else:

        def change(record: PairRecord, end: EndRecord) -> EndRecord:
            del record
            rows = end.rows
            if end.side != source or not rows.bytes.size:
                return end
            length = rows.end_s - rows.start_s
            mean = rows.bytes.sum() / length.sum()
            return replace(end, rows=replace(rows, bytes=np.floor(mean * length)))

        changed = _change_ends(recording, change)
    return world.with_recording(
        changed, Manipulation(name="flatten", source=source, amount=1.0, raises=True)
    )


def swap_rows(world: World, source: str, share: float) -> World:
    """Set the rows for a share of the pairs to those from the largest pair in the same burst."""
    recording = world.recording
    best: dict[tuple[int, str], EndRecord] = {}
    for record in recording.pairs:
        for end in record.ends:
            key = (record.burst, end.direction)
            if end.side == source and (
                key not in best or end.rows.bytes.sum() > best[key].rows.bytes.sum()
            ):
                best[key] = end
    pairs = sorted({record.pair for record in recording.pairs})
    taken = set(pairs[: max(1, round(share * len(pairs)))])

    def change(record: PairRecord, end: EndRecord) -> EndRecord:
        if end.side != source or record.pair not in taken:
            return end
        other = best[(record.burst, end.direction)]
        return replace(end, rows=other.rows, total_bytes=other.total_bytes, total_s=other.total_s)

    return world.with_recording(
        _change_ends(recording, change),
        Manipulation(name="swap-rows", source=source, amount=share, raises=True),
    )


def random_manipulation(world: World, rng: np.random.Generator) -> World:
    """Apply a random manipulation to a random source.

    Args:
        world: World to change.
        rng: Random number generator to use.

    Returns:
        The world with changed records.
    """
    side = str(rng.choice(["sender", "receiver"]))
    source = str(rng.choice(["sender", "receiver", "device", "host"]))
    choices: list[Callable[[], World]] = [
        lambda: scale(world, source, draw_factor(rng), bool(rng.random() < 0.5)),
        lambda: shift(
            world,
            str(rng.choice(["clients", "servers", "group", "all", "device"])),
            float(rng.choice([-1, 1]) * np.exp(rng.uniform(np.log(0.2), np.log(60.0)))),
        ),
        lambda: remove_source(
            world, str(rng.choice(["sender", "receiver", "device", "host", "clocks"]))
        ),
        lambda: remove_rows(
            world,
            str(rng.choice(["sender", "receiver", "device"])),
            float(rng.choice([0.02, 0.1, 0.3, 0.6])),
        ),
        lambda: add_rows(world, side, int(rng.integers(1, 6))),
        lambda: cut_outages(world, side),
        lambda: flatten(world, str(rng.choice(["sender", "receiver", "device"]))),
        lambda: swap_rows(world, side, float(rng.choice([0.05, 0.2, 0.5]))),
    ]
    return choices[int(rng.integers(len(choices)))]()


def draw_factor(rng: np.random.Generator) -> float:
    """Draw a factor between 1.01 and 2. Small and large factors are equally frequent."""
    return float(1.0 + np.exp(rng.uniform(np.log(0.01), np.log(1.0))))
