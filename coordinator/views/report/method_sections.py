"""Report sections about method, device, deviations from RFC 9411 and recomputation. Pure."""

from collections.abc import Mapping
from typing import Final

from broadside.coordinator.core.documented_limits import DOCUMENTED
from broadside.coordinator.core.formatting import rate, ratio, time
from broadside.coordinator.core.judge.bottleneck import FLAT_COV_RATIO
from broadside.coordinator.core.measure.aggregate import SUSTAIN_S
from broadside.coordinator.core.measure.completeness import PAIR_FLOOR_RATIO
from broadside.coordinator.core.measure.formulas.steady import RAMP_MAX_RATIO, RAMP_MAX_S
from broadside.coordinator.core.metrics import Layer
from broadside.coordinator.core.thresholds import describe_thresholds
from broadside.coordinator.views.report.document import Section, Table
from broadside.coordinator.views.report.stored_source import Source
from broadside.exchange.engines import find, measures

# Properties of the device that a reproducible report needs, with their keys in `device`.
DEVICE_FIELDS: Final[Mapping[str, str]] = {
    "sku": "SKU",
    "region": "region",
    "zones": "zones",
    "capacity": "capacity: minimum, maximum, observed",
    "idps": "IDPS mode",
    "tls": "TLS inspection",
    "rules": "rule count",
    "policy": "policy and its hash",
    "routes": "routes",
}


def method_section(source: Source) -> Section:
    """Return a section that explains how the metrics were measured."""
    spec = source.plan.spec
    assumed = any(burst.headers_assumed for burst in source.summary.bursts)
    how = source.summary.bursts[0].header_how if source.summary.bursts else "unknown"
    layer = "the IP layer" if spec.objective.layer is Layer.IP else "payload"
    aim = (
        "The target is" if spec.objective.target_bits_per_second else "No target was set; rates are"
    )
    return Section(
        id="method",
        title="Method",
        paragraphs=(
            _opening(source),
            *(_of_means() if source.means_only else _of_seconds(source)),
            f"Layer. {aim} stated at {layer}. Payload is brought to the IP layer by the "
            f"header ratio of each burst ({how}"
            + ("; assumed, as no segment size was recorded)." if assumed else ")."),
            (
                f"Coverage. A pair counts as measured with {ratio(PAIR_FLOOR_RATIO, 0)} of its "
                f"seconds on record and data within {time(spec.late_after_s)} of the instant. "
                f"Below {ratio(spec.objective.coverage_floor_ratio, 1)} of all planned "
                "pair-seconds nothing is a pass, and a burst with anything missing passes only if "
                "it would have passed over every window that the missing rows leave open. Missing "
                "data is never zero."
            ),
            _rule(source),
        ),
    )


def _of_seconds(source: Source) -> tuple[str, str]:
    ramps = [burst.window.ramp_s for burst in source.summary.bursts if burst.window is not None]
    ramp = f"{min(ramps)} to {max(ramps)} s" if ramps else "none"
    return (
        (
            "Rate. The figure is what receivers counted: each receiver's own intervals are laid on "
            "a common grid of UTC seconds by interpolating cumulative bytes, so that no byte is "
            "lost or counted twice; where no receiver's record came, the sender's stands in, and "
            "the share that receivers prove is kept apart. In seconds that are not on record a "
            "pair that ran counts at its mean over the others."
        ),
        (
            "Window. The headline is over the seconds that all measured pairs share, inside the "
            f"planned burst; of those the ramp at the head is cut ({ramp} here, at most "
            f"{ratio(RAMP_MAX_RATIO, 0)} and {RAMP_MAX_S} s) by the MSER rule (White 1997, and "
            "White, Cobb and Spratt 2000: cut where the standard error of what stays is smallest)."
        ),
    )


def _of_means() -> tuple[str, str]:
    return (
        (
            "Rate. The figure is the sum of the pairs' means as their files have them, each over "
            "its own time; nobody kept seconds."
        ),
        (
            "Window. The headline is over the time that all pairs share; no ramp is cut, as there "
            "are no seconds to tell one."
        ),
    )


def _rule(source: Source) -> str:
    """Return the conditions for a pass, or for `measured` if no target was set."""
    spec = source.plan.spec
    objective, goals = spec.objective, list(describe_thresholds(spec.objective))
    if objective.target_bits_per_second:
        goals.insert(
            0,
            "the whole interval of the rate above the target less its tolerance of "
            f"{ratio(objective.tolerance_ratio, 0)}, and that of what the device itself counted",
        )
        goals.insert(1, "no part of the window that lasts below that")
    allowed = ratio(objective.residual_max_ratio, 1)
    held = (
        f"a ledger that shows at most {allowed} of the fleet's bytes"
        if spec.bypasses_device
        else f"where a firewall ledger was read, a residual that is wholly within {allowed}"
    )
    needs = "; ".join(("the coverage", *goals, "no contradiction between the records", held))
    intervals = (
        "from the scatter between the bursts"
        if source.means_only
        else "of a burst from its seconds and how they follow each other, of a run from the "
        "scatter of its bursts too, with the clocks' bounds added"
    )
    word = (
        "Pass"
        if goals or spec.bypasses_device
        else "No target was set, so that there is no pass; that the run was measured"
    )
    return (
        f"Verdict. {word} needs {needs}. Every burst must hold it. Intervals are 95 %, {intervals}."
    )


def _made(source: Source) -> str:
    """Return how the engine generated the traffic, in the engine's own description."""
    traffic = source.plan.traffic
    engine = find(traffic.engine)
    if source.means_only or engine is None:
        return "How the traffic was made is unknown."
    return engine.statement(traffic)


def _opening(source: Source) -> str:
    spec, engine = source.plan.spec, find(source.plan.traffic.engine)
    if source.imported:
        return (
            "These results were imported: they were measured by other means, and what their files "
            f"do not say is unknown here. {_made(source)}"
        )
    start = (
        "connections are opened before it and held by a start gate, or, where the gate cannot be "
        "used, the engine is executed at the instant (see the start method below)."
        if engine is not None and engine.gated
        else "the engine is executed at it, no gate holds its connections, and how far off the "
        "first data was is on record as its start error."
    )
    return (
        f"{_made(source)} {spec.pairs_count} pairs of one client and one server each ran "
        f"{spec.bursts_count} burst(s) of {spec.burst_s} s. All pairs of a burst start at one "
        f"planned instant: {start}"
    )


def device_section(source: Source) -> Section:
    """Return a section with the device data from the launch, and limits from documentation."""
    said = dict(source.plan.spec.device)
    facts = {words: said.pop(name, "not stated") for name, words in DEVICE_FIELDS.items()}
    facts |= said
    sku = source.plan.spec.device.get("sku", "").lower()
    limit, flow = DOCUMENTED.firewall.get(sku), DOCUMENTED.flow.get(sku)
    if limit is not None and flow is not None:
        facts["documented rate"] = f"{rate(limit.bits_per_second)} ({limit.source}, {limit.as_of})"
        facts["documented rate of one TCP connection"] = rate(flow.bits_per_second)
    return Section(
        id="device",
        title="Device under test",
        paragraphs=(
            (
                "As stated at launch (`--set device.sku=...`); Broadside does not read the "
                "device's configuration."
            ),
        ),
        facts=facts,
    )


def deviations_section(source: Source) -> Section:
    """Return a section with deviations from RFC 9411 by topic."""
    spec, bursts = source.plan.spec, source.summary.bursts
    windows = [burst.window.window_s for burst in bursts if burst.window is not None]
    covs = [
        flow.second_cov_ratio
        for burst in bursts
        for flow in burst.flows
        if flow.second_cov_ratio is not None
    ]
    told = frozenset() if source.means_only else measures(source.plan.traffic)
    transactions = "success" in told
    reference = spec.labels.get("reference") or spec.device.get("reference")
    rows = (
        (
            "Traffic load profile",
            "init, ramp-up, sustain, ramp-down, collection",
            "unknown: imported"
            if source.imported
            else "All pairs start at one instant and stop together: the ramp is cut from the data "
            "rather than driven, and there is no ramp-down.",
        ),
        (
            "Sustain phase",
            f"at least {SUSTAIN_S} s recommended",
            "met"
            if windows and min(windows) >= SUSTAIN_S
            else f"NOT met: the shortest window is {min(windows)} s"
            if windows
            else "NOT met: there is no window",
        ),
        (
            "Traffic mix",
            "application traffic mixes and HTTP or HTTPS objects of set sizes",
            f"{_made(source)} "
            + (
                "Answers that failed and times to the last byte are measured; connections per "
                "second, concurrent connections and TLS handshakes are not."
                if transactions
                else "Connections per second, concurrent connections, TLS handshakes, "
                "transactions and times to first and last byte are not measured."
            ),
        ),
        (
            "Inspected throughput",
            "bits of examined and allowed traffic a second, layer stated",
            (
                "Stated at "
                f"{'the IP layer' if spec.objective.layer is Layer.IP else 'payload'}, as "
                "received. That the device examined it is shown only as far as its ledger agrees."
            ),
        ),
        (
            "Constant rate",
            f"deviation under {ratio(FLAT_COV_RATIO, 0)}",
            f"largest CoV over seconds {ratio(max(covs))}: "
            + ("met" if max(covs) < FLAT_COV_RATIO else "NOT met")
            if covs
            else "unknown",
        ),
        (
            "Failed transactions",
            "under 0.001 %",
            "see the engine's measures under Headline figures and Findings"
            if transactions
            else "not measured: the engine tells of no transactions; pairs that failed are under "
            "Completeness.",
        ),
        (
            "Reference test",
            "the test bed without the device exceeds it",
            f"as labelled: {reference}" if reference else "NOT shown by this run",
        ),
        (
            "Device features and rules",
            "recommended features and rule sets stated",
            "as far as stated at launch; see Device under test",
        ),
    )
    return Section(
        id="deviations",
        title="Deviations from RFC 9411",
        paragraphs=(
            (
                "RFC 9411 describes benchmarks of network security devices. This run follows its "
                "ideas of a sustain phase and of inspected throughput, and departs from it where "
                "said. A rate that was reached with loss, or with segments sent again, is no "
                "throughput in the sense of RFC 2544 (zero loss)."
            ),
        ),
        tables=(Table(columns=("topic", "RFC 9411", "this run"), rows=rows, numeric_from=9),),
    )


def recompute_section(source: Source) -> Section:
    """Return a section that explains how to recompute the metrics and check the summary's hash."""
    run_id = source.plan.run_id
    return Section(
        id="recompute",
        title="Recompute",
        paragraphs=(
            (
                "Every figure follows from rows that are stored. The first command computes the "
                "summary again from them and compares it with the stored one byte for byte; the "
                "hash below is of those bytes."
            ),
        ),
        facts={"SHA-256 of the stored summary": source.summary_sha256},
        code=(
            f"broadside verdict {run_id} --recompute",
            f"broadside export {run_id} --format json --output {run_id}.json",
            f"broadside raw {run_id} pair-001 --burst 1",
        ),
    )
