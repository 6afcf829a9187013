"""A matrix of faults and phases, each cell a real run in the lab, held to one set of rules.

``python -m tests.faults`` (``make faults``) prints the table. A fault is a small object
(:mod:`tests.faults.matrix`), a phase a condition on the table's claim rows, so a cell is data.
"""
