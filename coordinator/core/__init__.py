"""Core logic for planning, measuring and judging runs, without clock or I/O.

``EXPORTS`` lists the names that other folders can import, by module.
"""

EXPORTS = {
    "arrays": "Bools Floats Singles",
    "documented_limits": "CountLimit DOCUMENTED",
    "formatting": """
        DIGITS MetricUnit RATES SCALES UNKNOWN count dollars instant lab number quantity
        quantity_text rate ratio signed signed_ratio size time unit_of unit_price
    """,
    "guards": """
        ARMED_BEFORE_S ARMED_POLL_S ARMED_ROUND_S Breach DRY_RUN Guard GuardLog GuardRecord
        GuardReport GuardSecond GuardState GuardStop LOOK_S LiveValue NO_NEW_VALUE PROBE_LOSS
        PROBE_PAIRS_MAX_COUNT PROBE_QUANTITIES PROBE_RTT READ_AFTER_S READ_BEFORE_S STOPPED_BY
        blind_after_s interval_of slow_guard_warnings stop_within_s stopped_by_guard worst_of
    """,
    "long_run_checks": "control_warning hard_end_problem silent_controls_count",
    "metrics": """
        ALL_METRICS COUNTER_LAYER LAYER_LABELS Layer METRIC_BY_NAME MetricDefinition RECEIVED
        RECEIVED_HALF_WIDTH RECEIVED_IP RETRANSMITS RTT layer_label metric_by_short_name received_at
    """,
    "plain_fields": "UNKNOWN_TEXTS plain_fields",
    "quantities": "parse_rate parse_ratio parse_size parse_time",
    "run_spec": """
        Burst COLLECT_S CounterRequirement GUARD_PROBE_BEFORE_S PERIOD_MAX_S Pair Plan RunSpec
        due_at
    """,
    "run_trends": "burst_trend_values bursts_of compute_run_trends trend_findings",
    "summary": """
        ALL_DEVICES Availability Bottleneck BottleneckName BurstDistribution BurstPart BurstSummary
        BurstTrendValues ByteSource CanaryPhase CanaryStep CanarySummary CauseId CliffSummary
        Completeness Contradiction CpuCost DeviceFigure DevicePlacement DeviceSummary Difference
        Disruption DisruptionKind EarlyEnd Finding FindingValue FlowSummary ForeignRow ForeignTest
        HostSummary Latency MatchMethod MeasureSummary MeasuredFinding Outage PairSummary
        PathLatency PhaseLatency Reconciliation ResidualCause Rule RunSummary RunTrends SecondState
        SessionCount SignatureSummary SilentStream Spike TakenCpu Translation Trend UNKNOWN
        UnitChange UnitSummary Units UnsteadyClocks Verdict Window canonical caution describe_change
        describe_failures describe_flows describe_leaks describe_limit describe_units figure instant
        named_finding note order parse_burst parse_run problem severity_rank unit_notes warning
        worse
    """,
    "thresholds": """
        ALL_THRESHOLDS CANARIES DEVICE_TELEMETRY LEAK_STEP MetricSource PROBES Threshold
        describe_thresholds
    """,
    "verdict_reason": "VerdictReason explain_verdict",
}
