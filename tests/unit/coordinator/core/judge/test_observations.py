from collections.abc import Sequence

from broadside.coordinator.core.comparison.conditions import conditions_of
from broadside.coordinator.core.comparison.group_comparison import Group, compare
from broadside.coordinator.core.judge.observations import host_difference_findings, host_properties
from broadside.exchange.messages import HostInfo, Presence, Role
from tests.planted import summarise
from tests.synthetic import Plant
from tests.synthetic import fleet as made_fleet
from tests.unit.coordinator.presences import presence

ALIKE = HostInfo(
    nic_driver="hv_netvsc",
    offloads={"generic-receive-offload": True, "large-receive-offload": False},
    sysctls={"net.ipv4.tcp_rmem": "4096 131072 6291456"},
    cpu_flags=("aes",),
)
GRO_OFF = ALIKE.model_copy(
    update={"offloads": {**ALIKE.offloads, "generic-receive-offload": False}}
)


def hosts(*passports: HostInfo | None, role: Role = Role.CLIENT) -> list[Presence]:
    return [presence(role, n, passport=item) for n, item in enumerate(passports, 1)]


def difference_sentences(fleet: Sequence[Presence]) -> str:
    result = host_difference_findings(fleet, [host.agent_id for host in fleet])
    return " ".join(item.sentence for item in result)


def test_names_host_without_gro() -> None:
    assert difference_sentences(hosts(ALIKE, GRO_OFF, ALIKE)) == (
        "Hosts in the same role differ: generic-receive-offload: client-002 has off, 2 have on."
    )


def test_equal_unknown_or_other_role_hosts_have_no_finding() -> None:
    assert not difference_sentences(hosts(ALIKE, ALIKE, None, HostInfo()))
    assert not difference_sentences([*hosts(ALIKE, ALIKE), *hosts(GRO_OFF, role=Role.SERVER)])


def test_ignores_hosts_outside_the_run() -> None:
    fleet = hosts(ALIKE, ALIKE, GRO_OFF)
    assert not list(host_difference_findings(fleet, [host.agent_id for host in fleet[:2]]))


def test_summary_reports_differing_hosts() -> None:
    made = made_fleet(Plant(pairs=3))
    names = [pair.client_agent_id for pair in summarise(made).bursts[0].pairs]
    fleet = [
        presence(Role.CLIENT, n, agent_id=name, passport=GRO_OFF if n == 1 else ALIKE)
        for n, name in enumerate(names)
    ]
    findings = summarise(made, fleet=fleet).findings
    [finding] = [item for item in findings if item.id == "hosts-differ"]
    assert f"{names[1]} has off" in finding.sentence


def test_comparison_reports_host_differences_known_in_both_groups() -> None:
    plan = made_fleet(Plant(pairs=1)).plan

    def group(name: str, passport: HostInfo | None) -> Group:
        return Group(name=name, observations=(), conditions=conditions_of(plan, hosts(passport)))

    differ = compare(group("a", ALIKE), group("b", GRO_OFF)).conditions_differ
    assert differ == ("client.passport.offloads.generic-receive-offload: True and False",)
    assert not compare(group("a", ALIKE), group("b", None)).conditions_differ
    assert not compare(group("a", ALIKE), group("b", HostInfo())).conditions_differ


def test_host_properties_use_short_names_and_omit_unknown() -> None:
    """Offloads should be shown as on or off. Unknown properties should not be shown."""
    (host,) = hosts(ALIKE)
    result = host_properties(host)
    assert result["generic-receive-offload"] == "on"
    assert result["large-receive-offload"] == "off"
    assert result["net.ipv4.tcp_rmem"] == "4096 131072 6291456"
    assert result["nic_driver"] == "hv_netvsc"
    assert not any(name.startswith(("passport.", "offloads.", "sysctls.")) for name in result)
    (bare,) = hosts(HostInfo())
    assert not {"nic_driver", "generic-receive-offload"} & host_properties(bare).keys()
