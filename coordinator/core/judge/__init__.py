"""Judgement of a run.

``EXPORTS`` lists the names that other folders can import, by module. The folder has:

- ``summarise.summarise_run``: summary and verdict of a run.
- ``checks``: checks and the decision table.
- ``reconciliation``: comparison of the fleet with the device counter.
- ``bottleneck``: bottleneck of a burst.

Nothing is imported here, so that a caller loads only what it uses.
"""

EXPORTS = {
    "guard_report": "GuardEvidence stopped_burst",
    "summarise": "judge_run summarise_run",
    "verdict_inputs": "RunContext VerdictInputs",
}
