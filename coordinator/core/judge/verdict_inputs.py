"""Inputs of a verdict in addition to the plan and the measured bursts."""

from collections.abc import Sequence
from dataclasses import dataclass

from broadside.coordinator.core.judge.guard_report import GuardEvidence
from broadside.coordinator.core.judge.reconciliation.overlapping_bursts import Neighbour
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.measure.telemetry import DeviceTelemetry
from broadside.exchange.messages import Control, Presence, ServiceOutage


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """Records of a run in addition to its bursts and the device counter.

    Attributes:
        telemetry: Telemetry of devices.
        fleet: Agents that were present at launch.
        troubles: Outages of the coordinator.
        neighbours: Bursts of other runs that the same counter includes. Without a counter, those
            that cross the device, with zero bytes.
    """

    telemetry: DeviceTelemetry | None = None
    fleet: Sequence[Presence] = ()
    troubles: Sequence[ServiceOutage] = ()
    neighbours: Sequence[Neighbour] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictInputs:
    """All inputs of a verdict that are stored with the run.

    Attributes:
        control: Control row of the run, or None.
        device_counter: Device counter. None if no source returned data.
        context: Other records of the run.
        guards: Stored data about the guards, without the seconds of the bursts.
    """

    control: Control | None
    device_counter: CounterRecord | None
    context: RunContext
    guards: GuardEvidence
