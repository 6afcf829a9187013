"""State of the egress queues (qdiscs) of this host, from the kernel.

A queue that sends whenever its link is free has packets only while the link is busy. The share of
samples with a filled queue is at most the utilization of the link. It shows that a NIC or its limit
is full, even if the rate is not known.
"""

import struct
from collections.abc import Mapping
from socket import if_nameindex
from typing import Final

from broadside.agent.netlink import REQUEST_DUMP, ask, attributes

# linux/rtnetlink.h.
_RTM_NEWQDISC: Final = 36
_RTM_GETQDISC: Final = 38
# ``struct tcmsg``: family, index, handle, parent, info.
_TCMSG: Final = struct.Struct("=BxxxiIII")
# linux/pkt_sched.h.
_TC_H_ROOT: Final = 0xFFFF_FFFF
_TCA_KIND: Final = 1
_TCA_STATS2: Final = 7
# ``struct gnet_stats_queue``: packets, bytes, drops, ...
_TCA_STATS_QUEUE: Final = 3
# Kinds that can delay packets while the link is free, by departure time or by a fixed delay.
# ``noqueue`` has no queue.
_NOT_WORK_CONSERVING: Final = frozenset({"etf", "fq", "netem", "noqueue", "plug", "taprio"})


def filled_queues() -> Mapping[str, bool]:
    """Return for each interface if there are packets in its egress queue.

    Interfaces are skipped if they have no queue, or a queue that can delay packets while the link
    is free.

    Raises:
        OSError: The kernel did not respond.
    """
    kinds: dict[int, set[str]] = {}
    packets: dict[int, int] = {}
    for kind, content in ask(_RTM_GETQDISC, REQUEST_DUMP, _TCMSG.pack(0, 0, 0, 0, 0)):
        if kind != _RTM_NEWQDISC:
            continue
        _, index, _, parent, _ = _TCMSG.unpack_from(content)
        fields = dict(attributes(content[_TCMSG.size :]))
        kinds.setdefault(index, set()).add(fields.get(_TCA_KIND, b"").rstrip(b"\0").decode())
        stats = dict(attributes(fields.get(_TCA_STATS2, b""))).get(_TCA_STATS_QUEUE)
        if parent == _TC_H_ROOT and stats is not None:
            (packets[index],) = struct.unpack_from("=I", stats)
    return {
        name: packets[index] > 0
        for index, name in if_nameindex()
        if index in packets and not kinds[index] & _NOT_WORK_CONSERVING
    }
