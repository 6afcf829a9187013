"""Agent stub that prints its network namespace and then behaves as the variable STUB requires."""

import os
import signal
import subprocess
import sys
import time


def run() -> int:
    """Print the network namespace, then behave as required.

    SIGTERM is already ignored at that time.
    """
    behaviour = os.environ.get("STUB", "wait")
    if behaviour == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(os.stat("/proc/self/ns/net").st_ino, flush=True)  # noqa: T201, PTH116 - its log is read
    match behaviour:
        case "return":
            return 5
        case "exit":
            sys.exit(6)
        case "raise":
            raise ValueError("planned")
        # Use a separate session to start a child, as agents would for engines.
        case "engine":
            subprocess.Popen(["sleep", os.environ["STUB_SLEEP_S"]], start_new_session=True)
    while True:
        time.sleep(1)
