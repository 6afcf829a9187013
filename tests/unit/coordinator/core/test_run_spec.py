import hashlib
import json
from datetime import UTC, datetime

import pytest

from broadside.coordinator.core.run_spec import Plan, RunSpec
from broadside.coordinator.core.thresholds import Objective
from broadside.exchange.messages import RawPolicy

AT = datetime(2026, 11, 26, 12, tzinfo=UTC)
# These labels look like fields that older versions did not hash.
LABELS = {"raw": "failed", "a": ',"witnesses":[],', "seal_sha256": "0" * 64, "ü\x1f": "\u2028"}
SPEC = RunSpec(scenario="smoke", scale=1e-7, labels=LABELS, device={"witnesses": "[]"})


def plan(**changes: object) -> Plan:
    fields = {"run_id": "r", "created_at": AT, "spec": SPEC, "pairs": (), "bursts": ()}
    return Plan.model_validate(fields | changes).sealed()


def test_seal_is_hash_of_stored_bytes_without_the_seal() -> None:
    sealed = plan()
    seal = sealed.seal_sha256
    assert seal is not None
    content, member, rest = sealed.document.partition(f',"seal_sha256":"{seal}"'.encode())
    assert (member != b"", rest) == (True, b"}"), "the seal must be the last field"
    assert hashlib.sha256(content + rest).hexdigest() == seal
    assert sealed.is_intact
    stored = Plan.read(sealed.document)
    assert stored.is_intact
    assert stored.digest() == seal


def test_fields_of_newer_version_do_not_change_the_seal() -> None:
    """The hash must use the stored bytes, not the fields that this version would write."""

    class LaterPlan(Plan):
        colour: str = "red"
        depth_s: float | None = None

    sealed = plan()
    later = LaterPlan.read(sealed.document)
    assert later.is_intact
    assert later.document == sealed.document
    assert later.model_copy(update={"colour": "blue"}).is_intact is False
    resealed = later.model_copy(update={"colour": "blue"}).sealed()
    assert LaterPlan.read(resealed.document).is_intact
    assert resealed.seal_sha256 != sealed.seal_sha256


def old_document(sealed: Plan) -> bytes:
    """Build the document that version 6cca7b45 would have stored for this plan."""
    hashed = json.loads(sealed.to_json())
    del hashed["seal_sha256"]
    fields = json.loads(json.dumps(hashed))
    spec = fields["spec"]
    # The position does not matter, because these fields were not hashed.
    fields.setdefault("witnesses", [])
    spec.setdefault("raw", "failed")
    spec["objective"].setdefault("device_memory_max_ratio", None)

    def text(value: object) -> str:
        message = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        # This is the format that pydantic uses.
        return message.replace("1e-07", "1e-7")

    fields["seal_sha256"] = hashlib.sha256(text(hashed).encode()).hexdigest()
    return text(fields).encode()


@pytest.mark.parametrize(
    "made",
    [
        plan(),
        plan(witnesses=("fw-a",)),
        plan(spec=SPEC.model_copy(update={"raw": RawPolicy.ALL})),
        plan(
            spec=SPEC.model_copy(
                update={"objective": Objective(device_cpu_p95_max_ratio=0.8)},
            )
        ),
    ],
    ids=["plain", "witnesses", "raw", "device threshold"],
)
def test_verifies_seal_of_version_6cca7b45(made: Plan) -> None:
    document = old_document(made)
    stored = Plan.read(document)
    assert b'"device_memory_max_ratio":null' in document
    assert stored.is_intact, "the seal must be valid under the current or the older rule"
    assert stored.seal_sha256 == made.seal_sha256, "the seal of the same plan must not change"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"burst_s":30', b'"burst_s":31'),
        (b'"witnesses":[]', b'"witnesses":["x"]'),
        (b',"raw":"failed"}', b',"raw":"none"}'),
        (b'"device_memory_max_ratio":null', b'"device_memory_max_ratio":0.5'),
        (b'"pairs":[]', b'"pairs": []'),
        (b'"pairs":[]', b'"pairs":[],"pairs":[]'),
        (b'"scale":1e-7', b'"scale":1e-07'),
        (b',"labels":{"raw":"failed",', b',"labels":{'),
    ],
)
def test_detects_changes_in_stored_bytes(before: bytes, after: bytes) -> None:
    for document in (old_document(plan()), plan().document):
        if before in document:
            assert not Plan.read(document.replace(before, after)).is_intact
    assert before in old_document(plan())


def test_changed_copy_is_not_intact() -> None:
    stored = Plan.read(plan().document)
    assert stored.model_copy().is_intact
    assert not stored.model_copy(update={"run_id": "other"}).is_intact
