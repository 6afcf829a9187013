"""Records of a burst as columns, matched to its pairs.

``EXPORTS`` lists the names that other folders can import, by module.
"""

EXPORTS = {
    "clock_readings": "clock_troubles on_shared_clock",
    "columns": "HostColumns IntervalColumns NO_HOST OVERLAP_S disjoint_host disjoint_track",
    "ends_offset": "EndsOffset place_ends",
    "evidence": """
        BurstEvidence CanaryColumns CounterDirection CounterLayer CounterRecord EXTREMES
        FLOWS_COUNTED FORMER_AGGREGATIONS OPENED_BEFORE_MAX_S PairEvidence ProbeColumn
        receiving_side
    """,
    "server_tests": "ServerRecord foreign_tests_during join_tests",
}
