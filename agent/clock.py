"""What this host knows of its own clock, and the gate that stands an agent down.

Two sources: chronyd, asked with ``chronyc -c tracking``; or the kernel's own account
(``adjtimex(2)``), which whatever disciplines the clock keeps up to date.
"""

import asyncio
import contextlib
import ctypes
from datetime import UTC, datetime
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Final

from broadside.exchange.messages import ClockReading, ClockSource

CHRONYC_TIMEOUT_S: Final = 2.0
TIME_ERROR: Final = 5  # adjtimex(2): the clock is not synchronised
STA_UNSYNC: Final = 0x0040
STA_NANO: Final = 0x2000
LEAP_UNSYNCHRONISED: Final = "Not synchronised"
# chronyd's reference id (127.127.1.1) when it serves its own clock: the directive `local`.
LOCAL_REFERENCE: Final = "7F7F0101"


async def read_clock(chronyc_socket: str | None = None) -> ClockReading:
    """Ask chronyd, or the kernel where no chronyd answers; never raises.

    A chronyd that was *named* and does not answer is an unknown clock: the kernel may be
    disciplined by something else, or by nothing.
    """
    text = await _ask_chronyc(chronyc_socket)
    now_at = datetime.now(UTC)
    if text is None and chronyc_socket is not None:
        return ClockReading(source=ClockSource.UNKNOWN, read_at=now_at, synchronised=False)
    reading = None if text is None else parse_tracking(text, now_at)
    if reading is None:
        reading = read_kernel_clock(now_at)
    elif reading.reference == LOCAL_REFERENCE:
        # A free-running chronyd, on this host or beside it in another container, says nothing of
        # this kernel's clock. Other software may discipline that, and report so to the kernel.
        kernel = read_kernel_clock(now_at)
        reading = kernel if kernel.synchronised else reading
    elif chronyc_socket is not None:
        # It knows how far its clock is off, which may be another one than this kernel's.
        return reading
    return reading.model_copy(update={"boot_id": _boot_id()})


@cache
def _boot_id() -> str | None:
    """Which boot of a kernel this is: its containers and namespaces read the same clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeError):
        return None


def parse_tracking(text: str, now_at: datetime) -> ClockReading:
    """One line of ``chronyc -c tracking`` as a reading; anything else as an unknown clock.

    Fields: reference id, name, stratum, reference time, system time, last offset, RMS offset,
    frequency, residual frequency, skew, root delay, root dispersion, update interval, leap.
    A positive *system time* means that the local clock is slow (measured with 4.3), hence the
    change of sign. The bound is the one chrony documents:
    ``|system time| + root dispersion + root delay / 2``. A chronyd that serves its own clock
    (``local``) reports zero for all three, although nothing disciplines it: its bound is unknown.
    """
    unknown = ClockReading(source=ClockSource.UNKNOWN, read_at=now_at, synchronised=False)
    fields = text.strip().split(",")
    if len(fields) != 14:
        return unknown
    try:
        stratum = int(fields[2])
        slow_s, delay_s, dispersion_s = (float(fields[index]) for index in (4, 10, 11))
    except ValueError:
        return unknown
    bound_s = abs(slow_s) + dispersion_s + delay_s / 2
    if not isfinite(bound_s) or delay_s < 0 or dispersion_s < 0:
        return unknown
    synchronised = fields[13] != LEAP_UNSYNCHRONISED and fields[0] != LOCAL_REFERENCE
    return ClockReading(
        source=ClockSource.CHRONY,
        read_at=now_at,
        synchronised=synchronised,
        offset_s=-slow_s if synchronised else None,
        bound_s=bound_s if synchronised else None,
        reference=fields[1] or fields[0],
        stratum=stratum if synchronised else None,
    )


class _Timex(ctypes.Structure):
    """``struct timex`` of the 64-bit Linux ABI, to the fields read here; padded generously."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),  # us, or ns with STA_NANO, still to be added to the clock
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),  # us, without the offset
        ("esterror", ctypes.c_long),  # us
        ("status", ctypes.c_int),
        ("rest", ctypes.c_long * 40),
    )


def read_kernel_clock(now_at: datetime) -> ClockReading:
    """Return the kernel's account of its clock.

    The bound is ``maxerror`` plus the offset that is still to be corrected: the kernel counts the
    first from the time at which the second will be gone.
    """
    timex = _Timex(modes=0)
    state = ctypes.CDLL(None).adjtimex(ctypes.byref(timex))
    return judge_timex(state, timex.status, timex.offset, timex.maxerror, now_at)


def judge_timex(
    state: int, status: int, offset: int, maxerror_us: int, now_at: datetime
) -> ClockReading:
    """The values of ``adjtimex(2)`` as a reading. ``offset`` is in us, or ns with STA_NANO."""
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
    """Why this clock may not start a burst, with the fix; None when it may.

    ``shared_boot_id``: every end of the burst reads that kernel's clock, so that between them
    none is off.
    """
    if shared_boot_id is not None and reading.boot_id == shared_boot_id:
        return None
    if reading.source is ClockSource.UNKNOWN:
        return (
            "clock unknown: chronyd did not answer and the kernel does not know; start chronyd, or "
            "set BROADSIDE_AGENT_CHRONYC_SOCKET to its command socket"
        )
    if reading.reference == LOCAL_REFERENCE:
        return (
            "clock free-running: chronyd serves this host's own clock (reference 7F7F0101, the "
            "directive `local`), so its error is unknown; give chronyd a time source, or run both "
            "ends of each pair on one host"
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
    """The output of ``chronyc -c tracking``, or None where there is no chronyc or no answer."""
    argv = ["chronyc", "-c", *(["-h", socket] if socket else []), "tracking"]
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
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
