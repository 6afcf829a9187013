"""Test that the fork server starts agents in the right namespaces and ends them with the fleet."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from broadside.lab import fleet, loopback, network, serving
from broadside.lab.errors import FleetError, LabBroken
from broadside.lab.fleet import AgentPlan, Fleet
from broadside.lab.namespaces import list_owned, list_processes
from broadside.lab.serving import ServeProcess
from broadside.lab.site import built
from broadside.lab.topology import LabSpec
from tests.live.labs import new_prefix
from tests.live.waiting import wait_for

pytestmark = pytest.mark.live

STUB = "tests.live.stub_agent:run"
# Use a unique duration to find these sleep processes.
SLEEP_S = str(100_000 + os.getpid())


@pytest.fixture(autouse=True)
def importable_stub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make it possible to import the stub, because the fleet does not use the current folder."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


@pytest.fixture
def prefix() -> Iterator[str]:
    """Yield a lab prefix and kill the remaining processes of this lab at the end."""
    prefix = new_prefix()
    yield prefix
    for process in list_owned(prefix):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def start(prefix: str, log_path: Path, behaviours: Mapping[str, str]) -> Fleet:
    """Start a fleet of stubs by agent id and behaviour."""
    plans = [
        AgentPlan(
            agent_id=agent_id,
            namespace=None,
            environment={"STUB": behaviour, "STUB_SLEEP_S": SLEEP_S},
        )
        for agent_id, behaviour in behaviours.items()
    ]
    return fleet.start(plans, prefix=prefix, log_path=log_path, entry=STUB, imports=())


def engines() -> list[int]:
    return [p.pid for p in list_processes() if p.command.split() == ["sleep", SLEEP_S]]


def test_records_exit_codes_of_all_agents(prefix: str, tmp_path: Path) -> None:
    behaviours = {name: name for name in ("return", "exit", "raise", "wait")}
    with start(prefix, tmp_path, behaviours) as stubs:
        wait_for(
            "three ends", lambda: sum(s.exit_code is None for s in stubs.states().values()) == 1
        )
        codes = {name: state.exit_code for name, state in stubs.states().items()}
        assert codes == {"return": 5, "exit": 6, "raise": 70, "wait": None}
        assert "ValueError: planned" in stubs.agent_log_path("raise").read_text()
        assert stubs.stop() == ()
    assert list_owned(prefix) == []


class Coordinator(ServeProcess):
    """Coordinator stub that returns the given presences."""

    def __init__(self, presences: list[dict[str, object]] | None) -> None:
        self.presences = presences

    def get(self, path: str) -> object:
        return self.presences


@pytest.mark.parametrize("presences", [[], None])
def test_reports_why_a_fleet_does_not_start(
    presences: list[dict[str, object]] | None,
    prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "READY_S", 1.0)
    since_at = datetime.now(UTC)
    with start(prefix, tmp_path, {"s001": "wait", "c001": "wait"}) as stubs:
        with pytest.raises(LabBroken) as reported:
            serving.wait_for_agents(Coordinator(presences), stubs, stubs.states(), since_at)
        namespace = stubs.agent_log_path("s001").read_text().strip()
        assert f"s001 (no heartbeat; runs, its log ends: {namespace})" in str(reported.value)
        assert "c001 (no heartbeat; runs" in str(reported.value)
        assert ("the coordinator does not list" in str(reported.value)) == (presences is None)
        monkeypatch.setattr(serving, "READY_S", 600.0)
        stubs.kill("c001")
        # The call should not wait for the other agents.
        with pytest.raises(LabBroken) as reported:
            serving.wait_for_agents(Coordinator(presences), stubs, stubs.states(), since_at)
        assert "c001 (no heartbeat; ended with exit code -9, its log ends: " in str(reported.value)
        assert "s001" not in str(reported.value)


def test_forks_sixty_agents_from_one_process(prefix: str, tmp_path: Path) -> None:
    with start(prefix, tmp_path, {f"a{index}": "wait" for index in range(60)}) as stubs:
        states = stubs.states()
        assert len({state.pid for state in states.values()}) == 60
        groups = {os.getpgid(state.pid) for state in states.values()}
        assert groups == {state.pid for state in states.values()}
        parents = {
            (Path("/proc") / str(state.pid) / "stat").read_text().rpartition(")")[2].split()[1]
            for state in states.values()
        }
        assert parents == {str(stubs.pid)}
        assert stubs.stop() == ()


def test_killing_an_agent_ends_its_engine_only(prefix: str, tmp_path: Path) -> None:
    with start(prefix, tmp_path, {"one": "engine", "two": "engine"}) as stubs:
        wait_for("two engines", lambda: len(engines()) == 2)
        assert stubs.kill("one")
        wait_for("the end of the agent", lambda: stubs.states()["one"].exit_code == -signal.SIGKILL)
        wait_for("the end of the engine", lambda: len(engines()) == 1)
        assert stubs.states()["two"].exit_code is None
        assert not stubs.kill("one")
        with pytest.raises(FleetError, match="'three': not of this fleet"):
            stubs.kill("three")
    assert engines() == []


def test_kills_agent_that_ignores_sigterm(prefix: str, tmp_path: Path) -> None:
    with start(prefix, tmp_path, {"deaf": "deaf", "good": "wait", "stopped": "wait"}) as stubs:
        wait_for("the first output of the stub", lambda: stubs.agent_log_path("deaf").read_text())
        stubs.kill("stopped", signal.SIGSTOP)
        assert stubs.stop(3) == ("deaf",)
        assert stubs.stop() == ()
        with pytest.raises(FleetError, match="has ended"):
            stubs.states()
    assert list_owned(prefix) == []


def test_agents_end_with_a_killed_fork_server(prefix: str, tmp_path: Path) -> None:
    with start(prefix, tmp_path, {"one": "wait", "two": "wait"}) as stubs:
        os.kill(stubs.pid, signal.SIGKILL)
        wait_for("the end of the agents", lambda: list_owned(prefix) == [])
        with pytest.raises(FleetError, match=r"fleet\.log|has ended"):
            stubs.states()


def test_fleet_ends_with_its_killed_starter(prefix: str, tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from tests.live.test_lab_fleet import start; "
        "start(sys.argv[1], Path(sys.argv[2]), {'deaf': 'deaf', 'good': 'engine'}); "
        "print('up', flush=True); time.sleep(60)"
    )
    argv = [sys.executable, "-c", code, prefix, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as starter:
        try:
            assert starter.stdout is not None
            assert starter.stdout.readline() == "up\n"
            # These are the server, the agents and perhaps a child before its exec.
            assert len(list_owned(prefix)) >= 3
        finally:
            starter.kill()
    wait_for("the end of the fleet", lambda: list_owned(prefix) == [] and engines() == [])


def test_down_stops_a_fleet(prefix: str, tmp_path: Path) -> None:
    with start(prefix, tmp_path / "logs", {"one": "deaf"}) as stubs:
        assert network.down(prefix, tmp_path).processes_count == 2
        assert list_owned(prefix) == []
        assert stubs.stop() == ()


@pytest.mark.needs_root
def test_list_owned_returns_only_processes_of_the_lab(prefix: str, tmp_path: Path) -> None:
    """Test with a shell that has similar arguments and with processes of other namespaces."""
    pid_file = f"/run/chrony/broadside-{prefix}-c001.pid"
    script = f": -m broadside.lab.fleet --broadside-lab={prefix} {pid_file}; cat"
    with (
        subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE) as bystander,
        start(prefix, tmp_path, {"one": "wait"}) as stubs,
    ):
        family = sorted([stubs.pid, stubs.states()["one"].pid])
        code = (
            "import sys; from broadside.lab.namespaces import list_owned; "
            "print(*(process.pid for process in list_owned(sys.argv[1])))"
        )
        for elsewhere in ([], ["unshare", "--net"]):
            argv = [*elsewhere, sys.executable, "-c", code, prefix]
            stdout = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
            assert sorted(map(int, stdout.split())) == family
        bystander.kill()


@pytest.mark.parametrize(
    ("entry", "message"),
    [("nosuch.module:run", "No module named 'nosuch'"), ("json:nosuch", "no attribute 'nosuch'")],
)
def test_reports_unknown_entry_point(entry: str, message: str, prefix: str, tmp_path: Path) -> None:
    with pytest.raises(FleetError, match=message):
        fleet.start([], prefix=prefix, log_path=tmp_path, entry=entry, imports=())
    assert list_owned(prefix) == []


def test_reports_unknown_namespace(prefix: str, tmp_path: Path) -> None:
    plans = [
        AgentPlan(agent_id="one", namespace=None),
        AgentPlan(agent_id="two", namespace="nosuch"),
    ]
    with pytest.raises(FleetError, match="agent two: namespace nosuch"):
        fleet.start(plans, prefix=prefix, log_path=tmp_path, entry=STUB, imports=())
    assert list_owned(prefix) == []


@pytest.mark.needs_root
def test_agents_run_in_the_namespaces_of_their_hosts(tmp_path: Path) -> None:
    spec = LabSpec(pairs_count=2, prefix=new_prefix())
    with built(spec, tmp_path) as lab:
        plans = fleet.plan_agents(lab, {"STUB": "wait"})
        with fleet.start(
            plans, prefix=spec.prefix, log_path=lab.path / "logs", entry=STUB, imports=()
        ) as stubs:
            logs = {plan.agent_id: stubs.agent_log_path(plan.agent_id) for plan in plans}
            wait_for(
                "the output of four agents", lambda: all(log.read_text() for log in logs.values())
            )
            for host in lab.hosts:
                there = Path("/var/run/netns") / str(host.namespace)
                assert int(logs[host.name].read_text()) == there.stat().st_ino


def test_loopback_replaces_a_lab(prefix: str, tmp_path: Path) -> None:
    lab = loopback.up(LabSpec(pairs_count=2, prefix=prefix), tmp_path)
    try:
        assert lab.counter_path is None
        assert lab.firewall_namespace is None
        assert any("no device counter" in limit for limit in lab.limits)
        assert len({host.address for host in lab.hosts}) == 4
        plans = fleet.plan_agents(lab, {"STUB": "wait"})
        with fleet.start(
            plans, prefix=prefix, log_path=lab.path / "logs", entry=STUB, imports=()
        ) as stubs:
            states = stubs.states()
            assert [state.exit_code for state in states.values()] == [None] * 4
    finally:
        network.down(prefix, tmp_path)
    assert list(tmp_path.rglob("*")) == []


def test_clock_ends_with_its_killed_owner() -> None:
    code = (
        "from broadside.lab.loopback import steady_clock\n"
        "with steady_clock() as clock: print(clock, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        address = owner.stdout.readline().strip()

        def clocks() -> list[int]:
            return [
                list_process.pid
                for list_process in list_processes()
                if address in list_process.command
            ]

        assert len(clocks()) == 1
        owner.kill()
        owner.wait()
        wait_for("the end of chronyd", lambda: not clocks())
    shutil.rmtree(Path(address).parent)
