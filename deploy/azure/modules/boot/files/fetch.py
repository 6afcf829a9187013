#!/usr/bin/env python3
"""Installs Broadside on this VM: fetches the package by managed identity, checks it, runs its
installer, waits until the service works, and publishes each step as the VM's boot status.

    fetch.py /etc/broadside/bundle.json

``broadside-install.service`` runs it at every boot and starts it again after every failure, so one
run makes one attempt and nothing here retries. A package that is not uploaded yet is a failure too.

The boot status is one row of the table of results (partition ``boot``, the host's name), and one
line on standard error, which the unit also sends to the serial console. ``broadside up`` reads
both.

Standard library only: nothing else is on the image.
"""

import hashlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

IMDS = os.environ.get("BROADSIDE_IMDS", "http://169.254.169.254")
FOLDER = Path(os.environ.get("BROADSIDE_BUNDLE_FOLDER", "/var/cache/broadside"))
BROADSIDE = os.environ.get("BROADSIDE_COMMAND", "/opt/broadside/venv/bin/broadside")
DOWNLOAD_S = float(os.environ.get("BROADSIDE_DOWNLOAD_S", "900"))
HEALTHY_S = float(os.environ.get("BROADSIDE_HEALTHY_S", "120"))
HEALTHY_PAUSE_S = 2.0
TOKEN_MAX_BYTES = 1 << 20  # a token is 2 kB
BUNDLE_MAX_BYTES = 1 << 30  # twenty times the largest package
ERROR_MAX_CHARACTERS = 500  # of a boot status
FAULTS = (  # URLError and HTTPError are OSErrors; JSON of brackets alone is too deep to parse
    *(OSError, http.client.HTTPException, tarfile.TarError),
    *(ValueError, LookupError, TypeError, RecursionError),
)
BLOB_VERSION = "2023-11-03"  # of the Blob and Table services' protocol
TABLE_VERSION = "2023-11-03"
HINTS = {  # by HTTP status of the package
    403: "no right yet: the identity needs 'Storage Blob Data Reader' on the container (a new role "
    "takes minutes), the subnet its storage service endpoint",
    404: "the package is not uploaded yet; run: broadside up",
}


class Failed(Exception):
    """This attempt failed; the message is the boot status' error."""


def request(url: str, headers: dict, timeout_s: float, body: bytes | None = None):
    """Send a GET, or a PUT of ``body``, never by a proxy: storage is reached inside Azure."""
    method = "GET" if body is None else "PUT"
    asked = urllib.request.Request(url, body, headers, method=method)  # noqa: S310 - our own URLs
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return opener.open(asked, timeout=timeout_s)


def token(client_id: str) -> str:
    """Return a bearer token for storage from the instance metadata service."""
    query = urllib.parse.urlencode(
        {
            "api-version": "2018-02-01",
            "resource": "https://storage.azure.com/",
            "client_id": client_id,
        }
    )
    url = f"{IMDS}/metadata/identity/oauth2/token?{query}"
    with request(url, {"Metadata": "true"}, timeout_s=30) as answer:
        return json.loads(answer.read(TOKEN_MAX_BYTES))["access_token"]


def publish(bundle: dict, stage: str, error: str = "") -> None:
    """Write the boot status: a console line, and the row. A row that cannot be written is no error.

    Args:
        bundle: the contents of ``bundle.json``.
        stage: ``fetch``, ``install``, ``start`` or ``ready``.
        error: why the attempt ended in that stage; empty while it is under way.
    """
    error = " ".join(error.split())[:ERROR_MAX_CHARACTERS]
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    status = {"stage": stage, "at": now, "error": error, "package": bundle["sha256"][:12]}
    host = socket.gethostname()
    sys.stderr.write(f"broadside-boot: {json.dumps({'host': host, **status})}\n")
    sys.stderr.flush()
    endpoint = os.environ.get("BROADSIDE_TABLES_ENDPOINT", "")
    if not endpoint:
        return
    table = os.environ.get("BROADSIDE_TABLES_RESULTS", "results")
    key = f"(PartitionKey='boot',RowKey='{host}')"
    row = {"PartitionKey": "boot", "RowKey": host, "json": json.dumps(status)}
    try:
        headers = {
            "Authorization": f"Bearer {token(bundle['client_id'])}",
            "Accept": "application/json;odata=nometadata",
            "Content-Type": "application/json",
            "DataServiceVersion": "3.0;NetFx",
            "x-ms-date": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime()),
            "x-ms-version": TABLE_VERSION,
        }
        with request(f"{endpoint}/{table}{key}", headers, 30, json.dumps(row).encode()):
            pass
    except FAULTS as fault:
        sys.stderr.write(f"broadside: the boot status is not in the table: {fault}\n")


def download(url: str, bearer: str, path: Path) -> str:
    """Save a blob and return its SHA-256 in hex. Raises ``ValueError``: it does not end."""
    headers = {"Authorization": f"Bearer {bearer}", "x-ms-version": BLOB_VERSION}
    digest, left_bytes = hashlib.sha256(), BUNDLE_MAX_BYTES
    end_s = time.monotonic() + DOWNLOAD_S
    with request(url, headers, timeout_s=60) as answer, path.open("wb") as file:
        while block := answer.read1(1 << 20):
            left_bytes -= len(block)
            if left_bytes < 0 or time.monotonic() > end_s:
                raise ValueError(f"over {BUNDLE_MAX_BYTES} bytes, or no end in {DOWNLOAD_S:g} s")
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


def fetch(bundle: dict, path: Path) -> None:
    """Download the package, unless it is here whole already. Raises :class:`Failed`."""
    if path.exists() and file_sha256(path) == bundle["sha256"]:
        return
    url = bundle["url"]
    try:
        found = download(url, token(bundle["client_id"]), path)
    except urllib.error.HTTPError as error:
        hint = HINTS.get(error.code) if error.url == url else None
        raise Failed(f"{error.url.partition('?')[0]}: {error}; {hint or 'trying again'}") from error
    except FAULTS as error:
        raise Failed(f"{url}: {error}; trying again") from error
    if found != bundle["sha256"]:
        path.unlink()
        raise Failed(f"{url} has SHA-256 {found}, not {bundle['sha256']}; run: broadside up")


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def install(bundle: dict, path: Path) -> None:
    """Unpack the package and run its installer. Raises :class:`Failed` with its last words."""
    unpacked = FOLDER / "bundle"
    shutil.rmtree(unpacked, ignore_errors=True)  # an attempt may have been killed while it unpacked
    try:
        with tarfile.open(path) as archive:
            archive.extractall(unpacked, filter="data")
    except FAULTS as error:
        raise Failed(f"the package cannot be unpacked: {error}") from error
    argv = ["sh", str(unpacked / "install.sh"), bundle["service"]]
    last = ""
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        for raw in process.stdout:
            line = raw.decode(errors="replace")
            sys.stderr.write(line)
            last = line.strip() or last
    if process.returncode:
        raise Failed(f"install.sh ended with {process.returncode}: {last}")


def wait_healthy(service: str) -> None:
    """Wait until the service works, by its own command. Raises :class:`Failed` with its reason."""
    end_s = time.monotonic() + HEALTHY_S
    while True:
        asked = subprocess.run(
            [BROADSIDE, "healthy", service], capture_output=True, text=True, check=False
        )
        if asked.returncode == 0:
            return
        if time.monotonic() > end_s:
            raise Failed((asked.stderr or asked.stdout).strip() or f"ended with {asked.returncode}")
        time.sleep(HEALTHY_PAUSE_S)


def main() -> None:
    os.umask(0o077)
    bundle = json.loads(Path(sys.argv[1]).read_text())
    FOLDER.mkdir(parents=True, exist_ok=True)
    path, installed = FOLDER / "bundle.tar.gz", FOLDER / "installed"
    stage = "fetch"
    try:
        if not installed.exists() or installed.read_text() != bundle["sha256"]:
            publish(bundle, stage)
            fetch(bundle, path)
            publish(bundle, stage := "install")
            install(bundle, path)
            installed.write_text(bundle["sha256"])  # last: an attempt that was killed starts anew
            path.unlink(missing_ok=True)
            shutil.rmtree(FOLDER / "bundle", ignore_errors=True)
        publish(bundle, stage := "start")
        wait_healthy(bundle["service"])
    except Failed as failed:
        publish(bundle, stage, str(failed))
        sys.exit(1)
    publish(bundle, "ready")


if __name__ == "__main__":
    main()
