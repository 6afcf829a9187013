"""Test a real snmpd with v2c and v3, with a dead agent, a restart and a wrapped counter."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from broadside.coordinator.cli.telemetry_checks import check_telemetry_sources
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.measure.telemetry import DeviceTelemetry, IssueKind, Quantity
from broadside.coordinator.device.telemetry.config import open_telemetry
from broadside.coordinator.device.telemetry.device_counter import DeviceCounter
from broadside.coordinator.device.telemetry.polling import PolledSource
from broadside.coordinator.device.telemetry.source import TelemetryError
from broadside.exchange.messages import Direction
from tests.devices.snmp_agent import (
    CPU,
    MEMORY,
    SESSIONS,
    Figures,
    SnmpAgent,
    answering,
    gauge,
    interface32,
)
from tests.live.labs import needs_snmpd

pytestmark = [
    pytest.mark.live,
    needs_snmpd,
]

PLANTED = {CPU: gauge((0, 37)), MEMORY: gauge((0, 12)), SESSIONS: gauge((0, 4321))}
V3 = {"version": "3"}


@contextlib.contextmanager
def opened(folder: Path, entry: str) -> Iterator[PolledSource]:
    path = folder / "telemetry.toml"
    path.write_text(entry)
    [source] = open_telemetry(path)
    assert isinstance(source, PolledSource)
    try:
        yield source
    finally:
        source.close()


async def query_telemetry(source: PolledSource) -> DeviceTelemetry:
    now = datetime.now(UTC)
    return await source.query(now - timedelta(minutes=5), now + timedelta(seconds=1))


async def poll_until(
    source: PolledSource, done: Callable[[DeviceTelemetry], bool]
) -> DeviceTelemetry:
    """Poll for at most 60 s, until the telemetry satisfies ``done``."""
    end_s = time.monotonic() + 60
    while True:
        await source.poll()
        reported = await query_telemetry(source)
        if done(reported) or time.monotonic() > end_s:
            return reported
        await asyncio.sleep(0.2)


def kinds(telemetry: DeviceTelemetry) -> list[IssueKind]:
    return [issue.kind for issue in telemetry.issues]


@pytest.mark.parametrize("version", [{}, V3], ids=["v2c", "v3"])
async def test_both_versions_report_planted_values(version: dict[str, str], tmp_path: Path) -> None:
    with (
        answering(SnmpAgent(tmp_path / "fw", figures=PLANTED)) as (agent,),
        opened(
            tmp_path, agent.entry("fw", profile="fortinet", interfaces=["lo"], **version)
        ) as source,
    ):
        await source.poll()
        reported = await poll_until(source, lambda reported: bool(reported.of(Quantity.RECEIVED)))
    figures = {series.quantity: series.values[-1] for series in reported.series}
    assert figures[Quantity.CPU] == pytest.approx(0.37)
    assert figures[Quantity.MEMORY] == pytest.approx(0.12)
    assert figures[Quantity.SESSIONS] == 4321
    assert np.isfinite(figures[Quantity.RECEIVED])
    [cpu] = reported.of(Quantity.CPU)
    assert 0 < cpu.bound_s[-1] < 1
    assert not reported.issues


@pytest.mark.parametrize(
    ("algorithms", "privacy"),
    [
        (("MD5", "AES"), "aes"),
        (("SHA", "AES-192"), "aes192-blumenthal"),
        (("SHA", "AES-256"), "aes256-blumenthal"),
        # The digest is long enough for both key extensions to be equal.
        (("SHA-256", "AES-256"), "aes256"),
        (("SHA-512", "AES-256"), "aes256-blumenthal"),
    ],
)
async def test_v3_privacy_keys_match_those_of_the_device(
    algorithms: tuple[str, str], privacy: str, tmp_path: Path
) -> None:
    agent = SnmpAgent(tmp_path / "fw", figures=PLANTED, v3_names=algorithms)
    fields = {**V3, "auth": algorithms[0].lower().replace("-", ""), "profile": "fortinet"}
    with answering(agent), opened(tmp_path, agent.entry("fw", privacy=privacy, **fields)) as source:
        assert await source.poll()


async def test_reports_the_other_key_extension_method(tmp_path: Path) -> None:
    agent = SnmpAgent(tmp_path / "fw", figures=PLANTED, v3_names=("SHA", "AES-256"))
    fields = {**V3, "auth": "sha", "privacy": "aes256", "profile": "fortinet"}
    with answering(agent), opened(tmp_path, agent.entry("fw", **fields)) as source:
        assert not await source.poll()
        [issue] = (await query_telemetry(source)).issues
    assert "another privacy than aes256, such as aes256-blumenthal" in issue.text


CISCO = "1.3.6.1.4.1.9.9"
MAKERS: dict[str, tuple[dict[str, int], dict[tuple[str, str], float]]] = {
    # CISCO-PROCESS-MIB, with one row per CPU and used and free memory in kB.
    "cisco": (
        {f"{CISCO}.109.1.1.1.1.{column}.{row}": value
         for column, row, value in ((6, 1, 37), (6, 7, 12), (12, 1, 30_000), (13, 1, 70_000))},
        {("cpu_ratio", "1"): 0.37, ("cpu_ratio", "7"): 0.12, ("memory_ratio", "1"): 0.3},
    ),
    # CISCO-FIREWALL-MIB cfwConnectionStatValue, with rows by service (40 is IP) and kind (6 is in
    # use).
    "cisco-asa": (
        {f"{CISCO}.147.1.2.2.2.1.5.40.{kind}": value for kind, value in ((6, 1234), (7, 9999))},
        {("sessions_count", ""): 1234},
    ),
    # FORTINET-FORTIGATE-MIB fgHaStatsTable.
    "fortinet-cluster": (
        {f"1.3.6.1.4.1.12356.101.13.2.1.1.{column}.{row}": value
         for column, row, value in ((3, 1, 37), (3, 2, 3), (4, 1, 50), (6, 1, 1000), (6, 2, 7))},
        {("cpu_ratio", "1"): 0.37, ("cpu_ratio", "2"): 0.03, ("memory_ratio", "1"): 0.5,
         ("sessions_count", "1"): 1000, ("sessions_count", "2"): 7},
    ),
    # HOST-RESOURCES-MIB hrProcessorLoad, in which 2 is the data plane. PAN-COMMON-MIB
    # panSessionActive.
    "pan": (
        {"1.3.6.1.2.1.25.3.3.1.2.1": 5, "1.3.6.1.2.1.25.3.3.1.2.2": 64,
         "1.3.6.1.4.1.25461.2.1.2.3.3.0": 777},
        {("cpu_ratio", "2"): 0.64, ("sessions_count", ""): 777},
    ),
}  # fmt: skip


@pytest.mark.parametrize("maker", MAKERS)
async def test_vendor_profiles_read_the_published_mibs(maker: str, tmp_path: Path) -> None:
    figures, planted = MAKERS[maker]
    agent = SnmpAgent(tmp_path / "fw", figures={oid: gauge((0, v)) for oid, v in figures.items()})
    with answering(agent), opened(tmp_path, agent.entry("fw", profile=maker)) as source:
        await source.poll()
        reported = await query_telemetry(source)
    by_name = {
        (series.quantity.value, series.instance): series.values[-1] for series in reported.series
    }
    assert by_name == pytest.approx(planted)


async def test_custom_profile_scales_counters(tmp_path: Path) -> None:
    """Use a counter wrap to read bytes as bits, and read CPU ticks as a ratio."""
    in_bytes, ticks = "1.3.6.1.4.1.8072.9999.9999.7.0", "1.3.6.1.4.1.8072.9999.9999.8.0"
    now_s = time.time()
    planted = {
        in_bytes: {"type": "counter", "rate": 1e6, "from_s": now_s, "start": 2**32 - 2e6},
        ticks: {"type": "counter", "rate": 40, "from_s": now_s, "start": 123_456},
    }
    figures = {oid: {"turn": 2**32, **figure} for oid, figure in planted.items()}
    agent = SnmpAgent(tmp_path / "fw", figures=figures)
    (tmp_path / "own.toml").write_text(
        "[mine]\nread = [\n"
        f'{{ quantity = "in_bits_per_second", oid = "{in_bytes}", counter = 32, scale = 8 }},\n'
        f'{{ quantity = "cpu_ratio", oid = "{ticks}", counter = 32, scale = 0.01 }},\n]\n'
    )
    with (
        answering(agent),
        opened(tmp_path, agent.entry("fw", profile="mine", profiles_file="own.toml")) as source,
    ):
        reported = await poll_until(
            source, lambda reported: bool(reported.series) and reported.series[0].over_s.sum() > 5
        )
    # It is not possible to see the wrap if the first poll was late.
    assert set(kinds(reported)) <= {IssueKind.WRAPPED}
    for quantity, rate in ((Quantity.RECEIVED, 8e6), (Quantity.CPU, 0.4)):
        [series] = reported.of(quantity)
        counted = np.sum(series.values * series.over_s)
        # If the machine is busy, the agent will read its clock late. A wrong scale or wrap would
        # lead to a larger error.
        assert counted == pytest.approx(rate * series.over_s.sum(), rel=0.3), quantity


@pytest.mark.parametrize("version", [{}, V3], ids=["v2c", "v3"])
async def test_wrong_secret_is_reported_without_secrets(
    version: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with answering(SnmpAgent(tmp_path / "fw", figures=PLANTED)) as (agent,):
        entry = agent.entry("fw", profile="fortinet", **version)
        for name in ("community", "auth", "privacy"):
            (tmp_path / "fw" / name).write_text("not-the-secret-of-it")
        with opened(tmp_path, entry) as source:
            await source.poll()
            reported = await query_telemetry(source)
    assert kinds(reported) == [IssueKind.SILENT]
    assert not reported.series
    text = f"{reported.issues} {caplog.text}"
    for secret in ("not-the-secret-of-it", agent.community, agent.auth_key, agent.privacy_key):
        assert secret not in text


async def test_doctor_reports_state_of_all_devices(
    tmp_path: Path,
) -> None:
    path = tmp_path / "telemetry.toml"
    agents = [SnmpAgent(tmp_path / name, figures=PLANTED) for name in ("a", "b", "c")]
    fields = {"profile": "fortinet"}
    with answering(*agents):
        agents[1].stop()
        entries = [
            agents[0].entry("fw-a", interfaces=["lo"], **fields),
            agents[1].entry("fw-b", **fields),
            agents[2].entry("fw-c", profile="pan"),
        ]
        path.write_text("\n".join(entries))
        good, dead, lacking, _ = await check_telemetry_sources(path)
    assert good.ok, good.detail
    assert "CPU 37.00 %; memory 12.00 %; sessions 4\u202f321; " in good.detail
    assert (dead.ok, dead.required) == (False, True)
    assert "No SNMP response received before timeout" in dead.detail
    # It reports no value at all, so the service would have none either.
    assert (lacking.ok, lacking.required) == (False, True)
    assert "cpu_ratio: the device has no 1.3.6.1.2.1.25.3.3.1.2" in lacking.detail


async def test_dead_agent_and_restart_are_two_issues(tmp_path: Path) -> None:
    """Test v3, which detects restarts by protocol. Another test uses v2c."""
    agent = SnmpAgent(tmp_path / "fw", figures=PLANTED)
    fields = {**V3, "profile": "fortinet", "interfaces": ["lo"]}
    with answering(agent), opened(tmp_path, agent.entry("fw", **fields)) as source:
        # The uptime should now be large enough to see that it decreases.
        await poll_until(
            source, lambda reported: reported.series[0].at_s[-1] - reported.series[0].at_s[0] > 4
        )
        agent.stop()
        dead = await poll_until(source, lambda reported: bool(reported.issues))
        assert kinds(dead) == [IssueKind.SILENT]
        agent.start()
        back = await poll_until(source, lambda reported: IssueKind.RESTARTED in kinds(reported))
    assert sorted(kinds(back)) == [IssueKind.RESTARTED, IssueKind.SILENT]
    [received] = back.of(Quantity.RECEIVED)
    # This is the interval across the restart.
    assert np.isnan(received.values).sum() == 1
    [cpu] = back.of(Quantity.CPU)
    assert cpu.values.tolist() == pytest.approx([0.37] * len(cpu.values))


async def counter_until(
    device_counter: DeviceCounter, from_at: datetime, to_s: float
) -> CounterRecord:
    """Wait for at most 60 s for the bins since ``from_at`` to be later than ``to_s``."""
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s:
        with contextlib.suppress(TelemetryError):
            counts = await device_counter.read(from_at, datetime.now(UTC), Direction.FORWARD)
            if counts.end_s[-1] > to_s:
                return counts
        await asyncio.sleep(0.2)
    raise AssertionError("no bin of the counter reaches so far")


async def test_reads_32_bit_counter_through_its_wrap(tmp_path: Path) -> None:
    begun_at = datetime.now(UTC)
    # The rates are in bytes per second, the start value in bytes.
    slow, rate, start = 1_000.0, 2_000_000.0, 2**32 - 6_000_000.0
    begun_s = begun_at.timestamp()
    agent = SnmpAgent(
        tmp_path / "fw", figures=interface32("eth0", 1, slow, from_s=begun_s, start=start)
    )
    with (
        answering(agent),
        opened(tmp_path, agent.entry("fw", interfaces=["eth0"], byte_counter={})) as source,
    ):
        device_counter = DeviceCounter([source])
        with pytest.raises(TelemetryError, match="snmp IF-MIB: no reading yet"):
            await device_counter.read(begun_at, datetime.now(UTC), Direction.FORWARD)
        watching = asyncio.create_task(source.poll_forever())
        try:
            await source.poll()
            await counter_until(device_counter, begun_at, begun_s)
            # The counter should be fast after its first value was read. It will wrap after 3 s, and
            # the next wrap would be 2,000 s later.
            from_s = time.time()
            start += slow * (from_s - begun_s)
            agent.plant(interface32("eth0", 1, rate, from_s=from_s, start=start))
            reported = await poll_until(
                source,
                lambda reported: (
                    IssueKind.WRAPPED in kinds(reported)
                    and reported.of(Quantity.RECEIVED)[0].at_s[-1] > reported.issues[0].to_s
                ),
            )
            counts = await counter_until(device_counter, begun_at, reported.issues[0].to_s)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
    assert kinds(reported) == [IssueKind.WRAPPED]
    [received] = reported.of(Quantity.RECEIVED)
    # A poll and a retry can take at most a second, so the uncertainty is half of it on each side.
    unsure_bytes = rate * 1.0
    counted_bytes = np.sum(received.values * received.over_s) / 8
    assert counted_bytes == pytest.approx(rate * (received.at_s[-1] - from_s), abs=unsure_bytes)
    assert counts.bytes.sum() == pytest.approx(rate * (counts.end_s[-1] - from_s), abs=unsure_bytes)


async def test_finds_interface_by_name_after_its_index_changed(
    tmp_path: Path,
) -> None:
    begun_s = time.time()

    def planted(ours: int, other: int) -> Figures:
        fast = interface32("eth0", ours, 1e6, from_s=begun_s, start=0)
        return {**fast, **interface32("eth1", other, 1e3, from_s=begun_s, start=0)}

    agent = SnmpAgent(tmp_path / "fw", figures=planted(1, 2))
    with answering(agent), opened(tmp_path, agent.entry("fw", interfaces=["eth0"])) as source:
        await poll_until(
            source, lambda reported: bool(reported.series) and len(reported.series[0].at_s) > 10
        )
        agent.stop()
        agent.figures = planted(2, 1)
        agent.start()
        reported = await poll_until(
            source,
            lambda reported: (
                bool(reported.issues)
                and np.isfinite(reported.of(Quantity.RECEIVED)[0].values[-1])
                and reported.of(Quantity.RECEIVED)[0].at_s[-1] > reported.issues[-1].to_s
            ),
        )
    assert IssueKind.RESTARTED in kinds(reported)
    assert reported.of(Quantity.RECEIVED)[0].values[-1] > 4e6
