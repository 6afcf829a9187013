"""An agent that measures nothing: it says where it is, and then does what STUB asks of it."""

import os
import signal
import subprocess
import sys
import time


def run() -> int:
    """Print the network namespace, then behave; who says so is deaf already."""
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
        case "engine":  # a child in a session of its own, as agents start engines
            subprocess.Popen(["sleep", os.environ["STUB_SLEEP_S"]], start_new_session=True)
    while True:
        time.sleep(1)
