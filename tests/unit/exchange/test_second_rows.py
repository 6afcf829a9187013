import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.exchange.ports import RecordUnreadable
from broadside.exchange.rows import make_row
from broadside.exchange.second_rows import ROW_COUNT, UNSENT, Probes, parse_probes, probe_rows

ANSWERS = st.one_of(st.floats(0, 1, width=32), st.just(math.nan), st.just(UNSENT))


@given(st.lists(ANSWERS, min_size=1, max_size=300))
def test_probes_are_restored_to_the_microsecond(values: list[float]) -> None:
    probes = Probes(first_at_s=1.5e9, every_s=0.1, rtt_s=array("f", values))
    restored = parse_probes(probe_rows("burst.r.00000", "probe.00003", probes))
    assert (restored.first_at_s, restored.every_s) == (1.5e9, 0.1)
    assert len(restored.rtt_s) == len(values)
    for before, after in zip(probes.rtt_s, restored.rtt_s, strict=True):
        assert math.isnan(before) == math.isnan(after)
        assert (before < 0) == (after < 0)
        if before >= 0:
            assert after == pytest.approx(before, abs=1e-6)


def test_a_long_burst_takes_several_rows_in_key_order() -> None:
    values = [0.001 * (i % 7) for i in range(2 * ROW_COUNT + 5)]
    rows = probe_rows(
        "p", "probe.00000", Probes(first_at_s=1.0, every_s=0.1, rtt_s=array("f", values))
    )
    assert [row.row_key for row in rows] == [f"probe.00000.{n:03d}" for n in range(3)]
    assert len(parse_probes(rows).rtt_s) == len(values)


def test_invalid_probe_row_is_reported_with_its_key() -> None:
    row = make_row("p", "probe.00000.000", {"first_at_s": 1.0, "every_s": 0.1, "probes_0": b"x"})
    with pytest.raises(RecordUnreadable, match=r"p\|probe.00000.000: probes"):
        parse_probes([row])
