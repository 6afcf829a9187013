"""Coordinator that plans runs, queues jobs, aligns the results and computes the verdict."""

import broadside.exchange  # noqa: F401 - before pydantic
