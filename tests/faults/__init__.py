"""Matrix of faults and phases, in which each cell is a real run that must obey common rules.

``python -m tests.faults`` (``make faults``) prints the table. A fault is a small object
(:mod:`tests.faults.matrix`). A phase is a condition on the claim rows. So a cell is plain data.
"""
