"""A self-signed certificate for servers of tests and benchmarks."""

import subprocess
from pathlib import Path
from typing import Final

_TIMEOUT_S: Final = 30.0


def make_certificate(folder: Path) -> tuple[str, ...]:
    """Return the options of a server of connections for a new certificate in a folder."""
    names = [str(folder / name) for name in ("c.pem", "k.pem")]
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    argv += ["-noenc", "-days", "2", "-subj", "/CN=x", "-out", names[0], "-keyout", names[1]]
    subprocess.run(argv, check=True, capture_output=True, timeout=_TIMEOUT_S)
    return ("--certificate", names[0], "--key", names[1])
