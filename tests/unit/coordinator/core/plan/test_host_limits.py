from typing import Any

import pytest

from broadside.coordinator.core.plan.host_limits import host_limit_warnings
from broadside.coordinator.core.run_spec import RunSpec
from broadside.exchange.engines import traffic_of
from broadside.exchange.messages import HostInfo, Presence, Role
from tests.unit.coordinator.core.plan.test_planner import spec
from tests.unit.coordinator.presences import presence

PORTS = "net.ipv4.ip_local_port_range"
AMPLE = {PORTS: "10000 65535", "net.core.somaxconn": "4096"}


def host(role: Role, number: int = 1, **known: Any) -> Presence:
    """Return an agent. Names with dots are sysctls, and others are fields of host or agent."""
    sysctls = {name: text for name, text in known.items() if "." in name}
    info = {name: value for name, value in known.items() if name in HostInfo.model_fields}
    rest = {name: value for name, value in known.items() if name not in {**sysctls, **info}}
    passport = HostInfo(sysctls={**AMPLE, **sysctls}, **info)
    return presence(role, number, passport=passport, **{"vm_size": None, **rest})


def requested(
    pairs_count: int = 1, device: dict[str, str] | None = None, **options: Any
) -> RunSpec:
    traffic = traffic_of(engine="connections", options=options)
    return spec(
        pairs_count=pairs_count, traffic=traffic, burst_s=30, bursts_count=4, device=device or {}
    )


def warnings(
    run: RunSpec, client: dict[str, Any] | None = None, server: dict[str, Any] | None = None
) -> list[str]:
    """Return the warnings for a run whose pairs all use one server."""
    clients = [host(Role.CLIENT, n + 1, **(client or {})) for n in range(run.pairs_count)]
    return list(
        host_limit_warnings(run, clients, run.pairs_count * [host(Role.SERVER, **(server or {}))])
    )


def test_hosts_with_room_cause_no_warning() -> None:
    assert warnings(requested(attempts_per_second=5000), {"files_max_count": 20_000}) == []
    assert warnings(requested(mode="hold", held_count=20_000), {"files_max_count": 2**20}) == []


def test_other_engines_and_unknown_limits_cause_no_warning() -> None:
    iperf3 = spec(pairs_count=1)
    assert warnings(iperf3, {"files_max_count": 1}) == []
    blind = [presence(Role.CLIENT, 1), presence(Role.SERVER, 1)]
    run = requested(mode="hold", held_count=60_000)
    assert list(host_limit_warnings(run, blind[:1], blind[1:])) == []
    assert list(host_limit_warnings(run, blind[:1], [])) == []


@pytest.mark.parametrize(
    ("options", "client", "server", "said"),
    [
        (
            {"close": "fin", "attempts_per_second": 500},
            {PORTS: "32768 60999"},
            {},
            (
                "attempts_per_second: client-001 needs up to 30,000 local ports and has 28,232 (1 "
                "of 1 agents have too few); use close=rst, a shorter timeout_s"
            ),
        ),
        (
            {"mode": "hold", "held_count": 500},
            {PORTS: "50000 50399"},
            {},
            "held_count: client-001 needs up to 500 local ports and has 400",
        ),
        (
            {"mode": "hold", "held_count": 1000},
            {"files_max_count": 256},
            {"files_max_count": 512},
            (
                "held_count: client-001 needs up to 1,032 file descriptors and has 256 (2 of 2 "
                "agents have too few); hold fewer per pair, use more pairs, or raise LimitNOFILE"
            ),
        ),
        (
            {"mode": "hold", "held_count": 1000},
            {"files_max_count": 20_000},
            {"files_max_count": 1024},
            "server-001 needs up to 1,032 file descriptors and has 1,024 (1 of 2 agents",
        ),
        (
            {"attempts_per_second": 8000},
            {"net.netfilter.nf_conntrack_max": "65536"},
            {},
            "client-001 needs up to 80,000 entries in its conntrack table and has 65,536",
        ),
        (
            {"attempts_per_second": 2000},
            {},
            {"net.core.somaxconn": "128"},
            (
                "server-001 needs up to 200 places in its accept queue and has 128 (1 of "
                "1 agents have too few); use a shorter timeout_s, a lower rate or more pairs, or "
                "raise net.core.somaxconn"
            ),
        ),
        (
            {"attempts_per_second": 4000},
            {},
            {"net.ipv4.tcp_syncookies": "0", "net.ipv4.tcp_max_syn_backlog": "512"},
            "server-001 needs up to 400 places in its SYN queue and has 384",
        ),
        (
            {"attempts_per_second": 2000, "tls": "1.3"},
            {},
            {},
            "2,000 connections/s of a core and has",
        ),
        (
            {"close": "fin", "attempts_per_second": 9000, "source_addresses": "all"},
            {"vm_size": "Standard_D4s_v5", "nic_addresses_count": 20},
            {"vm_size": "Standard_D4s_v5"},
            (
                "567,000 connections of its VM and has 500,000 (learn.microsoft.com/azure/"
                "virtual-network/virtual-machine-network-throughput, 2025-04-15)"
            ),
        ),
    ],
)
def test_names_field_value_limit_and_fix(
    options: dict[str, Any], client: dict[str, Any], server: dict[str, Any], said: str
) -> None:
    (warning,) = warnings(requested(**options), client, server)
    assert warning.startswith("traffic.options.")
    assert said in warning


def test_syn_cookies_need_no_queue() -> None:
    server = {"net.ipv4.tcp_syncookies": "1", "net.ipv4.tcp_max_syn_backlog": "16"}
    assert warnings(requested(attempts_per_second=4000), server=server) == []


def test_all_addresses_have_separate_ports() -> None:
    many = {PORTS: "50000 50399", "nic_addresses_count": 3}
    assert len(warnings(requested(mode="hold", held_count=1000), many)) == 1
    used = requested(mode="hold", held_count=1000, source_addresses="all")
    assert warnings(used, many) == []


def test_pairs_of_one_server_share_its_tables_and_cores() -> None:
    table = {"net.netfilter.nf_conntrack_max": "65536"}
    assert warnings(requested(1, attempts_per_second=3000), server=table) == []
    (warning,) = warnings(requested(3, attempts_per_second=3000), server=table)
    assert "server-001 needs up to 90,000 entries in its conntrack table" in warning
    small = {"cpu_count": 1, "clock": None, "address": "10.9.0.9"}
    (warning,) = warnings(requested(8, attempts_per_second=700, tls="1.3"), server=small)
    assert "server-001 needs up to 5,600 connections/s of all its cores and has" in warning


def test_network_optimized_vm_has_a_documented_rate() -> None:
    client = {"vm_size": "Standard_D4ns_v6"}
    texts = warnings(requested(attempts_per_second=70_000, timeout_s=0.1), client)
    assert any("70,000 new connections/s of its VM and has 62,500" in text for text in texts)


def test_azure_firewall_needs_a_port_for_every_connection_to_a_public_address() -> None:
    azure = {"sku": "Premium", "capacity_units": "4"}
    run = requested(2, azure, mode="hold", held_count=6000)
    assert warnings(run, server={"address": "10.2.0.4"}) == []
    (warning,) = warnings(run, server={"address": "20.1.2.3"})
    assert "2 pairs to public addresses need up to 12,000 SNAT ports" in warning
    assert "has 9,984 for each of its public addresses (2,496 per instance" in warning
