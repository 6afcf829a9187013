"""``python -m broadside.agent``: the agent that the environment describes."""

import sys

from broadside.agent.run import run_from_environment

sys.exit(run_from_environment())
