"""Report sections about settings, clocks, configuration and load generators. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from broadside.coordinator.core.formatting import rate, time
from broadside.coordinator.core.measure.requested_vs_effective import Setting, settings
from broadside.coordinator.core.plain_fields import plain_fields
from broadside.coordinator.views.report.document import Section, Table, tabled
from broadside.coordinator.views.report.stored_source import READ_MAX, Source
from broadside.exchange.messages import ClockReading, JobReport, Role, ServerTest

_NOTHING: Final = "nobody said"
# Labels in display order, by field of ``Setting``.
_SETTINGS: Final = {
    "engine": "engine",
    "protocol": "protocol",
    "direction": "direction",
    "streams_count": "streams a pair",
    "processes_count": "processes a pair",
    "duration_s": "duration of traffic, s",
    "omit_s": "engine's own warm-up, s",
    "block_bytes": "block, bytes",
    "stream_bits_per_second": "rate a stream",
    "pacing": "paced by",
    "window_bytes": "window, bytes",
    "mss_bytes": "segment (MSS), bytes",
    "congestion": "congestion control, sender",
    "dscp": "DSCP",
}
_NOT_ASKED: Final = (
    "What was asked is not on record, as the results were imported: nothing can be held against "
    "it. Nobody planned an instant either: it was inferred from the starts, so start errors of "
    "pairs on time are unknown."
)
_FREE: Final = {"stream_bits_per_second": "not paced", "pacing": "not paced"}


def _setting_row(field: str, told: Sequence[Setting]) -> tuple[str, ...]:
    """Return a row that compares the requested value of a setting with the values of all pairs."""
    asked = told[0].requested
    show = rate if field == "stream_bits_per_second" else str
    of_pairs = [", ".join(dict.fromkeys(map(show, one.effective))) for one in told if one.effective]
    said = Counter(of_pairs)
    right = sum(not one.differing for one in told if one.effective)
    if not said:
        agrees = "not said"
    elif asked is None:
        agrees = "free"
    elif right == len(of_pairs):
        agrees = f"yes, {right} of {len(of_pairs)}"
    else:
        agrees = f"NO: {right} of {len(of_pairs)}"
    actual = ", ".join(
        value if len(said) == 1 else f"{value} in {n}" for value, n in said.most_common(4)
    )
    wanted = _FREE.get(field, "engine's own") if asked is None else show(asked)
    return _SETTINGS[field], wanted, actual or _NOTHING, agrees


def planned_section(source: Source) -> Section:
    """Return a section that compares requested settings with the settings that engines report."""
    if source.imported:
        return Section(id="planned", title="Planned and actual", paragraphs=(_NOT_ASKED,))
    traffic, spec = source.plan.traffic, source.plan.spec
    engines = [
        report.engine
        for report in _reports(source)
        if report.engine is not None and report.engine.error is None
    ]
    by_field: dict[str, list[Setting]] = {}
    # Without an engine, the table still shows the requested settings.
    for engine in engines or (None,):
        for each in settings(traffic, spec.burst_s, engine):
            by_field.setdefault(each.field, []).append(each)
    starts = [b.start_error_max_s for b in source.summary.bursts if b.start_error_max_s is not None]
    late = sum(len(b.late_pairs) for b in source.summary.bursts)
    rows = (
        *(_setting_row(field, by_field[field]) for field in _SETTINGS),
        (
            "start",
            f"the instant, within {time(spec.late_after_s)}",
            f"largest error of pairs on time {time(max(starts, default=None))}",
            "unknown" if not starts else f"NO: {late} late, see pairs" if late else "yes",
        ),
        (
            "clock bound",
            f"at most {time(spec.clock_bound_max_s)}",
            f"largest {time(_largest(b.clock_bound_max_s for b in source.summary.bursts))}",
            "all ends read one host's clock: met by definition"
            if source.plan.shared_boot_id is not None
            else "agents over it stood down",
        ),
    )
    return Section(
        id="planned",
        title="Planned and actual",
        paragraphs=(
            (
                f"What the specification asked, beside what the engines of {len(engines)} tests "
                "that did not fail say they did. An option that an engine drops in silence shows "
                "here."
            ),
        ),
        tables=(
            Table(
                columns=("setting", "asked", "the engines say", "agrees"), rows=rows, numeric_from=9
            ),
        ),
    )


def clocks_section(source: Source) -> Section:
    """Return a section with the largest clock error of each agent before and after its bursts."""
    clients: dict[str, list[tuple[ClockReading | None, ClockReading | None]]] = {}
    servers: dict[str, list[tuple[ClockReading | None, ClockReading | None]]] = {}
    starts: dict[str, list[float]] = {}
    for report in _reports(source):
        clients.setdefault(report.agent_id, []).append((report.clock_before, report.clock_after))
        if report.start_error_s is not None:
            starts.setdefault(report.agent_id, []).append(report.start_error_s)
    for test in _tests(source):
        servers.setdefault(test.agent_id, []).append((test.clock_before, test.clock_after))
    rows = [
        (
            agent,
            role,
            *_clock_cells(readings),
            _range(starts.get(agent, [])) if role == "client" else "does not start",
        )
        for role, agents in (("client", clients), ("server", servers))
        for agent, readings in sorted(agents.items())
    ]
    count = len(source.ends)
    if not rows:
        nobody = "No agent's clock is on record: results were imported, or nobody reported."
        return Section(id="clocks", title="Clock proof", paragraphs=(nobody,))
    table = Table(
        columns=(
            *("agent", "role", "source", "offset before", "bound before", "offset after"),
            *("bound after", "start error"),
        ),
        rows=tuple(rows),
        numeric_from=3,
        note=f"Over {count} bursts: of each figure the largest by amount." if count > 1 else None,
    )
    return Section(
        id="clocks",
        title="Clock proof",
        paragraphs=(
            (
                "Each agent reads its clock's own source before and after a burst. The bound is "
                "the largest error that the source admits: |offset| + root dispersion + root delay "
                "/ 2 for chrony (RFC 5905, root distance), the kernel's maxerror for adjtimex. "
                f"Over the gate of {time(source.plan.spec.clock_bound_max_s)} an agent stands down."
            ),
        ),
        tables=(table,),
    )


def _clock_cells(
    readings: Sequence[tuple[ClockReading | None, ClockReading | None]],
) -> tuple[str, str, str, str, str]:
    before = [reading for reading, _ in readings if reading is not None]
    after = [reading for _, reading in readings if reading is not None]
    known = [*before, *after]
    sources = sorted({_source(reading) for reading in known})
    return (
        "; ".join(sources) or "unknown",
        time(_largest(reading.offset_s for reading in before)),
        time(_largest(reading.bound_s for reading in before)),
        time(_largest(reading.offset_s for reading in after)),
        time(_largest(reading.bound_s for reading in after)),
    )


def _source(reading: ClockReading) -> str:
    said = reading.source.value
    if reading.reference is not None:
        said += f" ({reading.reference}"
        said += f", stratum {reading.stratum})" if reading.stratum is not None else ")"
    return said if reading.synchronised else f"{said}, NOT synchronised"


def _largest(values: Iterable[float | None]) -> float | None:
    return max((v for v in values if v is not None), key=abs, default=None)


def _range(values: Sequence[float]) -> str:
    if not values:
        return "unknown"
    if len(values) == 1:
        return time(values[0])
    return f"{time(min(values))} to {time(max(values))}"


def configuration_section(source: Source) -> Section:
    """Return a section with all fields of the specification."""
    rows = tuple(plain_fields(source.plan.spec).items())
    return Section(
        id="configuration",
        title="Configuration",
        paragraphs=(
            "Made from the imported files: what they do not say stands at its default, and was "
            "asked of nobody."
            if source.imported
            else "The whole specification. `not set` leaves the choice to the engine or sets no "
            "limit.",
        ),
        facts={
            "run": source.plan.run_id,
            "imported by" if source.imported else "launched by": source.header.created_by,
            "Broadside": source.broadside_version,
            "warnings at launch": "; ".join(source.plan.warnings) or "none",
        },
        tables=(Table(columns=("field", "value"), rows=rows, numeric_from=9),),
    )


def generators_section(source: Source) -> Section:
    """Return a section with engines, exact command lines, VM sizes and pairs."""
    sizes = Counter(
        size
        for burst in source.summary.bursts[:1]
        for pair in burst.pairs
        for size in (pair.client_vm_size, pair.server_vm_size)
        if size
    )
    versions: Counter[str] = Counter()
    methods: Counter[str] = Counter()
    for report in _reports(source):
        if report.engine is not None:
            versions[f"{report.engine.engine} {report.engine.version or 'of unknown version'}"] += 1
        if report.start_method is not None:
            methods[report.start_method.value.replace("_", " ")] += 1
    first = source.plan.bursts[0].index
    ends = source.ends.get(first)
    reports = {} if ends is None else ends.reports
    rows = []
    code: tuple[str, ...] = ()
    for pair in source.plan.pairs:
        said = reports.get(pair.index)
        engine = None if said is None else said.engine
        parts = () if engine is None else engine.processes or (engine,)
        ports = dict(enumerate(pair.endpoint.ports, start=1))
        for number, argv in enumerate([part.argv for part in parts] or [()], start=1):
            rows.append(
                (
                    pair.name + (f", process {number}" if len(parts) > 1 else ""),
                    said.agent_id if said is not None else _NOTHING,
                    pair.endpoint.agent_id,
                    f"{pair.endpoint.address}:{ports.get(number, _NOTHING)}",
                    " ".join(argv) or _NOTHING,
                )
            )
        # One pair is sufficient, because the files of the others differ only in addresses.
        if not code and engine is not None:
            code = tuple(f"# {pair.name}: {name}\n{text}" for name, text in engine.files.items())
    limit = (
        (f"Agents' own reports were read of the first {READ_MAX} bursts.",)
        if len(source.plan.bursts) > READ_MAX and not source.imported
        else ()
    )
    return Section(
        id="generators",
        title="Generators and pair map",
        paragraphs=limit,
        facts={
            "engines": _counted(versions),
            "VM sizes": _counted(sizes) if sizes else "not told to the agents",
            "start method": _counted(methods) if methods else _NOTHING,
        },
        tables=(
            *_fleet(source),
            Table(
                title=f"Pair map, burst {first + 1}",
                columns=("pair", "client", "server", "endpoint", "command line"),
                rows=tuple(rows),
                numeric_from=9,
            ),
        ),
        code=code,
    )


def _fleet(source: Source) -> tuple[Table, ...]:
    """Return a table of the hosts, as the planned agents reported them at the launch."""
    planned = {pair.endpoint.agent_id for pair in source.plan.pairs}
    planned |= {report.agent_id for report in _reports(source)}
    agents = sorted(
        (agent for agent in source.fleet if agent.agent_id in planned),
        key=lambda agent: (agent.role, agent.agent_id),
    )
    if not agents:
        return ()
    return (
        tabled(
            agents,
            {
                "agent": lambda agent: agent.agent_id,
                "role": lambda agent: agent.role.value,
                "address": lambda agent: agent.address,
                "VM size": lambda agent: agent.vm_size or "not told",
                "cores": lambda agent: str(agent.cpu_count or "unknown"),
                "NIC": lambda agent: agent.nic or "unknown",
                "NIC cap": lambda agent: (
                    "not told" if (cap := agent.nic_bits_per_second) is None else rate(cap)
                ),
                "kernel": lambda agent: agent.kernel or "unknown",
                "iperf3": lambda agent: agent.engine_version or "none",
                "start gate": lambda agent: (
                    "not needed" if agent.role is Role.SERVER else "yes" if agent.gate else "no"
                ),
                "Broadside": lambda agent: agent.broadside_version,
            },
            title="Agents at the launch",
            numeric_from=99,
        ),
    )


def _counted(counter: Counter[str]) -> str:
    if not counter:
        return _NOTHING
    if len(counter) == 1:
        return next(iter(counter))
    return ", ".join(f"{value} ({n})" for value, n in counter.most_common())


def _reports(source: Source) -> Iterable[JobReport]:
    for _, ends in sorted(source.ends.items()):
        for _, report in sorted(ends.reports.items()):
            yield report


def _tests(source: Source) -> Iterable[ServerTest]:
    for _, ends in sorted(source.ends.items()):
        for _, test in sorted(ends.tests.items()):
            yield test
