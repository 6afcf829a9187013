"""A join code, and how an agent trades it for a credential of its own.

A code is ``bsj.<fingerprint>.<secret>``. The fingerprint is the SHA-256 of the coordinator's
authority: what an agent fetches before it trusts anybody is held against it, and the code's secret
travels only after that. ``site`` in its place: the certificates are the site's own, and the
system's authorities (``SSL_CERT_FILE``) are asked. The agent makes its secret itself and sends the
hash; so a lost answer is mended by asking again, and nobody else ever saw the secret.
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
from broadside.exchange.http.coordinator_link import Link, failure, open_client, refusal
from broadside.exchange.http.credential import Credential, load_credential, new_secret
from broadside.exchange.ports import (
    ExchangeError,
    ExchangeMisconfigured,
    ExchangeRefused,
    ExchangeUnavailable,
)

SITE: Final = "site"
CODE_BYTES: Final = 16  # random
ANSWER_MAX_BYTES: Final = 16_384  # of anybody who answers: nothing is proven yet

log = logging.getLogger(__name__)


def new_code(authority: str | None) -> tuple[str, str]:
    """A join code, and the secret in it."""
    secret = secrets.token_urlsafe(CODE_BYTES)
    return f"bsj.{SITE if authority is None else fingerprint(authority)}.{secret}", secret


def fingerprint(authority: str) -> str:
    """SHA-256 of a certificate (PEM), in 43 characters. Raises ``ValueError``."""
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(authority)).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


async def join(
    code: str, coordinators: tuple[str, ...], agent_id: str, role: str, path: Path
) -> Credential:
    """The credential at ``path``; where there is none, or it is refused, one for the code.

    Its secret is kept before it is told of: who asks again, after a lost answer or as another
    process, asks for the same. Raises ``ExchangeMisconfigured`` (the code is no good),
    ``ExchangeUnavailable``.
    """
    kept = load_credential(path)
    if kept is not None and not await is_refused(replace(kept, coordinators=coordinators)):
        return kept
    try:
        mark, named, secret = code.strip().split(".")
    except ValueError:
        mark = named = secret = ""
    if mark != "bsj":
        raise ExchangeMisconfigured("the join code is not one; see `broadside enroll new`")
    asked_for = path.with_suffix(".joining")
    earlier = load_credential(asked_for)
    own_secret = new_secret() if earlier is None else earlier.secret
    failures: list[str] = []
    for coordinator in coordinators:
        try:
            authority = None if named == SITE else await _authority(coordinator, named)
            credential = Credential(
                coordinators=coordinators,
                authority=authority,
                agent_id=agent_id,
                role=role,
                secret=own_secret,
                issued_s=time.time(),
            ).save(asked_for)
            asked = {
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
                    content=json.dumps(asked),
                )
        except httpx.HTTPError as error:
            failures.append(f"{coordinator}: {failure(error)}")
            continue
        if response.status_code == httpx.codes.OK:
            log.info("joined %s", coordinator, extra={"action": "join"})
            asked_for.replace(path)
            return replace(credential, path=path)
        if (refused := refusal(response)) is not None:
            raise ExchangeMisconfigured(f"not enrolled: {response.text[:300]}") from refused
        failures.append(f"{coordinator}: {response.status_code}")
    raise ExchangeUnavailable(f"no coordinator to join: {'; '.join(failures)}")


async def is_refused(credential: Credential) -> bool:
    """Return whether it was revoked; False while no coordinator answers, so that it is kept."""
    link = Link(replace(credential, path=None))
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
    """The authority that the code names, from whoever answers: the fingerprint is the proof."""
    unproven = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unproven.check_hostname = False
    unproven.verify_mode = ssl.CERT_NONE  # nothing is sent, and what comes is checked here
    headers = {"Accept-Encoding": "identity"}
    async with httpx.AsyncClient(verify=unproven, timeout=10, headers=headers) as client:
        response = await ask(
            client, "GET", f"{coordinator}/v1/exchange/authority", ANSWER_MAX_BYTES
        )
    text = response.text
    try:
        found = fingerprint(text)
    except ValueError:
        found = ""
    if not secrets.compare_digest(found, named):
        raise ExchangeMisconfigured(
            f"{coordinator}: its authority is not the one that the join code names: another "
            "coordinator, or somebody in between"
        )
    return text
