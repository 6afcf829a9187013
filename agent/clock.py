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
from broadside.exchange.programs import program_environment

CHRONYC_TIMEOUT_S: Final = 2.0
TIME_ERROR: Final = 5  # adjtimex(2): the clock is not synchronised
STA_UNSYNC: Final = 0x0040
STA_NANO: Final = 0x2000
LEAPS_SYNCHRONISED: Final = ("Normal", "Insert second", "Delete second")
# chronyd's reference id (127.127.1.1) when it serves its own clock: the directive `local`, with or
# without `orphan`. Every 127.127.1.x is such a clock (ntpd's undisciplined local clock driver).
LOCAL_REFERENCE: Final = "7F7F0101"
LOCAL_PREFIX: Final = LOCAL_REFERENCE[:6]
STRATUM_UNSYNCHRONISED: Final = 16  # RFC 5905, section 7.3
# RFC 5905, section 7.2: PHI, the frequency tolerance of a clock that nothing corrects.
FREQUENCY_TOLERANCE: Final = 15e-6
# RFC 5905, section 7.2 and chrony's defaults: polls are 2^6 to 2^10 s apart.
POLL_MIN_S, POLL_MAX_S = 64.0, 1024.0
MISSED_POLLS_COUNT: Final = 2  # one update may be lost or filtered without saying anything
# s by which a hypervisor host's clock may be off UTC. chrony counts such a clock as exact.
# Microsoft, "Windows Server 2016 Accurate Time": 1 ms with respect to UTC. Azure's hosts run it.
HOST_ERROR_S: Final = 1e-3
HYPERVISOR_CLOCKS: Final = ("hyperv", "KVM virtual PTP", "ptp_vmw", "vmclock")


async def read_clock(chronyc_socket: str | None = None) -> ClockReading:
    """Ask chronyd, or the kernel where no chronyd answers; never raises.

    A chronyd that was *named* and does not answer is an unknown clock: the kernel may be
    disciplined by something else, or by nothing.
    """
    text = await _ask_chronyc(chronyc_socket)
    now_at = datetime.now(UTC)
    if text is None and chronyc_socket is not None:
        return ClockReading(source=ClockSource.UNKNOWN, read_at=now_at, synchronised=False)
    on_host_clock = has_hypervisor_clock()
    reading = None if text is None else parse_tracking(text, now_at, on_host_clock=on_host_clock)
    if reading is None:
        reading = _with_host_error(read_kernel_clock(now_at), on_host_clock)
    elif _is_local(reading.reference):
        # A free-running chronyd, on this host or beside it in another container, says nothing of
        # this kernel's clock. Other software may discipline that, and report so to the kernel.
        kernel = _with_host_error(read_kernel_clock(now_at), on_host_clock)
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


def has_hypervisor_clock(folder: Path = Path("/sys/class/ptp")) -> bool:
    """Return whether this kernel has a PTP clock that a hypervisor provides."""
    for path in folder.glob("ptp*/clock_name"):
        with contextlib.suppress(OSError, UnicodeError):
            if path.read_text(encoding="ascii").strip() in HYPERVISOR_CLOCKS:
                return True
    return False


def _with_host_error(reading: ClockReading, on_host_clock: bool) -> ClockReading:
    """Add the host's own error where the kernel's clock may follow the host's."""
    if reading.bound_s is None or not on_host_clock:
        return reading
    return reading.model_copy(update={"bound_s": reading.bound_s + HOST_ERROR_S})


def _is_local(reference: str | None) -> bool:
    return reference is not None and reference.upper().startswith(LOCAL_PREFIX)


def parse_tracking(text: str, now_at: datetime, *, on_host_clock: bool = False) -> ClockReading:
    """One line of ``chronyc -c tracking`` as a reading; anything else as an unknown clock.

    Fields: reference id, name, stratum, reference time, system time, last offset, RMS offset,
    frequency, residual frequency, skew, root delay, root dispersion, update interval, leap.
    A positive *system time* means that the local clock is slow (measured with 4.3), hence the
    change of sign. The bound is the one chrony documents:
    ``|system time| + root dispersion + root delay / 2``, and what these figures leave out:

    - A source that vanished: chrony's dispersion grows by the skew that it last estimated. From the
      second update that is due and missing, :data:`FREQUENCY_TOLERANCE` is added.
    - The error of a hypervisor's clock (``refclock PHC``): :data:`HOST_ERROR_S`.

    A chronyd that serves its own clock (``local``) reports zero for all three, although nothing
    disciplines it: its bound is unknown.

    Args:
        text: The output of chronyc.
        now_at: When it was read, by the clock that it describes.
        on_host_clock: The kernel has a hypervisor's PTP clock, so any reference clock may be it.
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
    """Return for how long a source has been silent, beyond the updates that may be missed."""
    due_s = MISSED_POLLS_COUNT * min(max(interval_s, POLL_MIN_S), POLL_MAX_S)
    return max(0.0, age_s - due_s)


def _reference_clock(reference_id: str, name: str) -> str | None:
    """Return the name of a reference clock such as ``PHC0``; None for a server's address.

    Only a reference clock's id is its name in ASCII.
    """
    try:
        said = bytes.fromhex(reference_id).decode("ascii").rstrip("\0 ")
    except (ValueError, UnicodeDecodeError):
        return None
    return said if said and said == name else None


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
    """The output of ``chronyc -c tracking``, or None where there is no chronyc or no answer."""
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
