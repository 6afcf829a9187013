"""Tests for suggestions when a name is wrong, and for shell completion."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from broadside.coordinator.cli import app
from broadside.coordinator.cli.api_errors import nearest_names
from broadside.coordinator.cli.options import complete_chart, complete_field, complete_scenario
from broadside.exchange.fabric import FabricSettings, open_fabric
from tests.live.commands import run_command
from tests.unit.coordinator.stored_run import store_run

RUNS = ["20261120-114500-smoke-7f3a", "20261121-090000-scale-180g-cc93"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("20261120-114500-smoke-7f3b", [RUNS[0]]),
        ("cc93", [RUNS[1]]),
        ("20261121", [RUNS[1]]),
        # This is ambiguous.
        ("2026", []),
        ("nothing", []),
    ],
)
def test_nearest_names(text: str, expected: list[str]) -> None:
    assert nearest_names(text, RUNS) == expected


def test_completes_scenarios_fields_and_charts() -> None:
    assert complete_scenario("scale") == ["scale-180g"]
    assert complete_field("traffic.str") == [
        "traffic.streams_count=",
        "traffic.stream_bits_per_second=",
    ]
    assert complete_chart("thr") == ["throughput"]


async def _store(folder: Path) -> str:
    fabric = open_fabric(FabricSettings(data_dir=folder))
    run_id = await store_run(fabric)
    await fabric.close()
    return run_id


@pytest.fixture
async def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("BROADSIDE_DATA_DIR", str(tmp_path))
    return await _store(tmp_path)


def test_commands_suggest_stored_run(stored: str, tmp_path: Path) -> None:
    runner = CliRunner()
    for arguments in (["show", "synthetc"], ["report", "synth"], ["chart", "synthetik", "rtt"]):
        result = runner.invoke(app, arguments)
        assert result.exit_code == 3, result.output
        assert f"did you mean {stored}?" in result.output
    wrong = runner.invoke(app, ["chart", "last", "troughput", "-f", str(tmp_path / "x.svg")])
    assert "did you mean 'throughput'?" in wrong.output
    part = runner.invoke(
        app,
        [],
        env={
            "_ROOT_COMPLETE": "complete_bash",
            "COMP_WORDS": "root show synt",
            "COMP_CWORD": "2",
        },
        prog_name="root",
    )
    assert part.stdout.split() == [stored]


def test_output_files_are_written_to_the_given_path(stored: str, tmp_path: Path) -> None:
    runner = CliRunner()
    for arguments, name, begins in (
        (["report", "last"], "r.html", b"<!doctype html>"),
        (["report", "last"], "r.json", b'{"version":1'),
        (["export", "last"], "e.xlsx", b"PK"),
        (["export", "last", "--table", "bursts"], "e.csv", b"burst,"),
        (["export", "last", "--table", "pairs"], "e.parquet", b"PAR1"),
        (["chart", "last", "heatmap"], "c.svg", b"<svg xmlns"),
        (["chart", "last", "bursts"], "c.json", b'{"name"'),
    ):
        target = tmp_path / name
        result = runner.invoke(app, [*arguments, "-f", str(target)])
        assert result.exit_code == 0, result.output
        assert target.read_bytes().startswith(begins)
    result = runner.invoke(app, ["export", "last", "-o", "csv", "-f", str(tmp_path / "all")])
    assert result.exit_code == 0, result.output
    assert len(list((tmp_path / "all").iterdir())) == 5


def test_output_file_error_is_one_line(
    stored: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "none"))
    for arguments, code, message in (
        (["report", "last", "-f", str(tmp_path / "r.pdf")], 4, "BROWSER_PATH: no file"),
        (["chart", "last", "rtt", "-f", str(tmp_path / "c.png")], 4, "BROWSER_PATH: no file"),
        (
            ["chart", "last", "rtt", "-f", str(tmp_path / "c.gif")],
            3,
            ".png, .svg or .json",
        ),
        (["export", "last", "-f", str(tmp_path / "e.csv")], 3, "can have only one table"),
        (["export", "last", "--table", "pears"], 3, "use seconds, pairs, units, bursts, summary"),
        (["report", "last", "-f", str(tmp_path / "no" / "r.html")], 3, "No such file"),
    ):
        done = run_command(arguments, monkeypatch, capfd)
        assert done.returncode == code, done
        assert message in done.stderr
        assert len((done.stdout + done.stderr).strip().splitlines()) == 1
