"""``python -m broadside.agent``: the agent that the environment describes.

``--remove-tunnels`` removes what an agent that was killed left of its tunnels, and starts nothing.
"""

import sys

from broadside.agent.run import remove_tunnels, run_from_environment

sys.exit(remove_tunnels() if sys.argv[1:] == ["--remove-tunnels"] else run_from_environment())
