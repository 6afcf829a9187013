"""Test the lab for an ordinary user, using nobody and a new user namespace."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from broadside.lab import network
from broadside.lab import privileges as rights
from broadside.lab.errors import LabMisconfigured, NoRights
from broadside.lab.namespaces import list_processes
from broadside.lab.privileges import PrivilegeCheck, Rights
from broadside.lab.site import built
from broadside.lab.topology import LabSpec
from tests.live.as_nobody import as_nobody, opened
from tests.live.labs import new_prefix
from tests.live.waiting import wait_for

pytestmark = [pytest.mark.live, pytest.mark.needs_root]

AS_NOBODY = as_nobody()
DROP_RIGHTS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
FIND = """
from broadside.lab.privileges import find_rights
f = find_rights()
print(f.rights.value, f.reason)
"""


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


@pytest.fixture
def open_path() -> Iterator[Path]:
    """Yield a folder for the user nobody, because the folders of pytest are private."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        path.chmod(0o777)
        yield path


def run(argv: list[str], timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s)


def test_root_needs_no_user_namespace() -> None:
    assert rights.find_rights().require() == PrivilegeCheck(rights=Rights.ROOT)


def test_ordinary_user_can_use_a_user_namespace() -> None:
    done = run([*AS_NOBODY, *python(FIND)])
    assert done.stdout.split() == ["user", "namespace", "None"], done.stderr


def test_without_permissions_one_line_prints_a_fix() -> None:
    """Test using a limit of zero, so that no further user namespace can be created."""
    script = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'
    inside = [
        *opened(),
        sys.executable,
        "-m",
        "broadside.lab.privileges",
        "inside",
        "--",
        "sh",
        "-ec",
        script,
        "sh",
    ]
    done = run([*inside, *DROP_RIGHTS, *python(FIND)])
    text = done.stdout.strip()
    assert text.startswith("none no permission to build network namespaces"), done.stderr
    assert "sudo sysctl -w user.max_user_namespaces=" in text
    assert "\n" not in text
    with pytest.raises(NoRights, match="sudo"):
        PrivilegeCheck(rights=Rights.NONE, reason=text).require()


def test_up_outside_a_user_namespace_is_an_error(open_path: Path) -> None:
    up = (
        "import sys; from pathlib import Path; from broadside.lab import network\n"
        "from broadside.lab.topology import LabSpec\n"
        "network.up(LabSpec(pairs_count=1, prefix=sys.argv[1]), Path(sys.argv[2]))"
    )
    done = run([*AS_NOBODY, *python(up, new_prefix(), str(open_path))])
    assert done.stderr.splitlines()[-1].startswith("broadside.lab.errors.NoRights: not root: build")
    assert list(open_path.rglob("*")) == []


def test_down_keeps_lab_of_another_user(open_path: Path) -> None:
    down = (
        "import sys; from pathlib import Path; from broadside.lab import network\n"
        "network.down(sys.argv[1], Path(sys.argv[2]))"
    )
    with built(LabSpec(pairs_count=1, prefix=new_prefix()), open_path) as lab:
        done = run([*AS_NOBODY, *python(down, lab.spec.prefix, str(open_path))])
        assert "broadside.lab.errors.NoRights" in done.stderr.splitlines()[-1]
        assert "another user's lab; run this with sudo" in done.stderr.splitlines()[-1]
        assert network.status(lab.spec.prefix, open_path).faults == ()


def test_ordinary_user_can_build_use_and_remove_a_lab(open_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from broadside.lab import clocks, network
from broadside.lab import privileges as rights
from broadside.lab.byte_counter import read_counter
from broadside.lab.site import built
from broadside.lab.topology import LabSpec
from tests.live.labs import send
from tests.live.waiting import wait_for
# This must run inside a user namespace.
assert Path("/proc/self/uid_map").read_text().split()[2] != "4294967295"
with built(LabSpec(pairs_count=2, prefix=sys.argv[1]), Path(sys.argv[2])) as lab:
    assert clocks.wait_synced(lab, 20) == (), lab.limits
    send(lab.clients[1], lab.servers[1], 1_000_000)
    def counted():
        rows = read_counter(lab.counter_path, 0, float("inf"))
        return [row for row in rows if row.up_bytes > 1_035_900]
    wait_for("the byte counter", counted)
    assert network.up(lab.spec, Path(sys.argv[2])) == lab
print("carried and counted")
"""
    become = "import sys; from broadside.lab.privileges import run_inside; run_inside(sys.argv[1:])"
    inner = python(code, new_prefix(), str(open_path))
    done = run([*AS_NOBODY, *python(become, *inner)])
    assert done.stdout == "carried and counted\n", done.stderr
    assert done.returncode == 0
    assert list(open_path.rglob("*")) == []


@pytest.mark.parametrize(
    ("script", "exit_code"), [("exit 7", 7), ("kill -9 $$", 137), ("nosuch", 127)]
)
def test_run_inside_returns_the_exit_code(script: str, exit_code: int) -> None:
    inside = [sys.executable, "-m", "broadside.lab.privileges", "inside", "--", "sh", "-c", script]
    assert run([*AS_NOBODY, *inside]).returncode == exit_code


def test_run_inside_reports_unknown_program() -> None:
    done = run(
        [*AS_NOBODY, sys.executable, "-m", "broadside.lab.privileges", "inside", "--", "nosuch"]
    )
    assert "nosuch: No such file" in done.stderr
    assert done.returncode == 126


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_processes_end_with_their_user_namespace(number: signal.Signals) -> None:
    sleep = ["sleep", str(200_000 + os.getpid())]
    script = f"setsid {' '.join(sleep)} & setsid {' '.join(sleep)}"
    prefix = [*AS_NOBODY, sys.executable, "-m", "broadside.lab.privileges", "inside", "--"]
    inside = [*prefix, "sh", "-c", script]

    def sleepers() -> list[int]:
        return [p.pid for p in list_processes() if p.command.split() == sleep]

    with subprocess.Popen(inside) as world:
        try:
            wait_for("two sleepers", lambda: len(sleepers()) == 2)
            world.send_signal(number)
            wait_for("the end of the sleepers", lambda: not sleepers())
        finally:
            world.kill()


def test_user_namespace_stays_and_is_released(open_path: Path) -> None:
    prefix = new_prefix()
    act = """
import sys
from pathlib import Path
from broadside.lab import network
from broadside.lab import privileges as rights
from broadside.lab.topology import LabSpec
prefix, base_path, what = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
if what == "hold":
    rights.create_world(prefix)
    rights.create_world(prefix)
elif what == "join":
    rights.join(prefix, [sys.executable, *sys.orig_argv[1:-1], "up"])
elif what == "up":
    assert (Path.cwd() / "lab").is_dir(), "the working folder must not change"
    network.up(LabSpec(pairs_count=1, prefix=prefix), base_path)
    assert network.status(prefix, base_path).faults == ()
"""

    def do(what: str) -> subprocess.CompletedProcess[str]:
        argv = [*AS_NOBODY, *python(act, prefix, str(open_path), what)]
        return subprocess.run(argv, capture_output=True, text=True, timeout=60)

    try:
        assert "run lab up first" in do("join").stderr
        # The second call should be able to use the lab of the first.
        for what in ("hold", "join", "join"):
            done = do(what)
            assert done.returncode == 0, done.stderr
        assert any(f"broadside-{prefix}-fw" in p.command for p in list_processes())
    finally:
        was_there = rights.release(prefix)
    assert was_there
    wait_for(
        "the end", lambda: not any(f"broadside-{prefix}" in p.command for p in list_processes())
    )
    assert not rights.release(prefix)
    assert network.down(prefix, open_path).left == ()
    assert list(open_path.rglob("*")) == []


def test_rejects_invalid_prefix(tmp_path: Path) -> None:
    with pytest.raises(LabMisconfigured, match="prefix"):
        network.down("../..", tmp_path)
    with pytest.raises(LabMisconfigured, match="prefix"):
        LabSpec(pairs_count=1, prefix="")
