"""Judgement of a run. Other folders use these modules.

- ``summarise.summarise_run``: summary and verdict of a run.
- ``checks``: checks and the decision table.
- ``reconciliation``: comparison of the fleet with the device counter.
- ``bottleneck``: bottleneck of a burst.

Nothing is imported here, so that a caller loads only what it uses.
"""
