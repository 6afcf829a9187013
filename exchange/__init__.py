"""Messages, records and the queue and table interfaces shared by coordinator and agents."""

import os

# If this is not set, pydantic will read the metadata of every installed package to find plugins,
# and an agent will need more time to start.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
