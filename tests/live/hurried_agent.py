"""Run ``python -m broadside.agent`` with changed constants of :mod:`broadside.agent.server`."""

import json
import sys

from broadside.agent import run, server

for name, value in json.loads(sys.argv[1]).items():
    assert hasattr(server, name)
    setattr(server, name, value)
sys.exit(run.run_from_environment())
