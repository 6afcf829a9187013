"""What coordinator and agents say to each other: frozen, versioned values, checked at the door.

Three rules hold for everything here:

- An instant is an aware UTC datetime and its name ends in ``_at``.
- A quantity carries its unit in its name (``_s``, ``_bytes``, ``_bits_per_second``, ``_count``,
  ``_ratio``); rates are decimal and, unless the name says otherwise, payload.
- ``None`` means *unknown*. It is never replaced by zero.

Small values that cross a wire are pydantic; :class:`Interval` and :class:`HostSecond`, of which
there are thousands, are plain frozen dataclasses that :mod:`exchange.chunks` packs.
"""

from exchange.messages.clock_messages import ClockReading as ClockReading
from exchange.messages.clock_messages import ClockSource as ClockSource
from exchange.messages.engine_messages import BUCKET_RATIO as BUCKET_RATIO
from exchange.messages.engine_messages import Combine as Combine
from exchange.messages.engine_messages import Distribution as Distribution
from exchange.messages.engine_messages import EngineReport as EngineReport
from exchange.messages.engine_messages import FlowTotals as FlowTotals
from exchange.messages.engine_messages import Measure as Measure
from exchange.messages.job_messages import INNER_NETWORK as INNER_NETWORK
from exchange.messages.job_messages import PROTOCOL_VERSION as PROTOCOL_VERSION
from exchange.messages.job_messages import Claim as Claim
from exchange.messages.job_messages import Control as Control
from exchange.messages.job_messages import Endpoint as Endpoint
from exchange.messages.job_messages import Job as Job
from exchange.messages.job_messages import Phase as Phase
from exchange.messages.job_messages import Tunnel as Tunnel
from exchange.messages.job_messages import pair_name as pair_name
from exchange.messages.job_messages import tunnel_of as tunnel_of
from exchange.messages.message_base import Identifier as Identifier
from exchange.messages.message_base import Message as Message
from exchange.messages.message_base import RunId as RunId
from exchange.messages.message_base import UtcDatetime as UtcDatetime
from exchange.messages.message_base import parse_address as parse_address
from exchange.messages.message_base import peer_address as peer_address
from exchange.messages.message_base import plain_text as plain_text
from exchange.messages.presence_messages import AgentState as AgentState
from exchange.messages.presence_messages import EngineState as EngineState
from exchange.messages.presence_messages import Presence as Presence
from exchange.messages.presence_messages import Role as Role
from exchange.messages.report_messages import JobReport as JobReport
from exchange.messages.report_messages import Outcome as Outcome
from exchange.messages.report_messages import ServerTest as ServerTest
from exchange.messages.report_messages import StartMethod as StartMethod
from exchange.messages.second_messages import HostSecond as HostSecond
from exchange.messages.second_messages import Interval as Interval
from exchange.messages.second_messages import Side as Side
from exchange.messages.second_messages import Track as Track
from exchange.messages.traffic_messages import DEFAULT_ENGINE as DEFAULT_ENGINE
from exchange.messages.traffic_messages import TRAFFIC_WORDS as TRAFFIC_WORDS
from exchange.messages.traffic_messages import VXLAN_BYTES as VXLAN_BYTES
from exchange.messages.traffic_messages import Direction as Direction
from exchange.messages.traffic_messages import EngineName as EngineName
from exchange.messages.traffic_messages import Flow as Flow
from exchange.messages.traffic_messages import Pacing as Pacing
from exchange.messages.traffic_messages import Probe as Probe
from exchange.messages.traffic_messages import Protocol as Protocol
from exchange.messages.traffic_messages import Traffic as Traffic
from exchange.messages.traffic_messages import Vxlan as Vxlan
from exchange.messages.trouble_messages import TROUBLES_MAX_COUNT as TROUBLES_MAX_COUNT
from exchange.messages.trouble_messages import Trouble as Trouble
from exchange.messages.trouble_messages import TroubleKind as TroubleKind
from exchange.messages.trouble_messages import Troubles as Troubles
