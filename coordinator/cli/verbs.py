"""Who answers a command: a coordinator over the network, or this host's own fabric. For types."""

from coordinator.cli.client import Client
from coordinator.cli.local import Local

Verbs = Client | Local
