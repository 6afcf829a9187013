"""Computation of all values for a burst from agents' rows, without input or output.

``EXPORTS`` lists the names that other folders can import, by module.
"""

EXPORTS = {
    "aggregate": "SUSTAIN_S series_of",
    "burst": "measure_burst",
    "completeness": "PAIR_FLOOR_RATIO combine",
    "consistency_checks": "CAP_CREDIT_S CAP_RATIO LOGIN_APART_S STAMPS_APART_S",
    "disruptions": "HISTORY_LEAST_S",
    "engine_metrics": "find",
    "mixed": "measure_parts part_evidence part_of",
    "outages": "coordinator_findings outage_findings",
    "requested_vs_effective": "Setting settings",
    "resolution": "HIDDEN_RATIO READINGS_A_PART",
    "telemetry": """
        DeviceTelemetry IssueKind KINDS Quantity RATIO_MAX TelemetryIssue TelemetrySeries column
        drop_invalid merge_readings merge_sources
    """,
}
