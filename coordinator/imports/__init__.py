"""What other tools measured, read into runs of our own.

``files`` and ``times`` read bytes and instants within bounds; ``original`` and ``iperf3`` turn
files into the values that are sent to a coordinator; ``runs`` turns those values into a plan and
its summary, by the same core as a run of our own. A file is read whole and checked whole before
anything is sent, and a run shows only when all of it is stored.

Errors::

    BadFile   a file cannot be imported; one line that says where, which value, and the fix
"""


class BadFile(Exception):
    """A file cannot be imported; the message is one line for a person."""
