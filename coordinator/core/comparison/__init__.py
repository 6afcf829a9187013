"""Comparison of groups of bursts, their conditions, and regression gates."""

EXPORTS = {
    "conditions": "conditions_of",
    "group_comparison": "Comparison Group Metric compare observe",
    "regression_gate": "GateResult evaluate_gate parse_gate",
    "sequential": """
        Decision ERROR_RATIO ROUNDS_MIN_COUNT SequentialResult compare_rounds expected_rounds_count
        loss_decision
    """,
}
