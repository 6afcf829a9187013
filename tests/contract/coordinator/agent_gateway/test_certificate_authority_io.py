"""Tests for certificate authority that need processes, sockets or real time."""

import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from broadside.coordinator.agent_gateway.certificate_authority import load_authority
from broadside.exchange.outage_log import utc_now


def handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> str:
    """Run a TLS handshake in memory and return the version."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_side=False),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    done: set[int] = set()
    for _ in range(10):
        for index, end in enumerate(ends):
            if index not in done:
                try:
                    end.do_handshake()
                    done.add(index)
                except ssl.SSLWantReadError:
                    continue
    assert done == {0, 1}
    return str(ends[0].version())


def test_strict_client_accepts_the_certificates(tmp_path: Path) -> None:
    """Python 3.13 is strict by default and needs an Authority Key Identifier."""
    shown = load_authority(tmp_path, utc_now())
    assert shown.authority is not None
    strict = ssl.create_default_context(cadata=shown.authority)
    strict.check_hostname = False
    strict.verify_flags |= ssl.VERIFY_X509_STRICT
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(shown.certificate_file, shown.key_file)
    assert handshake(strict, server).startswith("TLS")


def test_commands_fail_until_new_authority_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROADSIDE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("BROADSIDE_HOSTS_LISTEN", "127.0.0.1:0")

    def broadside(*parts: str) -> tuple[int, str]:
        command = [sys.executable, "-P", "-m", "broadside.coordinator", *parts]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stderr

    assert broadside("enroll", "new", "--role", "client")[0] == 0
    shutil.rmtree(tmp_path / "data" / "tls")
    for parts in (["enroll", "new", "--role", "client"], ["serve", "--port", "0"]):
        code, error = broadside(*parts)
        assert code == 4, error
        assert "enroll new-authority" in error
        assert "Traceback" not in error
    assert broadside("enroll", "new-authority")[0] == 0
    assert broadside("enroll", "new-authority")[0] == 3
    assert broadside("enroll", "new", "--role", "client")[0] == 0
