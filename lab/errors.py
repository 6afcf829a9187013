"""Errors of the lab.

Errors::

    LabError               operation failed. The message names the cause and the fix.
    ├── LabMisconfigured   a field of the specification is out of range
    ├── ToolMissing        a program is not installed. The message names package and command.
    ├── NoRights           no root access and no user namespace. The message names the fix.
    ├── LabBroken          a system command failed, or a process of the lab ended
    └── FleetError         the fork server has ended, or the agent is unknown
"""


class LabError(Exception):
    """Failed operation in the lab."""


class LabMisconfigured(LabError):
    """Field of the specification that is out of range."""


class ToolMissing(LabError):
    """Required program that is not installed."""


class NoRights(LabError):
    """Missing permission, without root access or an unprivileged user namespace."""


class LabBroken(LabError):
    """Failed system command, or unexpected end of a process in the lab."""


class FleetError(LabError):
    """Missing fork server or unknown agent."""
