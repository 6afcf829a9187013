"""Run ids."""

import secrets
from datetime import datetime


def new_run_id(scenario: str, now: datetime) -> str:
    """Return a unique run id that sorts by time, for example ``20261120-114500-smoke-7f3a``.

    Args:
        scenario: Scenario name, which becomes part of the id.
        now: The current time to use.
    """
    name = scenario.replace(".", "-")[:36].strip("-")
    return f"{now:%Y%m%d-%H%M%S}-{name}-{secrets.token_hex(2)}"
