"""Run one cell of the fault matrix.

A cell launches a run, injects the fault in the given phase, heals it, waits for the verdict and
checks the rules.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import httpx

from broadside.coordinator.core.run_spec import COLLECT_S, Plan
from broadside.coordinator.core.summary import BurstSummary, SecondState
from broadside.exchange.messages import Claim
from broadside.exchange.messages import JobPhase as Told
from broadside.lab.errors import LabError
from tests.faults.fault_range import PAIRS_COUNT, Range
from tests.faults.matrix import LEAD_BEFORE_CLAIM_S, Cell, Fault, Phase, Scene, has_come
from tests.faults.random_rounds import fault_named
from tests.faults.round_backups import BackupBeside, private_folder, verdicts_of
from tests.faults.rules import Evidence, read_evidence, violations

BURSTS_COUNT: Final = 2
LEAD_S: Final = 7
STREAM_BITS_PER_SECOND: Final = 5_000_000
# The offered rate is 10 Mbit/s, so a run without a fault passes.
TARGET_BITS_PER_SECOND: Final = 6_000_000
# A window of 8 s cannot bound a residual more narrowly.
RESIDUAL_MAX_RATIO: Final = 0.3
# Several labs share few cores.
START_SPREAD_MAX_S: Final = 1.0
LOOK_S: Final = 0.15
# The maximum attempts of a cell if its phase was missed.
TRIES_MAX: Final = 3
# The verdict must exist within this time after the last report is due.
GRACE_S: Final = 40.0
# The characters of the coordinator's log that are shown for a cell without a verdict.
LOG_TAIL: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of a cell.

    Attributes:
        bursts: States of the pairs, one text per burst.
        note: Result of the fault injection, if the phase does not imply it.
        broken: Rules that do not hold.
        peak_bytes: Maximum memory of the coordinator since its lab was created.
    """

    fault: str
    phase: str
    fabric: str = "azure"
    bursts: tuple[str, ...] = ()
    verdict: str = "none"
    note: str | None = None
    findings: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    took_s: float = 0.0
    peak_bytes: int = 0


class PhaseMissed(Exception):
    """A phase was over between two polls, so the fault was not injected."""


def run_cell(site: Range, cell: Cell) -> Result:
    """Run a cell without raising errors of the product.

    A run without a verdict or a fleet that does not recover is a violated rule. If a phase was
    missed on a busy machine, the cell is repeated.
    """
    text = ""
    for _ in range(TRIES_MAX):
        try:
            return _try_cell(site, cell)
        except PhaseMissed as missed:
            text = f"{TRIES_MAX} times {missed}"
            _clear_away(site)
    return Result(fault=cell[0], phase=cell[1].value, fabric=site.name, broken=(text,))


def _try_cell(site: Range, cell: Cell) -> Result:
    """Run a cell once.

    Raises:
        PhaseMissed: The phase was over before the fault could be injected.
    """
    began_s = time.time()
    try:
        ended = _carry_out(site, cell)
        site.revive()
        # The broker itself would detect this only after minutes.
        if fault_named(cell[0]).cuts_cables:
            site.forget_connections()
        site.wait_ready()
    except (TimeoutError, AssertionError, ValueError, LabError, httpx.HTTPError) as error:
        why = f"{type(error).__name__}: {error}; the coordinator's log ends: {_log_end(site)}"
        ended = Result(fault=cell[0], phase=cell[1].value, broken=(why,))
        _clear_away(site)
    return replace(
        ended,
        took_s=round(time.time() - began_s, 1),
        fabric=site.name,
        peak_bytes=site.coordinator.peak_bytes,
    )


def _carry_out(site: Range, cell: Cell) -> Result:
    name, phase = cell
    fault = fault_named(name)
    with contextlib.ExitStack() as stack:
        saver: BackupBeside | None = None
        if fault.backs_up and site.data_dir is not None:
            folder = Path(stack.enter_context(private_folder()))
            saver = BackupBeside(site.data_dir, folder, verdicts_of(site.coordinator))
        return _inject_and_observe(site, fault, phase, saver)


def _inject_and_observe(
    site: Range, fault: Fault, phase: Phase, saver: BackupBeside | None
) -> Result:
    plan = _launch(site, fault, phase)
    scene = _await_phase(site, plan, phase, early_s=fault.early_s)
    struck_at_s = time.time()
    if saver is not None:
        saver.start()
    try:
        note = fault.inject(scene)
        time.sleep(max(0.0, struck_at_s + fault.lasting_s(phase) - time.time()))
    finally:
        fault.heal(scene)
    end_s = plan.bursts[-1].planned_end_at.timestamp()
    # There is no verdict before, and each request needs a measurement by the coordinator.
    time.sleep(max(0.0, end_s - time.time()))
    due_s = end_s + COLLECT_S + GRACE_S
    summary = site.coordinator.summary(plan.run_id, due_s - time.time())
    evidence = read_evidence(site, plan, summary, scene, struck_at_s)
    if phase is Phase.REPORTING and (past := _past(evidence)):
        note = "; ".join(filter(None, [past, note]))
    broken = violations(evidence, fault)
    if saver is not None:
        broken += saver.broken()
    return Result(
        fault=fault.name,
        phase=phase.value,
        bursts=tuple(map(describe, summary.bursts)),
        verdict=summary.verdict.value,
        note=note,
        findings=tuple(f"{finding.id}: {finding.sentence}" for finding in summary.findings),
        broken=tuple(broken),
    )


def _clear_away(site: Range) -> None:
    """Remove the effects of a failed cell, so that later cells are not affected."""
    site.revive()
    with contextlib.suppress(ValueError, LabError, httpx.HTTPError):
        for header in site.coordinator.get("/v1/runs") or []:
            if header["outcome"] is None:
                site.coordinator.post(f"/v1/runs/{header['run_id']}/abort", {"by": "faults"})
        site.forget_connections()
        site.wait_ready()


def _past(evidence: Evidence) -> str | None:
    """Return a note if the pair reported before the fault was injected, else None."""
    report = evidence.stored.reports[0].get(0)
    if report is None or report.reported_at.timestamp() > evidence.struck_at_s:
        return None
    return "already reported"


def _log_end(site: Range) -> str:
    return " ".join(site.coordinator.log_path.read_text(errors="replace")[-LOG_TAIL:].split())


def describe(burst: BurstSummary) -> str:
    """Return the number of pairs by state, for example ``1 measured, 1 abandoned``."""
    counts = Counter(pair.state.value for pair in burst.pairs)
    return ", ".join(f"{counts[state]} {state}" for state in SecondState if counts[state])


def _launch(site: Range, fault: Fault, phase: Phase) -> Plan:
    lead_s = LEAD_BEFORE_CLAIM_S if phase is Phase.BEFORE_CLAIM else LEAD_S
    overrides: Mapping[str, object] = {
        "pairs_count": PAIRS_COUNT,
        "bursts_count": BURSTS_COUNT,
        "burst_s": fault.burst_s,
        "period_s": fault.burst_s + fault.gap_s,
        "align_to_period": False,
        "lead_s": round(lead_s),
        "lease_s": fault.lease_s,
        "traffic.streams_count": 1,
        "traffic.stream_bits_per_second": STREAM_BITS_PER_SECOND,
        "objective.target_bits_per_second": TARGET_BITS_PER_SECOND,
        "objective.residual_max_ratio": RESIDUAL_MAX_RATIO,
        "objective.start_spread_max_s": START_SPREAD_MAX_S,
    }
    answer = site.coordinator.launch({"scenario": "smoke", "overrides": overrides})
    stored = site.loop.run(site.fabric.records.read_run(str(answer["run_id"])))
    assert stored is not None, "a launched run is not stored"
    return Plan.model_validate_json(stored[1])


def _await_phase(site: Range, plan: Plan, phase: Phase, *, early_s: float) -> Scene:
    """Wait for the phase and return the scene of the fault."""
    burst = plan.bursts[0]
    end_s = burst.planned_end_at.timestamp()
    while True:
        claim = _claim(site, plan)
        if has_come(phase, claim, time.time()):
            break
        if claim is not None and (phase is Phase.BEFORE_CLAIM or claim.phase is Told.REPORTED):
            raise PhaseMissed(f"the first job was past {phase.value} unseen: {claim}")
        if time.time() > end_s + COLLECT_S:
            raise TimeoutError(f"the first job never came to {phase.value}: {claim}")
        time.sleep(LOOK_S)
    if phase is Phase.REPORTING:
        time.sleep(max(0.0, end_s - early_s - time.time()))
    return Scene(
        range=site,
        phase=phase,
        clients=(claim.agent_id,)
        if claim
        else tuple(host.name for host in site.lab.clients[:PAIRS_COUNT]),
        server=plan.pairs[0].endpoint.agent_id,
        jobs=tuple(plan.jobs(burst)),
    )


def _claim(site: Range, plan: Plan) -> Claim | None:
    return site.loop.run(site.fabric.records.bursts.read_claims(plan.run_id, 0)).get(0)
