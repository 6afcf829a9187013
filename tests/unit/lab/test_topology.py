"""Tests for the names, addresses and commands in the lab topology."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broadside.exchange.messages import Role
from broadside.lab import profiles, site, topology
from broadside.lab.errors import LabMisconfigured
from broadside.lab.topology import LabSpec

PREFIXES = st.from_regex(r"\A[a-z][a-z0-9]{0,8}\Z")
SPECS = st.builds(LabSpec, pairs_count=st.integers(1, topology.PAIRS_MAX), prefix=PREFIXES)
SMALL = LabSpec(pairs_count=3, prefix="bs")
ADDRESS = r"(\d+\.\d+\.\d+\.\d+)"


def cables(spec: LabSpec) -> list[re.Match[str]]:
    """Return a match for each line in the link batch."""
    pattern = re.compile(
        r"link add (?P<port>\S+) netns (?P<switch>\S+) mtu \d+ type veth "
        r"peer name (?P<device>\S+) (?:netns (?P<namespace>\S+) )?mtu \d+ address (?P<mac>\S+)"
    )
    results = [pattern.fullmatch(line) for line in topology.link_batch(spec).lines]
    assert all(results)
    return [match for match in results if match]


@settings(max_examples=25, deadline=None)
@given(spec=SPECS)
def test_names_and_addresses_are_unique_and_fit(spec: LabSpec) -> None:
    lab = topology.build_lab(spec, Path("x"))
    namespaces = topology.namespaces(spec)
    assert len(set(namespaces)) == len(namespaces) == 2 * spec.pairs_count + 4
    assert all(topology.belongs(name, spec.prefix) for name in namespaces)
    assert {host.namespace for host in lab.hosts} < set(namespaces)
    ends = [(match["switch"], match["port"]) for match in cables(spec)]
    ends += [(match["namespace"], match["device"]) for match in cables(spec)]
    assert len(set(ends)) == len(ends)
    assert all(len(device) <= 15 for _, device in ends)
    macs = [match["mac"] for match in cables(spec)]
    assert len(set(macs)) == len(macs)
    addresses = [host.address for host in lab.hosts]
    addresses += [host.management_address or "" for host in lab.hosts]
    assert len(set(addresses)) == len(addresses)


@given(first=PREFIXES, second=PREFIXES)
def test_namespace_belongs_to_a_single_prefix(first: str, second: str) -> None:
    names = topology.namespaces(LabSpec(pairs_count=1, prefix=first))
    assert first == second or not any(topology.belongs(name, second) for name in names)


def test_foreign_namespace_has_no_prefix() -> None:
    for name in ("bs", "bsc1", "bsx001", "bsc0011", "other", "bsfw2"):
        assert not topology.belongs(name, "bs")


@settings(max_examples=15, deadline=None)
@given(spec=SPECS)
def test_neighbour_entries_match_interface_macs(
    spec: LabSpec,
) -> None:
    mac_of_device = {(match["namespace"], match["device"]): match["mac"] for match in cables(spec)}
    mac_of_address, claims = {}, []
    for batch in topology.address_batches(spec):
        for line in batch.lines:
            if given_address := re.match(rf"addr add {ADDRESS}/\d+ dev (\S+)", line):
                device = (batch.namespace, given_address[2])
                mac_of_address[given_address[1]] = mac_of_device[device]
            if claim := re.match(rf"neigh replace {ADDRESS} lladdr (\S+) dev", line):
                claims.append((claim[1], claim[2]))
    assert claims
    assert all(mac_of_address[address] == mac for address, mac in claims)


def test_switch_ports_are_bridged() -> None:
    linked = {(match["switch"], match["port"]) for match in cables(SMALL)}
    bridged = {
        (batch.namespace, match[1])
        for batch in topology.address_batches(SMALL)
        for line in batch.lines
        if (match := re.match(r"link set dev (\S+) master br0 up", line))
    }
    assert linked == bridged


def test_only_the_firewall_forwards() -> None:
    forwarding = [
        name
        for name in topology.namespaces(SMALL)
        if topology.sysctls(SMALL, name).get("ipv4/ip_forward") == "1"
    ]
    assert forwarding == ["bsfw"]


@given(
    rate=st.integers(100_000, 100_000_000_000),
    mtu=st.integers(576, 9216),
    queue_s=st.floats(0.001, 10),
)
def test_shaper_rate_applies_to_the_ip_layer(rate: int, mtu: int, queue_s: float) -> None:
    spec = LabSpec(pairs_count=1, mtu=mtu, queue_s=queue_s)
    match = re.fullmatch(
        r"qdisc replace dev s0 root handle 1: tbf rate (\d+)bit burst (\d+) limit (\d+)",
        topology.shaper("s0", rate, spec),
    )
    assert match
    frame_rate, burst_bytes, limit_bytes = map(int, match.groups())
    assert frame_rate * mtu / (mtu + 14) == pytest.approx(rate, abs=1)
    # If this is too small, a full frame will not be sent.
    assert burst_bytes >= 2 * (mtu + 14)
    assert limit_bytes >= burst_bytes
    assert (limit_bytes - burst_bytes) * 8 / frame_rate == pytest.approx(queue_s, abs=1e-3, rel=0.1)


def test_unlimited_queue_still_counts_bytes() -> None:
    line = topology.shaper("s0", None, SMALL)
    assert "root handle 2: bfifo" in line
    assert "rate" not in line


def test_nic_is_shaped_at_both_ends() -> None:
    lines = {
        (batch.namespace, line.split()[3])
        for batch in topology.nic_batches(SMALL, 10_000_000)
        for line in batch.lines
    }
    both = {(f"bs{role}{index:03d}", "eth0") for role in "cs" for index in (1, 2, 3)}
    both |= {(f"bs{role}sw", f"p{index}") for role in "cs" for index in (1, 2, 3)}
    assert lines == both


def test_slow_nic_does_not_affect_other_nics() -> None:
    slow = topology.build_lab(SMALL, Path("x")).servers[1]
    batches = topology.nic_batches(SMALL, 10_000_000, [slow])
    assert [(batch.namespace, len(batch.lines)) for batch in batches] == [
        ("bss002", 1),
        ("bsssw", 1),
    ]
    assert batches[1].lines[0].startswith("qdisc replace dev p2 ")


def test_firewall_does_not_forward_management_traffic() -> None:
    rules = "\n".join(topology.rules_batch(SMALL).lines)
    assert "policy drop" in rules
    assert "mg0" not in rules


def test_lab_describes_its_hosts() -> None:
    lab = topology.build_lab(SMALL, Path("data/lab/bs"))
    assert [host.name for host in lab.hosts] == ["c001", "c002", "c003", "s001", "s002", "s003"]
    client, server = lab.clients[0], lab.servers[2]
    assert (client.role, client.namespace, client.address) == (Role.CLIENT, "bsc001", "10.1.1.1")
    assert (server.role, server.namespace, server.address) == (Role.SERVER, "bss003", "10.2.1.3")
    assert lab.counter_path == Path("data/lab/bs/counter.csv")
    assert lab.limits == ()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pairs_count", 0),
        ("pairs_count", 251),
        ("prefix", "Bad"),
        ("prefix", "toolongname"),
        ("prefix", "x\n"),
        ("mtu", 100),
        ("queue_s", 0),
        ("nic_bits_per_second", 0),
        ("firewall_bits_per_second", -1),
    ],
)
def test_rejects_invalid_field_by_name(field: str, value: object) -> None:
    fields = {"pairs_count": 1, field: value}
    with pytest.raises(LabMisconfigured, match=field):
        LabSpec(**fields)  # type: ignore[arg-type]


def test_concurrent_demos_have_separate_management_networks() -> None:
    assert len({topology.first_slot(prefix) for prefix in site.PREFIXES}) == 10


def test_limits_drop_or_reset() -> None:
    (drop,) = profiles.new_limit(1000, "drop")
    assert "limit rate over 1000/second burst 100 packets counter drop" in drop
    _, _, reset = profiles.held_limit("reset")
    assert reset.endswith("counter reject with tcp reset")
    lines = topology.limits_batch("fw", profiles.held_limit("drop"), held_count=50).lines
    (line_of_set,) = (line for line in lines if "set held" in line)
    assert "size 50;" in line_of_set


def test_profile_can_translate_addresses() -> None:
    lines = topology.limits_batch("fw", ("counter drop",), translates=True).lines
    assert '    oifname "s0" masquerade' in lines
    assert "    counter drop" in lines
    # Another profile removes it.
    plain = topology.limits_batch("fw", ()).lines
    assert plain[-1] == "delete table ip translation"
