"""Report sections about settings, clocks, configuration, agents and device. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from broadside.coordinator.core.documented_limits import DOCUMENTED
from broadside.coordinator.core.formatting import rate, time
from broadside.coordinator.core.measure.requested_vs_effective import Setting, settings
from broadside.coordinator.core.plain_fields import plain_fields
from broadside.coordinator.views.report.document import TEXT_ONLY, ReportTable, Section, make_table
from broadside.coordinator.views.report.stored_source import READ_MAX, Source
from broadside.exchange.messages import ClockReading, EngineReport, JobReport, Role

_UNKNOWN: Final = "unknown"
# Labels in display order, by field of ``Setting``.
_SETTINGS: Final[Mapping[str, str]] = {
    "engine": "engine",
    "protocol": "protocol",
    "direction": "direction",
    "streams_count": "streams per pair",
    "processes_count": "processes per pair",
    "duration_s": "duration, s",
    "omit_s": "engine's own warm-up, s",
    "block_bytes": "block size, bytes",
    "stream_bits_per_second": "rate per stream",
    "pacing": "pacing",
    "window_bytes": "window, bytes",
    "mss_bytes": "MSS, bytes",
    "congestion": "congestion control of the sender",
    "dscp": "DSCP",
}
_DEFAULTS: Final = {"stream_bits_per_second": "not paced", "pacing": "not paced"}
# Properties of the device that a reproducible report needs, with their keys in `device`.
DEVICE_FIELDS: Final[Mapping[str, str]] = {
    "sku": "SKU",
    "region": "region",
    "zones": "zones",
    "capacity": "capacity: minimum, maximum, observed",
    "idps": "IDPS mode",
    "tls": "TLS inspection",
    "rules": "number of rules",
    "policy": "policy and its hash",
    "routes": "routes",
}


def planned_section(source: Source) -> Section:
    """Return a section that compares requested settings with the settings that engines report."""
    if source.imported:
        text = (
            "The results were imported, so the requested settings are unknown. The start times of "
            "the bursts were inferred from the data, so start errors are unknown."
        )
        return Section(id="planned", title="Requested and effective settings", paragraphs=(text,))
    spec = source.plan.spec
    engines = [
        report.engine
        for report in _reports(source)
        if report.engine is not None and report.engine.error is None
    ]
    by_field: dict[str, list[Setting]] = {}
    # Without an engine, the table still shows the requested settings.
    for engine in engines or (None,):
        for setting in settings(source.plan.traffic, spec.burst_s, engine):
            by_field.setdefault(setting.field, []).append(setting)
    bursts = source.summary.bursts
    start_error_s = _largest(burst.start_error_max_s for burst in bursts)
    clock_bound_s = _largest(burst.clock_bound_max_s for burst in bursts)
    late = sum(len(burst.late_pairs) for burst in bursts)
    rows = (
        *(_setting_row(field, by_field[field]) for field in _SETTINGS),
        (
            "start error",
            f"at most {time(spec.late_after_s)}",
            f"largest error of pairs on time {time(start_error_s)}",
            _UNKNOWN if start_error_s is None else f"NO: {late} pairs late" if late else "yes",
        ),
        (
            "clock uncertainty",
            f"at most {time(spec.clock_bound_max_s)}",
            f"largest {time(clock_bound_s)}",
            "all agents use the clock of one host"
            if source.plan.shared_boot_id is not None
            else "agents above the limit rejected the job",
        ),
    )
    return Section(
        id="planned",
        title="Requested and effective settings",
        paragraphs=(
            (
                f"Settings of the run specification, and the settings that the engines of "
                f"{len(engines)} successful tests report."
            ),
        ),
        tables=(
            ReportTable(
                columns=("setting", "requested", "reported", "match"),
                rows=rows,
                numeric_from=TEXT_ONLY,
            ),
        ),
    )


def _setting_row(field: str, values: Sequence[Setting]) -> tuple[str, ...]:
    """Return a row that compares the requested value of a setting with the values of all pairs."""
    requested = values[0].requested
    show = rate if field == "stream_bits_per_second" else str
    of_pairs = [
        ", ".join(dict.fromkeys(map(show, value.effective))) for value in values if value.effective
    ]
    reported = Counter(of_pairs)
    matching = sum(not value.differing for value in values if value.effective)
    if not reported:
        match = "not reported"
    elif requested is None:
        match = "not requested"
    else:
        match = f"{'yes,' if matching == len(of_pairs) else 'NO:'} {matching} of {len(of_pairs)}"
    effective = ", ".join(
        value if len(reported) == 1 else f"{value} in {n}" for value, n in reported.most_common(4)
    )
    wanted = _DEFAULTS.get(field, "engine's default") if requested is None else show(requested)
    return _SETTINGS[field], wanted, effective or "not reported", match


def clocks_section(source: Source) -> Section:
    """Return a section with the largest clock error of each agent before and after its bursts."""
    readings: dict[tuple[str, str], list[tuple[ClockReading | None, ClockReading | None]]] = {}
    starts: dict[str, list[float]] = {}
    for report in _reports(source):
        clocks = (report.clock_before, report.clock_after)
        readings.setdefault(("client", report.agent_id), []).append(clocks)
        if report.start_error_s is not None:
            starts.setdefault(report.agent_id, []).append(report.start_error_s)
    for _, ends in sorted(source.ends.items()):
        for _, test in sorted(ends.tests.items()):
            clocks = (test.clock_before, test.clock_after)
            readings.setdefault(("server", test.agent_id), []).append(clocks)
    if not readings:
        text = "No clock readings are recorded, because the results were imported or not reported."
        return Section(id="clocks", title="Clocks", paragraphs=(text,))
    count = len(source.ends)
    rows = [
        (
            agent,
            role,
            *_clock_cells(clocks),
            _range(starts.get(agent, [])) if role == "client" else "none",
        )
        for (role, agent), clocks in sorted(readings.items())
    ]
    return Section(
        id="clocks",
        title="Clocks",
        paragraphs=(
            (
                "Each agent reads the state of its clock before and after a burst. The uncertainty "
                "is |offset| + root dispersion + root delay / 2 for chrony (root distance, RFC "
                "5905), and maxerror for adjtimex. An agent with an uncertainty above "
                f"{time(source.plan.spec.clock_bound_max_s)} rejects the job."
            ),
        ),
        tables=(
            ReportTable(
                columns=(
                    *("agent", "role", "source", "offset before", "uncertainty before"),
                    *("offset after", "uncertainty after", "start error"),
                ),
                rows=tuple(rows),
                numeric_from=3,
                note=f"Largest values of {count} bursts." if count > 1 else None,
            ),
        ),
    )


def _clock_cells(
    readings: Sequence[tuple[ClockReading | None, ClockReading | None]],
) -> Iterator[str]:
    before, after = (
        [clocks[index] for clocks in readings if clocks[index] is not None] for index in (0, 1)
    )
    sources = sorted({_clock_source(clock) for clock in (*before, *after) if clock is not None})
    yield "; ".join(sources) or _UNKNOWN
    for clocks in (before, after):
        yield time(_largest(clock.offset_s for clock in clocks if clock is not None))
        yield time(_largest(clock.bound_s for clock in clocks if clock is not None))


def _clock_source(clock: ClockReading) -> str:
    text = clock.source.value
    if clock.reference is not None:
        stratum = "" if clock.stratum is None else f", stratum {clock.stratum}"
        text += f" ({clock.reference}{stratum})"
    return text if clock.synchronised else f"{text}, NOT synchronised"


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), key=abs, default=None)


def _range(values: Sequence[float]) -> str:
    if len(values) < 2:
        return time(values[0]) if values else _UNKNOWN
    return f"{time(min(values))} to {time(max(values))}"


def configuration_section(source: Source) -> Section:
    """Return a section with all fields of the specification."""
    rows = tuple(plain_fields(source.plan.spec).items())
    text = "The run specification. `not set` means the engine's default, or no limit."
    if source.imported:
        text = (
            "Derived from the imported files. Fields that the files do not contain have their "
            "default value."
        )
    return Section(
        id="configuration",
        title="Configuration",
        paragraphs=(text,),
        facts={
            "run": source.plan.run_id,
            "imported by" if source.imported else "launched by": source.header.created_by,
            "Broadside": source.broadside_version,
            "warnings at launch": "; ".join(source.plan.warnings) or "none",
        },
        tables=(ReportTable(columns=("field", "value"), rows=rows, numeric_from=TEXT_ONLY),),
    )


def generators_section(source: Source) -> Section:
    """Return a section with engines, exact command lines, VM sizes and pairs."""
    reports = list(_reports(source))
    sizes = Counter(
        size
        for burst in source.summary.bursts[:1]
        for pair in burst.pairs
        for size in (pair.client_vm_size, pair.server_vm_size)
        if size
    )
    engines = Counter(
        f"{report.engine.engine} {report.engine.version or '(version unknown)'}"
        for report in reports
        if report.engine is not None
    )
    methods = Counter(
        report.start_method.value.replace("_", " ")
        for report in reports
        if report.start_method is not None
    )
    first = source.plan.bursts[0].index
    rows, code = _pair_rows(source, first)
    is_limited = len(source.plan.bursts) > READ_MAX and not source.imported
    return Section(
        id="generators",
        title="Traffic generators",
        paragraphs=(f"From the reports of the first {READ_MAX} bursts.",) if is_limited else (),
        facts={
            "engines": _counted(engines),
            "VM sizes": _counted(sizes),
            "start method": _counted(methods),
        },
        tables=(
            *_agents(source),
            ReportTable(
                title=f"Pairs of burst {first + 1}",
                columns=("pair", "client", "server", "endpoint", "command line"),
                rows=tuple(rows),
                numeric_from=TEXT_ONLY,
            ),
        ),
        code=code,
    )


def _pair_rows(source: Source, first: int) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """Return the rows of the pairs of a burst and the files of one engine."""
    first_reports = source.ends[first].reports if first in source.ends else {}
    rows: list[tuple[str, ...]] = []
    code: tuple[str, ...] = ()
    for pair in source.plan.pairs:
        report = first_reports.get(pair.index)
        engine = None if report is None else report.engine
        ports = dict(enumerate(pair.endpoint.ports, start=1))
        processes = _processes(engine)
        for number, argv in enumerate(processes, start=1):
            rows.append(
                (
                    pair.name + (f", process {number}" if len(processes) > 1 else ""),
                    _UNKNOWN if report is None else report.agent_id,
                    pair.endpoint.agent_id,
                    f"{pair.endpoint.address}:{ports.get(number, _UNKNOWN)}",
                    " ".join(argv) or _UNKNOWN,
                )
            )
        # We only need a single pair, because the files of the others should only have different
        # addresses.
        if not code and engine is not None:
            code = tuple(f"# {pair.name}: {name}\n{text}" for name, text in engine.files.items())
    return rows, code


def _processes(engine: EngineReport | None) -> list[Sequence[str]]:
    """Return the command lines of an engine. An unknown one is empty."""
    parts = () if engine is None else engine.processes or (engine,)
    return [part.argv for part in parts] or [()]


def _agents(source: Source) -> Iterator[ReportTable]:
    """Yield a table of the hosts, as the planned agents reported them at the launch."""
    planned = {pair.endpoint.agent_id for pair in source.plan.pairs}
    planned |= {report.agent_id for report in _reports(source)}
    agents = sorted(
        (agent for agent in source.fleet if agent.agent_id in planned),
        key=lambda agent: (agent.role, agent.agent_id),
    )
    if agents:
        yield make_table(
            agents,
            {
                "agent": lambda agent: agent.agent_id,
                "role": lambda agent: agent.role.value,
                "address": lambda agent: agent.address,
                "VM size": lambda agent: agent.vm_size or _UNKNOWN,
                "cores": lambda agent: str(agent.cpu_count or _UNKNOWN),
                "NIC": lambda agent: agent.nic or _UNKNOWN,
                "NIC limit": lambda agent: rate(agent.nic_bits_per_second),
                "kernel": lambda agent: agent.kernel or _UNKNOWN,
                "iperf3": lambda agent: agent.engine_version or "none",
                "start gate": lambda agent: (
                    "not needed" if agent.role is Role.SERVER else "yes" if agent.gate else "no"
                ),
                "Broadside": lambda agent: agent.broadside_version,
            },
            title="Agents at launch",
            numeric_from=TEXT_ONLY,
        )


def _counted(counter: Counter[str]) -> str:
    if len(counter) < 2:
        return next(iter(counter), _UNKNOWN)
    return ", ".join(f"{value} ({n})" for value, n in counter.most_common())


def _reports(source: Source) -> Iterator[JobReport]:
    for _, ends in sorted(source.ends.items()):
        for _, report in sorted(ends.reports.items()):
            yield report


def device_section(source: Source) -> Section:
    """Return a section with the device data from the launch, and limits from documentation."""
    device = dict(source.plan.spec.device)
    sku = device.get("sku", "").lower()
    facts = {label: device.pop(key, "not stated") for key, label in DEVICE_FIELDS.items()} | device
    limit, flow = DOCUMENTED.firewall.get(sku), DOCUMENTED.flow.get(sku)
    if limit is not None and flow is not None:
        facts["documented rate"] = f"{rate(limit.bits_per_second)} ({limit.source}, {limit.as_of})"
        facts["documented rate of one TCP connection"] = rate(flow.bits_per_second)
    text = "As stated at launch (`--set device.sku=...`). Broadside does not read its settings."
    return Section(id="device", title="Device under test", paragraphs=(text,), facts=facts)
