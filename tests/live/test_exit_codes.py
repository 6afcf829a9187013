"""Test that exit code 1 is used only for the verdict *fail*, with the real command line."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from broadside.coordinator.cli.exit_codes import ExitCode, run_with_exit_code
from tests.live.as_nobody import as_nobody
from tests.live.waiting import wait_for

# This should be much longer than any command needs.
_ENDS_WITHIN_S = 60.0


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BROADSIDE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path / "data"


def broadside(
    *arguments: str, stdout: int = subprocess.PIPE, before: Sequence[str] = ()
) -> tuple[int, str]:
    """Run a command and return its exit code and standard error."""
    done = subprocess.run(
        [*before, sys.executable, "-m", "broadside.coordinator", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=_ENDS_WITHIN_S,
        check=False,
    )
    return done.returncode, done.stderr


def one_line(text: str) -> str:
    assert text.startswith("broadside: "), text
    assert text.count("\n") == 1, text
    return text


def test_full_standard_output_is_an_error(data_dir: Path) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        code, reported = broadside("scenarios", "-o", "json", stdout=full)
    finally:
        os.close(full)
    assert code == ExitCode.CANNOT_RUN
    assert "No space left" in one_line(reported)


@pytest.mark.parametrize("arguments", [["scenarios"], ["scenarios", "-o", "json"], ["--help"]])
def test_closed_pipe_is_an_error_without_message(data_dir: Path, arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        code, reported = broadside(*arguments, stdout=writer)
    finally:
        os.close(writer)
    assert (code, reported) == (ExitCode.CANNOT_RUN, "")


@pytest.mark.parametrize("file", ["private", "control", "results"])
def test_corrupt_database_is_an_error(data_dir: Path, file: str) -> None:
    assert broadside("runs")[0] == ExitCode.PASS
    for end in ("-wal", "-shm"):
        (data_dir / f"{file}.sqlite3{end}").unlink(missing_ok=True)
    (data_dir / f"{file}.sqlite3").write_bytes(os.urandom(20_000))
    parts = {"private": ["runs"], "control": ["show", "x"], "results": ["agents"]}[file]
    # The plan is read only if the header of the run exists.
    if file == "control":
        parts = ["launch", "smoke"]
    code, reported = broadside(*parts)
    assert code == ExitCode.CANNOT_RUN, reported
    assert f"{file}.sqlite3" in one_line(reported) or file == "control"


def test_skips_damaged_rows(data_dir: Path) -> None:
    assert broadside("runs")[0] == ExitCode.PASS
    with sqlite3.connect(data_dir / "private.sqlite3") as connection:
        damage = [(b"\xff\xfe{", "a"), ("[" * 100_000, "b"), ("3", "c"), ("{}", "d")]
        for text, key in damage:
            row = ("runs", key, "0", text, b"")
            connection.execute("INSERT INTO entity VALUES (?, ?, ?, ?, ?)", row)
    connection.close()
    code, reported = broadside("runs")
    assert (code, reported.count("left out")) == (ExitCode.PASS, len(damage)), reported


@pytest.mark.needs_root
def test_data_directory_of_another_user_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    # The temporary folders of pytest can be used only by root.
    with tempfile.TemporaryDirectory() as open_folder:
        Path(open_folder).chmod(0o755)
        monkeypatch.setenv("BROADSIDE_DATA_DIR", f"{open_folder}/data")
        assert broadside("runs")[0] == ExitCode.PASS
        # Broadside would create it to be private. The second mode is readable for others.
        for mode in (0o700, 0o755):
            Path(open_folder, "data").chmod(mode)
            code, reported = broadside("runs", before=as_nobody())
            assert code == ExitCode.CANNOT_RUN
            assert "writable for this user" in one_line(reported)


@pytest.fixture
def served(data_dir: Path) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "broadside.coordinator", "serve", "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("listening on"):
            break
    yield process
    process.kill()
    process.wait()
    process.stderr.close()


def test_deleted_data_directory_stops_the_coordinator(
    served: "subprocess.Popen[str]", data_dir: Path
) -> None:
    wait_for("the first read of the runs", (data_dir / "private.sqlite3-wal").exists)
    shutil.rmtree(data_dir, ignore_errors=True)
    # A file may have been created meanwhile.
    shutil.rmtree(data_dir, ignore_errors=True)
    _, reported = served.communicate(timeout=_ENDS_WITHIN_S)
    assert served.returncode == ExitCode.CANNOT_RUN, reported
    assert "removed or replaced while in use" in reported.splitlines()[-1]


def test_coordinator_stops_on_sigterm(served: "subprocess.Popen[str]") -> None:
    served.send_signal(signal.SIGTERM)
    _, reported = served.communicate(timeout=_ENDS_WITHIN_S)
    assert served.returncode in (0, -signal.SIGTERM), reported


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ZeroDivisionError("x"), ExitCode.CANNOT_RUN),
        (RecursionError(), ExitCode.CANNOT_RUN),
        (MemoryError(), ExitCode.CANNOT_RUN),
        (SystemExit(1), ExitCode.CANNOT_RUN),
        (SystemExit("what was wrong"), ExitCode.CANNOT_RUN),
        (SystemExit(143), 143),
        (SystemExit(), ExitCode.PASS),
        (KeyboardInterrupt(), 130),
        (ExceptionGroup("two", [ValueError("a"), KeyError("b")]), ExitCode.CANNOT_RUN),
        (UnicodeDecodeError("utf-8", b"", 0, 1, "\x1b[2J"), ExitCode.CANNOT_RUN),
    ],
    ids=repr,
)
def test_no_exception_gives_exit_code_1(
    error: BaseException,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def ends() -> None:
        raise error

    assert run_with_exit_code(ends) == code
    err = capsys.readouterr().err
    assert err.count("\n") <= 1
    assert "\x1b" not in err
    for log in tmp_path.glob("broadside-*.log"):
        assert str(log) in err
        assert log.stat().st_mode & 0o777 == 0o600
        assert "Traceback" in log.read_text()


def test_keeps_exit_codes_of_verdicts() -> None:
    assert [run_with_exit_code(partial(int, code)) for code in ExitCode] == list(ExitCode)
