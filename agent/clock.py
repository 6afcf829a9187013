"""Clock readings for this host, and the clock gate that stops an agent with a bad clock.

There are two sources. The first is chronyd, with ``chronyc -c tracking``. The second is the kernel
(``adjtimex(2)``), which every time service updates.
"""

import asyncio
import contextlib
import ctypes
from datetime import datetime
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Final

from broadside.exchange.messages import ClockReading, ClockSource
from broadside.exchange.outage_log import utc_now
from broadside.exchange.programs import program_environment

CHRONYC_TIMEOUT_S: Final = 2.0
# Returned by adjtimex(2) if the clock is not synchronised.
TIME_ERROR: Final = 5
STA_UNSYNC: Final = 0x0040
STA_NANO: Final = 0x2000
LEAPS_SYNCHRONISED: Final = ("Normal", "Insert second", "Delete second")
# chronyd's reference id (127.127.1.1) when it serves its own clock, set with the directive `local`,
# with or without `orphan`. All 127.127.1.x addresses are such clocks (ntpd's undisciplined local
# clock driver).
LOCAL_REFERENCE: Final = "7F7F0101"
LOCAL_PREFIX: Final = LOCAL_REFERENCE[:6]
# RFC 5905, section 7.3.
STRATUM_UNSYNCHRONISED: Final = 16
# RFC 5905, section 7.2: PHI, the frequency tolerance for a clock that is not being corrected.
FREQUENCY_TOLERANCE: Final = 15e-6
# RFC 5905, section 7.2 and chrony's defaults: polls are 2^6 to 2^10 s apart.
POLL_MIN_S, POLL_MAX_S = 64.0, 1024.0
# One update may be lost or filtered without notice.
MISSED_POLLS_COUNT: Final = 2
# Possible UTC error for a hypervisor host's clock, in seconds. chrony treats such a clock as exact.
# Source: Microsoft, "Windows Server 2016 Accurate Time", 1 ms with respect to UTC. Azure hosts run
# it.
HOST_ERROR_S: Final = 1e-3
HYPERVISOR_CLOCKS: Final = ("hyperv", "KVM virtual PTP", "ptp_vmw", "vmclock")


async def read_clock(chronyc_socket: str | None = None) -> ClockReading:
    """Read the clock state from chronyd, or from the kernel if no chronyd answers.

    This function never raises. If a chronyd was configured and does not answer, the clock is
    unknown. The kernel's clock may then be controlled by another service, or not at all.

    Args:
        chronyc_socket: chronyd's command socket or host, or None to use chronyc's default.
    """
    text = await _ask_chronyc(chronyc_socket)
    now_at = utc_now()
    if text is None and chronyc_socket is not None:
        return ClockReading(source=ClockSource.UNKNOWN, read_at=now_at, synchronised=False)
    on_host_clock = has_hypervisor_clock()
    reading = None if text is None else parse_tracking(text, now_at, on_host_clock=on_host_clock)
    if reading is None:
        reading = _with_host_error(read_kernel_clock(now_at), on_host_clock)
    elif _is_local(reading.reference):
        # A free-running chronyd, on this host or in another container on it, has no information
        # about this kernel's clock. Another service may synchronise that clock and report it to the
        # kernel.
        kernel = _with_host_error(read_kernel_clock(now_at), on_host_clock)
        reading = kernel if kernel.synchronised else reading
    elif chronyc_socket is not None:
        # This chronyd knows its own error. Its clock may differ from this kernel's clock.
        return reading
    return reading.model_copy(update={"boot_id": _boot_id()})


@cache
def _boot_id() -> str | None:
    """Return the kernel's boot id. Containers with the same id use the same clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeError):
        return None


def has_hypervisor_clock(folder: Path = Path("/sys/class/ptp")) -> bool:
    """Return True if this kernel has a PTP clock that a hypervisor provides."""
    for path in folder.glob("ptp*/clock_name"):
        with contextlib.suppress(OSError, UnicodeError):
            if path.read_text(encoding="ascii").strip() in HYPERVISOR_CLOCKS:
                return True
    return False


def _with_host_error(reading: ClockReading, on_host_clock: bool) -> ClockReading:
    """Add the hypervisor host's error if the kernel's clock might follow that host."""
    if reading.bound_s is None or not on_host_clock:
        return reading
    return reading.model_copy(update={"bound_s": reading.bound_s + HOST_ERROR_S})


def _is_local(reference: str | None) -> bool:
    return reference is not None and reference.upper().startswith(LOCAL_PREFIX)


def parse_tracking(text: str, now_at: datetime, *, on_host_clock: bool = False) -> ClockReading:
    """Parse one line of ``chronyc -c tracking``.

    The fields are: reference id, name, stratum, reference time, system time, last offset, RMS
    offset, frequency, residual frequency, skew, root delay, root dispersion, update interval, leap.
    A positive *system time* means that the local clock is slow (measured with chrony 4.3), so the
    sign is changed.

    The error bound is the one that chrony documents, ``|system time| + root dispersion + root delay
    / 2``. Two errors are not included there and are added:

    - A lost source. chrony's dispersion grows by the last estimated skew. After two missing
      updates, :data:`FREQUENCY_TOLERANCE` is added.
    - The error of a hypervisor's clock (``refclock PHC``), which is :data:`HOST_ERROR_S`.

    A chronyd that serves its own clock (``local``) reports zero for all three values, although the
    clock is not synchronised. Its bound is unknown.

    Args:
        text: chronyc output.
        now_at: When this was read, using the clock that it is for.
        on_host_clock: True if the kernel has a hypervisor's PTP clock. In this case any reference
            clock might be that clock.

    Returns:
        Offset and error bound in seconds. Both are None if the clock is not synchronised, or if the
        text is not valid.
    """
    unknown = ClockReading(source=ClockSource.UNKNOWN, read_at=now_at, synchronised=False)
    fields = text.strip().split(",")
    if len(fields) != 14:
        return unknown
    try:
        stratum = int(fields[2])
        updated_s, slow_s, delay_s, dispersion_s, interval_s = (
            float(fields[index]) for index in (3, 4, 10, 11, 12)
        )
    except ValueError:
        return unknown
    overdue_s = _overdue_s(now_at.timestamp() - updated_s, interval_s)
    bound_s = abs(slow_s) + dispersion_s + delay_s / 2 + FREQUENCY_TOLERANCE * overdue_s
    if not isfinite(bound_s) or delay_s < 0 or dispersion_s < 0:
        return unknown
    name = _reference_clock(fields[0], fields[1])
    if name is not None and (on_host_clock or name.startswith("PHC")):
        bound_s += HOST_ERROR_S
    synchronised = (
        fields[13] in LEAPS_SYNCHRONISED
        and not _is_local(fields[0])
        and 0 < stratum < STRATUM_UNSYNCHRONISED
    )
    return ClockReading(
        source=ClockSource.CHRONY,
        read_at=now_at,
        synchronised=synchronised,
        offset_s=-slow_s if synchronised else None,
        bound_s=bound_s if synchronised else None,
        reference=fields[1] or fields[0],
        stratum=stratum if synchronised else None,
    )


def _overdue_s(age_s: float, interval_s: float) -> float:
    """Return how long a source has been silent beyond the updates that may be missed."""
    due_s = MISSED_POLLS_COUNT * min(max(interval_s, POLL_MIN_S), POLL_MAX_S)
    return max(0.0, age_s - due_s)


def _reference_clock(reference_id: str, name: str) -> str | None:
    """Return the name of a reference clock such as ``PHC0``, or None for a server address.

    Only for a reference clock, the id is the name in ASCII.
    """
    try:
        reference = bytes.fromhex(reference_id).decode("ascii").rstrip("\0 ")
    except (ValueError, UnicodeDecodeError):
        return None
    return reference if reference and reference == name else None


class _Timex(ctypes.Structure):
    """``struct timex`` in the 64-bit Linux ABI, with padding after the fields used here.

    ``offset`` is still to be added to the clock, in us, or in ns if ``STA_NANO`` is set.
    ``maxerror`` is in us and does not include the offset. ``esterror`` is in us.
    """

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_long * 40),
    )


def read_kernel_clock(now_at: datetime) -> ClockReading:
    """Return the kernel's clock state.

    The bound is ``maxerror`` plus the remaining offset. The kernel counts ``maxerror`` from the
    time at which the offset will be corrected.
    """
    timex = _Timex(modes=0)
    state = ctypes.CDLL(None).adjtimex(ctypes.byref(timex))
    return judge_timex(state, timex.status, timex.offset, timex.maxerror, now_at)


def judge_timex(
    state: int, status: int, offset: int, maxerror_us: int, now_at: datetime
) -> ClockReading:
    """Convert the values of ``adjtimex(2)`` to a reading.

    Args:
        state: Value returned by ``adjtimex(2)``. A negative value is an error.
        status: Bit mask ``STA_*``.
        offset: Remaining offset in us, or in ns if ``STA_NANO`` is set.
        maxerror_us: Maximum error without the offset, us.
        now_at: When this was read.

    Returns:
        Offset and error bound in seconds. Both are None if the clock is not synchronised.
    """
    if state < 0:
        return ClockReading(source=ClockSource.UNKNOWN, read_at=now_at, synchronised=False)
    synchronised = state != TIME_ERROR and not status & STA_UNSYNC
    offset_s = -offset * (1e-9 if status & STA_NANO else 1e-6)
    return ClockReading(
        source=ClockSource.ADJTIMEX,
        read_at=now_at,
        synchronised=synchronised,
        offset_s=offset_s if synchronised else None,
        bound_s=abs(offset_s) + maxerror_us * 1e-6 if synchronised else None,
    )


def clock_problem(
    reading: ClockReading, bound_max_s: float, shared_boot_id: str | None = None
) -> str | None:
    """Return why a burst cannot start with this clock, and the fix.

    Args:
        reading: Clock state to check.
        bound_max_s: Largest accepted error bound in seconds.
        shared_boot_id: The kernel's boot id if all ends in the burst use this clock. In this case
            there is no clock difference between them. None if they use several clocks.

    Returns:
        The problem in one line, or None if the burst can start.
    """
    if shared_boot_id is not None and reading.boot_id == shared_boot_id:
        return None
    if reading.source is ClockSource.UNKNOWN:
        return (
            "clock unknown: chronyd did not answer and the kernel does not know; start chronyd, or "
            "set BROADSIDE_AGENT_CHRONYC_SOCKET to its command socket"
        )
    if _is_local(reading.reference):
        return (
            "clock free-running: chronyd serves this host's own clock (reference "
            f"{reading.reference}, the directive `local`), so its error is unknown; give chronyd a "
            "time source, or run both ends of each pair on one host"
        )
    if not reading.synchronised or reading.bound_s is None:
        return (
            f"clock not synchronised ({reading.source}); wait for chronyd to find its source, "
            "or check `chronyc sources`"
        )
    if reading.bound_s > bound_max_s:
        return (
            f"clock bound {reading.bound_s * 1e3:.3f} ms is over the gate of "
            f"{bound_max_s * 1e3:.3f} ms ({reading.source}); check `chronyc tracking`, or launch "
            "with a larger clock_bound_max_s"
        )
    return None


async def _ask_chronyc(socket: str | None) -> str | None:
    """Return the output of ``chronyc -c tracking``, or None if there is no answer."""
    argv = ["chronyc", "-c", *(["-h", socket] if socket else []), "tracking"]
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=program_environment(),
        )
    except OSError:
        return None
    try:
        async with asyncio.timeout(CHRONYC_TIMEOUT_S):
            output, _ = await process.communicate()
    except TimeoutError:
        return None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return output.decode(errors="replace") if process.returncode == 0 else None
