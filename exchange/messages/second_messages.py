"""Seconds as an engine and a host told them: plain values, of which there are thousands."""

from dataclasses import dataclass
from enum import StrEnum

from exchange.messages.traffic_messages import Flow


class Side(StrEnum):
    """Which end of a pair speaks."""

    CLIENT = "client"
    SERVER = "server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """What the engine said of one of its own intervals, summed over the streams of one flow."""

    start_s: float  # s of engine time since the flow's first byte
    end_s: float  # s
    transferred_bytes: int  # payload sent (at the sender) or received (at the receiver)
    omitted: bool = False  # inside the engine's own warm-up
    retransmits_count: int | None = None  # TCP sender only
    rtt_s: float | None = None  # s, mean over streams; TCP sender only
    cwnd_bytes: int | None = None  # sum over streams; TCP sender only
    packets_count: int | None = None  # UDP only
    lost_count: int | None = None  # UDP receiver only
    jitter_s: float | None = None  # s, mean over streams; UDP receiver only


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSecond:
    """What one host's counters did between two readings. Counts are differences, not totals."""

    start_at_s: float  # epoch s of the earlier reading, by the host's clock
    end_at_s: float  # epoch s of the later one
    nic_rx_bytes: int  # link layer, as the kernel counts
    nic_tx_bytes: int
    nic_rx_packets_count: int
    nic_tx_packets_count: int
    nic_drops_count: int  # receive and transmit
    tcp_retransmits_count: int
    cpu_busy_ratio: float  # 0..1 over all cores
    cpu_busiest_core_ratio: float  # 0..1 of the busiest core


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One flow of one pair as one end saw it: its intervals, and where they stand in time."""

    side: Side
    flow: Flow
    first_data_at_s: float  # epoch s of engine time zero, by that end's clock
    intervals: tuple[Interval, ...]
