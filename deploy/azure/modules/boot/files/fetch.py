#!/usr/bin/env python3
"""Install Broadside on this VM and publish each step as the boot status of the VM.

The package is downloaded using the managed identity and checked. Then its installer will be run.
After that the script waits until the service works.

    fetch.py /etc/broadside/bundle.json

``broadside-install.service`` runs this script on every boot and starts it again after every
failure. So each run is a single attempt, and there are no retries in here. If the package has not
been uploaded yet, this will be a failure as well.

The boot status is a row in the results table (partition ``boot``, name of the host) and a line on
standard error. The unit also sends this line to the serial console. ``broadside up`` uses both.

Only the standard library is used, because nothing else is available on the image.
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
# This should be enough, because a token has about 2 kB.
TOKEN_MAX_BYTES = 1 << 20
# This is twenty times the size of the largest package.
BUNDLE_MAX_BYTES = 1 << 30
# Maximum length of the error in a boot status.
ERROR_MAX_CHARACTERS = 500
# URLError and HTTPError are OSErrors. JSON with many nested brackets raises RecursionError.
FAULTS = (
    *(OSError, http.client.HTTPException, tarfile.TarError),
    *(ValueError, LookupError, TypeError, RecursionError),
)
# Protocol version of the Blob service and the Table service.
BLOB_VERSION = "2023-11-03"
TABLE_VERSION = "2023-11-03"
# Hint for each HTTP status of the package.
HINTS = {
    403: "no access: the identity needs 'Storage Blob Data Reader' on the container (a new role "
    "needs some minutes), and the subnet needs its storage service endpoint",
    404: "the package is not uploaded yet; run: broadside up",
}


class AttemptFailed(Exception):
    """This attempt has failed. The message is used as the error in the boot status."""


def request(url: str, headers: dict, timeout_s: float, body: bytes | None = None):
    """Send a GET, or a PUT if there is a body, and return the response.

    A proxy is never used, because the storage can be reached inside Azure.

    Args:
        url: URL to request.
        headers: HTTP headers.
        timeout_s: Timeout in seconds.
        body: Body of a PUT, or None for a GET.
    """
    method = "GET" if body is None else "PUT"
    requested = urllib.request.Request(url, body, headers, method=method)  # noqa: S310 - our own URLs
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return opener.open(requested, timeout=timeout_s)


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
    """Write the boot status to the console and to the table.

    If the row cannot be written, this is not an error.

    Args:
        bundle: Contents of ``bundle.json``.
        stage: ``fetch``, ``install``, ``start`` or ``ready``.
        error: Reason if the attempt failed in this stage, or empty.
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
    """Save a blob.

    Args:
        url: URL of the blob.
        bearer: Bearer token for the storage.
        path: File to write.

    Returns:
        SHA-256 of the blob in hex.

    Raises:
        ValueError: The blob is too large or the download takes too long.
    """
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
    """Download the package, unless the complete file is already there.

    Args:
        bundle: Contents of ``bundle.json``.
        path: File to write.

    Raises:
        AttemptFailed: The package cannot be downloaded, or has a different SHA-256.
    """
    if path.exists() and file_sha256(path) == bundle["sha256"]:
        return
    url = bundle["url"]
    try:
        result = download(url, token(bundle["client_id"]), path)
    except urllib.error.HTTPError as error:
        hint = HINTS.get(error.code) if error.url == url else None
        raise AttemptFailed(
            f"{error.url.partition('?')[0]}: {error}; {hint or 'trying again'}"
        ) from error
    except FAULTS as error:
        raise AttemptFailed(f"{url}: {error}; trying again") from error
    if result != bundle["sha256"]:
        path.unlink()
        raise AttemptFailed(
            f"{url} has SHA-256 {result}, not {bundle['sha256']}; run: broadside up"
        )


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def install(bundle: dict, path: Path) -> None:
    """Unpack the package and run its installer.

    Args:
        bundle: Contents of ``bundle.json``.
        path: File of the package.

    Raises:
        AttemptFailed: The installer has failed. The message has its last line.
    """
    unpacked = FOLDER / "bundle"
    # A previous attempt might have been killed while unpacking.
    shutil.rmtree(unpacked, ignore_errors=True)
    try:
        with tarfile.open(path) as archive:
            archive.extractall(unpacked, filter="data")
    except FAULTS as error:
        raise AttemptFailed(f"the package cannot be unpacked: {error}") from error
    argv = ["sh", str(unpacked / "install.sh"), bundle["service"]]
    last = ""
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        for raw in process.stdout:
            line = raw.decode(errors="replace")
            sys.stderr.write(line)
            last = line.strip() or last
    if process.returncode:
        raise AttemptFailed(f"install.sh ended with {process.returncode}: {last}")


def wait_healthy(service: str) -> None:
    """Wait until the service works, using its own command.

    Raises:
        AttemptFailed: The service does not work in time. The message has the reason.
    """
    end_s = time.monotonic() + HEALTHY_S
    while True:
        completed = subprocess.run(
            [BROADSIDE, "healthy", service], capture_output=True, text=True, check=False
        )
        if completed.returncode == 0:
            return
        if time.monotonic() > end_s:
            raise AttemptFailed(
                (completed.stderr or completed.stdout).strip()
                or f"ended with {completed.returncode}"
            )
        time.sleep(HEALTHY_PAUSE_S)


def main() -> None:
    """Install the package and publish each step. Exit with 1 if this attempt has failed."""
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
            # This is done last, so that a killed attempt will start again.
            installed.write_text(bundle["sha256"])
            path.unlink(missing_ok=True)
            shutil.rmtree(FOLDER / "bundle", ignore_errors=True)
        publish(bundle, stage := "start")
        wait_healthy(bundle["service"])
    except AttemptFailed as failed:
        publish(bundle, stage, str(failed))
        sys.exit(1)
    publish(bundle, "ready")


if __name__ == "__main__":
    main()
