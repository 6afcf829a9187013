"""A fleet and a simulated clock to use in tests."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from broadside.exchange.messages import AgentState, ClockReading, ClockSource, Presence, Role

NOW = datetime(2026, 11, 20, 12, 0, 0, 250_000, tzinfo=UTC)


@dataclass
class Clock:
    """Clock to be set by the test."""

    at: datetime = NOW

    def __call__(self) -> datetime:
        return self.at

    def forward(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


def presence(role: Role, index: int, **changes: object) -> Presence:
    """Return a healthy agent with a new heartbeat."""
    subnet = 1 if role is Role.CLIENT else 2
    values: dict[str, object] = {
        "agent_id": f"{role.value}-{index:03d}",
        "role": role,
        "state": AgentState.IDLE,
        "beat_at": NOW,
        "started_at": NOW,
        "address": f"10.{subnet}.{1 + index // 256}.{index % 256}",
        "ports": (5201,) if role is Role.SERVER else (),
        "broadside_version": "0.1.0",
        "engine_version": "3.18",
        "gate": True,
        "clock": ClockReading(
            source=ClockSource.CHRONY, read_at=NOW, synchronised=True, bound_s=0.0001
        ),
    }
    return Presence.model_validate(values | changes)


def fleet(pairs_count: int, **changes: object) -> list[Presence]:
    """Return a client and a server with a single port for each pair."""
    return [
        presence(role, index, **changes)
        for role in (Role.CLIENT, Role.SERVER)
        for index in range(1, pairs_count + 1)
    ]
