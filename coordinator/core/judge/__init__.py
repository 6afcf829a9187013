"""Judgement of a run.

``__all__`` lists the modules that other folders can import. The folder has:

- ``summarise.summarise_run``: summary and verdict of a run.
- ``checks``: checks and the decision table.
- ``reconciliation``: comparison of the fleet with the device counter.
- ``bottleneck``: bottleneck of a burst.

Nothing is imported here, so that a caller loads only what it uses.
"""

__all__ = ["guard_report", "summarise", "verdict_inputs"]
