from dataclasses import replace
from typing import Any

import pytest

from broadside.agent.server import DEAF_S, OVERDUE_S, SILENT_S, YOUNG_S, ServedTest, is_test
from broadside.agent.sockets import PortView
from broadside.exchange.messages import Flow
from tests.unit.agent.jobs import make_reading

FREE = PortView(listening=True, tcp_count=0, left_count=0, udp_count=0)
DEAF = replace(FREE, listening=False)
ONE_CLIENT = replace(FREE, tcp_count=1)
STREAMS = replace(FREE, tcp_count=9)
UDP = replace(FREE, tcp_count=1, udp_count=8)
LEFT = replace(FREE, left_count=9)

HOUR_S = 3600.0


@pytest.mark.parametrize(
    ("served", "view", "after_s", "message"),
    [
        # Idle for a day.
        ({}, FREE, 86_400, None),
        ({}, DEAF, DEAF_S, None),
        ({}, DEAF, DEAF_S + 1, "does not listen"),
        ({"connected_at_s": 0}, ONE_CLIENT, SILENT_S, None),
        ({"connected_at_s": 0}, ONE_CLIENT, SILENT_S + 1, "sends nothing"),
        ({"connected_at_s": 0}, STREAMS, HOUR_S, None),
        ({"connected_at_s": 0}, UDP, HOUR_S, None),
        ({"connected_at_s": 0}, STREAMS, HOUR_S + OVERDUE_S + 1, "is not over"),
        (
            {"connected_at_s": 0, "started_at_s": 2, "requested_s": 10},
            STREAMS,
            10 + OVERDUE_S,
            None,
        ),
        (
            {"connected_at_s": 0, "started_at_s": 2, "requested_s": 10},
            STREAMS,
            13 + OVERDUE_S,
            "a test of 10 s is not over",
        ),
        ({"connected_at_s": 0, "left_at_s": 5}, LEFT, 5 + SILENT_S, None),
        ({"connected_at_s": 0, "left_at_s": 5}, LEFT, 6 + SILENT_S, "its client left"),
        ({"started_at_s": 2, "requested_s": 10}, DEAF, 13 + OVERDUE_S, "is not over"),
    ],
)
def test_stuck_server_is_detected(
    served: dict[str, Any], view: PortView, after_s: float, message: str | None
) -> None:
    reason = ServedTest(spawned_at_s=0.0, **served).stuck_reason(
        view, after_s, duration_max_s=HOUR_S
    )
    assert (reason is None) == (message is None)
    assert message is None or message in (reason or "")


def test_server_without_client_is_not_a_test() -> None:
    assert is_test(make_reading())
    nothing = {"started_at_s": None, "intervals": {Flow.UP: ()}}
    assert not is_test(make_reading(**nothing))


def test_port_is_free_only_after_it_listened_for_a_while() -> None:
    served = ServedTest(spawned_at_s=100.0)

    def states(view: PortView, now_s: float) -> tuple[bool, bool, float | None, float | None]:
        served.see(view, now_s)
        return served.seen_listening, served.busy, served.connected_at_s, served.left_at_s

    # Another process may be using the port first.
    assert states(FREE, 100.0 + YOUNG_S / 2) == (False, False, None, None)
    assert states(FREE, 100.0 + YOUNG_S) == (True, False, None, None)
    assert states(STREAMS, 101.0) == (True, True, 101.0, None)
    assert states(STREAMS, 102.0) == (True, True, 101.0, None)
    assert states(LEFT, 103.0) == (True, True, 101.0, 103.0)
    assert states(FREE, 104.0) == (True, False, None, None)
