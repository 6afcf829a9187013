"""Signed HTTP request when a run ends, as defined by Standard Webhooks.

See https://github.com/standard-webhooks/standard-webhooks. Id, time and body are signed with
HMAC-SHA256. Receivers can verify the signature with the libraries of that project, and can use the
id to detect a duplicate.
"""

import base64
import binascii
import hashlib
import hmac
import json
import time
from typing import Final

from broadside.coordinator.core.metrics import ALL_METRICS, received_at
from broadside.coordinator.core.verdict_reason import explain_verdict
from broadside.coordinator.notices.announcer import Notice, post

PREFIX: Final = "whsec_"
SECRET_MIN_BYTES: Final = 24
SECRET_MAX_BYTES: Final = 64
# Seconds for the whole request, including slow headers.
TIMEOUT_S: Final = 15.0
_FINDINGS_MAX_COUNT: Final = 20


def parse_secret(text: str) -> bytes:
    """Return the key from ``whsec_<base64>``.

    Raises:
        ValueError: The text is invalid. The message does not contain the secret.
    """
    try:
        key = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if not text.startswith(PREFIX) or not SECRET_MIN_BYTES <= len(key) <= SECRET_MAX_BYTES:
        raise ValueError(
            f"write {PREFIX} and {SECRET_MIN_BYTES} to {SECRET_MAX_BYTES} bytes in base64; "
            f"make one with: echo {PREFIX}$(openssl rand -base64 32)"
        )
    return key


class Webhook:
    """Receiver that is a webhook over HTTP."""

    name = "webhook"

    def __init__(self, url: str, secret: str, total_s: float = TIMEOUT_S) -> None:
        """Create a receiver.

        Args:
            url: URL of the webhook.
            secret: Secret in the format of :func:`parse_secret`.
            total_s: Time limit in seconds, from the connection to the end of the response headers.
        """
        self._url = url
        self._key = parse_secret(secret)
        self._total_s = total_s

    async def deliver(self, notice: Notice) -> None:
        body = body_of(notice)
        headers = signed(notice.header.run_id, int(time.time()), body, self._key)
        await post(self._url, body, headers, self._total_s)


def signed(notice_id: str, at_s: int, body: bytes, key: bytes) -> dict[str, str]:
    """Return the headers for a request.

    Args:
        notice_id: Id of the notification.
        at_s: Epoch seconds of the request.
        body: Body of the request.
        key: Key to sign with.

    Returns:
        Headers by lower-case name, with the signature (Standard Webhooks).
    """
    signature = hmac.digest(key, f"{notice_id}.{at_s}.".encode() + body, hashlib.sha256)
    return {
        "content-type": "application/json",
        "user-agent": "broadside",
        "webhook-id": notice_id,
        "webhook-timestamp": str(at_s),
        "webhook-signature": f"v1,{base64.b64encode(signature).decode()}",
    }


def body_of(notice: Notice) -> bytes:
    """Return the JSON body with the verdict, the main metrics and the first findings."""
    header, summary = notice.header, notice.summary
    explained = explain_verdict(summary)
    ended_at = None if header.outcome is None else header.outcome.ended_at.isoformat()
    content = {
        "type": "run.ended",
        "timestamp": ended_at,
        "data": {
            "run_id": header.run_id,
            "scenario": header.scenario,
            "labels": dict(header.labels),
            "by": header.created_by,
            "verdict": summary.verdict.value,
            "reason": explained.reason,
            "next_step": explained.next_step,
            "cancelled": header.outcome is not None and header.outcome.cancelled,
            "scale": summary.scale,
            "layer": summary.target_layer.value,
            "received_bits_per_second": received_at(summary.target_layer).of_run(summary),
            "target_bits_per_second": summary.target_bits_per_second,
            "figures": {
                metric.name: metric.of_run(summary) for metric in ALL_METRICS if metric.headline
            },
            "findings": [
                finding.model_dump(include={"id", "severity", "sentence", "next_step"})
                for finding in explained.findings[:_FINDINGS_MAX_COUNT]
            ],
        },
    }
    return json.dumps(content, allow_nan=False).encode()
