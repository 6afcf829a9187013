"""Test the settings of canaries in a scenario."""

from typing import Any

import pytest

from broadside.coordinator import scenarios
from broadside.coordinator.core.plan.planner import Infeasible, answers_canary, plan
from broadside.exchange.messages import Canary, Role, Traffic, canary_catalogue
from tests.unit.coordinator.presences import NOW, fleet

AGREED = {"traffic.canary.consent": "N. Owner"}
DATAGRAM = {"over_udp": True}
UDP = {"name": "a", "rule": "r", "forbidden": {**DATAGRAM, "body": "a"}}


def load(**fields: Any) -> Any:
    return scenarios.load("smoke", {**AGREED, **fields})


def test_canaries_are_off_by_default() -> None:
    assert Traffic().canary is None
    assert "canary" not in Traffic().to_json()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"traffic.canary": {"port": 5198}}, r"traffic\.canary\.consent"),
        ({"traffic.canary.consent": " "}, r"traffic\.canary\.consent"),
        (
            {**AGREED, "traffic.canary.signatures": ["virus"]},
            "port, port-udp, url, host, azure-idps",
        ),
        ({**AGREED, "traffic.canary.port": 5199}, "use two ports"),
        (
            {**AGREED, "traffic.canary.signatures": [{"name": "a", "rule": "r", "forbidden": {}}]},
            "are the same request",
        ),
        (
            {
                **AGREED,
                "traffic.canary.signatures": [
                    {"name": "a", "rule": "r", "forbidden": {"user_agent": "a\r\nHost: b"}}
                ],
            },
            "user_agent",
        ),
        (
            {**AGREED, "traffic.canary.signatures": [{**UDP, "allowed": {"body": "b"}}]},
            "signature a: set over_udp for both requests or for none",
        ),
        (
            {
                **AGREED,
                "traffic.canary.signatures": [{**UDP, "allowed": {**DATAGRAM, "path": "/x"}}],
            },
            "a datagram has no path, user_agent or host",
        ),
        ({"objective.leak_max_ratio": 0.1}, r"not measured without canaries; set traffic\.canary"),
    ],
)
def test_a_wrong_canary_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(scenarios.BadScenario, match=text):
        scenarios.load("smoke", fields)


def test_own_signatures_are_stored_in_full() -> None:
    signature = {
        "name": "upload",
        "rule": "dlp-17",
        "forbidden": {"body": "TEST-CARD"},
        "allowed": {"body": "TEST-TEXT"},
    }
    spec = load(**{"traffic.canary.signatures": ["azure-idps", signature]})
    idps, upload = spec.traffic.canary.signatures
    assert (idps.forbidden.user_agent, idps.rule[:28]) == (
        "HaxerMen",
        "Azure Firewall IDPS 2032081,",
    )
    assert upload.forbidden.body == "TEST-CARD"
    assert type(spec).model_validate_json(spec.to_json()) == spec


def test_all_signatures_of_the_catalogue_are_valid() -> None:
    for name in canary_catalogue():
        (signature,) = Canary.model_validate({"consent": "N", "signatures": [name]}).signatures
        assert signature.forbidden != signature.allowed
        assert len(signature.forbidden.user_agent) == len(signature.allowed.user_agent)
        assert len(signature.forbidden.body) == len(signature.allowed.body)


def test_a_longer_canary_needs_a_longer_period() -> None:
    assert load(**{"traffic.canary.after_s": 20}).least_period_s > load().least_period_s


def test_servers_need_to_answer_canaries() -> None:
    spec = load(pairs_count=2)
    agents = fleet(2)
    with pytest.raises(Infeasible, match="BROADSIDE_AGENT_CANARY_PORTS=5198,5199"):
        plan(spec, agents, NOW, "run-1")
    able = [
        agent.model_copy(update={"canary_ports": (5198, 5199)})
        if agent.role is Role.SERVER
        else agent
        for agent in agents
    ]
    planned = plan(spec, able, NOW, "run-1")
    assert planned.spec.traffic.canary == spec.traffic.canary
    assert answers_canary(able[-1], Traffic())
