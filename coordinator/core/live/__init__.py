"""Live view of a running burst, with status, new seconds and findings. Pure.

``__all__`` lists the modules that other folders can import.
"""

__all__ = ["certainty_now", "live_view", "progress", "status"]
