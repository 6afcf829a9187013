"""Send 3 Mbit/s of UDP to simulate background traffic of other programs on a host.

Use ``python -m tests.live.other_traffic ADDRESS...`` to send until it is stopped.
"""

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from broadside.lab.child_processes import die_with_parent

BITS_PER_SECOND: Final = 3_000_000
DATAGRAM_BYTES: Final = 1_250
PERIOD_S: Final = DATAGRAM_BYTES * 8 / BITS_PER_SECOND
# The discard service (RFC 863).
PORT: Final = 9
ROOT: Final = Path(__file__).parents[2]


def send(addresses: Sequence[str]) -> None:
    """Send ``BITS_PER_SECOND`` to all addresses in turn, without end."""
    payload = bytes(DATAGRAM_BYTES)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        due_s = time.monotonic()
        while True:
            for address in addresses:
                # Errors can be ignored, because there is no listener.
                with contextlib.suppress(OSError):
                    sender.sendto(payload, (address, PORT))
            due_s += PERIOD_S
            time.sleep(max(0.0, due_s - time.monotonic()))


@contextlib.contextmanager
def other_traffic(*addresses: str) -> Iterator[None]:
    """Use another process to send until the context ends."""
    sender = subprocess.Popen(
        [sys.executable, "-m", "tests.live.other_traffic", *addresses],
        cwd=ROOT,
        preexec_fn=die_with_parent,
    )
    try:
        yield
        assert sender.poll() is None, "the sender ended early"
    finally:
        sender.kill()
        sender.wait()


if __name__ == "__main__":
    send(sys.argv[1:])
