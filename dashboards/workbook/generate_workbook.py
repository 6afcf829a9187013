"""Generator of the Azure workbook in this folder, with metrics and logs of firewall and fabric.

Its KQL was not run against Azure. A test parses the file and checks every table and column against
:data:`COLUMNS`, which docs/dashboards.md repeats.
"""

import json
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
NAME: Final = "broadside.workbook.json"

# Queried tables of Azure Monitor Logs and their columns. They were not compared with its reference.
COLUMNS: Final = {
    "AzureMetrics": (
        "TimeGenerated",
        "MetricName",
        "Average",
        "Maximum",
        "Minimum",
        "Total",
        "Resource",
        "ResourceProvider",
    ),
    "AZFWNetworkRule": (
        "TimeGenerated",
        "Action",
        "ActionReason",
        "SourceIp",
        "DestinationIp",
        "DestinationPort",
        "Protocol",
        "Rule",
    ),
    "AZFWIdpsSignature": (
        "TimeGenerated",
        "Action",
        "SignatureId",
        "Severity",
        "Description",
        "SourceIp",
        "DestinationIp",
    ),
}

_FIREWALL: Final = 'AzureMetrics\n| where ResourceProvider == "MICROSOFT.NETWORK"\n'
_QUERIES: Final = (
    (
        "Throughput of the firewall, bit/s, one-minute means",
        "timechart",
        _FIREWALL
        + '| where MetricName == "Throughput"\n'
        + "| summarize BitsPerSecond = max(Average) by bin(TimeGenerated, 1m), Resource",
    ),
    (
        "Bytes that it processed a minute: what Broadside reconciles",
        "timechart",
        _FIREWALL
        + '| where MetricName == "DataProcessed"\n'
        + "| summarize Bytes = sum(Total) by bin(TimeGenerated, 1m), Resource",
    ),
    (
        "Capacity units in use (may lag by half an hour)",
        "timechart",
        _FIREWALL
        + '| where MetricName == "ObservedCapacity"\n'
        + "| summarize Units = max(Maximum) by bin(TimeGenerated, 1m), Resource",
    ),
    (
        "SNAT ports used, and health, percent",
        "timechart",
        _FIREWALL
        + '| where MetricName in ("SNATPortUtilization", "FirewallHealth")\n'
        + "| summarize Percent = avg(Average) by bin(TimeGenerated, 1m), MetricName",
    ),
    (
        "Latency of the platform's own probe, ms: not what traffic meets",
        "timechart",
        _FIREWALL
        + '| where MetricName == "FirewallLatencyPng"\n'
        + "| summarize Milliseconds = avg(Average) by bin(TimeGenerated, 1m), Resource",
    ),
    (
        "Denied flows: pairs that never connect are often here",
        "table",
        (
            'AZFWNetworkRule\n| where Action == "Deny"\n'
            "| summarize Packets = count(), Latest = max(TimeGenerated)"
            " by SourceIp, DestinationIp, DestinationPort, Protocol, Rule, ActionReason\n"
            "| top 50 by Packets desc"
        ),
    ),
    (
        "IDPS signatures that matched the test's own traffic",
        "table",
        (
            "AZFWIdpsSignature\n"
            "| summarize Matches = count(), Latest = max(TimeGenerated)"
            " by SignatureId, Severity, Action, Description\n"
            "| top 50 by Matches desc"
        ),
    ),
    (
        "Service Bus: messages waiting, and dead letters",
        "timechart",
        (
            'AzureMetrics\n| where ResourceProvider == "MICROSOFT.SERVICEBUS"\n'
            "| where MetricName in "
            '("ActiveMessages", "DeadletteredMessages", "ScheduledMessages")\n'
            "| summarize Messages = max(Maximum) by bin(TimeGenerated, 1m), MetricName"
        ),
    ),
    (
        "Service Bus and storage: requests, and those throttled",
        "timechart",
        (
            "AzureMetrics\n"
            '| where MetricName in ("IncomingRequests", "ThrottledRequests", "Transactions")\n'
            "| summarize Requests = sum(Total) by bin(TimeGenerated, 1m), MetricName"
        ),
    ),
)


def workbook() -> dict[str, Any]:
    """Return the workbook in the format of Azure."""
    items: list[dict[str, Any]] = [
        _text(
            "## Broadside\n\nWhat Azure itself counted. Newest points come late and change; a "
            "run's "
            "report compares them with the fleet's own bytes, lag and headers taken off."
        ),
        _parameters(),
    ]
    items += [
        _query(number, title, look, text) for number, (title, look, text) in enumerate(_QUERIES)
    ]
    return {
        "version": "Notebook/1.0",
        "items": items,
        "fallbackResourceIds": [],
        "$schema": "https://github.com/Microsoft/Application-Insights-Workbooks/blob/master/"
        "schema/workbook.json",
    }


def _text(words: str) -> dict[str, Any]:
    return {"type": 1, "content": {"json": words}, "name": "about"}


def _parameters() -> dict[str, Any]:
    return {
        "type": 9,
        "content": {
            "version": "KqlParameterItem/1.0",
            "parameters": [
                {
                    "id": "5a0d2f0e-6c3b-4f2b-9d0a-5a1b1d7f0001",
                    "version": "KqlParameterItem/1.0",
                    "name": "Workspace",
                    "type": 5,
                    "isRequired": True,
                    "query": "where type == 'microsoft.operationalinsights/workspaces' "
                    "| project id",
                    "crossComponentResources": ["value::selected"],
                    "queryType": 1,
                    "resourceType": "microsoft.resourcegraph/resources",
                },
                {
                    "id": "5a0d2f0e-6c3b-4f2b-9d0a-5a1b1d7f0002",
                    "version": "KqlParameterItem/1.0",
                    "name": "Span",
                    "type": 4,
                    "isRequired": True,
                    "value": {"durationMs": 3_600_000},
                    "typeSettings": {
                        "selectableValues": [
                            {"durationMs": ms}
                            for ms in (900_000, 3_600_000, 14_400_000, 86_400_000)
                        ],
                        "allowCustom": True,
                    },
                },
            ],
            "style": "pills",
            "queryType": 0,
            "resourceType": "microsoft.operationalinsights/workspaces",
        },
        "name": "parameters",
    }


def _query(number: int, title: str, look: str, text: str) -> dict[str, Any]:
    return {
        "type": 3,
        "content": {
            "version": "KqlItem/1.0",
            "query": text,
            "size": 0,
            "title": title,
            "timeContextFromParameter": "Span",
            "queryType": 0,
            "resourceType": "microsoft.operationalinsights/workspaces",
            "crossComponentResources": ["{Workspace}"],
            "visualization": look,
        },
        "customWidth": "100" if look == "table" else "50",
        "name": f"query-{number}",
    }


def written() -> dict[str, str]:
    """Return the file by its name."""
    return {NAME: json.dumps(workbook(), indent=2) + "\n"}


if __name__ == "__main__":
    for name, text in written().items():
        (HERE / name).write_text(text, encoding="utf-8")
