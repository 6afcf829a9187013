"""Test the hosts on which the other tests of this folder install Broadside."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.waiting import wait_for
from tests.shipped.debian_roots import SUITES, debian_root
from tests.shipped.systemd_hosts import CGROUPS_PREFIX, HostNetwork, cgroups

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

BOOTS_AND_WAITS = """
import sys, time
from pathlib import Path
from tests.shipped.debian_roots import debian_root
from tests.shipped.systemd_hosts import HostNetwork

with HostNetwork(Path(sys.argv[1]), ("one",)) as network:
    network.boot("one", debian_root("bookworm"))
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("suite", SUITES)
def test_host_boots_stops_and_boots_again(tmp_path: Path, suite: str) -> None:
    with HostNetwork(tmp_path / "network", ("one", "two")) as network:
        one, two = (network.boot(name, debian_root(suite)) for name in ("one", "two"))
        one.wait_for_unit("chrony.service")
        one.put("/root/kept", b"text\n", 0o600)
        one.stop()
        one.boot()
        assert one.run("cat kept; stat -c %a kept; hostname").stdout == "text\n600\none\n"
        # There is no listener on that port, so the other host rejects the connection.
        requested = "import socket; print(socket.socket().connect_ex(('one', 9)))"
        assert two.run(f'python3 -c "{requested}"').stdout == "111\n"
        assert two.run("ip -o link show eth0 | grep -o 'mtu [0-9]*'").stdout == "mtu 1500\n"
        assert network.counted_bytes("two", "rx") > 0
    assert not left_behind(os.getpid(), tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_killed_test_leaves_no_process_or_mount(tmp_path: Path, number: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", BOOTS_AND_WAITS, str(tmp_path / "network")],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"ready\n"
    groups = list(cgroups().glob(f"{CGROUPS_PREFIX}{process.pid}-*"))
    assert len(groups) == 1
    process.send_signal(number)
    process.wait(20)
    wait_for("its processes are gone", lambda: not pids(groups[0]))
    with HostNetwork(tmp_path / "next", ()):
        pass
    assert not left_behind(process.pid, tmp_path)


def pids(group: Path) -> list[str]:
    return [pid for procs in group.rglob("cgroup.procs") for pid in procs.read_text().split()]


def left_behind(pid: int, folder: Path) -> list[str]:
    """Return the leftovers of a test process's hosts on this machine."""
    groups = [str(path) for path in cgroups().glob(f"{CGROUPS_PREFIX}{pid}-*")]
    mounts = Path("/proc/mounts").read_text().splitlines()
    return groups + [line for line in mounts if str(folder) in line]
