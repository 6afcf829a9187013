"""Report section that compares the firewall counter with the fleet's bytes. Pure."""

from broadside.coordinator.core.formatting import (
    instant,
    number,
    rate,
    ratio,
    signed_ratio,
    size,
    time,
)
from broadside.coordinator.core.judge.reconciliation.residual_causes import UNSEEN_BY_BYTES
from broadside.coordinator.core.summary import Reconciliation
from broadside.coordinator.views.report.document import Section, Table
from broadside.coordinator.views.report.stored_source import Source

_HOW = {
    "recorded": "from the segment sizes that the engines recorded",
    "assumed": "from packets of 1500 bytes, as nobody recorded a segment size",
    "fitted": "from the run's own median burst, as the ledger's layer is not stated",
}

_BYPASSED = (
    "This run was to pass the firewall by (device.path=bypass), so its ledger is expected to hold "
    "nothing of it. The residual is what the ledger shows above its idle level, in parts of what "
    "it would show of a run that crosses it."
)


def reconciliation_section(source: Source) -> Section:
    """Return a section with lag, overhead, bytes, residual and explanation, by run and burst."""
    held, ledger = source.summary.reconciliation, source.ledger
    if held is None or ledger is None:
        return Section(
            id="reconciliation",
            title="Reconciliation",
            paragraphs=(
                (
                    "No firewall ledger was read. That the traffic crossed the firewall is not "
                    "shown by this report; what the fleet's receivers saw stands for itself."
                ),
            ),
        )
    basis = (
        f"the {held.full_bins_count} bins that lie wholly in the windows"
        if held.basis == "rate"
        else "bytes of every bin that the bursts touch, split by overlap"
    )
    lag = (
        "unknown: the data does not tell, so there is no residual"
        if held.lag_s is None
        else f"{time(held.lag_s)} ± {time(held.lag_uncertainty_s)}"
    )
    snat = ledger.snat_utilization_ratio
    bursts = [
        (burst.index, burst.reconciliation)
        for burst in source.summary.bursts
        if burst.reconciliation is not None
    ]
    return Section(
        id="reconciliation",
        title="Reconciliation",
        paragraphs=(
            *((_BYPASSED,) if held.bypassed else ()),
            (
                "The firewall's own bins are shifted by the lag at which the fleet's bytes "
                "explain them best. The level that the firewall shows while no plan sends is "
                "taken off, and both ledgers are compared at the firewall's layer. The residual "
                "is firewall / expected - 1; a cause is named only where the residual is larger "
                "than its own uncertainty."
            ),
            f"{UNSEEN_BY_BYTES[0].upper()}{UNSEEN_BY_BYTES[1:]}.",
        ),
        facts={
            "source": held.source,
            "counts at": {"ip": "the IP layer", "wire": "Ethernet frames"}.get(
                held.layer, "a layer that the source does not state"
            ),
            "grain": time(held.grain_s),
            "read at": instant(ledger.read_at),
            "lag": lag,
            "header overhead": f"{number(held.overhead_ratio)}, {_HOW[held.overhead_how]}",
            "compared on": basis,
            "firewall / expected": f"{size(held.firewall_bytes)} / {size(held.expected_bytes)}",
            "residual": _residual(held),
            "allowed": f"± {ratio(source.plan.spec.objective.residual_max_ratio, 1)}",
            "bins not known yet": f"{ratio(held.unknown_ratio)} of the fleet's bytes",
            "level while no plan sends": _idle(held),
            **({"SNAT ports used, worst": ratio(snat, 0)} if snat is not None else {}),
            **({"the source's notes": "; ".join(ledger.notes)} if ledger.notes else {}),
        },
        tables=(
            _causes(held),
            *(
                (
                    Table(
                        title="Burst by burst",
                        columns=("burst", "firewall", "expected", "residual", "named causes"),
                        rows=tuple(
                            (
                                str(index + 1),
                                size(each.firewall_bytes),
                                size(each.expected_bytes),
                                _residual(each),
                                ", ".join(cause.id for cause in each.causes) or "none",
                            )
                            for index, each in bursts
                        ),
                    ),
                )
                if len(bursts) > 1
                else ()
            ),
        ),
    )


def _causes(held: Reconciliation) -> Table:
    return Table(
        title="Named causes of the residual",
        columns=("cause", "would explain", "why"),
        rows=tuple(
            (cause.id, signed_ratio(cause.share_ratio), cause.sentence) for cause in held.causes
        )
        or (("none needed", "", "the residual is within its uncertainty or below 0.5 %"),),
        numeric_from=9,
    )


_HOW_IDLE = {
    "quiet": "seen in bins that no plan covers",
    "fitted": "fitted beside the fleet's own bytes",
    "bounded": "no bin is quiet: taken for none, the bound is what the emptiest bin holds",
}


def _idle(held: Reconciliation) -> str:
    if held.baseline_how is None:
        return "unknown"
    level = rate(held.baseline_bits_per_second)
    unsure = rate(held.baseline_uncertainty_bits_per_second)
    return f"{level} ± {unsure}, {_HOW_IDLE[held.baseline_how]}; taken off"


def _residual(held: Reconciliation) -> str:
    if held.residual_ratio is None:
        return "unknown"
    if held.residual_low_ratio is None or held.residual_high_ratio is None:
        return f"{signed_ratio(held.residual_ratio)} ± {ratio(held.residual_uncertainty_ratio)}"
    ends = f"{signed_ratio(held.residual_low_ratio)} to {signed_ratio(held.residual_high_ratio)}"
    return f"{signed_ratio(held.residual_ratio)} ({ends} at 95 %)"
