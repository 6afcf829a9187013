"""Reference page of the rules for rows and operations of agents."""

from broadside.coordinator.agent_gateway.agent_permissions import OPERATIONS
from broadside.exchange.records.row_rules import ROW_RULES, FieldCondition, RowKind, RowRule

HEAD = """\
# Agent records

All records, outputs and operations that an agent can send, with the rule for each field that names
an agent, endpoint, run, pair, burst, test or time. Other fields are metrics, kinds or texts. The
rules apply in two places:

- **Over HTTPS** the coordinator identifies each agent by its credential. It rejects a row that
  breaks a rule, and writes the rejection to the audit log.
- **With every fabric** the coordinator compares each row that it reads with the row's key, with the
  claim of its pair, and with the plan. A row that breaks a rule is ignored, and the finding
  `foreign-rows` names it. On Azure this is the only protection
  ([security](threats.md#remaining-risks)).

## Rules

| rule | over HTTPS | coordinator's reader |
| --- | --- | --- |"""

# Maps each rule to its effect over HTTPS and in the reader.
APPLIED = {
    FieldCondition.KEY: ("refused", "left out, finding"),
    FieldCondition.WRITER: (
        "refused",
        "a report by another agent than the claim's: left out, finding",
    ),
    FieldCondition.JOB: ("refused", "a report for another instant: left out, finding"),
    FieldCondition.HELD: (
        (
            "a heartbeat is stored without endpoints and with a problem that names both agents; "
            "a server's test is refused"
        ),
        (
            "a test by another agent than the planned one: left out, finding; a plan uses an "
            "endpoint of two agents once, and warns"
        ),
    ),
    FieldCondition.ANNOUNCED: ("refused", "not checked: agents read it"),
    FieldCondition.UNSET: ("refused", "left out, finding"),
    FieldCondition.SIDE: ("refused", "left out, finding"),
    FieldCondition.PLACED: ("stored", "seconds outside of the burst are not counted"),
    FieldCondition.LIVE: ("stored", "the agent counts as silent"),
    FieldCondition.OWN: ("stored", "used for the writer's own pair or host"),
}

OUTPUTS_NAMED = (RowKind.RAW, RowKind.SERVER_RAW)


def _fields(rule: RowRule) -> list[str]:
    return [
        f"| `{path}` | {field.names} | {field.rule} |" for path, field in rule.fields.items()
    ] or ["| none | | |"]


def page() -> str:
    """Return the page."""
    parts = [HEAD, *(f"| {rule} | {' | '.join(APPLIED[rule])} |" for rule in FieldCondition)]
    parts.append(
        "\n## Records\n\nThe key of each record, by the first rule, is the writer's own: it names "
        "the agent, or a job that the agent claimed. `*` is each item of a sequence."
    )
    for kind, rule in ROW_RULES.items():
        writer = "client or server" if rule.role is None else rule.role
        what = "Folder and file" if kind in OUTPUTS_NAMED else "Partition and key"
        parts.append(f"\n### {str(kind).capitalize()}\n\n{what}: `{rule.place}`. Writer: {writer}.")
        parts += ["\n| field | names | rule |\n| --- | --- | --- |", *_fields(rule)]
    parts.append(
        "\n## Operations over HTTPS\n\nAn operation that is not in this table is refused: it is "
        "the coordinator's alone. Each has an `id`, which counts for its own agent: another's "
        "operation with the same id is another operation.\n\n| operation | role |\n| --- | --- |"
    )
    for name, role in OPERATIONS.items():
        parts.append(f"| `{name}` | {'both' if role is None else role} |")
    parts.append(
        "\nBeside these: `POST join` trades a join code for a credential of the agent id and role "
        "that it names, once; `POST renew` changes the secret of the own credential; `GET stream` "
        "opens a stream of the own credential ([hosts.md](hosts.md))."
    )
    return "\n".join(parts) + "\n"
