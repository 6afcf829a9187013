"""What can go wrong in the lab, in one line each.

Errors::

    LabError               the lab cannot do that; the message names the cause and the fix
    ├── LabMisconfigured   a field of the specification is out of range
    ├── ToolMissing        a program is not installed; names the package and the command
    ├── NoRights           neither root nor a user namespace; names what was tried and the fix
    ├── LabBroken          a system command refused, or a process of the lab died
    └── FleetError         the fork server is gone, or knows no such agent
"""


class LabError(Exception):
    """The lab cannot do that."""


class LabMisconfigured(LabError):
    """A field of the specification is out of range."""


class ToolMissing(LabError):
    """A program that the lab needs is not installed."""


class NoRights(LabError):
    """Neither root nor an unprivileged user namespace is to be had."""


class LabBroken(LabError):
    """A system command refused, or a process of the lab died."""


class FleetError(LabError):
    """The fork server is gone, or knows no such agent."""
