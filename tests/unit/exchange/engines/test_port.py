"""Tests for the engine interface, to be run with all engines."""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broadside.coordinator.core.thresholds import ALL_THRESHOLDS
from broadside.exchange import engines as engines_package
from broadside.exchange.engines import engines, problems, traffic_of
from broadside.exchange.engines.port import (
    EVERY_ENGINE,
    FILE_TEXT_MAX,
    Certificate,
    Engine,
    EngineFile,
    Launch,
    ServerLifetime,
)
from broadside.exchange.messages import Protocol, Traffic
from tests.unit.exchange.engines.asks import client_ask, job, server_ask

ROOT = Path(__file__).parents[4]
CERTIFICATE = Certificate(certificate="/work/x/c.pem", key="/work/x/k.pem")


@pytest.fixture(params=engines().values(), ids=lambda engine: engine.name)
def engine(request: pytest.FixtureRequest) -> Engine:
    param: Engine = request.param
    return param


def test_engine_has_a_module_a_test_and_documentation(engine: Engine) -> None:
    folder = Path(engines_package.__file__).parent
    source = folder / f"{engine.name}.py"
    assert source.is_file()
    assert (Path(__file__).parent / f"test_{engine.name}.py").is_file()
    assert f"\n| `{engine.name}` |" in (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    # The agent should only use the engine interface.
    for path in (ROOT / "agent").glob("*.py"):
        reported = re.sub(r"(fabric [!=]= |how=)\"\w+\"", "", path.read_text(encoding="utf-8"))
        assert f'"{engine.name}"' not in reported, path


def subclasses(parent: type[Any]) -> Iterator[type[Any]]:
    for child in parent.__subclasses__():
        yield child
        yield from subclasses(child)


def unregistered() -> set[type[Any]]:
    """Return the complete engines in the package that are not a module's ``ENGINE``."""
    for module in pkgutil.iter_modules(engines_package.__path__):
        importlib.import_module(f"{engines_package.__name__}.{module.name}")
    complete = {
        item
        for item in subclasses(Engine)
        if item.__module__.startswith(engines_package.__name__) and not inspect.isabstract(item)
    }
    assert len(complete) >= 5
    return complete - {type(engine) for engine in engines().values()}


def test_every_engine_is_registered() -> None:
    """A module without ``ENGINE`` is not found, so no other test of this file would use it."""
    assert unregistered() == set()


def test_engine_without_its_constant_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    http = importlib.import_module(f"{engines_package.__name__}.http")
    monkeypatch.delattr(http, "ENGINE")
    engines.cache_clear()
    try:
        assert unregistered() == {http.Http}
    finally:
        monkeypatch.undo()
        engines.cache_clear()


def test_default_traffic_is_valid(engine: Engine) -> None:
    traffic = traffic_of(engine=engine.name)
    assert problems(traffic) == ()
    assert engine.supported_fields | EVERY_ENGINE <= set(Traffic.model_fields)
    assert set(engine.defaults) <= set(Traffic.model_fields)
    assert engine.measures(traffic) <= {threshold.requires for threshold in ALL_THRESHOLDS}
    assert engine.title
    assert len(engine.title) < 90


def test_client_binds_its_address_and_uses_the_endpoint(engine: Engine) -> None:
    launch = engine.client(client_ask(job(traffic_of(engine=engine.name))))
    text = " ".join(argument for process in launch.processes for argument in process.argv)
    text += "".join(file.text for file in launch.files)
    assert "10.2.0.4" in text
    assert "8080" in text
    assert "10.1.0.4" in text
    for file in launch.files:
        assert not Path(file.name).is_absolute()
        assert ".." not in Path(file.name).parts


def test_client_files_are_part_of_the_record(engine: Engine) -> None:
    """Check this, because the files are needed to see what a command line does."""
    launch = engine.client(client_ask(job(traffic_of(engine=engine.name))))
    text = " ".join(argument for process in launch.processes for argument in process.argv)
    assert launch.texts == {file.name: file.text for file in launch.files}
    assert set(launch.texts) == {name for name in ("script", "targets") if f"/x/{name}" in text}


def test_long_files_are_truncated() -> None:
    launch = Launch(
        processes=(), files=(EngineFile(name="a", text="x" * 9000), EngineFile(name="b", text="y"))
    )
    assert launch.texts["a"] == "x" * FILE_TEXT_MAX + "..."
    assert launch.texts["b"] == "y"


def test_server_listens_at_the_agent_address(engine: Engine) -> None:
    request = server_ask(certificate=CERTIFICATE if engine.needs_certificate else None)
    launch = engine.server(request)
    (process,) = launch.processes
    text = " ".join(process.argv) + "".join(file.text for file in launch.files)
    assert "10.2.0.4" in text
    assert "8080" in text
    assert launch.unprivileged or engine.serving is ServerLifetime.ONE_TEST


def test_reader_of_invalid_output_is_not_usable(engine: Engine) -> None:
    for reader in (
        engine.client_reader(job(traffic_of(engine=engine.name))),
        engine.server_reader(),
    ):
        for line in (b"", b"\xff\xfe", b"{}", b'{"event":', b"1 2 3", b"null", b'["x"]'):
            reader.feed(line, 1.0)
        reader.sample("io", "rchar: x\n\xff", 1.0)
        reading = reader.finish(None)
        assert not reading.usable
        assert reading.intervals == {}
        assert reading.first_data_at_s is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"engine": "trex"}, "traffic.engine: 'trex' is none that this Broadside knows"),
        (
            {"engine": "ftp", "protocol": "udp", "stream_bits_per_second": 5},
            (
                "traffic.protocol: engine ftp does not support protocol udp; "
                "leave it at tcp, or use engine iperf3"
            ),
        ),
        (
            {"engine": "ftp", "window_bytes": 4096},
            (
                "traffic.window_bytes: engine ftp does not support window_bytes 4096; "
                "drop it, or use engine iperf3"
            ),
        ),
        (
            {"engine": "http", "direction": "bidirectional"},
            "traffic.direction: http moves bytes one way; set reverse (download) or forward",
        ),
        (
            {"engine": "ftp", "options": {"compressible_percent": 30}},
            "traffic.options.compressible_percent: Input should be a multiple of 25",
        ),
        (
            {"engine": "http", "direction": "forward", "options": {"body_bytes": 200_000_000}},
            "traffic.options.body_bytes: a client stores the 200000000 bytes of its uploads",
        ),
        (
            {
                "engine": "https",
                "direction": "forward",
                "streams_count": 128,
                "options": {"body_mix": "1000,50000000"},
            },
            "traffic.options.body_mix: a server keeps up to 128 uploads of 50000000 bytes in",
        ),
        (
            {"engine": "https", "options": {"tls_cipher": "TLS_AES_256_GCM_SHA384"}},
            ("traffic.options.tls_cipher: TLS_AES_256_GCM_SHA384 belongs to TLS 1.3; set tls=1.3"),
        ),
        (
            {"engine": "http", "options": {"tls": 1.3}},
            "traffic.options.tls: http has no TLS; drop it",
        ),
        (
            {"engine": "https", "options": {"colour": 1}},
            "traffic.options.colour: https does not have this option; use one of requests_per_",
        ),
        (
            {"engine": "http", "options": {"body_bytes": 1_000_001}},
            "traffic.options.body_bytes: 1000001 bytes are not possible; set 1, 2 or 5 times",
        ),
        (
            {"engine": "http", "options": {"verify": True}},
            "traffic.options.verify: http has no certificate; drop it, or use engine https",
        ),
        (
            {"engine": "https", "options": {"verify": "True"}},
            "traffic.options.verify: Input should be a valid boolean (got 'True'); correct it",
        ),
        (
            {"engine": "ftp", "streams_count": 64, "options": {"file_bytes": 1_000_000}},
            "traffic.options.file_bytes: 1000000 bytes are too few for 64 segments; set at least",
        ),
        (
            {"engine": "ftp", "streams_count": 64, "stream_bits_per_second": 8_000_000},
            "traffic.stream_bits_per_second: lftp does not pace a file in segments",
        ),
        (
            {"engine": "ftp", "stream_bits_per_second": 8e9, "options": {"file_bytes": 10**9}},
            "traffic.options.file_bytes: 1000000000 bytes are over within 2 s at 8000000000 bit/s",
        ),
        (
            {"engine": "iperf3", "options": {"x": 1}},
            "traffic.options: iperf3 has none, and x is set; drop it",
        ),
        (
            {"pacing": "kernel"},
            "traffic.pacing: kernel, but no rate is set; set traffic.stream_bits_per_second",
        ),
        (
            {"pacing": "kernel", "protocol": "udp", "stream_bits_per_second": 5},
            "traffic.pacing: the kernel paces TCP sockets only; set engine",
        ),
        (
            {"processes_count": 4, "streams_count": 3},
            "traffic.processes_count: 4 processes for 3 streams; set at most a process a stream",
        ),
    ],
)
def test_unsupported_traffic_is_reported_with_a_fix(fields: dict[str, Any], message: str) -> None:
    result = list(problems(traffic_of(**fields)))
    assert any(problem.startswith(message) for problem in result), result


def test_new_options_are_named_for_older_agents(engine: Engine) -> None:
    assert engine.used_new_options(traffic_of(engine=engine.name)) == frozenset()
    if "direction" in engine.new_options:
        upload = traffic_of(
            engine=engine.name, direction="forward", options={"compressible_percent": 25}
        )
        assert problems(upload) == ()
        assert engine.used_new_options(upload) == {"direction", "compressible_percent"}


def test_omitted_fields_have_the_defaults_of_the_engine() -> None:
    assert traffic_of(engine="ftp").streams_count == 1
    assert traffic_of(engine="ftp").direction.value == "reverse"
    assert traffic_of(engine="ftp", streams_count=64).streams_count == 64
    assert Traffic().streams_count == 64
    assert traffic_of(engine="http").protocol is Protocol.TCP
    again = Traffic.model_validate_json(traffic_of(engine="https").model_dump_json())
    assert again == traffic_of(engine="https")
