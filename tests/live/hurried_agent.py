"""``python -m agent``, with constants of :mod:`agent.server` that are not its own."""

import json
import sys

from agent import run, server

for name, value in json.loads(sys.argv[1]).items():
    assert hasattr(server, name)
    setattr(server, name, value)
sys.exit(run.run_from_environment())
