"""What coordinator and agents agree on, and the two places where they meet: a queue, a table."""

import os

# Else pydantic reads every installed package's metadata for plugins: a tenth of an agent's start.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
