"""Test that commands end with a clear line and use the documented exit code."""

import json
import socket
import subprocess

import pytest

from broadside.exchange.messages import Role
from tests.live.as_nobody import opened
from tests.live.live_site import BROADSIDE, PACED, Site, wait_for_fleet

pytestmark = pytest.mark.live

NO_RIGHTS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["launch", "scale-180"], 3, ["scale-180", "did you mean 'scale-180g'"]),
        (["launch", "smoke", "--set", "pairs_cont=3"], 3, ["did you mean pairs_count"]),
        (
            ["launch", "smoke", "--set", "objective.target_bits_per_second=-5"],
            3,
            ["objective.target_bits_per_second", "-5"],
        ),
        (["launch", "smoke", "--set", "traffic.streams_count=999"], 3, ["streams_count", "128"]),
        (["launch", "smoke", "--set", "nonsense"], 3, ["FIELD=VALUE"]),
        (["launch", "none.toml"], 3, ["none.toml", "no such file"]),
        (["launch", "smoke"], 4, ["pairs_count", "0 live server agents", "start more"]),
        (["show", "nothing"], 3, ["nothing", "no such run"]),
        (["show", "last"], 4, ["no run yet", "broadside launch loopback"]),
        (["launch", "smoke", "--junit", "/nonexistent/j.xml"], 3, ["/nonexistent", "written"]),
        (["launch", "smoke", "--junit", "/tmp"], 3, ["/tmp", "folder"]),  # noqa: S108
        (["launch", "smoke", "--detach", "--junit", "j.xml"], 3, ["--junit", "verdict"]),
        (["report", "last", "-f", "r.docx"], 3, [".docx", ".html, .pdf, .json", "--output"]),
        (["export", "last", "-f", "r.docx"], 3, [".docx", ".xlsx", "--output"]),
        (["chart", "last"], 4, ["no run yet"]),
        (["chart", "nosuch"], 3, ["nosuch", "no such run"]),
        (["chart", "throughput"], 3, ["the run is missing", "chart last throughput"]),
        (["mcp", "--launch-budget", "5"], 3, ["--launch-budget", "--api"]),
        (["lunch"], 3, ["lunch"]),
        (["demo", "--pairs", "many"], 3, ["--pairs", "many", "int"]),
        (["demo", "--fabric", "paper"], 3, ["--fabric", "paper", "azure-local"]),
        (["serve", "--host", "0.0.0.0"], 3, ["0.0.0.0", "loopback only", "127.0.0.1"]),  # noqa: S104 - refused on purpose
        (["serve", "--port", "99999"], 3, ["port", "99999"]),
        (["runs", "--api", "http://127.0.0.1:9"], 4, ["127.0.0.1:9", "broadside serve"]),
        (["scenarios", "burst"], 3, ["burst", "did you mean"]),
        (["agent"], 3, ["--role"]),
    ],
)
def test_usage_error_prints_one_line_and_exit_code(
    site: Site, arguments: list[str], code: int, expected: list[str]
) -> None:
    done = site.run(*arguments)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    for part in expected:
        assert part in done.stderr


def test_reports_port_in_use(site: Site) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = site.run("serve", "--port", str(port))
    assert done.returncode == 4
    assert f"port {port} on 127.0.0.1: Address already in use" in done.stderr


def test_reports_unusable_data_dir(site: Site) -> None:
    (site.folder / "file").write_text("")
    site.environment["BROADSIDE_DATA_DIR"] = str(site.folder / "file" / "data")
    done = site.run("runs")
    assert done.returncode == 4
    assert str(site.folder / "file") in done.stderr


def test_launch_reports_agents_without_usable_iperf3(site: Site) -> None:
    old = site.folder / "iperf3"
    old.write_text("#!/bin/sh\necho 'iperf 3.7 (cJSON 1.5.2)'\n")
    old.chmod(0o755)
    _, url = site.start_coordinator()
    for index, iperf3 in enumerate((site.folder / "nothing", old)):
        site.start_agent(Role.SERVER, f"s{index}", iperf3=iperf3)
        site.start_agent(Role.CLIENT, f"c{index}")
    wait_for_fleet(url, 2)
    done = site.run("launch", "smoke", "--api", url)
    assert done.returncode == 4
    assert "s0: iperf3: none at" in done.stderr
    assert "s1: iperf3:" in done.stderr
    assert "3.7" in done.stderr


def test_lab_up_without_permission_prints_a_fix(site: Site) -> None:

    done = subprocess.run(
        [*opened(), *NO_RIGHTS, *BROADSIDE, "lab", "up"],
        env=site.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    # If ordinary users can create user namespaces, the lab exists and needs to be removed.
    if done.returncode == 0:
        assert site.run("lab", "down").returncode == 0
        return
    assert done.returncode == 4
    assert "no permission to build network namespaces" in done.stderr
    assert any(fix in done.stderr for fix in ("sudo", "CAP_SYS_ADMIN"))


def test_standard_output_is_only_json(site: Site) -> None:
    for arguments in (["scenarios"], ["runs"], ["doctor"], ["scenarios", "smoke"]):
        done = site.run(*arguments, "-o", "json")
        json.loads(done.stdout)


def test_launch_show_and_verdict_return_the_same_summary(site: Site) -> None:
    """Test that `launch` computes the verdict itself if no server is running."""
    site.start_fleet(2)
    _, url = site.start_coordinator()
    wait_for_fleet(url, 4)
    small = ("--set=burst_s=3", "--set=late_after_s=5", PACED)
    done = site.run("launch", "smoke", *small, "-o", "json")
    summary = json.loads(done.stdout)
    assert summary["pairs_measured"] == 2
    assert (done.returncode, summary["verdict"]) in ((0, "measured"), (2, "inconclusive"))
    again = site.run("verdict", "last", "-o", "json", "--api", url)
    assert json.loads(again.stdout) == summary
    assert again.returncode == done.returncode
    shown = json.loads(site.run("show", summary["run_id"], "-o", "json").stdout)
    assert shown["bursts"][0]["outcomes"] == {"measured": 2}
    late = site.run("abort", "last")
    assert late.returncode == 4
    assert "is finished; read its verdict" in late.stderr
