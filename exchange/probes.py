"""Probes of a path, packed: one round trip a step, as rows of a burst and back.

A probe that was answered has its round trip; one that was not within the wait is *lost* (``NaN``);
one that was never sent is *unknown* (negative), which is neither.
"""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from exchange.chunks import MICROSECONDS, pack, unpack
from exchange.ports import Entity, RecordUnreadable
from exchange.rows import cut_properties, joined_properties, make_row, row_name

UNSENT: Final = -1.0
ROW_COUNT: Final = 6000  # probes a row: ten minutes at ten a second, some 15 kB


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """One pair's probes: the i-th was due at ``first_at_s + i * every_s``."""

    first_at_s: float  # epoch s, by the client's clock
    every_s: float
    rtt_s: "array[float]"  # float32; NaN: lost; negative: not sent


def probe_rows(partition: str, prefix: str, probes: Probes) -> list[Entity]:
    """The rows of one pair; written whole, once."""
    rows = []
    for number, at in enumerate(range(0, len(probes.rtt_s), ROW_COUNT)):
        part = probes.rtt_s[at : at + ROW_COUNT]
        column = [None if math.isnan(rtt_s) else _microseconds(rtt_s) for rtt_s in part]
        rows.append(
            make_row(
                partition,
                f"{prefix}.{number:03d}",
                {
                    "first_at_s": float(probes.first_at_s),
                    "every_s": float(probes.every_s),
                    **cut_properties("probes", pack({"rtt_us": column})),
                },
            )
        )
    return rows


def parse_probes(rows: Sequence[Entity]) -> Probes:
    """What :func:`probe_rows` made of one pair, in key order. Raises ``RecordUnreadable``."""
    rtt_s = array("f")
    for row in rows:
        try:
            column = unpack(joined_properties(row, "probes"))["rtt_us"]
            if len(column) > ROW_COUNT:
                raise RecordUnreadable(f"{len(column)} in one row")
        except (RecordUnreadable, KeyError) as error:
            raise RecordUnreadable(f"row {row_name(row)}: probes: {error}") from error
        rtt_s.extend(
            math.nan if rtt_us is None else UNSENT if rtt_us < 0 else rtt_us / MICROSECONDS
            for rtt_us in column
        )
    first_at_s, every_s = (rows[0].properties.get(name) for name in ("first_at_s", "every_s"))
    if not isinstance(first_at_s, float) or not isinstance(every_s, float) or every_s <= 0:
        raise RecordUnreadable(f"row {row_name(rows[0])}: probes without first_at_s and every_s")
    return Probes(first_at_s=first_at_s, every_s=every_s, rtt_s=rtt_s)


def _microseconds(rtt_s: float) -> int:
    return -1 if rtt_s < 0 else round(rtt_s * MICROSECONDS)
