"""The coordinator over HTTP: one application, a router a topic, errors as RFC 9457 problems."""

from coordinator.api.app import create_app
from coordinator.api.door import Guard, is_loopback
from coordinator.api.problems import Problem

__all__ = ["Guard", "Problem", "create_app", "is_loopback"]
