"""Test that the bench table checks its limits and can be compared to a baseline."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench import __main__ as bench
from tests.bench import quick
from tests.bench.limit_rows import Row


def make_rows(ratio: float, value: float = 1.0) -> Iterator[Row]:
    yield Row(name="a look", value=value, unit="s", limit=2, peer="bare", peer_value=value / ratio)
    yield Row(name="alone", value=1, unit="s")


def run(
    monkeypatch: pytest.MonkeyPatch, ratio: float, *arguments: str | Path, value: float = 1.0
) -> int:
    monkeypatch.setattr(bench, "rows", lambda: make_rows(ratio, value))
    monkeypatch.setattr("sys.argv", ["bench", *map(str, arguments)])
    return bench.main()


@pytest.mark.parametrize(
    ("ratio", "value", "code"), [(3.0, 1.0, 0), (3.59, 1.0, 0), (3.61, 1.0, 1), (3.0, 2.1, 1)]
)
def test_ratio_increase_above_a_fifth_is_reported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ratio: float,
    value: float,
    code: int,
) -> None:
    """Check that a faster machine will change values but not ratios, and that a missed limit is a
    failure."""
    assert run(monkeypatch, 3.0, "--json") == 0
    baseline = tmp_path / "baseline.json"
    baseline.write_text(capsys.readouterr().out)
    assert [row["ratio"] for row in json.loads(baseline.read_text())] == [3.0, None]
    assert run(monkeypatch, ratio, "--against", baseline, value=value) == code
    output = capsys.readouterr()
    assert ("grown: a look" in output.err) == (ratio > 3.6)
    assert ("MISSED" in output.out) == (value > 2)


@pytest.mark.parametrize(
    ("ratios", "code"), [([3.0], 0), ([3.7, 3.5], 0), ([3.7, 3.8, 3.7, 3.9], 1)]
)
def test_quick_ratio_is_compared_per_machine_and_repeated(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ratios: list[float],
    code: int,
) -> None:
    """Check that the first run on a new machine is stored, and that a short disturbance can be
    ignored."""
    next_ratios = iter([3.0, *ratios])
    monkeypatch.setattr(quick, "rows", lambda: make_rows(next(next_ratios)))
    parts = ["bench", "--quick", "--machines", str(tmp_path)]
    monkeypatch.setattr("sys.argv", parts)
    assert bench.main() == 0
    assert [item.stem for item in tmp_path.iterdir()] == [bench.machine()]
    assert "kept" in capsys.readouterr().err
    assert bench.main() == code
    assert ("grown: a look: 3 to 3.7 times" in capsys.readouterr().err) == bool(code)
    assert list(next_ratios) == []
