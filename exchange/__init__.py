"""Messages, records and the queue and table interfaces shared by coordinator and agents."""

import os

# Without this, pydantic reads the metadata of every installed package to find plugins. That takes a
# tenth of an agent's start time.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
