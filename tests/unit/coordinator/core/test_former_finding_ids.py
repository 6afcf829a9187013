"""Tests for the identifiers of findings in stored summaries."""

import pytest

from broadside.coordinator.core.summary import FORMER_FINDING_IDS, Finding
from tests.docs_build.findings_page import all_findings


@pytest.mark.parametrize(
    ("former", "current"),
    [
        ("ledger-absent", "device-counter-missing"),
        ("limiter-unknown", "bottleneck-unknown"),
        ("limiter-client-nic", "bottleneck-client-nic"),
        ("target-missed", "target-missed"),
    ],
)
def test_stored_findings_are_read_with_their_current_ids(former: str, current: str) -> None:
    finding = Finding(id=former, kind="verdict", severity="problem", weight=1, sentence="Text.")
    assert finding.id == current


def test_ids_that_are_not_text_are_refused() -> None:
    with pytest.raises(ValueError, match="valid string"):
        Finding.model_validate(
            {"id": 7, "kind": "verdict", "severity": "problem", "weight": 1, "sentence": "Text."}
        )


def test_no_former_id_is_in_the_reference() -> None:
    listed = all_findings().keys()
    assert FORMER_FINDING_IDS.keys().isdisjoint(listed)
    assert set(FORMER_FINDING_IDS.values()) <= listed
