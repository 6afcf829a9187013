"""The findings M1 to M22 and S1 to S9 of the outside review, at the reviewed version and today.

The sources of that version, commit 6cca7b45, are in ``tests/data/compat``. Each test gives one
input to both versions through an entry point that both have: a command, an HTTP server that they
read, a process with real ports (`services`), or a function with the same name (`doors`). It
compares both answers with what is expected of that version, so that a finding is known to have
existed, and to exist no longer.
"""
