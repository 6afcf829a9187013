"""Agent that runs on every generator host, starts traffic engines and reports results."""

import broadside.exchange  # noqa: F401 - before pydantic
