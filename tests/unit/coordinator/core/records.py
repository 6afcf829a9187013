"""Build records and values for unit tests. Fields that a test does not need have defaults."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broadside.coordinator.core.measure.grid.series import BurstSeries, FlowSeries
from broadside.coordinator.core.measure.records.columns import IntervalColumns
from broadside.coordinator.core.summary import Disruption, DisruptionKind
from broadside.exchange.messages import Flow, HostSecond, Interval, JobReport, Outcome, Side, Track
from tests.seconds_as_columns import track_columns


def job_report(pair_index: int, planned_start_at: datetime, **fields: Any) -> JobReport:
    """Build a client report for the first burst. The default outcome is measured."""
    values = {
        "job_id": f"run-1.00000.{pair_index:05d}",
        "run_id": "run-1",
        "burst_index": 0,
        "pair_index": pair_index,
        "agent_id": f"client-{pair_index}",
        "outcome": Outcome.MEASURED,
        "planned_start_at": planned_start_at,
        "reported_at": planned_start_at,
    }
    return JobReport(**(values | fields))


def seconds(
    side: Side, first_data_at_s: float, amounts: Sequence[int], *, flow: Flow = Flow.UP
) -> IntervalColumns:
    """Build a track with one interval per second."""
    return track_columns(
        Track(
            side=side,
            flow=flow,
            first_data_at_s=first_data_at_s,
            intervals=tuple(
                Interval(start_s=at, end_s=at + 1, transferred_bytes=amount)
                for at, amount in enumerate(amounts)
            ),
        )
    )


def host_second(start_at_s: float, nic_tx_bytes: int) -> HostSecond:
    """Build one second for an idle host that sends."""
    return HostSecond(
        start_at_s=start_at_s,
        end_at_s=start_at_s + 1,
        nic_rx_bytes=0,
        nic_tx_bytes=nic_tx_bytes,
        nic_rx_packets_count=0,
        nic_tx_packets_count=1,
        nic_drops_count=0,
        tcp_retransmits_count=0,
        cpu_busy_ratio=0.1,
        cpu_busiest_core_ratio=0.1,
    )


def disruption(
    kind: DisruptionKind,
    start_at: datetime,
    duration_s: float,
    *pairs: str,
    burst_index: int = 0,
    **fields: Any,
) -> Disruption:
    """Build a disruption for the named pairs. It lists at most ten pairs."""
    return Disruption(
        kind=kind,
        burst_index=burst_index,
        start_at=start_at,
        end_at=start_at + timedelta(seconds=duration_s),
        duration_s=duration_s,
        scope="one" if len(pairs) == 1 else "some",
        pairs_count=len(pairs),
        pairs=pairs[:10],
        **fields,
    )


def burst_series(
    start_s: int,
    planned_start_s: float,
    received_bytes: NDArray[np.float64],
    pairs_bits_per_second: NDArray[np.float64],
    *,
    flows: Sequence[Flow] = (Flow.UP,),
    coverage_ratio: NDArray[np.float64] | None = None,
    retransmits_count: NDArray[np.float64] | None = None,
    events: Mapping[str, NDArray[np.float64]] | None = None,
) -> BurstSeries:
    """Build a burst whose sent bytes were all received. Other values are unknown by default."""
    count = len(received_bytes)
    unknown = np.full(count, np.nan)
    return BurstSeries(
        burst_index=0,
        start_s=start_s,
        planned_start_s=planned_start_s,
        duration_s=count,
        omit_s=0,
        window=None,
        coverage_ratio=np.ones(count) if coverage_ratio is None else coverage_ratio,
        client_cpu_ratio=unknown,
        server_cpu_ratio=unknown,
        events=events or {},
        flows=tuple(
            FlowSeries(
                flow=flow,
                received_bytes=received_bytes,
                sent_bytes=received_bytes,
                proven_bytes=received_bytes,
                pair_p5_bits_per_second=unknown,
                pair_p50_bits_per_second=unknown,
                pair_p95_bits_per_second=unknown,
                retransmits_count=unknown if retransmits_count is None else retransmits_count,
                rtt_mean_s=unknown,
                pairs_bits_per_second=pairs_bits_per_second.astype(np.float32),
            )
            for flow in flows
        ),
    )
