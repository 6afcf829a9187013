"""Tests of all lists and shown objects of the command line on one store with realistic names."""

import asyncio
import contextlib
import csv
import io
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from broadside.coordinator import scenarios
from broadside.coordinator.agent_gateway.enrolment import Enrolled, Enrolments, JoinTerms
from broadside.coordinator.auth.audit import Audit, AuditRow
from broadside.coordinator.auth.principal import Access
from broadside.coordinator.auth.static_tokens import Tokens
from broadside.coordinator.cli import app
from broadside.coordinator.cli.exit_codes import ExitCode
from broadside.coordinator.cli.shell_completion import joined_words
from broadside.coordinator.core.plan.schedule import Schedule
from broadside.coordinator.runs.requests import ScheduleRequest
from broadside.coordinator.studies.study import Study
from broadside.exchange.fabric import FabricSettings, open_fabric
from broadside.exchange.messages import Role
from broadside.exchange.ports import Outgoing, Table
from broadside.exchange.records.collection import Collection
from tests.live.commands import Done, run_command
from tests.synthetic_runs import store_run
from tests.unit.coordinator.cli.test_command_list import LEAVES, example
from tests.unit.coordinator.presences import presence
from tests.unit.coordinator.studies.samples import SWEPT

RUN: Final = "20261120-143028-accelerated-networking-cc93"
OLDER: Final = "20261119-091500-accelerated-networking-01ab"
SCHEDULE: Final = "weekly-accelerated-networking"
TABLE: Final = Path(__file__).parents[3] / "data" / "original" / "seed-280s-30clients.csv"
COLUMNS: Final = 80
HOUR: Final = timedelta(hours=1)
UNKNOWN: Final = "nosuch"

# Arguments of all commands that list or show something stored.
SHOWN: Final = {
    "scenarios": "",
    "estimate": "smoke",
    "price": "last",
    "schedule list": "",
    "schedule show": SCHEDULE,
    "study list": "",
    "study show": "last",
    "runs": "",
    "show": "last",
    "verdict": "last",
    "bursts": "last",
    "pairs": "last",
    "series": "last",
    "reconciliation": "last",
    "agents": "",
    "chart": "last",
    "compare": f"{OLDER} last",
    "aggregate": "",
    "token list": "",
    "enroll list": "",
    "audit": "",
    "deadletters list": "",
    "deadletters explain": "1",
    "prune": "--older-than 1",
    "lab profile": "",
    "watch": "last",
}
# Commands that change or measure something, or need Azure.
CHANGING: Final = """
    demo doctor lab.up lab.down launch label abort schedule.add schedule.pause schedule.resume
    schedule.remove study.sweep study.search study.ab study.matrix study.scaleout study.drill
    study.inspection-under-load support-bundle
    study.abort study.chart study.report report export import.original import.iperf3 token.add
    enroll.new deadletters.resend deadletters.purge capacity.show
"""
# Columns that a narrow terminal shows if the table has them, as it does the first one.
ESSENTIAL: Final = {"state", "phase", "verdict", "verdicts", "received", "mean rate", "status"}

FORMS: Final = ("table", "wide")
# Lists of rows with an id.
LISTS: Final = {path for path in SHOWN if path.endswith("list")} | {
    *("runs", "bursts", "pairs", "agents", "scenarios", "audit"),
}

Command = Callable[..., Done]


async def _fill(data_dir: Path) -> None:
    """Store runs, agents, a study, a schedule, an audit row and a dead letter."""
    now = datetime.now(UTC)
    fabric = open_fabric(FabricSettings(data_dir=data_dir))
    try:
        for run_id, age in ((OLDER, 1), (RUN, 0)):
            at = datetime(2026, 11, 20, tzinfo=UTC) - timedelta(days=age)
            await store_run(fabric, run_id, created_at=at, labels={"idps": "on"})
        problem = "chrony has no reference, and the clock gate needs one; check `chronyc sources`"
        for index in (1, 2):
            for role in (Role.CLIENT, Role.SERVER):
                beat = presence(role, index, beat_at=now, problem=problem)
                await fabric.records.fleet.beat(beat)
        await Collection(fabric.private, "studies", Study).put(SWEPT.study_id, SWEPT)
        fields = {"name": SCHEDULE, "scenario": "accelerated-networking", "cron": "0 2 * * 6"}
        request = ScheduleRequest.model_validate(fields | {"timezone": "Europe/Amsterdam"})
        schedule = request.schedule(by="operator", now=now)
        await Collection(fabric.private, "schedules", Schedule).put(SCHEDULE, schedule)
        row = AuditRow(
            at=now,
            by="operator@example.net",
            role="operator",
            from_address="2001:db8::20",
            method="POST",
            path=f"/v1/runs/{RUN}/abort",
            route="/v1/runs/{run_id}/abort",
            run_id=RUN,
        )
        await Audit(fabric.private).begin(row)
        await Tokens(fabric.private).add(
            "grafana-of-the-network-team", Access.VIEWER, by="operator", now=now, expires_at=None
        )
        await _enroll(fabric.private, now)
        message = Outgoing(body=b"no job", message_id="1", expires_at=now + HOUR)
        await fabric.queue.send([message])
        delivery = await fabric.queue.receive(5.0)
        assert delivery is not None
        await fabric.queue.dead_letter(delivery, "Poison", "the body is not a job of this version")
    finally:
        await fabric.close()


async def _enroll(table: Table, now: datetime) -> None:
    enrolments = Enrolments(table)
    join = await enrolments.add_code(
        "a" * 40, JoinTerms(Role.CLIENT, 2, now + HOUR), by="operator", now=now
    )
    agent = Enrolled(
        agent_id="accelerated-networking-client-001",
        role=Role.CLIENT,
        sha256="b" * 64,
        join=join.name,
        enrolled_at=now,
    )
    await enrolments.enrol("a" * 40, agent, now)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outputs")
    asyncio.run(_fill(folder))
    return folder


@pytest.fixture
def command(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    monkeypatch.setenv("BROADSIDE_DATA_DIR", str(data_dir))
    yield lambda *arguments: run_command(arguments, monkeypatch, capfd)


def shown(command: Command, path: str, *options: str) -> str:
    done = command(*path.split(), *shlex.split(SHOWN[path]), *options)
    # A verdict has its own exit codes.
    assert done.returncode in (ExitCode.PASS, ExitCode.FAIL, ExitCode.INCONCLUSIVE), done.stderr
    return done.stdout


def test_all_commands_with_an_output_option_are_tested() -> None:
    printing = {
        path for path, leaf in LEAVES.items() if any("-o" in one.opts for one in leaf.params)
    }
    assert printing - {path.replace(".", " ") for path in CHANGING.split()} == SHOWN.keys()


# Values that differ in each call, because they depend on the time.
MOVING: Final = {"before_at", "at", "beat_at", "elapsed_s", "spent", "projected", "price"}


def without_moving(value: Any) -> Any:
    """Return a document without the fields that differ in each call."""
    if isinstance(value, list):
        return list(map(without_moving, value))
    if isinstance(value, dict):
        return {key: without_moving(part) for key, part in value.items() if key not in MOVING}
    return value


@pytest.mark.parametrize("path", SHOWN)
def test_formats_have_the_same_data(command: Command, path: str) -> None:
    document = json.loads(shown(command, path, "-o", "json"))
    assert document
    again = yaml.safe_load(shown(command, path, "-o", "yaml"))
    assert without_moving(again) == without_moving(document)
    head, *rows = csv.reader(io.StringIO(shown(command, path, "-o", "csv")))
    assert len(set(head)) == len(head)
    assert all(len(row) == len(head) for row in rows)
    if isinstance(document, list):
        assert len(rows) == len(document)


def test_enrolled_agents_and_join_codes_have_a_state_and_no_secret(command: Command) -> None:
    agent, code = json.loads(shown(command, "enroll list", "-o", "json"))
    assert (agent["kind"], agent["state"]) == ("agent", "enrolled")
    assert (code["kind"], code["state"], code["used_count"]) == ("join-code", "valid", 1)
    assert code["agents"] == [agent["agent_id"]]
    assert not {name for name in (*agent, *code) if "sha256" in name}
    [token] = json.loads(shown(command, "token list", "-o", "json"))
    assert token["state"] == "valid"


def header(lines: Sequence[str]) -> list[str]:
    """Return the column titles of the first table."""
    heads = (re.split("  +", line.strip()) for line in lines)
    return next((titles for titles in heads if len(titles) > 2), [])


@pytest.mark.parametrize("path", SHOWN)
def test_narrow_terminal_shows_essential_columns(
    command: Command, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, wide = (header(shown(command, path, "-o", form).splitlines()) for form in FORMS)
    assert set(table) <= set(wide)
    if path in LISTS:
        assert len(table) < len(wide)
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    lines = shown(command, path).splitlines()
    printed = header(lines)
    assert ({*wide[:1], *(ESSENTIAL & set(wide))}) <= set(printed)
    if path in LISTS:
        assert max(map(len, lines)) <= COLUMNS
        # No id is truncated or wrapped.
        ids = re.findall(r"^\S+", "\n".join(shown(command, path, "-o", "wide").splitlines()[1:]))
        assert all(any(line.startswith(one) for line in lines) for one in ids)


def cases_with_unknown_name() -> Iterator[tuple[str, list[str]]]:
    """Yield the example of each command that reads a stored object, with an unknown name."""
    known = {"last", "previous", "17", "saturday", "grafana", "c001", "bypass", *scenarios.names()}
    creating = {"schedule add", "token add"}
    for path in LEAVES:
        if path == "capacity set":
            # It runs any command.
            continue
        terms = shlex.split(example(path))[len(path.split()) :]
        if path in creating:
            terms[2:] = [UNKNOWN if term in known else term for term in terms[2:]]
        else:
            terms = [UNKNOWN if term in known else term for term in terms]
        if "SEQ" in {option.metavar for option in LEAVES[path].params} and UNKNOWN in terms:
            terms = ["99" if term == UNKNOWN else term for term in terms]
        if {UNKNOWN, "99"} & set(terms):
            yield path, terms


CASES: Final = dict(cases_with_unknown_name())
FILTERS: Final = {
    "runs --scenario nosuch": "scenario nosuch",
    "runs --by nosuch": "operator nosuch",
    "runs --label nosuch=1": "label nosuch",
    "aggregate --scenario nosuch": "scenario nosuch",
    "aggregate --label nosuch=1": "label nosuch",
    "aggregate --group-by label:nosuch": "label nosuch",
    "compare --label nosuch": "label nosuch",
    "label last nosuch-": "label nosuch",
    "series last --pair nosuch": "pair nosuch",
    "pairs last --burst 99": "burst 99",
    "chart last nosuch": "chart 'nosuch'",
    "launch smoke --set nosuch=1": "nosuch: no such field",
    "deadletters purge 99": "dead letter 99",
    f"import original {TABLE} --profile nosuch": "profile 'nosuch'",
}


def test_all_commands_that_read_a_name_are_tested() -> None:
    named = {"RUN", "STUDY", "SEQ", "SCHEDULE"}
    reading = {
        path for path, leaf in LEAVES.items() if named & {one.metavar for one in leaf.params}
    }
    # FILTERS has the one whose example names nothing.
    assert reading - {"schedule add", "deadletters purge"} <= CASES.keys()


@pytest.mark.parametrize("path", CASES)
def test_unknown_name_is_a_usage_error(command: Command, path: str) -> None:
    done = command(*path.split(), *CASES[path])
    assert done.returncode == ExitCode.USAGE, done.stderr
    [line] = done.stderr.splitlines()
    assert UNKNOWN in line or "99" in line


@pytest.mark.parametrize("arguments", FILTERS)
def test_unknown_filter_is_a_usage_error(command: Command, arguments: str) -> None:
    done = command(*arguments.split())
    assert done.returncode == ExitCode.USAGE, done.stderr
    assert FILTERS[arguments] in done.stderr


def test_unknown_names_have_suggestions(command: Command) -> None:
    for arguments, suggestion in (
        ("show 20261120-143028-accelerated-networking-cc94", RUN),
        ("study show 20261120-120000-s-00ab", SWEPT.study_id),
        ("schedule show weekly-accelerated-networkin", SCHEDULE),
        ("runs --scenario syntetic", "synthetic"),
        ("runs --label ipds=on", "idps"),
        ("scenarios smok", "smoke"),
        ("deadletters explain 99", "there are: 1"),
    ):
        assert suggestion in command(*arguments.split()).stderr


COMPLETED: Final = [
    ("launch smoke --set traffic.proto", {"traffic.protocol=tcp", "traffic.protocol=udp"}),
    ("launch smoke --set dry_run=", {"dry_run=true", "dry_run=false"}),
    ("launch smoke --set traffic.direction=rev", {"traffic.direction=reverse"}),
    ("launch smoke --set scenario=smo", {"scenario=smoke"}),
    ("launch smoke --set labels.", {"labels.idps=on"}),
    ("launch smo", {"smoke"}),
    ("schedule add x --scenario smo", {"smoke"}),
    ("study ab smoke --a-set dry", {"dry_run=true", "dry_run=false"}),
    ("study sweep smoke --over traffic.streams", {"traffic.streams_count="}),
    ("show 20261120", {RUN}),
    ("compare last 20261119", {OLDER}),
    ("study show 2026", {SWEPT.study_id}),
    ("schedule show w", {SCHEDULE}),
    ("runs --label i", {"idps=on"}),
    ("runs --verdict inc", {"inconclusive"}),
    ("runs --output y", {"yaml"}),
    ("token revoke g", {"grafana-of-the-network-team"}),
    ("enroll revoke acc", {"accelerated-networking-client-001"}),
    ("deadletters explain 1", {"1"}),
    ("lab profile by", {"bypass"}),
]


def completed(
    shell: str, words: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> set[str]:
    """Return what a shell offers after the words, by the protocol of the framework."""
    text = f"broadside {words}"
    variables = {"_TYPER_COMPLETE_ARGS": text, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    if shell == "bash":
        # bash splits words at =.
        parts = text.replace("=", " = ").split()
        variables |= {"COMP_WORDS": " ".join(parts), "COMP_CWORD": str(len(parts) - 1)}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("_BROADSIDE_COMPLETE", f"complete_{shell}")
    words_joined = joined_words() if shell == "bash" else contextlib.nullcontext()
    with words_joined, pytest.raises(SystemExit):
        app([], prog_name="broadside")
    return set(re.findall(r'[^\s"()]+', capfd.readouterr().out)) - {"_arguments", "'*:", ":", "'"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(("words", "expected"), COMPLETED)
def test_shells_complete_names_and_values(
    command: Command,
    shell: str,
    words: str,
    expected: set[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if shell == "bash" and "=" in words:
        expected = {value.partition("=")[2] for value in expected}
    assert expected <= completed(shell, words, monkeypatch, capfd)
