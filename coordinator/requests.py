"""What a caller of the API sends."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from coordinator import scenarios
from coordinator.core.runs import RunSpec
from exchange.messages import Message


class LaunchRequest(Message):
    """Which scenario to run, or a whole specification; and what to change in it."""

    scenario: str | None = Field(default=None, examples=["smoke"])
    spec: Mapping[str, Any] | None = Field(
        default=None, description="a whole run specification in place of a scenario's name"
    )
    overrides: Mapping[str, Any] = Field(
        default={},
        description="fields of the run specification by dotted name",
        examples=[{"pairs_count": 8, "traffic.streams_count": 8}],
    )
    by: str = Field(default="api", max_length=100, description="who launches; kept with the run")

    def resolve(self) -> RunSpec:
        """The specification asked for. Raises :class:`~coordinator.scenarios.ScenarioError`."""
        if (self.scenario is None) == (self.spec is None):
            raise scenarios.BadScenario("scenario, spec: give one of the two")
        if self.spec is not None:
            return scenarios.build(self.spec, self.overrides)
        return scenarios.load(self.scenario or "", self.overrides)


class CancelRequest(Message):
    """Who stops a run, and why."""

    by: str = Field(default="api", max_length=100)
    reason: str = Field(default="asked to", max_length=500)
