#!/usr/bin/env python3
"""Fetches Broadside's package with this VM's managed identity, checks it, and runs its installer.

    fetch.py /etc/broadside/bundle.json

Standard library only, for nothing else is on the image. Storage is reached inside Azure; a role
that was assigned a moment ago may take minutes to count, so it tries for a quarter of an hour.
"""

import hashlib
import http.client
import json
import os
import subprocess
import sys
import tarfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

IMDS = os.environ.get("BROADSIDE_IMDS", "http://169.254.169.254")
FOLDER = Path(os.environ.get("BROADSIDE_BUNDLE_FOLDER", "/var/cache/broadside"))
PATIENCE_S = float(os.environ.get("BROADSIDE_FETCH_PATIENCE_S", "900"))
PAUSE_S = min(10.0, PATIENCE_S / 10)
TOKEN_MAX_BYTES = 1 << 20  # a token is 2 kB
BUNDLE_MAX_BYTES = 1 << 30  # twenty times the largest there was
FAULTS = (  # URLError and HTTPError are OSErrors; an answer of brackets alone is too deep to read
    *(OSError, http.client.HTTPException),
    *(ValueError, LookupError, TypeError, RecursionError),
)
API_VERSION = "2023-11-03"  # of Blob storage; the first with bearer tokens was 2017-11-09


def ask(url: str, headers: dict[str, str], timeout_s: float):
    """GET, never by a proxy: the metadata service is on this host, storage inside Azure."""
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - our own two URLs
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
        request, timeout=timeout_s
    )


def say(text: str) -> None:
    sys.stderr.write(f"broadside: {text}\n")
    sys.stderr.flush()


def token(client_id: str) -> str:
    """A bearer token for storage, from the instance metadata service."""
    query = urllib.parse.urlencode(
        {
            "api-version": "2018-02-01",
            "resource": "https://storage.azure.com/",
            "client_id": client_id,
        }
    )
    url = f"{IMDS}/metadata/identity/oauth2/token?{query}"
    with ask(url, {"Metadata": "true"}, timeout_s=30) as answer:
        return json.loads(answer.read(TOKEN_MAX_BYTES))["access_token"]


def download(url: str, bearer: str, path: Path, end_s: float) -> str:
    """Save a blob and return its SHA-256 in hex. Raises ``ValueError``: it has no end."""
    headers = {"Authorization": f"Bearer {bearer}", "x-ms-version": API_VERSION}
    digest, left_bytes = hashlib.sha256(), BUNDLE_MAX_BYTES
    with ask(url, headers, timeout_s=60) as answer, path.open("wb") as file:
        while block := answer.read1(1 << 20):
            left_bytes -= len(block)
            if left_bytes < 0 or time.monotonic() > end_s:
                raise ValueError(f"over {BUNDLE_MAX_BYTES} bytes, or no end in {PATIENCE_S:g} s")
            digest.update(block)
            file.write(block)
    return digest.hexdigest()


def fetch(bundle: dict, path: Path) -> None:
    """Download until it works or patience ends; ends the process when it is not the right file."""
    end_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            found = download(bundle["url"], token(bundle["client_id"]), path, end_s)
            break
        except FAULTS as error:
            say(f"{bundle['url']}: {error}")
            if time.monotonic() > end_s:
                sys.exit(
                    "broadside: gave up; has the identity the role 'Storage Blob Data Reader' on "
                    "the container, and the subnet its service endpoint?"
                )
            time.sleep(PAUSE_S)
    if found != bundle["sha256"]:
        path.unlink()
        sys.exit(f"broadside: {bundle['url']} has SHA-256 {found}, not {bundle['sha256']}")


def main() -> None:
    bundle = json.loads(Path(sys.argv[1]).read_text())
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / "bundle.tar.gz"
    fetch(bundle, path)
    unpacked = FOLDER / "bundle"
    with tarfile.open(path) as archive:
        archive.extractall(unpacked, filter="data")
    sys.exit(subprocess.call(["sh", str(unpacked / "install.sh"), bundle["service"]]))


if __name__ == "__main__":
    main()
