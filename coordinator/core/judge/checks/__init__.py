"""Checks of a burst and of a run, and the decision table for the verdict."""

EXPORTS = {
    "check_types": "BurstInput RunInput",
    "counter_checks": "CAUSE_STEPS COUNTER_LEAD_S UNKNOWN_STEP",
    "decision": "evaluate_burst evaluate_run",
    "pair_texts": "LISTED_COUNT list_pairs state_texts",
    "rate_checks": "COMPLETE_RATIO check_rate half_width_of_bursts half_width_of_device limit_of",
    "shape_check": "slowest_sent",
}
