"""No secret passes into a support bundle, in any form in which it can appear."""

import base64
import json
from pathlib import Path
from typing import Final
from urllib.parse import quote, quote_plus

import pytest

from broadside.coordinator.cli.support_redaction import Scrubber, is_secret_name, known_secrets

KEY: Final = (
    "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\nBKcwggSj\n"
    "-----END PRIVATE KEY-----"
)
JWT: Final = "eyJhbGciOiJSUzI1NiJ9.eyJvaWQiOiJ4In0.c2lnbmF0dXJlLW9mLXRoZS10b2tlbg"
# What nobody has told the bundle about: text that looks like a secret.
UNKNOWN: Final = {
    "API token": "broadside_Zx7mQ2vT9pL4kR8sW1yB6nC3",
    "agent credential": "bsa_Zx7mQ2vT9pL4kR8sW1yB6nC3",
    "webhook key": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    "JWT": JWT,
    "bearer": "Authorization: Bearer 6f1c2d3e4f5a6b7c8d9e0f",
    "connection string": "AccountName=x;AccountKey=c2VjcmV0LWtleS1vZi1zdG9yYWdl==;",
    "shared access signature": "https://x.blob.core.windows.net/a?sv=2024&sig=Zm9vYmFyYmF6%2Bcm9vdA%3D%3D&se=1",
    "proxy password": "http://user:hunter2-hunter2@proxy:3128",
    "private key": KEY,
    "SNMP community": 'community = "pr1v4te-c0mmunity"',
}
SECRET_PART: Final = {
    "bearer": "6f1c2d3e4f5a6b7c8d9e0f",
    "connection string": "c2VjcmV0LWtleS1vZi1zdG9yYWdl",
    "shared access signature": "Zm9vYmFyYmF6",
    "proxy password": "hunter2-hunter2",
    "private key": "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC",
    "SNMP community": "pr1v4te-c0mmunity",
}
KNOWN: Final = ("correct horse+battery/staple", "Pa$$w0rd&more=1", "kürbis-kern-suppe")


def encodings(text: str) -> dict[str, str]:
    """Return a text in the forms in which a log can have it."""
    body = text.encode()
    return {
        "plain": text,
        "URL": quote(text, safe=""),
        "form": quote_plus(text),
        "JSON": json.dumps(text)[1:-1],
        "base64": base64.b64encode(body).decode(),
        "URL-safe base64": base64.urlsafe_b64encode(body).decode().rstrip("="),
        "base64 with more": base64.b64encode(b"user:" + body + b":end").decode(),
        "base64 of JSON": base64.b64encode(json.dumps({"k": text}).encode()).decode(),
        "base64 twice": base64.b64encode(base64.b64encode(body)).decode(),
        "URL of base64": quote(base64.b64encode(body).decode(), safe=""),
        "hexadecimal": body.hex(),
    }


@pytest.mark.parametrize("secret", KNOWN)
@pytest.mark.parametrize("form", encodings(""))
@pytest.mark.parametrize(
    "line", ["{}", "2026-11-27 ERROR sent {} to x", '{{"a": "{}"}}', "u={}&v=1"]
)
def test_known_values_are_removed_in_every_form(secret: str, form: str, line: str) -> None:
    text = line.format(encodings(secret)[form])
    scrubbed = Scrubber([secret]).scrub(text)
    assert not [name for name, shown in encodings(secret).items() if shown in scrubbed]


@pytest.mark.parametrize("name", UNKNOWN)
@pytest.mark.parametrize("form", ["plain", "URL", "base64", "base64 with more", "base64 of JSON"])
def test_text_that_looks_like_a_secret_is_removed(name: str, form: str) -> None:
    part = SECRET_PART.get(name, UNKNOWN[name])
    scrubbed = Scrubber([]).scrub(f"before {encodings(UNKNOWN[name])[form]} after")
    assert not [one for one, shown in encodings(part).items() if shown in scrubbed]
    assert scrubbed.startswith("before ")
    assert scrubbed.endswith(" after")


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-27T18:00:00Z INFO c001: armed in 0.2 s, clock bound 0.3 ms",
        "/subscriptions/0000/resourceGroups/rg/providers/Microsoft.Network/azureFirewalls/fw",
        "BROADSIDE_TABLES_ENDPOINT=https://x.table.core.windows.net",
        "sha256 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
        "tokens_count=3, key 0x12, PartitionKey eq 'boot'",
    ],
)
def test_other_text_is_unchanged(text: str) -> None:
    assert Scrubber(KNOWN).scrub(text) == text


def test_fields_with_secret_names_are_masked() -> None:
    value = {
        "primary_access_key": "abc", "token": "xyz", "name": "fw", "list": [{"password": "p"}],
        "credential_file": "/etc/x", "tokens_count": 3, "join_code": "bsj.x.y",
    }  # fmt: skip
    assert Scrubber([]).scrub_value(value) == {
        "primary_access_key": "***", "token": "***", "name": "fw", "list": [{"password": "***"}],
        "credential_file": "/etc/x", "tokens_count": 3, "join_code": "***",
    }  # fmt: skip


def test_secret_names() -> None:
    secret = ("BROADSIDE_TOKEN", "BROADSIDE_WEBHOOK_SECRET", "ARM_CLIENT_SECRET",
              "BROADSIDE_TABLES_CONNECTION_STRING", "BROADSIDE_FW_COMMUNITY")  # fmt: skip
    public = ("BROADSIDE_CREDENTIAL_FILE", "BROADSIDE_TOKEN_FILE", "BROADSIDE_DATA_DIR", "row_key",
              "ssh_public_key", "tokens_count")  # fmt: skip
    assert all(map(is_secret_name, secret))
    assert not any(map(is_secret_name, public))


def test_secrets_of_this_host_are_known(tmp_path: Path) -> None:
    files = {
        "agent/credential.json": '{"agent_id": "c1", "secret": "bsa-of-this-agent"}',
        "hosts.key": KEY,
        "single": "one-line-secret\n",
        "public": "visible-to-everybody",
        "a.log": "a log line with spaces",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o644 if name == "public" else 0o600)
    password = tmp_path / "named"
    password.write_text("named-by-a-setting")
    environment = {
        "BROADSIDE_WEBHOOK_SECRET": "whsec-abcdef", "HOME": "/root", "BROADSIDE_PORT": "8080",
        "BROADSIDE_HOSTS_KEY_FILE": str(password),
        "BROADSIDE_TABLES_CONNECTION_STRING": "AccountName=x;AccountKey=a2V5LXBhcnQ=;",
    }  # fmt: skip
    secrets = known_secrets(environment, [tmp_path])
    assert {"bsa-of-this-agent", "one-line-secret", "named-by-a-setting", "whsec-abcdef"} <= secrets
    assert {"a2V5LXBhcnQ=", "BKcwggSj", KEY} <= secrets
    assert not secrets & {"c1", "visible-to-everybody", "a log line with spaces", "8080", "/root"}
