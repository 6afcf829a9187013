"""Tests to import iperf3 recordings, using all files in the test data."""

import json
import random
from pathlib import Path

import pytest

from broadside.coordinator.core.run_spec import Plan
from broadside.coordinator.core.summary import Verdict, canonical
from broadside.coordinator.imports import BadFile
from broadside.coordinator.imports.import_answers import FileResult, describe
from broadside.coordinator.imports.import_requests import Recording, Recordings, RecordingState
from broadside.coordinator.imports.iperf3_files import read_files
from broadside.coordinator.imports.stored_imports import open_import, summarise
from broadside.exchange.messages import Direction, Protocol, Side
from tests.unit.coordinator.imports.small_tables import NOW, made

DATA = Path(__file__).parents[3] / "data" / "iperf3"
ALL = sorted(DATA.glob("*/*.json"))


def read(*names: str) -> Recordings:
    return Recordings(recordings=read_files([DATA / name for name in names])[0])


def results(*names: str) -> list[FileResult]:
    return [describe(recording) for recording in read(*names).recordings]


def test_describes_a_test_with_its_values() -> None:
    (tcp,) = results("3.12/tcp-P2.json")
    assert (tcp.state, tcp.version, tcp.side) == (RecordingState.MEASURED, "3.12", Side.CLIENT)
    assert (tcp.direction, tcp.protocol, tcp.streams) == (Direction.FORWARD, Protocol.TCP, 2)
    assert (tcp.sent_bytes, tcp.received_bytes) == (14018412544, 14018412544)
    assert tcp.sent_bits_per_second == pytest.approx(37.376e9, rel=1e-4)
    assert tcp.retransmits == 140
    assert tcp.rtt_mean_s == pytest.approx(152e-6)
    (both,) = results("3.22/tcp-bidir.json")
    assert both.direction is Direction.BIDIRECTIONAL
    assert both.received_bytes == sum(flow.received_bytes or 0 for flow in both.flows)
    (server,) = results("3.18/server-udp-stream.json")
    assert (server.side, server.sent_bytes) == (Side.SERVER, None)
    assert server.received_bytes == 2555904


@pytest.mark.parametrize(
    ("name", "state", "expected"),
    [
        ("3.12/err-refused-J.json", "refused", "Connection refused"),
        ("3.22/err-busy-json-stream.json", "refused", "busy"),
        ("3.22/err-server-SIGKILL-at-2.5s-J.json", "failed", "control socket"),
        ("3.12/err-badparam-J.json", "failed", "usage"),
        ("3.22/err-client-SIGKILL-at-2.5s-json-stream.json", "truncated", "stops before"),
        ("3.12/tcp-opts.err", "failed", "receive timeout is valid only"),
        ("errors-3.12.txt", "unreadable", "not iperf3's"),
    ],
)
def test_describes_the_error_of_a_failed_recording(name: str, state: str, expected: str) -> None:
    (result,) = results(name)
    assert result.state == state
    assert expected in (result.reason or "")


def test_truncated_recording_gives_its_values() -> None:
    (cut,) = results("3.22/err-client-SIGKILL-at-2.5s-json-stream.json")
    assert cut.sent_bytes
    assert cut.received_bytes is None


def test_both_ends_of_a_test_are_one_pair() -> None:
    plan, summary = made(read("3.18/udp-stream.json", "3.18/server-udp-stream.json"))
    (burst,) = summary.bursts
    assert len(plan.pairs) == burst.pairs_planned == 1
    assert burst.pairs[0].pair == "udp-stream.json"
    assert burst.pairs[0].joined_by == "cookie"
    assert burst.proven_ratio == 1
    assert summary.verdict is Verdict.MEASURED


def test_client_recording_alone_is_not_a_pass() -> None:
    _, summary = made(read("3.18/udp-stream.json"))
    assert summary.verdict is Verdict.INCONCLUSIVE
    finding = next(f for f in summary.findings if f.id == "receiver-unseen")
    assert "recordings of the servers" in (finding.next_step or "")


def test_repeated_test_counts_once() -> None:
    once = made(read("3.12/tcp-P2.json"))[1]
    twice = made(read("3.12/tcp-P2.json", "3.12/tcp-P2.json", "3.12/server-persistent.json"))[1]
    assert once.bursts[0].fleet_sent_bits_per_second == pytest.approx(
        twice.bursts[0].fleet_sent_bits_per_second
    )
    assert {f.id for f in twice.findings} >= {"repeated-tests"}
    # The server file has a copy of this test, and eight others.
    assert len(twice.bursts) == 9


def moved(one: Recording, name: str, by_s: float) -> Recording:
    """Return another test that should start ``by_s`` later."""
    assert one.report is not None and one.first_data_at_s is not None
    return one.model_copy(
        update={
            "file": name,
            "first_data_at_s": one.first_data_at_s + by_s,
            "report": one.report.model_copy(update={"cookie": name}),
        }
    )


def test_groups_overlapping_tests_into_a_burst() -> None:
    one = read("3.12/tcp-P2.json").recordings[0]
    near = Recordings(recordings=(moved(one, "a", 0), moved(one, "b", 1.0)))
    (burst,) = made(near)[1].bursts
    assert [pair.pair for pair in burst.pairs] == ["a", "b"]
    gap = (moved(one, name, by_s) for name, by_s in (("a", 0), ("b", 2.0), ("c", 3600)))
    far = Recordings(recordings=tuple(gap))
    assert [len(burst.pairs) for burst in made(far)[1].bursts] == [1, 1, 1]


def test_tests_with_a_warm_up_can_follow_closely() -> None:
    """For a launch a gap is needed, but this is not required for an import."""
    one = read("3.18/tcp-omit1-stream.json").recordings[0]
    plan, summary = made(Recordings(recordings=(one, moved(one, "next", 4))))
    assert [burst.omit_s for burst in plan.bursts] == [1, 1]
    assert plan.spec.burst_s == plan.bursts[0].duration_s
    assert plan.spec.problems() == ()
    assert len(summary.bursts) == 2


def test_mixed_recordings_become_one_run_that_recomputes() -> None:
    imported = Recordings(recordings=read_files(ALL)[0])
    plan, summary = made(imported)
    assert summary.verdict is not Verdict.PASS
    assert {"mixed-tests", "null-pairs"} <= {finding.id for finding in summary.findings}
    stored = Recordings.model_validate_json(imported.model_dump_json())
    stored_plan = Plan.model_validate_json(plan.model_dump_json())
    assert canonical(
        summarise(stored_plan, open_import(stored).measure(stored_plan), NOW)
    ) == canonical(summary)


def test_order_of_files_is_irrelevant() -> None:
    names = ["3.12/tcp-P2.json", "3.22/udp.json", "3.9/server-udp.json", "3.9/udp.json"]
    shuffled = names.copy()
    random.Random(3).shuffle(shuffled)
    assert made(read(*shuffled))[1].bursts == made(read(*names))[1].bursts


def test_unreadable_files_prevent_a_pass() -> None:
    pair = ("3.18/udp-stream.json", "3.18/server-udp-stream.json")
    _, summary = made(read(*pair, "errors-3.12.txt"))
    assert summary.verdict is Verdict.INCONCLUSIVE
    assert any("1 of 3 recordings could not be read" in f.sentence for f in summary.findings)


def test_rejects_files_without_any_test() -> None:
    with pytest.raises(BadFile, match="no file contains an iperf3 test"):
        open_import(read("errors-3.12.txt")).plan("20261121-000000-iperf3-0000", NOW)


def old_recording(tmp_path: Path, version: str) -> Recordings:
    """Return a test of an old version, without the values that it did not write."""
    path = tmp_path / "old.json"
    document = json.loads((DATA / "3.12" / "tcp-P2.json").read_text(encoding="utf-8"))
    document["start"]["version"] = f"iperf {version}"
    del document["start"]["tcp_mss_default"]
    for stream in document["end"]["streams"]:
        for name in ("max_rtt", "min_rtt", "mean_rtt"):
            del stream["sender"][name]
    path.write_text(json.dumps(document), encoding="utf-8")
    return Recordings(recordings=read_files([path])[0])


@pytest.mark.parametrize("version", ["3.0", "3.1.3", "3.5", "3.7", "3.8.1"])
def test_reads_iperf3_before_3_9_and_names_the_gaps(tmp_path: Path, version: str) -> None:
    imported = old_recording(tmp_path, version)
    assert imported.recordings[0].state is RecordingState.MEASURED
    _, summary = made(imported)
    finding = next(finding for finding in summary.findings if finding.id == "old-iperf3")
    named = version.removesuffix(".0") if version != "3.0" else version
    assert f"old.json by {named}" in finding.sentence
    assert "Missing: the round-trip time, the segment size" in finding.sentence


def test_rejects_iperf_before_3_0(tmp_path: Path) -> None:
    (result,) = old_recording(tmp_path, "2.1").recordings
    assert result.state is RecordingState.UNSUPPORTED
    assert "3.0 is the oldest" in (result.reason or "")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "empty"),
        (b"\x00\x01\x02" * 50, "no test in it"),
        (b"[]", "no test in it"),
        (b"[ ID] Interval           Transfer     Bitrate\n", "text output of iperf3"),
    ],
)
def test_other_files_are_unreadable(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    (result,) = read_files([path])[0]
    assert result.state is RecordingState.UNREADABLE
    assert expected in (result.reason or "")


def test_rejects_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="No such file"):
        read_files([tmp_path / "none.json"])[0]
    with pytest.raises(BadFile, match="a folder; name its files"):
        read_files([tmp_path])[0]


def test_rejects_an_invalid_chunk() -> None:
    stored = read("3.12/tcp-P2.json").model_dump(mode="json")
    stored["recordings"][0]["packed"]["up"] = "QlND"
    with pytest.raises(ValueError, match="up: "):
        Recordings.model_validate(stored)


@pytest.mark.parametrize("by_s", [-20.0, 0.4, 20.0, 3600.0])
@pytest.mark.parametrize(
    "names",
    [
        ("3.18/udp-stream.json", "3.18/server-udp-stream.json"),
        ("3.12/tcp-P2.json", "3.12/server-persistent.json"),
        ("3.12/tcp-R.json", "3.12/server-persistent.json"),
        ("3.12/tcp-bidir.json", "3.12/server-persistent.json"),
    ],
)
def test_server_clock_offset_changes_no_metric(names: tuple[str, str], by_s: float) -> None:
    """Only the server stamps are changed for this."""
    both = read(*names)
    cookie = next(r.report.cookie for r in both.recordings if r.side is Side.CLIENT and r.report)
    ends = [r for r in both.recordings if r.report and r.report.cookie == cookie]
    assert {end.side for end in ends} == {Side.CLIENT, Side.SERVER}
    off = [
        end.model_copy(update={"first_data_at_s": (end.first_data_at_s or 0.0) + by_s})
        if end.side is Side.SERVER
        else end
        for end in ends
    ]
    right, summary = (
        made(both.model_copy(update={"recordings": tuple(item)}))[1].bursts[0]
        for item in (ends, off)
    )
    for name in ("fleet_received_bits_per_second", "fleet_sent_bits_per_second", "window"):
        assert getattr(summary, name) == getattr(right, name)
    before, after = right.pairs[0].ends_offset_s, summary.pairs[0].ends_offset_s
    assert before is not None
    assert after == pytest.approx(before + by_s, abs=1e-6)
