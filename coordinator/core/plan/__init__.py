"""Planning, which turns a specification into a plan with a price and start times. Pure.

``EXPORTS`` lists the names that other folders can import, by module.
"""

EXPORTS = {
    "budget": """
        PriceBasis PriceMeter STOPPED_BY Spend basis measure over_budget_reason overspent_reason ran
        with_abort with_budget
    """,
    "cost_estimate": """
        Appraisal EarlyStopEstimate OverBudget estimate expected_bill not_charged_why required_units
    """,
    "early_stop_estimate": "DeviceHistory with_early_stop",
    "expected_usage": "ExpectedUsage expect_usage ip_bytes_of",
    "nightly_stop": "NightlyStop",
    "planner": """
        Infeasible PRESENCE_STALE_S PlanContext Problem first_start live plan without_ports
    """,
    "price": "Bill Prices Usage compute_bill exactly no_bill",
    "reserved": "Reservation Reserved",
    "schedule": """
        BadSchedule Firing FiringState MissedPolicy OPEN Overlap Schedule WAITING_MAX_COUNT check
        check_zone due ended first_rows idle localise next_instants runs_left settled too_late
    """,
    "server_failover": "Failover choose_failovers free_servers jobs_in pairs_in servers_since",
    "standing_cost": "RangeState standing_bill",
}
