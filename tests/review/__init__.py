"""Tests of the findings M1 to M22 and S1 to S9 of a review, in the reviewed version and today's.

The sources of that version, commit 6cca7b45, are in ``tests/data/compat``. The same input is used
for both versions. It goes through an interface that both have: a command, an HTTP server, a process
with real ports (`services`), or a function with the same name (`common_functions`). A test compares
the results with the expected ones. This shows that the finding existed and that it is fixed.
"""
