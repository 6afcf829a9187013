"""Every scenario of the field's notebook in the lab, with real traffic: ``make scenarios``.

``python -m lab.scenarios`` builds one lab a *bed* (a topology), keeps its fleet and coordinator for
all the cases of that bed, puts the lab into each case's profile, launches, and prints one table.
The exit code is 0 when every case ran and showed what its profile plants.

Rates are the lab's, as measured; a bed says at which scale. Where the machine itself was busy for
nine tenths of a case's time the row says so: its rate is then the machine's, not the path's.
"""

import argparse
import contextlib
import dataclasses
import json
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from coordinator import scenarios
from coordinator.cli.lab import free_prefix
from coordinator.core.runs import RunSpec
from coordinator.core.summary import RunSummary
from coordinator.studies.values import Study
from lab import clocks, fleet, network, profiles
from lab.errors import LabError
from lab.soak import READY_S, Serving, wait_for_agents
from lab.topology import Lab, LabSpec

LEAD_S: Final = 6
TUNNELS_LEAD_S: Final = 5  # more, for the agents to make their devices
BUSY_RATIO: Final = 0.9  # of the machine's CPU: from here on it may be the limit
VERDICT_WITHIN_S: Final = 60.0
FREE_WITHIN_S: Final = 15.0
STUDY_WITHIN_S: Final = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bed:
    """A lab that several cases share."""

    pairs_count: int
    scale: int
    nic_bits_per_second: int
    firewall_bits_per_second: int
    services: str | None = None  # of the server agents, beside iperf3


BEDS: Final[Mapping[str, Bed]] = {
    # 1:100 of eight 10 Gbit/s VMs behind a 48 Gbit/s device: four pairs fit, eight do not.
    "range": Bed(
        pairs_count=8,
        scale=100,
        nic_bits_per_second=100_000_000,
        firewall_bits_per_second=480_000_000,
        services="http=8080 https=8443 ftp=2121",
    ),
    # One pair, 1:10 of a 5 Gbit/s VM; its path is 20 ms long, ten times the 2 ms it stands for, so
    # that a window of 128 KiB is to the lab's rate what it is to the real one over 2 ms.
    "path": Bed(
        pairs_count=1,
        scale=10,
        nic_bits_per_second=500_000_000,
        firewall_bits_per_second=900_000_000,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a case must show, because its profile plants it."""

    limiter: str | None = None
    rate_ratio_of: tuple[str, float, float] | None = None  # of an earlier case: name, low, high
    says: str | None = None  # words of a finding or of the conclusion
    cost_ratio: tuple[float, float] | None = None  # A/B: low and high of b / a
    knee: tuple[float, float] | None = None
    product_megabytes: float | None = None  # the advice's bandwidth-delay product, within 15 %
    fall_within_s: float | None = None  # of the instant at which the device fell


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row: a scenario in a profile, or a study over it."""

    name: str
    scenario: str
    bed: str = "range"
    profile: str = "plain"
    overrides: Mapping[str, Any] = field(default_factory=dict)
    question: Mapping[str, Any] | None = None  # of a study
    burst_s: int = 5
    expected: Expected = Expected()


def _modes(*names: str) -> list[Mapping[str, Any]]:
    return [{"name": name} for name in names]


FOUR: Final = {"pairs_count": 4}
CASES: Final = (
    Case(name="native, 1 flow", scenario="native-1-flow"),
    Case(
        name="native, 64 flows",
        scenario="native-64-flows",
        expected=Expected(limiter="client-nic"),
    ),
    Case(name="VXLAN, 1 flow", scenario="vxlan-1-flow"),
    Case(
        name="VXLAN, 64 flows",
        scenario="vxlan-64-flows",
        expected=Expected(rate_ratio_of=("native, 64 flows", 0.90, 0.99)),
    ),
    Case(name="FTP, 1 flow", scenario="ftp-1-flow"),
    Case(name="lftp, 64 segments in VXLAN", scenario="ftp-64-segments-vxlan"),
    Case(
        name="native, 1 flow, half the NIC",
        scenario="native-1-flow",
        profile="small-vm",
    ),
    Case(
        name="native, 64 flows, half the NIC",
        scenario="native-64-flows",
        profile="small-vm",
        expected=Expected(rate_ratio_of=("native, 64 flows", 0.45, 0.55)),
    ),
    Case(name="VXLAN, 1 flow, half the NIC", scenario="vxlan-1-flow", profile="small-vm"),
    Case(
        name="lftp, 64 segments in VXLAN, half the NIC",
        scenario="ftp-64-segments-vxlan",
        profile="small-vm",
    ),
    Case(
        name="through the firewall",
        scenario="bypass-reference",
        overrides={"device": {"path": "firewall"}, "pairs_count": 8},
        expected=Expected(limiter="firewall"),
    ),
    Case(
        name="bypass reference",
        scenario="bypass-reference",
        profile="bypass",
        overrides={"pairs_count": 8},
        expected=Expected(rate_ratio_of=("through the firewall", 1.4, 2.2), says="bypass"),
    ),
    Case(
        name="modes: IDPS off, alert, deny",
        scenario="inspection",
        overrides={"bursts_count": 1},
        question={
            "kind": "matrix",
            "switch": "idps",
            "modes": _modes("plain", "idps-alert", "idps-deny"),
        },
        expected=Expected(says="idps-deny"),
    ),
    Case(
        name="A/B: IDPS off, deny",
        scenario="inspection",
        overrides={"bursts_count": 2},
        question={
            "kind": "ab",
            "switch": "idps",
            "a": {"name": "plain"},
            "b": {"name": "idps-deny"},
        },
        expected=Expected(cost_ratio=(0.19, 0.25)),
    ),
    Case(
        name="accelerated networking off",
        scenario="accelerated-networking",
        profile="slow-nic",
        burst_s=12,
        overrides={"bursts_count": 1},
        expected=Expected(limiter="client-nic"),
    ),
    Case(
        name="accelerated networking on",
        scenario="accelerated-networking",
        overrides={"bursts_count": 1},
        expected=Expected(rate_ratio_of=("accelerated networking off", 7.0, 13.0)),
    ),
    Case(
        name="HTTP, 1 MB replies at a rate",
        scenario="http-1mb",
    ),
    Case(
        name="HTTPS, 1 MB replies at a rate",
        scenario="https-1mb",
    ),
    Case(name="1 tunnel", scenario="tunnels-1"),
    Case(
        name="8 tunnels",
        scenario="tunnels-8",
        expected=Expected(rate_ratio_of=("1 tunnel", 4.0, 6.0)),
    ),
    Case(
        name="128 KiB window over the path",
        scenario="window-sessions",
        bed="path",
        profile="path-20ms",
        expected=Expected(limiter="window", product_megabytes=500 * 0.02 / 8),
    ),
    Case(
        name="sessions 1..16 of a 128 KiB window",
        scenario="window-sessions",
        bed="path",
        question={
            "kind": "sweep",
            "axes": [{"field": "traffic.streams_count", "values": [1, 2, 4, 8, 16]}],
        },
        profile="path-20ms",
        expected=Expected(knee=(4, 16)),
    ),
    Case(
        name="collapse above a load",
        scenario="collapse",
        profile="cliff",
        burst_s=12,
        expected=Expected(says="collapse", fall_within_s=2.0),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What came of a case."""

    name: str
    pairs_count: int
    flows_count: int
    encapsulation: str
    engine: str
    payload_bits_per_second: float | None
    latency_p50_s: float | None
    latency_p99_s: float | None
    cpu_s_per_gigabyte: float | None  # both ends' engines
    outcome: str
    faults: tuple[str, ...] = ()  # what was expected and did not show
    machine_was_busy: bool = False
    problem: str | None = None  # it did not run


class Range:
    """A bed that stands, with its fleet and coordinator."""

    def __init__(self, bed: Bed, lab: Lab, coordinator: Serving) -> None:
        self.bed, self.lab, self.coordinator = bed, lab, coordinator

    def carry_out(self, case: Case, earlier: Mapping[str, Row]) -> Row:
        """Run one case and hold it against what is expected."""
        if case.scenario not in scenarios.names():
            return _failed(case, f"there is no scenario {case.scenario}")
        profiles.apply(self.lab, case.profile)
        burst_s = case.burst_s
        in_tunnels = scenarios.load(case.scenario).traffic.encapsulation is not None
        overrides = {
            "scale": self.bed.scale,
            "burst_s": burst_s,
            "period_s": burst_s + 10,
            "lead_s": LEAD_S + (TUNNELS_LEAD_S if in_tunnels else 0),
            "traffic.block_bytes": 32_768,
            "traffic.probe": "udp",
            **case.overrides,
        }
        if case.scenario.startswith(("http", "ftp")):
            del overrides["traffic.block_bytes"]
        body = {"scenario": case.scenario, "overrides": overrides, "by": "lab"}
        busy = _Busy()
        try:
            if case.question is None:
                row, facts = self._run(case, body)
            else:
                row, facts = self._study(case, body)
        except (ValueError, TimeoutError) as error:
            return _failed(case, str(error))
        row = dataclasses.replace(row, machine_was_busy=busy.ratio() >= BUSY_RATIO)
        facts = dataclasses.replace(facts, fell_at_s=profiles.falls(self.lab))
        return dataclasses.replace(row, faults=tuple(faults(case, row, facts, earlier)))

    def _run(self, case: Case, body: Mapping[str, Any]) -> tuple[Row, "Facts"]:
        launched = self._launch(body)
        summary = self._summary(launched["run_id"], case)
        spec = scenarios.load(case.scenario, body["overrides"])
        return run_row(case, summary, spec), Facts.of_run(summary)

    def _launch(self, body: Mapping[str, Any]) -> Any:
        """Launch once the agents of the case before are free again."""
        end_s = time.monotonic() + FREE_WITHIN_S
        while True:
            try:
                return self.coordinator.post("/v1/runs", body)
            except ValueError as error:
                if "Not feasible" not in str(error) or time.monotonic() > end_s:
                    raise
            time.sleep(0.5)

    def _study(self, case: Case, body: Mapping[str, Any]) -> tuple[Row, "Facts"]:
        asked = {**body, "question": case.question}
        study_id = self.coordinator.post("/v1/studies", asked)["study_id"]
        end_s = time.monotonic() + STUDY_WITHIN_S
        while time.monotonic() < end_s:
            answer = self.coordinator.get(f"/v1/studies/{study_id}")
            if answer is not None and answer["ended_at"] is not None:
                study = Study.model_validate(answer)
                return study_row(case, study), Facts.of_study(study)
            time.sleep(0.5)
        raise TimeoutError(f"study {study_id}: no end within {STUDY_WITHIN_S:g} s")

    def _summary(self, run_id: str, case: Case) -> RunSummary:
        end_s = time.monotonic() + LEAD_S + TUNNELS_LEAD_S + case.burst_s + VERDICT_WITHIN_S
        while time.monotonic() < end_s:
            answer = self.coordinator.get(f"/v1/runs/{run_id}/summary")
            if answer is not None:
                return RunSummary.model_validate(answer)
            time.sleep(0.3)
        raise TimeoutError(f"run {run_id}: no verdict in time")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What of a summary or conclusion is held against the expected."""

    limiter: str | None = None
    words: str = ""
    cost_ratio: float | None = None
    knees: tuple[float, ...] = ()
    found_at_s: float | None = None  # the fleet's collapse, epoch s
    fell_at_s: tuple[float, ...] = ()  # the device did, epoch s

    @classmethod
    def of_run(cls, summary: RunSummary) -> "Facts":
        details = summary.limiter_details
        words = " ".join(finding.model_dump_json() for finding in summary.findings)
        cliff = summary.bursts[0].cliff
        return cls(
            limiter=summary.limiter.value,
            words=f"{words} {details}",
            found_at_s=None if cliff is None else cliff.at.timestamp(),
        )

    @classmethod
    def of_study(cls, study: Study) -> "Facts":
        said = study.conclusion
        if said is None:
            return cls(words=study.problem or "")
        metrics = said.comparison.metrics if said.comparison else ()
        received = [m for m in metrics if m.name == "received_bits_per_second"]
        return cls(
            words=said.sentence,
            cost_ratio=received[0].ratio if received else None,
            knees=tuple(knee.value for knee in said.knees),
        )


def faults(case: Case, row: Row, facts: Facts, earlier: Mapping[str, Row]) -> Iterator[str]:
    """What was expected of a case and did not show, a line each."""
    expected = case.expected
    if expected.limiter is not None and facts.limiter != expected.limiter:
        yield f"limiter {facts.limiter}, planted {expected.limiter}"
    if expected.says is not None and expected.says not in facts.words:
        yield f"nothing says {expected.says!r}"
    if expected.cost_ratio is not None:
        low, high = expected.cost_ratio
        if facts.cost_ratio is None or not low <= facts.cost_ratio <= high:
            yield f"b / a is {facts.cost_ratio}, planted {low:g} to {high:g}"
    if expected.knee is not None:
        low, high = expected.knee
        if not any(low <= knee <= high for knee in facts.knees):
            yield f"knees at {facts.knees or 'none'}, planted {low:g} to {high:g}"
    if expected.product_megabytes is not None:
        said = re.search(r"bandwidth-delay product .* is ([\d.]+) MB a pair", facts.words)
        if said is None or abs(float(said[1]) / expected.product_megabytes - 1) > 0.15:
            yield f"BDP {said and said[1]} MB, planted {expected.product_megabytes:g} MB"
    if expected.fall_within_s is not None:
        apart_s = [abs(at_s - (facts.found_at_s or 0.0)) for at_s in facts.fell_at_s]
        if not apart_s or min(apart_s) > expected.fall_within_s:
            yield f"collapse found at {facts.found_at_s}, planted at {facts.fell_at_s or 'none'}"
    if expected.rate_ratio_of is not None:
        other, low, high = expected.rate_ratio_of
        base = earlier[other].payload_bits_per_second if other in earlier else None
        if base and row.payload_bits_per_second:
            ratio = row.payload_bits_per_second / base
            if not low <= ratio <= high:
                yield f"{ratio:.2f} of {other!r}, planted {low:g} to {high:g}"


def run_row(case: Case, summary: RunSummary, spec: RunSpec) -> Row:
    """A run's row."""
    traffic = spec.traffic
    finding = summary.findings[0].sentence if summary.findings else ""
    return Row(
        name=case.name,
        pairs_count=summary.pairs_planned,
        flows_count=summary.pairs_planned * traffic.streams_count,
        encapsulation=_encapsulation(spec),
        engine=traffic.engine,
        payload_bits_per_second=summary.fleet_received_bits_per_second,
        latency_p50_s=summary.probe_p50_s,
        latency_p99_s=summary.probe_p99_s,
        cpu_s_per_gigabyte=_sum(
            summary.client_cpu_s_per_gigabyte, summary.server_cpu_s_per_gigabyte
        ),
        outcome=f"{summary.verdict}: {finding}",
    )


def study_row(case: Case, study: Study) -> Row:
    """A study's row: its last trial's size and its conclusion."""
    spec = study.spec.spec
    said = study.conclusion.sentence if study.conclusion else "no conclusion"
    return Row(
        name=case.name,
        pairs_count=spec.pairs_count,
        flows_count=spec.pairs_count * spec.traffic.streams_count,
        encapsulation="none",
        engine=spec.traffic.engine,
        payload_bits_per_second=None,
        latency_p50_s=None,
        latency_p99_s=None,
        cpu_s_per_gigabyte=None,
        outcome=f"{len(study.results)} trials: {study.problem or said}",
        problem=study.problem,
    )


def _encapsulation(spec: RunSpec) -> str:
    return "none" if spec.traffic.encapsulation is None else "vxlan"


def _sum(*ends: float | None) -> float | None:
    """Both ends' cost; unknown where neither told."""
    known = [cost for cost in ends if cost is not None]
    return sum(known) if known else None


def _failed(case: Case, problem: str) -> Row:
    return Row(
        name=case.name,
        pairs_count=0,
        flows_count=0,
        encapsulation="",
        engine="",
        payload_bits_per_second=None,
        latency_p50_s=None,
        latency_p99_s=None,
        cpu_s_per_gigabyte=None,
        outcome="did not run",
        problem=problem,
    )


class _Busy:
    """The share of the machine's CPU time that was used since it was made."""

    def __init__(self) -> None:
        self._before = self._read()

    def ratio(self) -> float:
        idle, total = (now - then for now, then in zip(self._read(), self._before, strict=True))
        return 1.0 - idle / total if total else 0.0

    @staticmethod
    def _read() -> tuple[int, int]:
        fields = [int(v) for v in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return fields[3] + fields[4], sum(fields)


# Beds ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def standing(bed: Bed, prefix: str) -> Iterator[Range]:
    """A bed with fleet and coordinator, gone afterwards."""
    spec = LabSpec(
        pairs_count=bed.pairs_count,
        prefix=prefix,
        scale=bed.scale,
        nic_bits_per_second=bed.nic_bits_per_second,
        firewall_bits_per_second=bed.firewall_bits_per_second,
    )
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="broadside-")))
        stack.callback(network.down, prefix)
        lab = network.up(spec)
        environment = {"BROADSIDE_FABRIC": "embedded", "BROADSIDE_DATA_DIR": str(folder / "data")}
        allowed = {"BROADSIDE_AGENT_ALLOW_TUNNELS": "true"}
        if bed.services is not None:
            allowed["BROADSIDE_AGENT_SERVICES"] = bed.services
        own = {
            "BROADSIDE_LEDGER": "lab",
            "BROADSIDE_LEDGER_PATH": str(lab.ledger_path),
            "BROADSIDE_SWITCHES_FILE": str(write_switches(prefix, folder)),
        }
        coordinator = stack.enter_context(Serving({**environment, **own}, folder))
        plans = fleet.plan_agents(lab, {**environment, **allowed})
        stack.enter_context(fleet.start(plans, prefix=prefix, log_path=folder / "logs"))
        clocks.wait_synced(lab, READY_S)
        wait_for_agents(coordinator, len(plans))
        yield Range(bed, lab, coordinator)


def write_switches(prefix: str, folder: Path) -> Path:
    """The coordinator's switch over the lab's profiles, as an operator would declare one."""
    states = {
        name: [sys.executable, "-m", "coordinator", "lab", "profile", name, "--prefix", prefix]
        for name in ("plain", "idps-alert", "idps-deny")
    }
    lines = [f"{name} = {json.dumps(argv)}" for name, argv in states.items()]
    path = folder / "switches.toml"
    text = '[idps]\nrest = "plain"\nsettle_s = 1\n[idps.states]\n' + "\n".join(lines) + "\n"
    path.write_text(text)
    return path


def carry_out(cases: Sequence[Case]) -> Iterator[Row]:
    """Every case, bed by bed, in order within a bed."""
    rows: dict[str, Row] = {}
    for name, bed in BEDS.items():
        here = [case for case in cases if case.bed == name]
        if not here:
            continue
        with free_prefix() as prefix, standing(bed, prefix) as range_:
            for case in here:
                rows[case.name] = range_.carry_out(case, rows)
                yield rows[case.name]


# Table --------------------------------------------------------------------------------------------

HEADINGS: Final = (
    "scenario",
    "pairs",
    "flows",
    "encap",
    "engine",
    "payload received, Mbit/s",
    "latency p50 / p99, ms",
    "CPU s a GB",
    "verdict or finding",
)


def cells(row: Row) -> tuple[str, ...]:
    """A row as text; unknown is a dash."""

    def said(value: float | None, factor: float, form: str) -> str:
        return "-" if value is None else format(value * factor, form)

    outcome = row.problem or row.outcome
    if row.faults:
        outcome = f"NOT SHOWN: {'; '.join(row.faults)}; {outcome}"
    if row.machine_was_busy:
        outcome = f"(the machine was the limit) {outcome}"
    return (
        row.name,
        str(row.pairs_count),
        str(row.flows_count),
        row.encapsulation,
        row.engine,
        said(row.payload_bits_per_second, 1e-6, ".1f"),
        f"{said(row.latency_p50_s, 1e3, '.2f')} / {said(row.latency_p99_s, 1e3, '.2f')}",
        said(row.cpu_s_per_gigabyte, 1, ".2f"),
        outcome,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.scenarios", description=__doc__)
    parser.add_argument("--only", action="append", help="a case whose name holds this; repeatable")
    parser.add_argument("--json", action="store_true", help="one JSON array on standard output")
    given = parser.parse_args()
    cases = [
        case for case in CASES if not given.only or any(part in case.name for part in given.only)
    ]
    if not cases:
        sys.stderr.write(f"--only {given.only}: no such case\n")
        return 3
    rows = []
    try:
        for row in carry_out(cases):
            rows.append(row)
            sys.stderr.write(f"{' | '.join(cells(row))}\n")
    except (LabError, TimeoutError) as error:
        sys.stderr.write(f"scenarios: {error}\n")
        return 4
    if given.json:
        sys.stdout.write(json.dumps([dataclasses.asdict(row) for row in rows], indent=2) + "\n")
    else:
        sys.stdout.write("\n".join(markdown(rows)) + "\n")
    return 1 if any(row.faults or row.problem for row in rows) else 0


def markdown(rows: Sequence[Row]) -> Iterator[str]:
    """The table, as the docs keep it."""
    yield f"| {' | '.join(HEADINGS)} |"
    yield f"|{' --- |' * len(HEADINGS)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', '/') for cell in cells(row))} |"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
