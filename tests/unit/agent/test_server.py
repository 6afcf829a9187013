from typing import Any

import pytest

from agent.server import DEAF_S, OVERDUE_S, SILENT_S, Sitting, is_test
from agent.sockets import PortView
from exchange.messages import Flow
from tests.unit.agent.jobs import make_reading

FREE = PortView(listening=True, tcp_count=0, udp_count=0)
DEAF = PortView(listening=False, tcp_count=0, udp_count=0)
ONE_CLIENT = PortView(listening=True, tcp_count=1, udp_count=0)
STREAMS = PortView(listening=True, tcp_count=9, udp_count=0)
UDP = PortView(listening=True, tcp_count=1, udp_count=8)

HOUR_S = 3600.0


@pytest.mark.parametrize(
    ("sitting", "view", "after_s", "words"),
    [
        ({}, FREE, 86_400, None),  # idle for a day: nothing wrong
        ({}, DEAF, DEAF_S, None),
        ({}, DEAF, DEAF_S + 1, "does not listen"),
        ({"connected_at_s": 0}, ONE_CLIENT, SILENT_S, None),
        ({"connected_at_s": 0}, ONE_CLIENT, SILENT_S + 1, "sends nothing"),
        ({"connected_at_s": 0}, STREAMS, HOUR_S, None),
        ({"connected_at_s": 0}, UDP, HOUR_S, None),
        ({"connected_at_s": 0}, STREAMS, HOUR_S + OVERDUE_S + 1, "is not over"),
        ({"connected_at_s": 0, "started_at_s": 2, "asked_s": 10}, STREAMS, 10 + OVERDUE_S, None),
        (
            {"connected_at_s": 0, "started_at_s": 2, "asked_s": 10},
            STREAMS,
            13 + OVERDUE_S,
            "a test of 10 s is not over",
        ),
        ({"started_at_s": 2, "asked_s": 10}, DEAF, 13 + OVERDUE_S, "is not over"),
    ],
)
def test_a_stuck_server_is_told_from_a_patient_one(
    sitting: dict[str, Any], view: PortView, after_s: float, words: str | None
) -> None:
    reason = Sitting(spawned_at_s=0.0, **sitting).stuck_reason(view, after_s, duration_max_s=HOUR_S)
    assert (reason is None) == (words is None)
    assert words is None or words in (reason or "")


def test_a_test_is_what_a_client_started() -> None:
    assert is_test(make_reading())
    nothing = {"started_at_s": None, "intervals": {Flow.UP: ()}}
    assert not is_test(make_reading(**nothing))
