"""Tests for the access tokens of the Service Bus broker."""

import base64
import hmac
from urllib.parse import quote_plus

import pytest

from broadside.lab.servicebus.access_tokens import (
    ALL_RIGHTS,
    Grant,
    Right,
    TokenVerifier,
    entity_path,
    issue_jwt,
)

NOW = 1_800_000_000.0
AUDIENCE = "sb://127.0.0.1:5672/Jobs"
JWT_KEY = "a key that is long enough for HS256, as it should be"
GUARD = TokenVerifier(sas_keys={"policy": "secret"}, jwt_key=JWT_KEY)


def _sas(resource: str = AUDIENCE, key: str = "secret", end: str = str(int(NOW) + 60)) -> str:
    scope = quote_plus(resource)
    signature = base64.b64encode(hmac.digest(key.encode(), f"{scope}\n{end}".encode(), "sha256"))
    return f"SharedAccessSignature sr={scope}&sig={quote_plus(signature)}&se={end}&skn=policy"


def test_sas_token_grants_access_to_the_queue() -> None:
    grant = Grant(path="jobs", rights=ALL_RIGHTS, ends_at_s=NOW + 60)
    assert GUARD.check(_sas(), AUDIENCE, NOW) == grant


def test_sas_token_for_management_grants_access_to_the_queue() -> None:
    audience = f"{AUDIENCE}/$management"
    grant = GUARD.check(_sas(audience), audience, NOW)
    assert isinstance(grant, Grant)
    assert grant.path == "jobs"


def test_sas_token_for_namespace_grants_access_to_all_queues() -> None:
    grant = GUARD.check(_sas("sb://127.0.0.1:5672/"), AUDIENCE, NOW)
    assert isinstance(grant, Grant)
    assert grant.covers("jobs", Right.SEND)


@pytest.mark.parametrize(
    ("token", "refusal"),
    [
        pytest.param(_sas(key="wrong"), "InvalidSignature", id="wrong key"),
        pytest.param(_sas(end=str(int(NOW))), "ExpiredToken", id="expired"),
        pytest.param(_sas(end="soon"), "ExpiredToken", id="no end"),
        pytest.param(_sas("sb://127.0.0.1:5672/other"), "InvalidAudience", id="another queue"),
        pytest.param(_sas("sb://127.0.0.1:5672/job"), "InvalidAudience", id="a prefix"),
        pytest.param(_sas().replace("policy", "unknown"), "InvalidSignature", id="no such policy"),
        pytest.param("SharedAccessSignature sr=x", "MalformedToken", id="truncated"),
        pytest.param("SharedAccessSignature ", "MalformedToken", id="empty"),
        pytest.param(issue_jwt(JWT_KEY, now=NOW - 7200), "ExpiredToken", id="JWT expired"),
        pytest.param(issue_jwt(JWT_KEY[::-1], now=NOW), "InvalidSignature", id="JWT wrong key"),
        pytest.param(
            issue_jwt(JWT_KEY, now=NOW, audience="https://storage.azure.com"),
            "InvalidAudience",
            id="JWT wrong audience",
        ),
        pytest.param("eyJ.no.jwt", "MalformedToken", id="no JWT"),
    ],
)
def test_rejects_invalid_tokens_with_reason(token: str, refusal: str) -> None:
    answer = GUARD.check(token, AUDIENCE, NOW)
    assert isinstance(answer, str)
    assert answer.startswith(refusal)


def test_jwt_roles_limit_the_rights() -> None:
    for role, rights in (
        ("Azure Service Bus Data Sender", {Right.SEND}),
        ("Azure Service Bus Data Receiver", {Right.LISTEN}),
        ("Reader", set[Right]()),
    ):
        grant = GUARD.check(issue_jwt(JWT_KEY, now=NOW, roles=[role]), AUDIENCE, NOW)
        assert grant == Grant(path="jobs", rights=frozenset(rights), ends_at_s=NOW + 3600)


def test_jwt_without_roles_has_all_rights() -> None:
    grant = GUARD.check(issue_jwt(JWT_KEY, now=NOW), AUDIENCE, NOW)
    assert grant == Grant(path="jobs", rights=ALL_RIGHTS, ends_at_s=NOW + 3600)


def test_rejects_token_type_without_a_key() -> None:
    assert "InvalidToken" in str(TokenVerifier(sas_keys={"p": "k"}).check("eyJ", AUDIENCE, NOW))
    assert "InvalidSignature" in str(TokenVerifier(jwt_key=JWT_KEY).check(_sas(), AUDIENCE, NOW))


def test_accepts_all_tokens_without_keys() -> None:
    assert isinstance(TokenVerifier().check("anything", AUDIENCE, NOW), Grant)


def test_repr_does_not_show_keys() -> None:
    assert "secret" not in repr(GUARD)
    assert JWT_KEY not in repr(GUARD)


def test_entity_paths_ignore_host_case_and_slashes() -> None:
    assert entity_path("amqps://x.servicebus.windows.net/Jobs/$DeadLetterQueue") == (
        "jobs/$deadletterqueue"
    )
    assert entity_path("/Jobs/") == "jobs"
