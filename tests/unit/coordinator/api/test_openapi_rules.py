"""Test that the OpenAPI document follows the rules for its names, errors, lists and examples.

A new operation, parameter or field that breaks a rule fails here.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

import pytest

from broadside.coordinator.core.summary import Verdict
from broadside.exchange.messages import VERDICTS

# Verbs of operation ids by method.
VERBS: Final = {
    "get": ("read", "list", "aggregate", "recompute"),
    "post": (
        *("create", "import", "abort", "pause", "resume", "resend"),
        *("compare", "estimate", "prune"),
    ),
    "put": ("replace",),
    "patch": ("update",),
    "delete": ("delete",),
}
LIMIT_MAX_COUNT: Final = 1000
# Enumerations whose values need no description.
NAMES: Final = {
    *("Aggregation", "ClockSource", "Colour", "Format", "ReportFormat", "Role", "SecondsOf"),
    *("Side", "TableName", "Theme"),
}
# Lists that contain a fixed number of items in each version.
CATALOGUES: Final = {"list_scenarios", "list_run_charts"}
OPEN: Final = {"read_health", "read_readiness"}
# A number has its unit in the name, or is in this list. The unit of a value, a mean or a width is
# in another field of the same object.
UNITS: Final = re.compile(
    r"(_s|_at|_bytes|_bits_per_second|_per_second|_ratio"
    r"|_count|_usd|_days|_percent_per_hour|_per_gigabyte)$"
)
NUMBERS: Final = """
a_half_width a_mean at b_half_width b_mean burst bursts_planned busiest client_port correlation
count cpu_local_percent cpu_remote_percent device_tcp_port difference difference_half_width dscp
echo_port exit_code forbidden_port guard_index idle index last limit max mean median min numa_node
numeric_from observed p5 p95 pair_index pairs_measured pairs_planned part_index percent_per_hour
port quantity ratio ratio_high ratio_low resolution retransmits row_number scale second
sequence_number size status stratum streams test test_index tos trial_index unit_price_usd usd value
version vni_from weight width worst
"""


def operations(document: Any) -> Iterator[tuple[str, str, Any]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def parameters(document: Any) -> Iterator[tuple[str, Any]]:
    for _, _, operation in operations(document):
        for parameter in operation.get("parameters", ()):
            yield operation["operationId"], parameter


def fields(document: Any) -> Iterator[tuple[str, str, Any]]:
    for model, schema in document["components"]["schemas"].items():
        for name, field in schema.get("properties", {}).items():
            yield model, name, field


def test_operation_id_is_verb_and_resource(document: Any) -> None:
    wrong = []
    for path, method, operation in operations(document):
        verb, _, noun = operation["operationId"].partition("_")
        owner = re.match(r"/v1/([a-z]+)s/{[a-z_]+}/[a-z]", path)
        resource = {"deadletter": "dead_letter", "studie": "study"}
        starts = resource.get(owner[1], owner[1]) if owner else ""
        if verb not in VERBS[method] or not noun.startswith(starts):
            wrong.append(operation["operationId"])
    assert wrong == []
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(names) == len(set(names))


def test_summary_is_one_short_sentence(document: Any) -> None:
    wrong = [
        (operation["operationId"], operation["summary"])
        for _, _, operation in operations(document)
        if not re.fullmatch(r"[A-Z][^.\n]{5,75}", operation["summary"])
    ]
    assert wrong == []


def test_operation_has_one_described_tag(document: Any) -> None:
    described = {tag["name"] for tag in document["tags"] if tag["description"]}
    for _, _, operation in operations(document):
        assert len(operation["tags"]) == 1
        assert operation["tags"][0] in described


def test_every_error_is_a_problem_document(document: Any) -> None:
    for path, _, operation in operations(document):
        name = operation["operationId"]
        answers = operation["responses"]
        if name not in OPEN:
            assert {"401", "403", "422", "429", "503"} <= answers.keys(), name
        if "{" in path:
            assert "404" in answers, name
        if "requestBody" in operation:
            assert {"400", "413"} <= answers.keys(), name
        for status, answer in answers.items():
            assert "X-Request-Id" in answer["headers"], (name, status)
            if status >= "4":
                [(media_type, content)] = answer["content"].items()
                assert media_type == "application/problem+json", (name, status)
                assert content["schema"]["$ref"].endswith("/ProblemDocument"), (name, status)
                assert content["example"]["status"] == int(status), (name, status)
            if status in ("429", "503"):
                assert "Retry-After" in answer["headers"], (name, status)


def test_new_resource_has_an_address(document: Any) -> None:
    for _, _, operation in operations(document):
        if operation["operationId"].startswith(("create_", "import_")):
            created = operation["responses"].keys() & {"201", "202"}
            [answer] = [operation["responses"][status] for status in created]
            assert "Location" in answer["headers"], operation["operationId"]


def test_every_list_has_pages(document: Any) -> None:
    checked = 0
    for _, _, operation in operations(document):
        name, success = operation["operationId"], operation["responses"].get("200", {})
        schema = success.get("content", {}).get("application/json", {}).get("schema", {})
        if not (name.startswith("list_") or schema.get("type") == "array") or name in CATALOGUES:
            continue
        checked += 1
        names = {parameter["name"] for parameter in operation["parameters"]}
        assert {"limit", "cursor"} <= names, name
        assert {"Next-Cursor", "Link"} <= success["headers"].keys(), name
    assert checked >= 9


def test_cursor_is_text_and_limit_is_bounded(document: Any) -> None:
    for name, parameter in parameters(document):
        schema = parameter["schema"]
        if parameter["name"] == "cursor":
            kinds = {part.get("type") for part in schema.get("anyOf", [schema])}
            assert kinds <= {"string", "null"}, name
            assert "default" not in schema, name
        if parameter["name"] == "limit":
            assert schema["minimum"] == 1, name
            assert schema["maximum"] == LIMIT_MAX_COUNT >= schema["default"] >= 1, name


def test_labels_are_filtered_in_one_form(document: Any) -> None:
    matches = [item for _, item in parameters(document) if "label" in item["name"]]
    assert [item["name"] for item in matches] == ["label", "label"]
    assert matches[0]["schema"] == matches[1]["schema"]


def test_parameters_have_description_and_example(document: Any) -> None:
    wrong = [
        (name, parameter["name"])
        for name, parameter in parameters(document)
        if not parameter.get("description")
        or ("example" not in parameter and parameter["name"] != "cursor")
    ]
    assert wrong == []


def test_bodies_have_an_example(document: Any) -> None:
    for _, _, operation in operations(document):
        name = operation["operationId"]
        body = operation.get("requestBody", {"content": {}})
        contents = list(body["content"].items())
        contents += [
            item
            for status, answer in operation["responses"].items()
            if status < "3"
            for item in answer["content"].items()
        ]
        for media_type, content in contents:
            if media_type in ("application/json", "text/html", "text/plain"):
                assert "example" in content, (name, media_type)


def test_models_are_described_and_have_no_generated_titles(document: Any) -> None:
    for model, schema in document["components"]["schemas"].items():
        assert schema.get("description"), model
    assert not [(model, name) for model, name, field in fields(document) if "title" in field]
    assert not [name for name, parameter in parameters(document) if "title" in parameter["schema"]]


def test_fields_have_a_description_in_the_names_of_json(document: Any) -> None:
    assert not [
        (model, name) for model, name, field in fields(document) if "description" not in field
    ]
    texts = [field["description"] for _, _, field in fields(document)]
    texts += [parameter["description"] for _, parameter in parameters(document)]
    assert not [text for text in texts if not re.fullmatch(r"[A-Z0-9`](.|\n)*[.?]", text)]
    texts += [schema["description"] for schema in document["components"]["schemas"].values()]
    assert not [text for text in texts if re.search(r"``|Attributes:|\bNone\b", text)]


def test_values_of_enumerations_have_a_description(document: Any) -> None:
    for model, schema in document["components"]["schemas"].items():
        if model not in NAMES:
            for value in schema.get("enum", ()):
                assert f"- `{value}`: " in schema["description"], (model, value)


def test_names_are_snake_case(document: Any) -> None:
    names = [name for _, name, _ in fields(document)]
    names += [parameter["name"].replace("-", "_") for _, parameter in parameters(document)]
    assert not [name for name in names if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name)]
    for path in document["paths"]:
        assert re.fullmatch(r"(/([a-z0-9]+|{[a-z_]+}))+", path), path


def test_numbers_have_units(document: Any) -> None:
    numeric = {
        name
        for _, name, field in fields(document)
        for part in (field, *field.get("anyOf", ()))
        if part.get("type") in ("number", "integer")
    }
    assert not {name for name in numeric if not UNITS.search(name)} - set(NUMBERS.split())


def test_times_are_instants(document: Any) -> None:
    for model, name, field in fields(document):
        parts = [part for part in (field, *field.get("anyOf", ())) if part.get("type") == "string"]
        for part in parts:
            if name.endswith("_at"):
                assert part.get("format") == "date-time", (model, name)


# A device state with a name of the user, and stored texts of earlier versions.
FREE_TEXTS: Final = {("Drill", "state"), ("Reconciliation", "layer"), ("AuditRow", "role")}


@pytest.mark.parametrize("name", ["role", "state", "verdict", "severity", "layer", "side", "kind"])
def test_fixed_values_are_enumerations(document: Any, name: str) -> None:
    schemas = document["components"]["schemas"]
    for model, field_name, field in fields(document):
        if field_name != name or (model, name) in FREE_TEXTS:
            continue
        for part in (field, *field.get("anyOf", ())):
            schema = schemas[part["$ref"].rpartition("/")[2]] if "$ref" in part else part
            if schema.get("type") == "string":
                assert "enum" in schema or "const" in schema, (model, name)


def test_verdicts_of_outcomes_are_those_of_the_judge() -> None:
    assert sorted(VERDICTS) == sorted(Verdict)


def test_omitted_fields_are_not_required(document: Any) -> None:
    """Test an agent, from which empty warnings are omitted."""
    agent = document["components"]["schemas"]["Presence"]
    assert "warnings" in agent["properties"]
    assert "warnings" not in agent["required"]
