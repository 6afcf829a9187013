"""CONNECT proxy that serves Azure's host names on this machine and terminates TLS.

Terraform and az use the real host names. ``HTTPS_PROXY`` leads them to the proxy. They trust a
temporary certificate authority that signs for these names.
"""

import base64
import json
import logging
import ssl
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from tests.azure_emulator.azure_catalogue import DEPLOYER
from tests.azure_emulator.azure_refusals import Refused
from tests.azure_emulator.booted import CONSOLES
from tests.azure_emulator.computed import TENANT
from tests.azure_emulator.data_plane import DataPlane
from tests.azure_emulator.subscription import Answer, Subscription

APPLICATION: Final = "33333333-3333-3333-3333-333333333333"
_NAMES: Final = (
    "management.azure.com", "login.microsoftonline.com", "graph.microsoft.com",
    CONSOLES,
    *(f"*.{part}.core.windows.net" for part in ("blob", "table", "queue", "file", "dfs", "web")),
)  # fmt: skip
_log = logging.getLogger(__name__)


def make_authority(folder: Path) -> Path:
    """Create an authority and a certificate for Azure's names and return the CA file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "names").write_text(
        f"subjectAltName={','.join(f'DNS:{name}' for name in _NAMES)}\n"
        "authorityKeyIdentifier=keyid\nextendedKeyUsage=serverAuth\n"
    )
    fresh, signs = "-newkey rsa:2048 -nodes", "keyUsage=critical,keyCertSign"
    by = "-CA ca.pem -CAkey ca.key -CAcreateserial"
    steps = (
        f"req -x509 {fresh} -subj /CN=rehearsal -keyout ca.key -out ca.pem -addext {signs}",
        f"req {fresh} -subj /CN=azure -keyout key.pem -out csr.pem",
        f"x509 -req -in csr.pem {by} -days 2 -extfile names -out cert.pem",
    )
    for step in steps:
        subprocess.run(["openssl", *step.split()], cwd=folder, check=True, capture_output=True)
    return folder / "ca.pem"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    subscription: Subscription
    data: DataPlane
    tls: ssl.SSLContext

    def do_CONNECT(self) -> None:
        self.send_response(200, "Connection established")
        self.end_headers()
        self.wfile.flush()
        self.connection = self.tls.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", 0)
        self.close_connection = False

    def answer(self) -> None:
        host = self.headers.get("Host", "").split(":")[0]
        url = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(url.path).rstrip("/") or "/"
        query = urllib.parse.parse_qs(url.query, keep_blank_values=True)
        raw = self._body()
        is_data = host.endswith(".core.windows.net") or host == CONSOLES
        try:
            data: bytes | None = None
            if host.startswith("login."):
                reported = Answer(status=200, body=_sign_in(path))
            elif is_data:
                with self.subscription.lock:
                    headers = dict(self.headers.items())
                    reported, data = self.data.answer(self.command, host, path, query, headers, raw)
            elif host == "management.azure.com":
                body = json.loads(raw) if raw.strip() else None
                with self.subscription.lock:
                    reported = self.subscription.answer(self.command, path, query, body)
            else:
                raise Refused(404, "NoSuchHost", host)
        except Refused as refused:
            if refused.status not in (404, 429):
                self.subscription.note(f"refused {self.command} {path}: {refused}")
            error = {"code": refused.code, "message": refused.message}
            retry = {"Retry-After": "1"} if refused.status == 429 else {}
            reported = Answer(
                status=refused.status, body={"error": error},
                headers={"x-ms-error-code": refused.code, **retry},
            )  # fmt: skip
            xml = f"<Error><Code>{refused.code}</Code><Message>{refused.message}</Message></Error>"
            data = f"<?xml version='1.0'?>{xml}".encode() if is_data else None
        # A fault of the emulator is not a fault of the range.
        except Exception as error:
            self.subscription.note(f"stand-in failed at {self.command} {path}: {error!r}")
            _log.exception("%s %s", self.command, path)
            reported, data = Answer(status=500, body={"error": {"code": "StandIn"}}), None
        _log.info("%d %s %s%s", reported.status, self.command, host, self.path[:200])
        self._send(reported, data)

    do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = do_HEAD = answer

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        out = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            out += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return out

    def _send(self, reply: Answer, data: bytes | None) -> None:
        if data is None:
            content = b"" if reply.body is None else json.dumps(reply.body).encode()
        else:
            content = data
        self.send_response(reply.status)
        headers = {
            # The emulator does not reproduce Azure's polling delay.
            "X-Go-Azure-Sdk-Skip-Polling-Delay": "true",
            **({"Retry-After": "0"} if reply.status < 400 else {}),
            **({"Content-Type": "application/json; charset=utf-8"} if data is None else {}),
            **reply.headers,
        }
        for name, value in headers.items():
            self.send_header(name, value)
        if reply.status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if content and self.command != "HEAD" and reply.status != 204:
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of clients that were killed during a request, as the tests do."""
        # TLS errors are OSErrors too.
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _sign_in(path: str) -> dict[str, Any]:
    if path.endswith("/token"):
        now = int(time.time())
        claims = {
            "oid": DEPLOYER, "sub": DEPLOYER, "tid": TENANT, "appid": APPLICATION, "idtyp": "app",
            "iat": now, "nbf": now, "exp": now + 86400, "ver": "1.0",
            "aud": "https://management.azure.com/", "iss": f"https://sts.windows.net/{TENANT}/",
        }  # fmt: skip
        parts = ({"alg": "none", "typ": "JWT"}, claims)
        encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()) for part in parts]
        token = ".".join([*(part.rstrip(b"=").decode() for part in encoded), "x"])
        return {"token_type": "Bearer", "expires_in": 86399, "ext_expires_in": 86399,
                "access_token": token}  # fmt: skip
    stem = f"https://login.microsoftonline.com/{TENANT}"
    if "instance" in path:
        aliases = ["login.microsoftonline.com", "login.windows.net"]
        network = {
            "preferred_network": aliases[0],
            "preferred_cache": aliases[1],
            "aliases": aliases,
        }
        return {
            "tenant_discovery_endpoint": f"{stem}/v2.0/.well-known/openid-configuration",
            "api-version": "1.1", "metadata": [network],
        }  # fmt: skip
    return {
        "token_endpoint": f"{stem}/oauth2/v2.0/token", "issuer": f"{stem}/v2.0",
        "authorization_endpoint": f"{stem}/oauth2/v2.0/authorize",
        "device_authorization_endpoint": f"{stem}/oauth2/v2.0/devicecode",
    }  # fmt: skip


@contextmanager
def serving(data: DataPlane, certificates: Path) -> Iterator[str]:
    """Serve a subscription and its blobs and yield the address of the proxy."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
    fields = {"subscription": data.subscription, "tls": tls, "data": data}
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), fields))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
