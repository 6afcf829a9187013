"""Tests to import files in the forms that users have, made from one test and one metric."""

import gzip
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from broadside.coordinator.cli.import_commands import iperf3
from broadside.coordinator.core.summary import RunSummary, Verdict
from broadside.coordinator.imports import BadFile
from broadside.coordinator.imports.import_requests import Recording, Recordings, RecordingState
from broadside.coordinator.imports.iperf3_files import read_files
from broadside.coordinator.imports.iperf3_runs import Iperf3Tests
from broadside.coordinator.imports.metric_csv import read_metric
from broadside.coordinator.imports.stored_imports import summarise
from broadside.exchange.messages import Direction, Flow, Protocol, Side

FORMS = Path(__file__).parents[3] / "data" / "forms"
STREAMS = Path(__file__).parents[3] / "data" / "iperf3"
NOW = datetime(2026, 11, 27, tzinfo=UTC)
SENT_BYTES = 499_712
STAMP = "2025-11-25T12:00:00.000000000Z "
BOTH = json.loads((FORMS / "client-and-server.json").read_text(encoding="utf-8"))
CLIENT = {key: value for key, value in BOTH.items() if key != "server_output_json"}
SERVER = BOTH["server_output_json"]


def lines(document: object, prefix: str) -> str:
    return "".join(prefix + line + "\n" for line in json.dumps(document, indent=4).splitlines())


def events(document: dict[str, object]) -> list[str]:
    """Return the events of a document, as --json-stream writes them."""
    intervals = document["intervals"]
    assert isinstance(intervals, list)
    parts = [("start", document["start"]), *(("interval", one) for one in intervals)]
    return [json.dumps({"event": e, "data": d}) for e, d in [*parts, ("end", document["end"])]]


TEXT = json.dumps(CLIENT)
# Content and the number of tests of each form.
FILES: dict[str, tuple[bytes, int]] = {
    "plain": (TEXT.encode(), 1),
    "utf-8-bom": (TEXT.encode("utf-8-sig"), 1),
    "utf-16-le-bom": (TEXT.encode("utf-16"), 1),
    "utf-16-le": (TEXT.encode("utf-16-le"), 1),
    "utf-16-be-bom": (b"\xfe\xff" + TEXT.encode("utf-16-be"), 1),
    "utf-16-be": (TEXT.encode("utf-16-be"), 1),
    "utf-32": (TEXT.encode("utf-32"), 1),
    "crlf": (json.dumps(CLIENT, indent=2).replace("\n", "\r\n").encode(), 1),
    "indented": (lines(CLIENT, "   ").encode(), 1),
    "tabs": (json.dumps(CLIENT, indent="\t").encode(), 1),
    "array": (json.dumps([CLIENT, SERVER], indent=1).encode(), 2),
    "array-on-one-line": (json.dumps([CLIENT, SERVER]).encode(), 2),
    "documents-on-one-line": ((TEXT + " " + json.dumps(SERVER)).encode(), 2),
    "json-lines": ((TEXT + "\n" + json.dumps(SERVER) + "\n").encode(), 2),
    "json-stream": ("\n".join(events(CLIENT)).encode(), 1),
    "json-stream-spaced": ("\n".join("  " + one for one in events(CLIENT)).encode(), 1),
    "gzip": (gzip.compress(TEXT.encode()), 1),
    "gzip-of-utf-16": (gzip.compress(TEXT.encode("utf-16")), 1),
    "gzip-members": (gzip.compress(TEXT.encode()) + gzip.compress(b"\n" + TEXT.encode()), 1),
    "kubectl-timestamps": ("".join(STAMP + one + "\n" for one in events(CLIENT)).encode(), 1),
    "kubectl-timestamps-document": (lines(CLIENT, STAMP).encode(), 1),
    "kubectl-prefix": (lines(CLIENT, "[pod/client-0/iperf3] ").encode(), 1),
    "kubectl-prefix-timestamps": (lines(CLIENT, "[pod/client-0/iperf3] " + STAMP).encode(), 1),
    "containerd": (lines(CLIENT, "2025-11-25T12:00:00.1+01:00 stdout F ").encode(), 1),
    "compose": (lines(CLIENT, "client-1  | ").encode(), 1),
    "journal": (lines(CLIENT, "Nov 25 12:00:00 host iperf3[123]: ").encode(), 1),
    "docker-json-log": (
        "\n".join(
            json.dumps({"log": one + "\n", "stream": "stdout"}) for one in events(CLIENT)
        ).encode(),
        1,
    ),
    "ansible": (json.dumps({"results": [{"item": 1, "stdout": TEXT, "rc": 0}]}).encode(), 1),
    "wrapper": (json.dumps({"tests": {"a": CLIENT, "b": SERVER}}).encode(), 2),
    "text-before": (b"warning: this is not iperf3\nstarting\n" + TEXT.encode(), 1),
    "text-in-line": (b"INFO result=" + TEXT.encode(), 1),
    "colours": (b"\x1b[32m" + TEXT.encode() + b"\x1b[0m", 1),
    "not-a-number": (TEXT.replace('"rttvar":', '"strange": -nan, "rttvar":').encode(), 1),
    "server-json": (json.dumps(BOTH).encode(), 2),
    "server-json-stream": (
        "\n".join(
            [*events(CLIENT), json.dumps({"event": "server_output_json", "data": SERVER})]
        ).encode(),
        2,
    ),
}


@pytest.fixture
def read(tmp_path: Path) -> Callable[[bytes], tuple[Recording, ...]]:
    def read_content(content: bytes) -> tuple[Recording, ...]:
        path = tmp_path / "file.json"
        path.write_bytes(content)
        return read_files([path])[0]

    return read_content


@pytest.mark.parametrize("form", FILES)
def test_reads_every_form(form: str, read: Callable[[bytes], tuple[Recording, ...]]) -> None:
    content, count = FILES[form]
    recordings = read(content)
    assert [recording.state for recording in recordings] == [RecordingState.MEASURED] * count
    assert [recording.side for recording in recordings] == [Side.CLIENT, Side.SERVER][:count]
    report = recordings[0].report
    assert report is not None and report.totals[0].sent_bytes == SENT_BYTES
    assert report.direction is Direction.FORWARD and report.protocol is Protocol.TCP


def test_separates_interleaved_pods(read: Callable[[bytes], tuple[Recording, ...]]) -> None:
    client = lines(CLIENT, "[pod/client-0/iperf3] ").splitlines()
    server = lines(SERVER, "[pod/server-0/iperf3] ").splitlines()
    mixed = [line for both in zip(client, server, strict=False) for line in both]
    mixed += client[len(server) :] + server[len(client) :]
    recordings = read("\n".join(mixed).encode())
    assert [(r.side, r.state) for r in recordings] == [
        (Side.CLIENT, RecordingState.MEASURED),
        (Side.SERVER, RecordingState.MEASURED),
    ]


@pytest.mark.parametrize("form", ["plain", "utf-16-le-bom", "kubectl-prefix", "json-stream"])
def test_reads_the_start_of_a_cut_file(
    form: str, read: Callable[[bytes], tuple[Recording, ...]]
) -> None:
    content, _ = FILES[form]
    (recording,) = read(content[: len(content) * 7 // 10])
    assert recording.state is RecordingState.TRUNCATED
    assert recording.chunks.keys() == {Flow.UP}


def test_reads_the_start_of_a_cut_archive(tmp_path: Path) -> None:
    path = tmp_path / "file.json.gz"
    path.write_bytes(gzip.compress(json.dumps(CLIENT, indent=1).encode())[:-12])
    recordings, notes = read_files([path])
    assert recordings[0].state in (RecordingState.TRUNCATED, RecordingState.MEASURED)
    assert [note.id for note in notes] == ["archive-cut"]


def test_rejects_an_archive_that_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broadside.coordinator.imports.iperf3_files.RECORDING_MAX_BYTES", 10_000)
    path = tmp_path / "zeros.gz"
    path.write_bytes(gzip.compress(b"0" * 1_000_000))
    with pytest.raises(BadFile, match="its content is larger than"):
        read_files([path])


def made(imported: Recordings) -> RunSummary:
    tests = Iperf3Tests(imported)
    plan = tests.plan("20261127-000000-iperf3-0000", NOW)
    return summarise(plan, tests.measure(plan), NOW)


def document(tmp_path: Path, change: Callable[[dict[str, object]], object]) -> Recordings:
    value = json.loads(json.dumps(BOTH))
    for part in (value, value["server_output_json"]):
        change(part)
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    recordings, notes = read_files([path])
    return Recordings(recordings=recordings, notes=notes)


def test_server_output_makes_a_complete_test(tmp_path: Path) -> None:
    assert made(document(tmp_path, lambda part: None)).verdict is Verdict.MEASURED


def test_server_output_as_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "text.json"
    path.write_text(json.dumps({**CLIENT, "server_output_text": "[ ID] Interval"}), "utf-8")
    recordings, notes = read_files([path])
    assert [recording.state for recording in recordings] == [RecordingState.MEASURED]
    assert "Start the iperf3 server with --json too" in (notes[0].next_step or "")


def test_test_of_a_number_of_bytes_has_no_duration(tmp_path: Path) -> None:
    def of_bytes(part: dict[str, object]) -> None:
        start = part["start"]
        assert isinstance(start, dict)
        start["test_start"] |= {"duration": 0, "bytes": SENT_BYTES}

    summary = made(document(tmp_path, of_bytes))
    assert not [f for f in summary.findings if "duration_s" in f.sentence]


def test_sctp_has_no_tcp_headers(tmp_path: Path) -> None:
    def as_sctp(part: dict[str, object]) -> None:
        start = part["start"]
        assert isinstance(start, dict)
        start["test_start"]["protocol"] = "SCTP"

    imported = document(tmp_path, as_sctp)
    assert {r.report.protocol for r in imported.recordings if r.report} == {Protocol.SCTP}
    plan = Iperf3Tests(imported).plan("20261127-000000-iperf3-0000", NOW)
    assert plan.spec.traffic.protocol is Protocol.SCTP
    assert any("sctp results can be imported" in text for text in plan.spec.problems())
    assert "(SCTP)" in made(imported).model_dump_json()


# Metrics.

RATES = [0, 1e9, 2e9, None, 5e8]
BYTES = [None if rate is None else rate * 7.5 for rate in RATES]


@pytest.mark.parametrize(
    ("name", "unit", "values"),
    [
        ("azure-cli.json", "bits", RATES),
        ("azure-rest.json", "bytes", BYTES),
        ("log-analytics.json", "bits", RATES),
        ("log-analytics.csv", "bits", RATES),
        ("log-analytics-rest.json", "bytes", BYTES),
        ("prometheus.json", "bits", RATES),
        ("prometheus-total-partial.json", "bytes", [value or 0 for value in BYTES]),
        ("portal.csv", "bits", RATES),
        ("epoch-s.csv", "bits", RATES),
        ("epoch-ms.csv", "bits", RATES),
        ("german.csv", "bits", RATES),
        ("excel-utf16.csv", "bits", RATES),
    ],
)
def test_reads_every_metric(name: str, unit: str, values: list[float | None]) -> None:
    fields = read_metric(FORMS / name)
    points, declaration = fields["metric"], fields["metric_declaration"]
    assert declaration.unit == unit
    assert declaration.aggregation == ("sum" if unit == "bytes" else "mean")
    read = [point.bits_per_second if unit == "bits" else point.value for point in points]
    assert read == pytest.approx(values, nan_ok=True) if None not in values else read == values
    assert points[0].at == datetime(2025, 11, 25, 12, tzinfo=UTC)
    assert (points[1].at - points[0].at).total_seconds() == 60
    assert bool(fields["metric_problem"]) == ("partial" in name)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("{", ["line 1", "not valid JSON", "export"]),
        ('{"a": 1}', ["no values of a metric", "found: a", "az monitor metrics list"]),
        ("[]", ["no values of a metric"]),
        ('{"status": "error", "error": "parse error"}', ["parse error", "correct the query"]),
        (
            '{"status": "success", "data": {"resultType": "vector", "result": []}}',
            ["resultType", "'vector'", "query_range"],
        ),
        (
            '{"status": "success", "data": {"resultType": "matrix", "result": []}}',
            ["result is empty"],
        ),
        (
            (
                '{"status": "success", "data": {"resultType": "matrix", "result": '
                '[{"values": [[1764072000, "x"]]}]}}'
            ),
            ["result[0].values[0]", "'x'", "export"],
        ),
        (
            (
                '{"value": [{"name": {"value": "Throughput"}, "unit": "BitsPerSecond", '
                '"timeseries": '
                '[{"data": [{"timeStamp": "today", "average": 1}]}]}]}'
            ),
            ["Throughput data[0]", "'today'"],
        ),
        (
            (
                '{"value": [{"name": {"value": "Throughput"}, "unit": "BitsPerSecond", '
                '"timeseries": '
                '[{"data": [{"timeStamp": "2025-11-25T12:00:00Z", "average": -1}]}]}]}'
            ),
            ["Throughput data[0], average", "'-1'", "null"],
        ),
        (
            (
                '{"value": [{"name": {"value": "FirewallHealth"}, "unit": "Percent", "timeseries": '
                '[{"data": [{"timeStamp": "2025-11-25T12:00:00Z", "average": 1}]}]}]}'
            ),
            ["FirewallHealth in percent", "Average", "DataProcessed"],
        ),
        ("time,value\n1/2/2025 12:00,1\n1/2/2025 12:01,2\n", ["row 2", "day and month", "write"]),
        ("time;value\n1764072000;1,234\n1764072060;5,678\n", ["row 2, value", "'1,234'", "write"]),
    ],
)
def test_error_names_file_place_value_and_fix(
    tmp_path: Path, content: str, parts: list[str]
) -> None:
    path = tmp_path / "metric.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(BadFile) as caught:
        read_metric(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ") and "\n" not in text
    for part in parts:
        assert part in text, text


def test_partial_metric_is_no_proof(tmp_path: Path) -> None:
    imported = document(tmp_path, lambda part: None)
    fields = read_metric(FORMS / "prometheus-total-partial.json")
    summary = made(imported.model_copy(update=fields))
    assert "device-counter-partial" in {finding.id for finding in summary.findings}
    assert summary.verdict is Verdict.INCONCLUSIVE


def test_next_steps_name_only_options_of_the_command(tmp_path: Path) -> None:
    """A next step of an iperf3 import names no option that only tables have."""
    imported = document(tmp_path, lambda part: None)
    path = tmp_path / "other.txt"
    path.write_text("text", encoding="utf-8")
    both = imported.model_copy(
        update={"recordings": (*imported.recordings, *read_files([path])[0])}
    )
    options = iperf3.__annotations__.keys()
    assert {"firewall_metric", "metric", "labels", "assignments"} <= options
    known = {"--firewall-metric", "--metric", "--label", "--set"}
    known |= {"--json", "--json-stream", "--get-server-output"}
    steps = " ".join(f.next_step or "" for run in (imported, both) for f in made(run).findings)
    assert set(re.findall(r"--[a-z][a-z-]+", steps)) <= known
