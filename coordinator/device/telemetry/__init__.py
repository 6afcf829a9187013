"""Telemetry of the devices under test, one module per system (see ``docs/telemetry.md``).

A source has a module with ``open_source`` and one line in :data:`SOURCES`.
"""

from collections.abc import Mapping
from typing import Final

# Module of each source by the ``type`` of its entry. We only import a module when it is needed,
# because you need to install an optional package for some of them.
SOURCES: Final[Mapping[str, str]] = {
    "azure-logs": "azure_logs",
    "azure-monitor": "azure_monitor",
    "csv": "csv_export",
    "lab": "lab",
    "ping": "device_ping",
    "prometheus": "prometheus",
    "rest": "rest",
    "snmp": "snmp",
    "url": "url_check",
}
