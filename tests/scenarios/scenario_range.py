"""Lab with fleet and coordinator that executes cases and measures the machine's load."""

import contextlib
import dataclasses
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from broadside.agent.counters import NET_DEV, STAT, CoreTicks, parse_net_dev, parse_stat
from broadside.agent.cpu import parse_process_time
from broadside.coordinator import scenarios
from broadside.coordinator.core.summary import RunSummary
from broadside.coordinator.studies.study import Search, SearchLoad, Study
from broadside.coordinator.studies.trials import next_trial
from broadside.exchange.engines import find
from broadside.lab import profiles, topology
from broadside.lab.inspection import inspector_argv
from broadside.lab.namespaces import inside, list_processes
from broadside.lab.serving import ServeProcess
from broadside.lab.site import built, free_prefix, staged
from broadside.lab.telemetry_file import lab_entry, write_telemetry_file
from broadside.lab.topology import Lab, LabSpec
from tests.devices.firewall_agent import firewall_agent, follow, telemetry_entries
from tests.devices.snmp_agent import SnmpAgent, answering
from tests.scenarios.cases import CASES, TESTBEDS, Case, LabTestbed
from tests.scenarios.facts import Facts, faults
from tests.scenarios.scenario_table import Row, failed, run_row, study_row
from tests.scenarios.session_counter import start_sessions

EVERY_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Busiest:
    """Busy ratios of the busiest period. None means that there was no reading.

    Attributes:
        machine_ratio: Ratio of all cores.
        core_ratio: Ratio of the busiest core. It does not show a thread that changes cores.
    """

    machine_ratio: float | None
    core_ratio: float | None


def busiest(readings: Sequence[Sequence[CoreTicks]], over_count: int) -> Busiest:
    """Return the busiest period of ``over_count`` readings, or of all if there are fewer."""
    length = min(over_count, len(readings) - 1)
    machine: list[float] = []
    core: list[float] = []
    for now, then in zip(readings[length:], readings, strict=False):
        pairs = list(zip(then, now, strict=False))
        busy = [after.busy - before.busy for before, after in pairs]
        total = [after.total - before.total for before, after in pairs]
        core += [
            part / complete for part, complete in zip(busy, total, strict=True) if complete > 0
        ]
        if sum(total) > 0:
            machine.append(sum(busy) / sum(total))
    return Busiest(machine_ratio=max(machine, default=None), core_ratio=max(core, default=None))


class Watch:
    """Read the kernel's counters every second while it is open."""

    def __init__(
        self,
        carried: Callable[[], Mapping[str, int]] = dict,
        worked: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._carried, self._worked = carried, worked
        self._bytes: list[tuple[float, Mapping[str, int]]] = []
        self._cpu_s: list[tuple[float, Mapping[str, float]]] = []
        self._readings = [self._read()]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def busiest(self, over_s: int) -> Busiest:
        """Return the busiest period of ``over_s`` seconds."""
        return busiest(self._readings, round(over_s / EVERY_S))

    def _watch(self) -> None:
        while not self._over.wait(EVERY_S):
            self._readings.append(self._read())
            self._bytes.append((time.time(), self._carried()))
            self._cpu_s.append((time.time(), self._worked()))

    def shares(self, from_s: float, to_s: float) -> Mapping[str, float]:
        """Return the ratio of bytes that each device forwarded between two times."""
        _, carried = _counted(self._bytes, from_s, to_s)
        total = sum(carried.values())
        return {name: count / total for name, count in carried.items()} if total else {}

    def cpu(self, from_s: float, to_s: float) -> Mapping[str, float]:
        """Return the ratio of a core that each device's process used between two times."""
        over_s, spent_s = _counted(self._cpu_s, from_s, to_s)
        return {name: item_s / over_s for name, item_s in spent_s.items()}

    @staticmethod
    def _read() -> Sequence[CoreTicks]:
        return parse_stat(Path(STAT).read_text())


def _counted(
    readings: Sequence[tuple[float, Mapping[str, float]]], from_s: float, to_s: float
) -> tuple[float, Mapping[str, float]]:
    """Return the duration of the readings between two times and the increments of each counter.

    The result is zero and empty if there are fewer than two readings.
    """
    inside = [reading for reading in readings if from_s <= reading[0] <= to_s]
    if len(inside) < 2:
        return 0.0, {}
    (begun_s, before), (ended_s, after) = inside[0], inside[-1]
    return ended_s - begun_s, {
        name: after[name] - count for name, count in before.items() if name in after
    }


LEAD_S: Final = 6
# The agents need this additional time to create their devices.
TUNNELS_LEAD_S: Final = 5
# Above this ratio the machine's CPU or one core may be the limit.
BUSY_RATIO: Final = 0.9
VERDICT_WITHIN_S: Final = 60.0
STUDY_WITHIN_S: Final = 900.0


class Range:
    """Running bed with its fleet and coordinator."""

    def __init__(
        self,
        testbed: LabTestbed,
        lab: Lab,
        coordinator: ServeProcess,
        agent: SnmpAgent | None = None,
    ) -> None:
        self.testbed, self.lab, self.coordinator, self.agent = testbed, lab, coordinator, agent

    def carry_out(self, case: Case, earlier: Mapping[str, Row]) -> Row:
        """Execute one case and compare the results with the expected ones."""
        if case.scenario not in scenarios.names():
            return failed(case.name, f"there is no scenario {case.scenario}")
        profiles.apply(self.lab, case.profile)
        if self.agent is not None:
            follow(self.agent, self.lab, case.profile)
        burst_s = case.burst_s
        traffic = scenarios.load(case.scenario).traffic
        in_tunnels = traffic.encapsulation is not None
        overrides = {
            "scale": self.testbed.scale,
            "burst_s": burst_s,
            "period_s": burst_s + 10,
            "lead_s": LEAD_S + (TUNNELS_LEAD_S if in_tunnels else 0),
            "traffic.block_bytes": 32_768,
            "traffic.probe": "udp",
            **case.overrides,
        }
        engine = find(traffic.engine)
        if engine is None or "block_bytes" not in engine.supported_fields:
            del overrides["traffic.block_bytes"]
        body = {"scenario": case.scenario, "overrides": overrides, "by": "lab"}
        with Watch(self._carried, self._worked) as watch:
            try:
                row, facts = (
                    self._study(case, body, watch) if case.question else self._run(case, body)
                )
            except (ValueError, TimeoutError) as error:
                return failed(case.name, str(error))
        busy = watch.busiest(case.burst_s)
        row = dataclasses.replace(
            row,
            machine_was_busy=(busy.machine_ratio or 0.0) >= BUSY_RATIO,
            core_was_full=(busy.core_ratio or 0.0) >= BUSY_RATIO,
        )
        facts = dataclasses.replace(
            facts,
            fell_at_s=profiles.falls(self.lab),
            counted_shares=watch.shares(*facts.window_s),
        )
        return dataclasses.replace(row, faults=tuple(faults(case, row, facts, earlier)))

    def _carried(self) -> Mapping[str, int]:
        """Return the bytes that each device sent, as counted by the kernel in its namespace."""
        if len(self.testbed.devices) < 2:
            return {}
        twins = topology.twin_namespaces(self.lab.spec.prefix)
        return {
            device: sent_bytes(namespace)
            for device, namespace in zip(self.testbed.devices, twins, strict=True)
        }

    def _worked(self) -> Mapping[str, float]:
        """Return the CPU seconds of each device's process from the kernel's ticks."""
        if not profiles.PROFILES[self.testbed.profile].inspects:
            return {}
        programs = {
            inspector_argv(self.lab, letter)[0]: device
            for letter, device in zip(topology.TWIN_LETTERS, self.testbed.devices, strict=True)
        }
        return {
            programs[list_process.arguments[0]]: parse_process_time(
                Path(f"/proc/{list_process.pid}/stat").read_text()
            ).cpu_s
            for list_process in list_processes()
            if list_process.arguments and list_process.arguments[0] in programs
        }

    def _run(self, case: Case, body: Mapping[str, Any]) -> tuple[Row, Facts]:
        launched = self.coordinator.launch(body)
        summary = self._summary(launched["run_id"], case)
        spec = scenarios.load(case.scenario, body["overrides"])
        row = run_row(case.name, summary, spec, case.expected.says)
        return row, Facts.of_run(summary)

    def _study(self, case: Case, body: Mapping[str, Any], watch: Watch) -> tuple[Row, Facts]:
        fields = {**body, "question": case.question}
        study_id = self.coordinator.post("/v1/studies", fields)["study_id"]
        end_s = time.monotonic() + STUDY_WITHIN_S
        while time.monotonic() < end_s:
            answer = self.coordinator.get(f"/v1/studies/{study_id}")
            if answer is not None and answer["ended_at"] is not None:
                study = Study.model_validate(answer)
                trials = tuple(self._trials(study, case, watch))
                return study_row(case.name, study, trials), Facts.of_study(study)
            time.sleep(0.5)
        raise TimeoutError(f"study {study_id}: did not end within {STUDY_WITHIN_S:g} s")

    def _trials(self, study: Study, case: Case, watch: Watch) -> Iterator[Row]:
        """Yield a row for each trial that has a verdict."""
        question = study.spec.question
        if isinstance(question, Search) and question.load is SearchLoad.BITS:
            return
        for index, result in enumerate(study.results):
            trial = next_trial(study.spec, study.results[:index])
            if trial is None:
                return
            if result.run_id is not None:
                spec = trial.resolve(study.study_id, study.spec)
                name = ", ".join(f"{what.rpartition('.')[2]} {v}" for what, v in trial.says.items())
                summary = self._summary(result.run_id, case)
                row = run_row(f"- {name}", summary, spec)
                window = summary.bursts[0].window
                if window is not None:
                    counted = watch.cpu(window.start_at.timestamp(), window.end_at.timestamp())
                    row = dataclasses.replace(row, cpu_counted=counted)
                yield row

    def _summary(self, run_id: str, case: Case) -> RunSummary:
        within_s = LEAD_S + TUNNELS_LEAD_S + case.burst_s + VERDICT_WITHIN_S
        return self.coordinator.summary(run_id, within_s)


# Beds ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def standing(testbed: LabTestbed, prefix: str) -> Iterator[Range]:
    """Run a bed with fleet and coordinator, and remove it afterwards."""
    spec = LabSpec(
        pairs_count=testbed.pairs_count,
        prefix=prefix,
        scale=testbed.scale,
        nic_bits_per_second=testbed.nic_bits_per_second,
        firewall_bits_per_second=testbed.firewall_bits_per_second,
        mtu=testbed.mtu,
    )
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="broadside-")))
        lab = stack.enter_context(built(spec))
        allowed = {"BROADSIDE_AGENT_ALLOW_TUNNELS": "true"}
        if testbed.services is not None:
            allowed["BROADSIDE_AGENT_SERVICES"] = testbed.services
        fields = {"BROADSIDE_SWITCHES_FILE": str(write_switches(prefix, folder))}
        profiles.apply(lab, testbed.profile)
        agent = None
        if testbed.counts_sessions:
            fields |= write_telemetry_file(folder / "devices.toml", start_sessions(lab))
        if testbed.devices:
            agent = firewall_agent(lab, folder / "snmpd", testbed.profile)
            stack.enter_context(answering(agent))
            entries = telemetry_entries(agent, testbed.devices, folder)
            if lab.counter_path is not None:
                entries.append(lab_entry(lab.counter_path))
            fields |= write_telemetry_file(folder / "devices.toml", *entries)
        site = stack.enter_context(staged(lab, folder, agents=allowed, coordinator=fields))
        yield Range(testbed, lab, site.coordinator, agent)


def sent_bytes(namespace: str) -> int:
    """Return the bytes that a firewall's namespace has sent to the servers."""
    with inside(namespace):
        return parse_net_dev(Path(NET_DEV).read_text(), "s0")["s0"].tx_bytes


def write_switches(prefix: str, folder: Path) -> Path:
    """Write the coordinator's switch file for the lab's profiles, as an operator would."""
    switches = {
        "idps": ("plain", "idps-alert", "idps-deny"),
        "firewalls": ("active-standby", "failover", "failover-cold"),
        "balanced": ("two-firewalls", "failover"),
        "units": ("units-4", "units-4-left", "units-4-drained", "units-5"),
        "services": tuple(f"service-{name}" for name in profiles.SERVICES),
    }
    text = ""
    for switch, names in switches.items():
        text += f'[{switch}]\nrest = "{names[0]}"\nsettle_s = 1\n[{switch}.states]\n'
        for name in names:
            argv = [sys.executable, "-m", "broadside.coordinator", "lab", "profile", name]
            text += f"{name} = {json.dumps([*argv, '--prefix', prefix])}\n"
    path = folder / "switches.toml"
    path.write_text(text)
    return path


def carry_out(cases: Sequence[Case]) -> Iterator[Row]:
    """Execute all cases by bed, and in order within a bed."""
    rows: dict[str, Row] = {}
    for name, lab in TESTBEDS.items():
        here = [case for case in cases if case.testbed == name]
        if not here:
            continue
        with free_prefix() as prefix, standing(lab, prefix) as range_:
            sys.stderr.write(f"lab {prefix}: {lab.pairs_count} pairs\n")
            for case in here:
                rows[case.name] = range_.carry_out(case, rows)
                yield rows[case.name]


def chosen(parts: Sequence[str] | None) -> list[Case]:
    """Return the cases with a name that contains one of ``parts``, and those they refer to.

    None selects all cases.
    """
    wanted = {case.name for case in CASES if not parts or any(part in case.name for part in parts)}
    wanted |= {
        case.expected.rate_ratio_of[0]
        for case in CASES
        if case.name in wanted and case.expected.rate_ratio_of is not None
    }
    return [case for case in CASES if case.name in wanted]
