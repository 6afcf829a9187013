"""Test cases of the emulator: the life cycle of each example, and faults during it."""

import json
import random
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from broadside.coordinator.azure_range.walk import walk
from tests.azure_emulator import platform, range_mutants
from tests.azure_emulator.applied import (
    FIXTURES,
    applied,
    faults,
    granted,
    read_fixture,
    resources_of,
    store_fixture,
)
from tests.azure_emulator.stage import Done, Stage
from tests.deploy_check.tools import AZURE

CONNECTED_WITHIN_S: Final = 20.0


class Fault(Exception):
    """Unexpected result of a range, with the last output of the command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One range: variables of `up`, and the resources before it.

    Attributes:
        arguments: Arguments of up and down.
        inspect: Check while the range exists.
    """

    name: str
    arguments: tuple[str, ...] = ()
    prepare: Callable[[Stage], None] | None = None
    inspect: Callable[[Stage], None] | None = None
    instances: int = 5


@dataclass(kw_only=True)
class Report:
    """Durations and counts of a case."""

    name: str
    steps_s: dict[str, float] = field(default_factory=dict)
    resources_count: int = 0
    bodies_count: int = 0
    published_count: int = 0
    unpublished: set[str] = field(default_factory=set)

    def line(self) -> str:
        steps = ", ".join(f"{name} {took_s:.0f} s" for name, took_s in self.steps_s.items())
        return (
            f"{self.name}: {self.resources_count} resources; {steps}; {self.published_count} of "
            f"{self.bodies_count} bodies valid by published types"
        )


def examples() -> Iterator[Case]:
    """Yield a case for each example file of the range."""
    for path in sorted((AZURE / "examples").glob("*.tfvars")):
        yield Case(
            name=path.stem,
            arguments=("--vars", f"examples/{path.name}"),
            prepare=PREPARED.get(path.stem),
            inspect=INSPECTED.get(path.stem),
        )


def variants() -> Iterator[Case]:
    """Yield ranges on existing resources, without public access, and with other names."""
    existing = ("--vars", "examples/existing-firewall.tfvars")
    small = ("--vars", "examples/soak.tfvars")
    yield Case(
        name="may-change",
        arguments=(*existing, "--set", 'may_change=["peerings","rules","metrics"]'),
        prepare=platform.plant_hub,
        inspect=is_done,
    )
    virtual = (*existing, "--set", "existing_firewall_virtual_hub=true")
    yield Case(
        name="virtual-hub",
        arguments=virtual,
        prepare=platform.plant_locked_virtual_hub,
        inspect=partial(is_proposed, wanted=("peerings", "rules", "metrics")),
    )
    yield Case(
        name="virtual-hub-may-change",
        arguments=(*virtual, "--set", 'may_change=["peerings","rules","metrics"]'),
        prepare=platform.plant_virtual_hub,
        inspect=is_done,
    )
    yield Case(
        name="landing-zone",
        arguments=(
            *existing,
            "--set", "existing_resource_group_name=rg-load",
            "--set", f"existing_subnet_ids={json.dumps(platform.SUBNETS)}",
            "--set", "register_resource_providers=false", "--set", "diagnostics_enabled=false",
        ),
        prepare=platform.plant_landing_zone,
        inspect=partial(is_proposed, wanted=("routes", "rules", "metrics")),
    )  # fmt: skip
    yield Case(
        name="private",
        arguments=(*small, "--set", "private_endpoints=true", "--set", "name_prefix=contoso"),
        inspect=is_private,
    )
    yield Case(
        name="no-zones",
        arguments=(*small, "--set", "location=westus", "--set", "auto_shutdown_time=null"),
    )
    yield Case(
        name="no-budget",
        # A region in which a zone is closed for firewalls, in an offer without budgets.
        arguments=(
            *small, "--set", "location=northeurope", "--set", "budget_amount=null",
            "--set", "auto_shutdown_time=2000", "--set", "firewall_flow_logs=true",
        ),
        prepare=platform.plant_offer_without_budgets,
    )  # fmt: skip


def accept_terms(stage: Stage) -> None:
    """Accept the image terms, once per subscription, with the command of the runbook."""
    plan = ("--publisher", "cisco", "--offer", "cisco-c8000v-byol", "--plan", "17_15_01a-byol")
    must(stage.az("vm", "image", "terms", "accept", *plan, "--output", "none"), "accept terms")


def proposal(stage: Stage) -> dict[str, list[str]]:
    document: dict[str, list[str]] = json.loads(
        must(stage.terraform("output", "-json", "proposal"), "proposal").output
    )
    return document


def is_proposed(stage: Stage, *, wanted: tuple[str, ...]) -> None:
    """Check that the proposal is complete and that az can run the proposed peering commands."""
    reported = proposal(stage)
    if {name for name, commands in reported.items() if commands} != set(wanted):
        raise Fault(f"proposal: must be of {wanted}: {reported}")
    for command in reported["peerings"]:
        must(stage.az(*shlex.split(command)[1:], "--output", "none"), command)
    made = connected(stage)
    if set(made.values()) - {"Connected"} or len(made) != len(reported["peerings"]):
        raise Fault(f"peerings of the hub: {made}")
    # The owner deletes them again, even with locks.
    for key in made:
        del stage.subscription.store[key]


def peerings_of_hub(stage: Stage) -> dict[str, str]:
    """Return the states of the hub's peerings, or of a virtual hub's connections, by id."""
    states = {"Succeeded": "Connected"}
    places = (f"{platform.VNET}/virtualNetworkPeerings/".lower(),
              f"{platform.VHUB}/hubVirtualNetworkConnections/".lower())  # fmt: skip
    return {
        key: item["properties"].get("peeringState")
        or states.get(item["properties"]["provisioningState"], "not ready")
        for key, item in stage.subscription.store.items()
        if key.startswith(places)
    }


def connected(stage: Stage) -> dict[str, str]:
    """Return the states of the peerings after the operations, for which az rest does not wait."""
    end_s = time.monotonic() + CONNECTED_WITHIN_S
    while "not ready" in (made := peerings_of_hub(stage)).values() and time.monotonic() < end_s:
        time.sleep(0.2)
        stage.subscription.snapshot()
    return made


def is_done(stage: Stage) -> None:
    """Check that with may_change the proposal is empty and the hub is peered."""
    if any(proposal(stage).values()):
        raise Fault(f"proposal: {proposal(stage)}")
    made = peerings_of_hub(stage)
    if list(made.values()) != ["Connected"] * 2:
        raise Fault(f"peerings of the hub: {made}")


def is_private(stage: Stage) -> None:
    """Check that public access is disabled after the upload of the package."""
    for item in stage.subscription.store.values():
        answer = item.get("properties", {})
        if item["type"].lower().endswith(("/storageaccounts", "servicebus/namespaces")) and (
            answer.get("publicNetworkAccess") != "Disabled"
        ):
            raise Fault(f"{item['id']}: {answer.get('publicNetworkAccess')}")


def must(done: Done, step: str, code: int = 0) -> Done:
    """Return the command if its exit code is right, else raise :class:`Fault`."""
    if done.returncode != code:
        errors = re.findall(r"^\W*Error: .*(?:\n.*){0,5}", done.output, re.MULTILINE)
        text = "\n".join(errors[:6] or done.output.splitlines()[-40:])
        raise Fault(f"{step}: ended with {done.returncode}, not {code}\n{text}")
    return done


def live(stage: Stage, case: Case, *, store: bool = False) -> Report:
    """Run up, plan, scale, plan and down, and raise :class:`Fault` if anything remains.

    Args:
        stage: Stage of the case.
        case: The range.
        store: Write the applied state as a fixture of the unit tests.
    """
    report = Report(name=case.name)

    def step(name: str, done: Done) -> None:
        must(done, name)
        report.steps_s[name] = report.steps_s.get(name, 0.0) + done.took_s

    if case.prepare:
        case.prepare(stage)
    before = stage.subscription.snapshot()
    up = stage.broadside("up", *case.arguments, "--yes")
    step("up", up)
    all_ready(stage, up)
    report.resources_count = len(stage.subscription.snapshot()) - len(before)
    if store:
        store_fixture(stage, before, FIXTURES / f"{case.name}.json.xz")
    walked(stage, case, before)
    step("plan", plan_again(stage, case))
    step("scale", stage.broadside("scale", str(case.instances)))
    _is_scaled(stage, case.instances)
    step("plan", plan_again(stage, case))
    if case.inspect:
        case.inspect(stage)
    step("down", stage.broadside("down", *case.arguments, "--yes", "--timeout-s", "20"))
    nothing_left(stage, before)
    bodies_must_be_sound(stage, report)
    return report


def walked(stage: Stage, case: Case, before: Mapping[str, str]) -> None:
    """Walk the range, compare it with the stored one, and run ``up --explain``."""
    resources = applied(stage, before)
    if broken := list(faults(resources)):
        raise Fault("\n".join(broken))
    stored = granted(resources_of(read_fixture("other-appliance")))
    if (roles := granted(resources)) != stored:
        raise Fault(f"roles differ from the stored range: {roles} and {stored}")
    if case.name in range_mutants.STATES:
        there = {(row.role, row.need) for row in walk(resources_of(read_fixture(case.name)))}
        if there != {(row.role, row.need) for row in walk(resources)}:
            raise Fault(f"{case.name}: the stored range is out of date; use --store")
    explained = must(stage.broadside("up", "--explain"), "up --explain")
    if not explained.output.endswith("0 BROKEN\n"):
        raise Fault(f"up --explain does not agree\n{explained.output}")


def all_ready(stage: Stage, up: Done) -> None:
    """Raise :class:`Fault` if `up` does not report all VMs as ready."""
    agents_count = sum(
        item["sku"]["capacity"]
        for item in stage.subscription.store.values()
        if item["type"].lower().endswith("/virtualmachinescalesets")
    )
    wanted = f"{agents_count} of {agents_count} agents and the coordinator ready\n"
    if not agents_count or wanted not in up.output:
        raise Fault(f"up does not report {wanted!r}\n{up.output[-2000:]}")


def plan_again(stage: Stage, case: Case) -> Done:
    """Run Terraform's plan. Exit code 0 means *no changes*."""
    parts = [
        f"-var-file={stage.directory / part}" if name == "--vars" else f"-var={part}"
        for name, part in zip(case.arguments[::2], case.arguments[1::2], strict=True)
        if not part.endswith("=null")
    ]
    # `up` passes null values in this file.
    if any(part.endswith("=null") for part in case.arguments):
        parts.append(f"-var-file={stage.directory / '.terraform' / 'null.tfvars.json'}")
    return stage.terraform("plan", "-input=false", "-no-color", "-detailed-exitcode", *parts)


def nothing_left(stage: Stage, before: Mapping[str, str]) -> None:
    """Check that the resources are the same as before."""
    after = stage.subscription.snapshot()
    changed = [item for item in before.keys() | after.keys() if before.get(item) != after.get(item)]
    if changed:
        raise Fault(f"left, gone or changed after down: {sorted(changed)}")


def bodies_must_be_sound(stage: Stage, report: Report) -> None:
    sent = stage.subscription.sent
    report.bodies_count = len(sent)
    report.published_count = sum(item.is_published for item in sent)
    report.unpublished = {f"{item.kind}@{item.version}" for item in sent if not item.is_published}
    faults = [*stage.subscription.body_faults()]
    faults += [
        note for note in stage.subscription.notes if note.startswith(("stand-in", "unknown"))
    ]
    if faults:
        raise Fault("\n".join(faults))


def _is_scaled(stage: Stage, instances: int) -> None:
    by_name = {
        key.rsplit("/", 1)[1]: item["sku"]["capacity"]
        for key, item in stage.subscription.store.items()
        if item["type"].lower().endswith("/virtualmachinescalesets")
    }
    if set(by_name.values()) != {instances} or len(by_name) != 2:
        raise Fault(f"scale {instances}: {by_name}")


def parked(stage: Stage, case: Case) -> Report:
    """Check that park removes firewall and Bastion, keeps the rest, and unpark restores them."""
    report = Report(name=f"{case.name}, parked")
    before = stage.subscription.snapshot()
    must(stage.broadside("up", *case.arguments, "--yes"), "up")
    standing = stage.subscription.snapshot()
    report.resources_count = len(standing) - len(before)
    report.steps_s["park"] = must(stage.broadside("park", "--yes"), "park").took_s
    for item in stage.subscription.store.values():
        kind = item["type"].lower()
        if kind.endswith("/bastionhosts") or (
            kind.endswith("/azurefirewalls") and item["properties"].get("ipConfigurations")
        ):
            raise Fault(f"parked, and still paid for: {item['id']}")
    _is_scaled(stage, 0)
    report.steps_s["unpark"] = must(stage.broadside("unpark", "--yes"), "unpark").took_s
    must(plan_again(stage, case), "plan after unpark")
    if differs := standing.keys() ^ stage.subscription.snapshot().keys():
        raise Fault(f"unpark does not bring all of it back: {sorted(differs)}")
    must(stage.broadside("down", "--yes", "--timeout-s", "20"), "down")
    nothing_left(stage, before)
    bodies_must_be_sound(stage, report)
    return report


# In the order of an apply: network, package, firewall, agents, access.
UPLOAD: Final = "upload"
FAILING_POINTS: Final = (
    "natgateways", UPLOAD, "azurefirewalls", "virtualmachinescalesets", "bastionhosts",
)  # fmt: skip


def killed(stage: Stage, case: Case, kills_count: int, seed: int) -> Report:
    """Kill each command at random moments and let the next command complete the work."""
    report, moments = Report(name=f"{case.name}, killed"), random.Random(seed)
    if case.prepare:
        case.prepare(stage)
    before = stage.subscription.snapshot()
    usual_s = {"up": 110.0, "scale": 4.0, "down": 100.0}
    parts = {
        "up": (*case.arguments, "--yes"),
        "scale": (str(case.instances),),
        "down": (*case.arguments, "--yes", "--timeout-s", "20"),
    }
    for round_ in range(kills_count):
        for verb in ("up", "scale", "down"):
            after_s = moments.uniform(0.05, 0.95) * usual_s[verb]
            first = stage.broadside(verb, *parts[verb], kill_after_s=after_s)
            name = f"{verb} {round_ + 1} killed at {after_s:.0f} s"
            second = must(stage.broadside(verb, *parts[verb]), name)
            if first.returncode == 0:
                name = name.replace("killed at", "was through before")
            usual_s[verb] = max(usual_s[verb] / 3, min(usual_s[verb], second.took_s + after_s))
            report.steps_s[name] = second.took_s
            if verb == "up":
                must(plan_again(stage, case), "plan")
            if verb == "scale":
                _is_scaled(stage, case.instances)
        nothing_left(stage, before)
    bodies_must_be_sound(stage, report)
    return report


def failed_up(stage: Stage, case: Case) -> Report:
    """Fail `up` at five points. The next `up` completes, and `down` removes all resources."""
    report = Report(name=f"{case.name}, failing")
    before = stage.subscription.snapshot()
    for kind in FAILING_POINTS:
        stage.data.uploads_refused = kind == UPLOAD
        stage.subscription.failing[kind] = 1
        must(stage.broadside("up", *case.arguments, "--yes"), f"up, {kind} fails", code=4)
        stage.data.uploads_refused = False
        done = must(stage.broadside("up", *case.arguments, "--yes"), "the next up")
        report.steps_s[f"up after a failed {kind}"] = done.took_s
        report.resources_count = len(stage.subscription.snapshot()) - len(before)
        must(plan_again(stage, case), "plan")
        must(stage.broadside("down", *case.arguments, "--yes", "--timeout-s", "20"), "down")
        nothing_left(stage, before)
    stage.subscription.failing["natgateways"] = 3
    must(stage.broadside("up", *case.arguments, "--yes"), "up, all operations fail", code=4)
    done = must(
        stage.broadside("down", *case.arguments, "--yes", "--timeout-s", "20"), "down of it"
    )
    report.steps_s["down of a failed up"] = done.took_s
    nothing_left(stage, before)
    bodies_must_be_sound(stage, report)
    return report


def healed(stage: Stage, case: Case) -> Report:
    """Reject the package upload. The next `up` uploads it and names the failing VMs."""
    report = Report(name=f"{case.name}, healed")
    before = stage.subscription.snapshot()
    stage.data.uploads_refused = True
    must(stage.broadside("up", *case.arguments, "--yes"), "up, the upload refused", code=4)
    kinds = {item["type"].lower().rsplit("/", 1)[1] for item in stage.subscription.store.values()}
    if not {"virtualmachinescalesets", "virtualmachines"} <= kinds:
        raise Fault(f"the rejected upload left no VM, so nothing can be repaired: {kinds}")
    stage.data.uploads_refused = False
    troubles = stage.data.troubles
    troubles.failing["client000001"] = "install.sh ended with 100: no space left on device"
    troubles.silent.add("client000001")
    troubles.dead.add("server000000")
    short = (*case.arguments, "--yes", "--timeout-s", "60")
    done = must(stage.broadside("up", *short), "up with two VMs in trouble", code=4)
    agents_count = done.output.count("not ready: ")
    for wanted in (
        "not ready: client000001: install at ",
        "no space left on device",
        "not ready: server000000: it was ready at ",
    ):
        if wanted not in done.output or agents_count != 2:
            raise Fault(f"up does not report {wanted!r} of 2 VMs\n{done.output[-2000:]}")
    troubles.failing.clear()
    troubles.silent.clear()
    troubles.dead.clear()
    done = must(stage.broadside("up", *short), "up, healed")
    report.steps_s["up, healed"] = done.took_s
    all_ready(stage, done)
    report.resources_count = len(stage.subscription.snapshot()) - len(before)
    must(stage.broadside("down", *case.arguments, "--yes", "--timeout-s", "20"), "down")
    nothing_left(stage, before)
    bodies_must_be_sound(stage, report)
    return report


PREPARED: Final = {
    "other-appliance": accept_terms,
    "existing-firewall": platform.plant_locked_hub,
}
INSPECTED: Final = {
    "existing-firewall": partial(is_proposed, wanted=("peerings", "rules", "metrics")),
}
