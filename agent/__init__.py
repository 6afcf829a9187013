"""What runs on every generator host: pulls jobs, fires the engine at the instant, reports."""

import broadside.exchange  # noqa: F401 - before pydantic
