"""Plans runs, queues jobs, lines up what came back, and gives the verdict."""

import broadside.exchange  # noqa: F401 - before pydantic
