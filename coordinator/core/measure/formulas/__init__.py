"""Statistics and packet sizes, which depend on no record.

``EXPORTS`` lists the names that other folders can import, by module.
"""

EXPORTS = {
    "binomial": "CONFIDENCE share_interval",
    "certainty": "ALPHA ConfidenceSequence SKIP_S batch_means certain_at_s sequence_at_end",
    "change_points": "STEP_LEAST_RATIO Step find_steps levels_of",
    "headers": """
        ACKNOWLEDGED_LEAST_RATIO Headers MSS_ASSUMED_BYTES OVERHEAD_KNOWN_RATIO OVERHEAD_LESS_RATIO
        OVERHEAD_LESS_WIRE_RATIO OVERHEAD_MORE_RATIO OVERHEAD_MORE_WIRE_RATIO acknowledged_max_ratio
        declared_headers sctp_headers segment_max_bytes tcp_headers udp_headers
    """,
    "phases": "Sustain TrafficPhase sustain_of",
    "quantiles": "column_quantiles jain quantiles",
    "steady": """
        Mean RAMP_MAX_RATIO RAMP_MAX_S Stretch VALUES_MIN cliff correlated_mean mean_of_bursts
        ramp_s slowest_stretch stretch_s t90 t95
    """,
}
