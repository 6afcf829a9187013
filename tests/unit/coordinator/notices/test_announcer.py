"""Tests for the webhook and the OTLP export when a run ends."""

from datetime import datetime, timedelta

import pytest

from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.coordinator.notices.places import NoticesMisconfigured, open_receivers
from broadside.coordinator.runs.run_documents import read_run_summary
from broadside.exchange.fabric import Fabric
from broadside.exchange.records import RunOutcome
from tests.unit.coordinator.stored_run import store_run

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105


async def ended_run(fabric: Fabric) -> tuple[str, datetime]:
    """Store a completed run and return its id and end time."""
    run_id = await store_run(fabric)
    [(_, header)] = [scan_run async for scan_run in fabric.records.private.scan_runs()]
    summary = await read_run_summary(fabric.records, run_id)
    assert summary is not None
    ended_at = header.created_at + timedelta(hours=1)
    outcome = RunOutcome(
        cancelled=False,
        verdict=summary.verdict.value,
        ended_at=ended_at,
        completeness_ratio=summary.completeness_ratio,
    )
    await fabric.records.private.save_outcome(run_id, outcome)
    return run_id, ended_at


@pytest.mark.parametrize("secret", [None, "whsec_short", "no prefix", "whsec_ä"])
def test_rejects_webhook_with_missing_or_invalid_secret(
    secret: str | None,
) -> None:
    settings = CoordinatorSettings.model_validate(
        {"webhook_url": "https://example.net/hook", "webhook_secret": secret}
    )
    with pytest.raises(NoticesMisconfigured, match="BROADSIDE_WEBHOOK_SECRET") as caught:
        list(open_receivers(settings))
    assert secret is None or secret not in str(caught.value)


def test_no_receivers_without_settings() -> None:
    assert list(open_receivers(CoordinatorSettings())) == []
