"""Planning, which turns a specification into a plan with a price and start times. Pure.

``__all__`` lists the modules that other folders can import.
"""

__all__ = [
    "budget",
    "cost_estimate",
    "early_stop_estimate",
    "expected_usage",
    "nightly_stop",
    "planner",
    "price",
    "reserved",
    "schedule",
    "server_failover",
    "standing_cost",
]
