"""Bytes used for TCP acknowledgements, measured by the receivers' interface counters."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from broadside.coordinator.core.measure.formulas.headers import (
    ACKNOWLEDGED_LEAST_RATIO,
    Headers,
    acknowledged_max_ratio,
)
from broadside.coordinator.core.measure.records.columns import HostColumns, IntervalColumns
from broadside.coordinator.core.measure.records.evidence import PairEvidence, receiving_side
from broadside.coordinator.core.run_spec import Burst
from broadside.exchange.messages import Direction, Flow, Protocol, Side

# Share of the pairs' payload. An interface that carried this payload must have counted this
# much or more. If a counter has less, it belongs to another interface.
CARRIED_RATIO: Final = 1.0


class Acknowledgements:
    """Bytes that the receivers' interfaces sent per byte that they received.

    This is an upper limit, because it includes all other traffic from these hosts. If there is
    traffic in both directions, counters include payload in both directions too, so no value can be
    measured.

    To use it, call :meth:`add` for each block of pairs and then :meth:`done` to get the result.
    """

    def __init__(self, burst: Burst, protocol: Protocol, direction: Direction) -> None:
        flows = direction.flows
        self._flow: Flow | None = None
        if protocol is Protocol.TCP and len(flows) == 1:
            self._flow = flows[0]
        self._from_s = burst.planned_start_at.timestamp()
        self._before_s = burst.planned_end_at.timestamp()
        self._payload = self._carried = self._acknowledged = 0.0

    def add(self, pairs: Sequence[PairEvidence]) -> None:
        """Add pairs and their seconds."""
        if self._flow is None:
            return
        side = receiving_side(self._flow)
        for pair in pairs:
            server = side is Side.SERVER
            host = pair.server_host if server else pair.client_host
            tracks = pair.server_tracks if server else pair.client_tracks
            self._add(host, [track for track in tracks if track.flow is self._flow])

    def _add(self, host: HostColumns, tracks: Sequence[IntervalColumns]) -> None:
        payload = float(sum(np.nansum(track.transferred_bytes) for track in tracks))
        self._payload += payload
        if not len(host) or payload <= 0:
            return
        inside = (host.end_at_s > self._from_s) & (host.start_at_s < self._before_s)
        # To use a second, we need both counters.
        known = inside & ~np.isnan(host.nic_rx_bytes + host.nic_tx_bytes)
        received = float(host.nic_rx_bytes[known].sum())
        sent = float(host.nic_tx_bytes[known].sum())
        if received < CARRIED_RATIO * payload or sent < ACKNOWLEDGED_LEAST_RATIO * payload:
            return
        self._carried += payload
        self._acknowledged += payload * sent / received

    def done(self, headers: Headers) -> float | None:
        """Return the upper limit for acknowledgement bytes divided by payload.

        If a pair has no counters to compare, an acknowledgement per segment will be assumed.

        Args:
            headers: Header overhead to use.

        Returns:
            The ratio, or ``None`` if no pair has counters to compare.
        """
        if self._carried <= 0:
            return None
        most = acknowledged_max_ratio(headers, wire=True, resent_ratio=1.0)
        unmeasured = self._payload - self._carried
        return (self._acknowledged + most * unmeasured) / self._payload
