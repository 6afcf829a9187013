"""Ids of runs."""

import secrets
from datetime import datetime


def new_run_id(scenario: str, now: datetime) -> str:
    """Sorts by time, names the scenario, and does not collide: ``20261120-114500-smoke-7f3a``."""
    name = scenario.replace(".", "-")[:36].strip("-")
    return f"{now:%Y%m%d-%H%M%S}-{name}-{secrets.token_hex(2)}"
