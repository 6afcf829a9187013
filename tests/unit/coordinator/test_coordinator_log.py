"""Tests for removing credentials from the log."""

import logging
import sys

import httpx
import pytest

from broadside.coordinator.coordinator_log import LineFormatter, start_log
from broadside.exchange.log_sanitizer import redact

JWT = "eyJhbGciOiJSUzI1NiJ9.eyJhdWQiOiJicm9hZHNpZGUifQ.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("token broadside_" + "aB3-_" * 9, "aB3-_aB3"),
        (f"got {JWT} from a page", "c2lnbmF0dXJl"),
        ("Authorization: Bearer abc.def", "abc.def"),
        (
            "Endpoint=sb://x/;SharedAccessKey=c2VjcmV0;EntityPath=q",
            "c2VjcmV0",
        ),
        ("AccountName=a;AccountKey=bXkta2V5==;TableEndpoint=x", "bXkta2V5"),
        ("https://a.blob.core.windows.net/c?sv=1&sig=abc%2Fdef&se=2", "abc%2Fdef"),
        ("az login --password=hunter2 -u me", "hunter2"),
        ("event --client-secret=abc.def", "abc.def"),
    ],
)
def test_credentials_are_redacted(text: str, secret: str) -> None:
    assert secret in text
    assert secret not in redact(text)
    assert "***" in redact(text)


def test_plain_text_is_unchanged() -> None:
    text = "run 20261120-120000-smoke-7f3a launched by broadside_user, signature checked"
    assert redact(text) == text


def test_credentials_in_tracebacks_are_redacted() -> None:
    try:
        raise ValueError(f"cannot read {JWT}")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "x", 1, "failed", None, sys.exc_info())
    record.action = "tick"
    line = LineFormatter().format(record)
    assert "ERROR x tick: failed" in line
    assert "***jwt***" in line
    assert JWT not in line


def test_requested_urls_are_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    """The URL can contain an API key, for example ``?type=op&key=...``."""
    roots = logging.getLogger().handlers, logging.getLogger().level
    try:
        start_log("DEBUG")
        with httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(200))) as client:
            client.get("https://fw/api?key=s3cret")
    finally:
        logging.getLogger().handlers, logging.getLogger().level = roots
    assert "s3cret" not in capsys.readouterr().err
