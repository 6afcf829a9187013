"""``python -m agent``: the agent that the environment describes."""

import sys

from agent.run import run_from_environment

sys.exit(run_from_environment())
