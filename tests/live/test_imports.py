"""Test imports, comparisons and recomputed verdicts on the command line."""

import json
import random
import resource
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.live.live_site import BROADSIDE, PACED, Site, call, wait_for_fleet

pytestmark = pytest.mark.live

DATA = Path(__file__).parent.parent / "data"
SEED = DATA / "original" / "seed-280s-30clients.csv"
METRIC = DATA / "original" / "seed-280s-firewall-throughput.csv"
IDPS = DATA / "original" / "seed-idps-on-off-1client.csv"
RECORDINGS = DATA / "iperf3"


def answer(done: subprocess.CompletedProcess[str], code: int = 0) -> Any:
    """Return the JSON output of a command. Other output would be an error."""
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_imports_original_with_firewall_metric(site: Site) -> None:
    """Test the bursts of the original. See test_table_bursts.py for tests of the clients."""
    result = answer(
        site.run("import", "original", str(SEED), "--firewall-metric", str(METRIC), "-o", "json")
    )
    bursts = result["bursts"]
    assert [round(burst["fleet_received_bits_per_second"] / 1e9, 2) for burst in bursts] == [
        175.50, 181.27, 181.88, 181.03, 180.29, 181.12,
    ]  # fmt: skip
    for burst in bursts:
        stored = burst["reconciliation"]
        assert stored["lag_s"] == pytest.approx(75, abs=15)
        assert stored["firewall_bits_per_second"] == pytest.approx(182.5e9, rel=0.01)
        # The table has no idle bins, so other traffic can only be bounded and not measured.
        assert stored["baseline_how"] == "bounded"
        assert (
            stored["residual_low_ratio"] < stored["residual_ratio"] < stored["residual_high_ratio"]
        )
    run_id = result["run_id"]
    (listed,) = answer(site.run("runs", "-o", "json"))
    assert (listed["run_id"], listed["verdict"]) == (run_id, "inconclusive")
    shown = answer(site.run("show", "last", "-o", "json"))
    assert (shown["state"], shown["imported"]) == ("finished", "original")
    assert site.run("show", "last").stdout.startswith(f"{run_id}: finished, imported (original)\n")
    assert shown["bursts"][1]["outcomes"] == {"measured": 27, "late": 2, "failed": 1}
    verdict = answer(site.run("verdict", run_id, "-o", "json"), code=2)
    assert verdict["fleet_received_bits_per_second"] == pytest.approx(180.18e9, rel=1e-4)
    assert verdict["completeness_ratio"] == pytest.approx(result["completeness_ratio"])


def test_comparison_distinguishes_idps_on_and_off(site: Site) -> None:
    answer(site.run("import", "original", str(IDPS), "-o", "json"))

    def assert_true_means(comparison: Any) -> None:
        metrics = {metric["name"]: metric for metric in comparison["metrics"]}
        received, rtt = metrics["received_bits_per_second"], metrics["rtt_s"]
        assert (received["a_count"], received["b_count"]) == (35, 10)
        assert round(received["a_mean"] / 1e9, 2) == 5.27
        assert round(received["b_mean"] / 1e9, 2) == 9.21
        assert round(rtt["a_mean"] * 1e3) == 109
        assert round(rtt["b_mean"] * 1e3, 1) == 7.9
        assert received["significant"]
        assert rtt["significant"]
        assert not comparison["few_bursts"]
        assert comparison["conditions_differ"] == []

    for at in ("2022-01-13T15:49:00Z", "10:49"):
        assert_true_means(answer(site.run("compare", "last", "--split-at", at, "-o", "json")))
    # Two parts of the same file, distinguished by their labels.
    for option, at, value in (
        ("--until", "2022-01-13T10:49", "alert-and-deny"),
        ("--since", "2022-01-13T10:50", "off"),
    ):
        sliced = ("import", "original", str(IDPS), option, at, "--label", f"idps={value}")
        answer(site.run(*sliced, "-o", "json"))
    assert_true_means(answer(site.run("compare", "--label", "idps", "-o", "json")))
    newest = [run["run_id"] for run in answer(site.run("runs", "-o", "json"))]
    assert_true_means(answer(site.run("compare", newest[1], newest[0], "-o", "json")))
    plain = site.run("compare", newest[1], newest[0])
    assert "5.269 Gbit/s" in plain.stdout
    assert "; different: " in plain.stdout


def test_imports_iperf3_files_as_one_run(site: Site) -> None:
    files = sorted(RECORDINGS.glob("*/*.json"))
    matched = answer(site.run("import", "iperf3", *map(str, files), "-o", "json"))
    by_file: dict[str, list[dict[str, Any]]] = {}
    for result in matched["files"]:
        by_file.setdefault(result["file"], []).append(result)
    assert by_file.keys() == {str(file) for file in files}
    for file, tests in by_file.items():
        erring = "err-" in file or file.endswith("3.12/tcp-opts.json")
        assert all((test["state"] == "measured") != erring for test in tests), file
        assert all(bool(test["reason"]) == erring for test in tests), file
    assert matched["verdict"] != "pass"
    assert site.run("verdict", "last").returncode in (1, 2)
    plain = site.run("import", "iperf3", str(files[0]))
    assert plain.returncode == 0
    assert files[0].name in plain.stdout


def test_import_recomputes_byte_for_byte(site: Site) -> None:
    _, url = site.start_coordinator()
    client = ("--api", url)
    imports = (
        ["original", str(SEED), "--firewall-metric", str(METRIC)],
        ["iperf3", *(str(path) for path in sorted(RECORDINGS.glob("3.18/*.json")))],
    )
    for arguments in imports:
        answer(site.run("import", *arguments, "-o", "json", *client))
        stored = site.run("verdict", "last", "-o", "json", *client)
        again = site.run("verdict", "last", "--recompute", "-o", "json", *client)
        assert again.stdout == stored.stdout, again.stderr
        assert again.returncode == stored.returncode
        assert "byte for byte" in again.stderr
    meter = answer(site.run("price", "last", "-o", "json", *client))
    reported = call(url, "GET", f"/v1/runs/{meter['run_id']}/price")
    assert (reported["charged"], reported["not_charged_why"]) == (
        False,
        "an imported run costs nothing",
    )
    assert reported["spent"]["total_usd"] == 0
    assert meter["measured_bytes"] == reported["measured_bytes"] > 0
    assert site.run("price", "last", *client).stdout == "an imported run costs nothing\n"
    refused = site.run("import", "original", str(SEED), "--set", "pairs_count=3", *client)
    assert refused.returncode == 3
    assert "pairs_count: follows from the import" in refused.stderr


def test_recomputation_detects_missing_rows(site: Site) -> None:
    site.start_fleet(1)
    _, url = site.start_coordinator()
    wait_for_fleet(url, 2)
    small = ("--set=pairs_count=1", "--set=burst_s=3", "--set=lead_s=6", PACED)
    stored = site.run("launch", "smoke", *small, "-o", "json", "--api", url)
    assert json.loads(stored.stdout)["completeness_ratio"] > 0.9, stored.stdout
    for place in (["--api", url], []):
        again = site.run("verdict", "last", "--recompute", "-o", "json", *place)
        assert again.stdout == stored.stdout, again.stderr
        assert again.returncode == stored.returncode
    with sqlite3.connect(site.folder / "data" / "results.sqlite3") as table:
        (name,) = table.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE '%row_key%'"
        ).fetchone()
        gone = table.execute(
            f"DELETE FROM {name} WHERE rowid IN (SELECT rowid FROM {name}"  # noqa: S608 - a name from SQLite
            " WHERE partition_key LIKE 'tests.%' LIMIT 2)"
        )
        assert gone.rowcount == 2
    differs = site.run("verdict", "last", "--recompute", "-o", "json", "--api", url)
    assert differs.returncode == 4
    was, now = json.loads(stored.stdout), json.loads(differs.stdout)
    assert now["verdict"] != "pass"
    assert now["bursts"][0]["proven_ratio"] < was["bursts"][0]["proven_ratio"]
    assert "does not follow from the stored data" in differs.stderr
    assert "fields differ: bursts[0]." in differs.stderr
    # The stored summary should not change.
    assert site.run("verdict", "last", "-o", "json", "--api", url).stdout == stored.stdout


# These are files. See tests/unit/coordinator/imports/test_result_tables.py for the same errors in
# tables.
BAD: dict[str, tuple[bytes, list[str]]] = {
    "wrong columns": (b"a,b,c\n1,2,3\n", ["row 1", "PartitionKey", "a, b, c"]),
    "empty": (b"", ["empty"]),
    "binary": (random.Random(1).randbytes(200_000), ["binary", "CSV"]),
    "not utf-8": (
        SEED.read_bytes() + b"10.2.0.\xff,x,1,1,s,280\n",
        ["row 181", "0xff", "UTF-8"],
    ),
}


def test_invalid_file_is_a_one_line_error_and_stores_nothing(site: Site) -> None:
    path = site.folder / "table.csv"
    for case, (content, parts) in BAD.items():
        path.write_bytes(content)
        refuses(site, case, ["import", "original", str(path)], parts)
    for case in ("wrong columns", "empty", "binary"):
        path.write_bytes(BAD[case][0])
        both = ["import", "original", str(SEED), "--firewall-metric", str(path)]
        refuses(site, case, both, [str(path)])
    assert answer(site.run("runs", "-o", "json")) == []


def refuses(site: Site, case: str, arguments: list[str], expected: list[str]) -> None:
    done = site.run(*arguments)
    assert done.returncode == 3, f"{case}: {done.stderr}"
    assert done.stdout == "", case
    assert len(done.stderr.strip().splitlines()) == 1, f"{case}: {done.stderr}"
    for part in expected:
        assert part in done.stderr, case


@pytest.mark.parametrize("kind", ["original", "iperf3"])
def test_rejects_huge_file_with_bounded_memory(site: Site, kind: str) -> None:
    """Test 100 MB of rows and an endless device with at most 400 MB for data."""
    path = site.folder / "huge.csv"
    line = SEED.read_bytes().splitlines(keepends=True)[1]
    with path.open("wb") as file:
        file.write(SEED.read_bytes())
        for _ in range(100_000_000 // (len(line) * 1000)):
            file.write(line * 1000)
    for huge in (str(path), "/dev/zero"):
        done = subprocess.run(
            [*BROADSIDE, "import", kind, huge],
            env=site.environment | {"OPENBLAS_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (400 << 20, 400 << 20)),
        )
        assert done.returncode == 3, done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
        assert "at most" in done.stderr
    path.unlink()
    assert answer(site.run("runs", "-o", "json")) == []


MISTAKES: list[tuple[list[str], list[str]]] = [
    (["import", "original", "none.csv"], ["none.csv", "No such file"]),
    (["import", "original", str(SEED), "--pairs-planned", "3"], ["--pairs-planned 3", "30"]),
    (["import", "original", str(SEED), "--label", "1=x"], ["--label", "letter"]),
    (["import", "iperf3", str(SEED)], [SEED.name, "no test in it"]),
    (["compare", "a"], ["1 runs given", "--label", "--split-at"]),
    (["compare", "--split-at", "10:49"], ["--split-at", "the run is missing"]),
    (["compare", "--label", "idps"], ["label idps: no such label"]),
    (["compare", "a", "b"], ["run a: no such run"]),
    (["verdict", "a", "--recompute"], ["run a: no such run"]),
]


def test_usage_error_is_one_line(site: Site) -> None:
    for arguments, parts in MISTAKES:
        refuses(site, " ".join(arguments), arguments, parts)
    assert answer(site.run("runs", "-o", "json")) == []
