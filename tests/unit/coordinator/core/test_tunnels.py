import pytest

from broadside.coordinator.core.measure.formulas.headers import tcp_headers, udp_headers
from broadside.coordinator.core.plan.planner import Infeasible, plan
from broadside.coordinator.core.run_spec import RunSpec
from broadside.exchange.messages import Role, Vxlan
from tests.unit.coordinator.presences import NOW, presence


def spec(**changes: object) -> RunSpec:
    values = {"scenario": "t", "pairs_count": 1, "traffic": {"encapsulation": "vxlan"}}
    return RunSpec.model_validate(values | changes)


def test_parses_vxlan_shorthand() -> None:
    assert spec().traffic.encapsulation == Vxlan(vni_from=4096, port=4789)
    assert spec(traffic={"encapsulation": "none"}).traffic.encapsulation is None


def test_overhead_includes_outer_headers() -> None:
    plain = tcp_headers([1398])
    inside = tcp_headers([1398], vxlan=True)
    # This is a full packet on the underlay.
    assert inside.ip_ratio * 1398 == pytest.approx(1500)
    assert (inside.ip_ratio - plain.ip_ratio) * 1398 == pytest.approx(50)
    assert inside.wire_ratio * 1398 == pytest.approx(1514)
    assert tcp_headers([None], vxlan=True).ip_ratio == pytest.approx(inside.ip_ratio)


def test_every_datagram_fragment_has_outer_headers() -> None:
    small = udp_headers(1400, vxlan=True)
    big = udp_headers(1448, vxlan=True)
    assert small.ip_ratio * 1400 == pytest.approx(1400 + 8 + 20 + 50)
    assert big.ip_ratio * 1448 == pytest.approx(1448 + 8 + 2 * 70)


def test_rejects_agents_that_cannot_create_tunnels() -> None:
    able = [presence(Role.CLIENT, 1, tunnels=True), presence(Role.SERVER, 1, tunnels=True)]
    assert plan(spec(), able, NOW, "run-1").spec.traffic.encapsulation is not None
    for place in range(2):
        fleet = [
            *able[:place],
            able[place].model_copy(update={"tunnels": False}),
            *able[place + 1 :],
        ]
        with pytest.raises(Infeasible, match=r"traffic.encapsulation: 1 of 2 agents cannot create"):
            plan(spec(), fleet, NOW, "run-1")


def test_rejects_certificate_verification_inside_tunnels() -> None:
    able = [presence(Role.CLIENT, 1, tunnels=True), presence(Role.SERVER, 1, tunnels=True)]
    traffic = {"engine": "https", "encapsulation": "vxlan", "options": {"verify": True}}
    with pytest.raises(Infeasible, match=r"traffic.options.verify: certificates contain"):
        plan(spec(traffic=traffic), able, NOW, "run-1")


def test_period_includes_time_for_tunnel_setup() -> None:
    (short,) = spec(bursts_count=2, burst_s=30, period_s=36).problems()
    assert "set at least 39 s" in short
