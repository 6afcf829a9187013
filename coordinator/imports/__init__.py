"""Import of measurements from other tools as runs.

``uploaded_files`` and ``time_text`` parse files and times with size limits. ``original_tables`` and
``iperf3_files`` convert files to the values that are sent to a coordinator. ``import_runs`` and the
other ``*_runs`` modules convert these values to a plan and a summary, using the same core as other
runs. A file is parsed and checked completely before anything is sent. A run becomes visible only
when it is stored completely.

``BadFile`` is raised for files that cannot be imported. Its message is one line with the location,
the value and the fix.
"""


class BadFile(Exception):
    """A file cannot be imported; the message is one line for a person."""
