"""Entry point for ``python -m broadside.agent``.

The agent reads its settings from the environment. With ``--remove-tunnels`` it deletes the tunnel
devices that a killed agent left, and exits.
"""

import sys

from broadside.agent.run import remove_tunnels, run_from_environment

sys.exit(remove_tunnels() if sys.argv[1:] == ["--remove-tunnels"] else run_from_environment())
