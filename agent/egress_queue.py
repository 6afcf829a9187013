"""Whether packets wait in this host's own egress queues (qdiscs), read from the kernel.

A queue that sends whenever its link is free holds packets only while the link is busy. So the
share of looks that find it filled is at most the link's use, and shows a full NIC, or a full limit
on it, whether or not anybody knows its rate.
"""

import struct
from collections.abc import Mapping
from socket import if_nameindex
from typing import Final

from broadside.agent.netlink import REQUEST_DUMP, ask, attributes

_RTM_NEWQDISC: Final = 36  # linux/rtnetlink.h
_RTM_GETQDISC: Final = 38
_TCMSG: Final = struct.Struct("=BxxxiIII")  # struct tcmsg: family, index, handle, parent, info
_TC_H_ROOT: Final = 0xFFFF_FFFF  # linux/pkt_sched.h
_TCA_KIND: Final = 1
_TCA_STATS2: Final = 7
_TCA_STATS_QUEUE: Final = 3  # struct gnet_stats_queue: packets, bytes, drops, ...
# Kinds that hold packets while the link is free, by a time of departure or a delay; and no queue.
_NOT_WORK_CONSERVING: Final = frozenset({"etf", "fq", "netem", "noqueue", "plug", "taprio"})


def filled_queues() -> Mapping[str, bool]:
    """Return by interface whether its egress queue holds packets just now.

    Interfaces without a queue, or with one that holds packets while the link is free, are left
    out.

    Raises:
        OSError: The kernel did not answer.
    """
    kinds: dict[int, set[str]] = {}
    packets: dict[int, int] = {}
    for kind, content in ask(_RTM_GETQDISC, REQUEST_DUMP, _TCMSG.pack(0, 0, 0, 0, 0)):
        if kind != _RTM_NEWQDISC:
            continue
        _, index, _, parent, _ = _TCMSG.unpack_from(content)
        told = dict(attributes(content[_TCMSG.size :]))
        kinds.setdefault(index, set()).add(told.get(_TCA_KIND, b"").rstrip(b"\0").decode())
        stats = dict(attributes(told.get(_TCA_STATS2, b""))).get(_TCA_STATS_QUEUE)
        if parent == _TC_H_ROOT and stats is not None:
            (packets[index],) = struct.unpack_from("=I", stats)
    return {
        name: packets[index] > 0
        for index, name in if_nameindex()
        if index in packets and not kinds[index] & _NOT_WORK_CONSERVING
    }
