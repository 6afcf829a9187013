"""Execute docs/first-run.md literally in an empty folder with a separate network.

Other programs will send 3 Mbit/s over the same interfaces, as on any laptop.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from broadside.lab.child_processes import die_with_parent

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "first-run.md").read_text("utf-8")
LEFT_RUNNING = "leave it running"
OTHER_TRAFFIC = Path(__file__).with_name("other_traffic.py")
# Use an interface with a default route, as on any laptop. The agents need it to determine the
# address.
NETWORK = """
ip link set lo up
ip link add first-run type veth peer name first-run-far
ip link set first-run-far up
ip address add 192.0.2.2/24 dev first-run
ip link set first-run up
ip route add default dev first-run
"""
# Use these loops for the checks that a reader would do between the windows.
UNTIL_SERVED = "until broadside runs --api http://127.0.0.1:8080 >/dev/null 2>&1; do sleep 1; done"
UNTIL_THERE = "until [ $(broadside agents | grep -c laptop) = 2 ]; do sleep 1; done"

pytestmark = [
    pytest.mark.live,
    pytest.mark.needs_root,
    # To get the documented verdict, the host should not be fully loaded.
    pytest.mark.alone,
    pytest.mark.timeout(400),
]


def script() -> str:
    """Return the code blocks of the page in order.

    Long-running commands will be started in the background.
    """
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.M | re.S)
    running = [block for block in blocks if LEFT_RUNNING in block]
    assert len(running) == 3
    typed = "\n".join(block for block in blocks if block not in running)
    windows = "\n".join(
        f'{block.partition("#")[0].strip()} >window-{n}.log 2>&1 & windows="$windows $!"'
        for n, block in enumerate(running)
    )
    others = f"{sys.executable} {OTHER_TRAFFIC} 192.0.2.1 127.0.0.1"
    return f"""set -eu{NETWORK}
PYTHONPATH={ROOT} {others} & windows=$!
trap 'kill $windows; wait' EXIT
{windows}
{UNTIL_SERVED}
{UNTIL_THERE}
{typed}"""


def test_commands_of_the_first_run_page_work(tmp_path: Path) -> None:
    stored = {key: value for key, value in os.environ.items() if not key.startswith("BROADSIDE_")}
    path = f"{Path(sys.executable).parent}:{stored['PATH']}"
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", script()],
        cwd=tmp_path,
        env=stored | {"PATH": path, "XDG_STATE_HOME": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        # Use a separate session to get its CPU share, not a part of pytest's share.
        start_new_session=True,
        preexec_fn=die_with_parent,
    )
    windows = "".join(log.read_text() for log in sorted(tmp_path.glob("window-*.log")))
    assert done.returncode == 0, done.stdout + done.stderr + windows
    # Two launches and `show` print it.
    assert done.stdout.count("verdict: pass") == 3
    assert "so their seconds agree by definition" in done.stderr
    assert "received_bits_per_second" in done.stdout
    assert "gate: 1" in done.stdout
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert (tmp_path / "rate.svg").read_text().startswith("<svg")
    assert (tmp_path / "run.xlsx").read_bytes()[:2] == b"PK"
