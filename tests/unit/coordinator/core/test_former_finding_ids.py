"""Tests for the identifiers of findings in stored summaries."""

import csv
from pathlib import Path

import pytest

from broadside.coordinator.core.summary import FORMER_FINDING_IDS, Finding

REFERENCE = Path(__file__).parents[4] / "docs" / "findings.csv"


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
    with REFERENCE.open(encoding="utf-8") as file:
        listed = {row["id"] for row in csv.DictReader(file)}
    assert FORMER_FINDING_IDS.keys().isdisjoint(listed)
    named = {one for one in FORMER_FINDING_IDS.values() if not one.startswith("bottleneck-")}
    assert named <= listed
