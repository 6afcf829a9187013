"""Join codes, and the exchange of a join code for the credential of an agent.

A code is ``bsj.<fingerprint>.<secret>``. The fingerprint is the SHA-256 of the coordinator's
certificate authority. The agent first downloads this authority over an untrusted connection and
compares the fingerprint. It will send the secret of the code only after the comparison succeeds. If
the code contains ``site`` instead of a fingerprint, the site supplies the certificates. The agent
then uses the authorities of the system (``SSL_CERT_FILE``).

The agent generates the secret of its credential and sends only the hash. If the response is lost,
the agent will repeat the request. No other party ever receives the secret.
"""

import base64
import hashlib
import json
import logging
import secrets
import ssl
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

import httpx

from broadside.exchange.http.bounded import ask
from broadside.exchange.http.coordinator_client import (
    CoordinatorClient,
    failure,
    open_client,
    refusal,
)
from broadside.exchange.http.credential import AgentCredential, load_credential, new_secret
from broadside.exchange.ports import (
    ExchangeError,
    ExchangeMisconfigured,
    ExchangeRefused,
    ExchangeUnavailable,
)

SITE: Final = "site"
# Random bytes in a join code.
CODE_BYTES: Final = 16
# The maximum response size to read. It should be small, because we do not know yet if this is the
# right server.
ANSWER_MAX_BYTES: Final = 16_384

log = logging.getLogger(__name__)


def new_code(authority: str | None) -> tuple[str, str]:
    """Return a new join code, and the secret in this code.

    Args:
        authority: The coordinator's certificate authority, PEM. If None, the code has ``site``.
    """
    secret = secrets.token_urlsafe(CODE_BYTES)
    return f"bsj.{SITE if authority is None else fingerprint(authority)}.{secret}", secret


def fingerprint(authority: str) -> str:
    """Return the SHA-256 of a certificate (PEM) as 43 base64 characters. Raise ``ValueError``."""
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(authority)).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


async def join(
    code: str, coordinators: tuple[str, ...], agent_id: str, role: str, path: Path
) -> AgentCredential:
    """Return the stored credential, or exchange the join code for a new credential.

    The code will be used if ``path`` has no credential, or if the coordinator rejects the stored
    credential. The new secret will be written to disk before the request. If the request is
    repeated after a lost response, or by another process, it therefore uses the same secret.

    Args:
        code: The join code.
        coordinators: The coordinators to try, in this order.
        agent_id: The agent id.
        role: The agent role.
        path: File of the credential.

    Raises:
        ExchangeMisconfigured: The code is invalid.
        ExchangeUnavailable: No coordinator responds.
    """
    stored = load_credential(path)
    if stored is not None and not await is_refused(replace(stored, coordinators=coordinators)):
        return stored
    try:
        mark, named, secret = code.strip().split(".")
    except ValueError:
        mark = named = secret = ""
    if mark != "bsj":
        raise ExchangeMisconfigured("the join code is invalid; see `broadside enroll new`")
    pending_path = path.with_suffix(".joining")
    earlier = load_credential(pending_path)
    new_secret_text = new_secret() if earlier is None else earlier.secret
    failures: list[str] = []
    for coordinator in coordinators:
        try:
            authority = None if named == SITE else await _authority(coordinator, named)
            credential = AgentCredential(
                coordinators=coordinators,
                authority=authority,
                agent_id=agent_id,
                role=role,
                secret=new_secret_text,
                issued_s=time.time(),
            ).save(pending_path)
            body = {
                "code": secret,
                "agent_id": agent_id,
                "role": role,
                "sha256": credential.sha256,
            }
            async with open_client(authority) as client:
                response = await ask(
                    client,
                    "POST",
                    f"{coordinator}/v1/exchange/join",
                    ANSWER_MAX_BYTES,
                    content=json.dumps(body),
                )
        except httpx.HTTPError as error:
            failures.append(f"{coordinator}: {failure(error)}")
            continue
        if response.status_code == httpx.codes.OK:
            log.info("joined %s", coordinator, extra={"action": "join"})
            pending_path.replace(path)
            return replace(credential, path=path)
        if (refused := refusal(response)) is not None:
            raise ExchangeMisconfigured(f"not enrolled: {response.text[:300]}") from refused
        failures.append(f"{coordinator}: {response.status_code}")
    raise ExchangeUnavailable(f"no coordinator to join: {'; '.join(failures)}")


async def is_refused(credential: AgentCredential) -> bool:
    """Return True if the credential was revoked.

    If no coordinator responds, the result is False, so that the credential is not discarded.
    """
    link = CoordinatorClient(replace(credential, path=None))
    try:
        await link.call("ping")
    except ExchangeRefused:
        return not await link.let_in_again()
    except ExchangeError:
        return False
    finally:
        await link.close()
    return False


async def _authority(coordinator: str, named: str) -> str:
    """Download the coordinator's authority and verify its fingerprint.

    The connection need not be trusted, because the fingerprint in the code proves the authority.
    """
    unproven = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unproven.check_hostname = False
    # We do not send a secret using this connection. The fingerprint will be checked below.
    unproven.verify_mode = ssl.CERT_NONE
    headers = {"Accept-Encoding": "identity"}
    async with httpx.AsyncClient(verify=unproven, timeout=10, headers=headers) as client:
        response = await ask(
            client, "GET", f"{coordinator}/v1/exchange/authority", ANSWER_MAX_BYTES
        )
    text = response.text
    try:
        digest = fingerprint(text)
    except ValueError:
        digest = ""
    if not secrets.compare_digest(digest, named):
        raise ExchangeMisconfigured(
            f"{coordinator}: its authority is not the one in the join code: it is another "
            "coordinator, or a proxy that intercepts TLS; check the address"
        )
    return text
