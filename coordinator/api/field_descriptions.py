"""Descriptions of the fields and values in the OpenAPI document, from the docstrings of the models.

Pydantic uses the whole docstring as the description of a schema. Here, its ``Attributes:`` section
becomes the descriptions of the fields, or of the values of an enumeration.
"""

import inspect
import re
from collections.abc import Mapping
from typing import Any, Final

# Descriptions of fields that mean the same in all models. A model can have its own one.
_COMMON: Final[Mapping[str, str]] = {
    "bottleneck": "Name of the bottleneck.",
    "broadside_version": "Version of Broadside.",
    "budget_usd": "Budget in US dollars at real scale. None means no limit.",
    "bursts_count": "Number of bursts.",
    "completeness": "Planned pair-seconds by state.",
    "completeness_ratio": "Measured pair-seconds divided by planned ones (0 to 1).",
    "created_at": "Time when it was created.",
    "created_by": "Name of the user who created it.",
    "findings": "Findings, the deciding one first.",
    "firewall_bits_per_second": "Rate of the device counter at its layer, in bit/s.",
    "fleet_ip_bits_per_second": "Rate that the fleet received at the IP layer, in bit/s.",
    "fleet_received_bits_per_second": "Payload rate that the fleet received, in bit/s.",
    "fleet_sent_bits_per_second": "Payload rate that the fleet sent, in bit/s.",
    "flow": "Direction of the payload: up (client to server) or down.",
    "labels": "Labels of the run by name.",
    "max": "Largest value.",
    "next_step": "What to do next.",
    "p95": "95th percentile.",
    "pair": "Name of the pair, such as pair-003.",
    "pairs_count": "Number of pairs.",
    "pairs_planned": "Number of pairs that were planned.",
    "planned_start_at": "Planned start of the burst.",
    "received_bits_per_second": "Received payload rate in bit/s.",
    "reconciliation": "Comparison with the device counter. None if there is no counter.",
    "retransmits_count": "Number of retransmitted segments.",
    "rtt_mean_s": "Mean round-trip time in seconds.",
    "run_id": "Id of the run.",
    "runs_count": "Number of runs.",
    "scale": "Lab: real rate divided by the measured rate. 1 for all other runs.",
    "scenario": "Name of the scenario.",
    "sent_bits_per_second": "Sent payload rate in bit/s.",
    "sentence": "Statement in one sentence, with values and units.",
    "target_layer": "Layer of the target.",
}
_ENTRY: Final = re.compile(r"^    (\w+): (.+(?:\n        .+)*)", re.MULTILINE)
_JSON_NAMES: Final = {"None": "null", "True": "true", "False": "false"}


def describe_fields(schemas: Mapping[str, Any]) -> None:
    """Add the descriptions of fields and enumeration values to the schemas.

    Args:
        schemas: Schemas by name, which are changed.
    """
    for schema in schemas.values():
        text, _, section = inspect.cleandoc(schema.get("description", "")).partition(
            "\n\nAttributes:\n"
        )
        described = {name: _plain(part) for name, part in _ENTRY.findall(section)}
        lines = [
            f"- `{value}`: {described[member]}"
            for value in schema.get("enum", ())
            if (member := str(value).upper().replace("-", "_")) in described
        ]
        schema["description"] = "\n".join([_plain_lines(text), *([""] if lines else []), *lines])
        for name, field in schema.get("properties", {}).items():
            known = described.get(name) or _plain(_COMMON.get(name, ""))
            if text := field.get("description", known):
                field["description"] = as_sentence(text)


def as_sentence(text: str) -> str:
    """Return the text with a capital letter at the start and a full stop at the end."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?")) else ".")


def _plain(text: str) -> str:
    return _plain_lines(" ".join(text.split()))


def _plain_lines(text: str) -> str:
    """Return the text with the names of JSON instead of those of Python."""
    text = text.replace("``", "`")
    return re.sub(r"\b(None|True|False)\b", lambda match: _JSON_NAMES[match[1]], text)
