"""The certificate that a TLS service shows: the operator's, or one made here for the occasion."""

import subprocess
from pathlib import Path
from typing import Final

from agent.agent_settings import AgentSettings
from agent.workspace import Workspace
from exchange.engines.port import Certificate, File, word

_DAYS: Final = 30  # a self-signed one is made anew at every start of a service
_TIMEOUT_S: Final = 30.0


class NoCertificate(Exception):
    """There is none to show; says why, and the fix."""


def place_certificate(settings: AgentSettings, address: str, workspace: Workspace) -> Certificate:
    """Put certificate and key into a service's folder, readable by it alone.

    Blocking, some tens of milliseconds. Raises :class:`NoCertificate`, ``OSError``.
    """
    if settings.certificate is not None and settings.certificate_key is not None:
        certificate, key = _given(settings.certificate), _given(settings.certificate_key)
    else:
        certificate, key = _self_signed(address)
    files = {"certificate.pem": certificate, "key.pem": key}
    workspace.fill(File(name=name, text=text) for name, text in files.items())
    paths = [str(workspace.path / name) for name in files]
    return Certificate(certificate=paths[0], key=paths[1])


def _given(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise NoCertificate(
            f"certificate: {path}: {error.strerror}; mend BROADSIDE_AGENT_CERTIFICATE or its _KEY"
        ) from error


def _self_signed(address: str) -> tuple[str, str]:
    """A new certificate for an address and its key, both PEM."""
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    argv += ["-noenc", "-days", str(_DAYS), "-subj", "/CN=broadside"]
    name = f"subjectAltName=IP:{word(address, 'address')}"
    argv += ["-addext", name, "-keyout", "-", "-out", "-"]
    try:
        made = subprocess.run(
            argv, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise NoCertificate(
            f"certificate: none is set, and openssl made none ({error}); install openssl, or set "
            "BROADSIDE_AGENT_CERTIFICATE and BROADSIDE_AGENT_CERTIFICATE_KEY"
        ) from error
    at = made.index("-----BEGIN CERTIFICATE-----")
    return made[at:], made[:at]
