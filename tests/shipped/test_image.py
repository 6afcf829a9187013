"""Test the container image, built and run as in docker-compose.yml, up to a verdict."""

import json
import signal
import ssl
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from broadside.lab.azurite import Azurite
from tests.deploy_check.compose import COMPOSE, read_compose
from tests.live.http_service import Answer, serving
from tests.live.started import started
from tests.live.waiting import wait_for
from tests.shipped.conftest import AddRow
from tests.shipped.containers import Compose, Container
from tests.shipped.image_build import Authority, Image, built_images

pytestmark = [pytest.mark.live, pytest.mark.needs_root, pytest.mark.timeout(1500)]

API: Final = "http://127.0.0.1:8080"
SIZE_MAX_BYTES: Final = 400 * 10**6
SYSTEM: Final = "image, without an engine"
# Build and installation tools, which no service needs.
BUILD_TOOLS: Final = ("gcc", "cc", "as", "ld", "make", "pip", "pip3", "uv", "git")


@pytest.fixture(scope="module")
def built() -> Iterator[tuple[Mapping[str, Image], Authority]]:
    with built_images() as built:
        yield built


@pytest.fixture(scope="module")
def images(built: tuple[Mapping[str, Image], Authority]) -> Mapping[str, Image]:
    return built[0]


@pytest.fixture
def compose(images: Mapping[str, Image], tmp_path: Path) -> Iterator[Compose]:
    document = read_compose(COMPOSE.read_text("utf-8"), "embedded")
    with Compose(tmp_path, document, images) as compose:
        yield compose


@pytest.fixture
def compose_on_machine(images: Mapping[str, Image], tmp_path: Path) -> Iterator[Compose]:
    document = read_compose(COMPOSE.read_text("utf-8"), "emulators")
    with Compose(tmp_path, document, images, on_machine=True) as compose:
        yield compose


def test_image_is_small_and_has_no_build_tools(
    images: Mapping[str, Image], shipped_row: AddRow
) -> None:
    image = images["broadside:local"]
    assert image.size_bytes < SIZE_MAX_BYTES
    places = [
        image.root / place for place in ("usr/bin", "usr/local/bin", "opt/broadside/venv/bin")
    ]
    results = {path.name for place in places for path in place.iterdir()}
    assert "broadside" in results
    assert not results.intersection(BUILD_TOOLS)
    [packages] = (image.root / "opt/broadside/venv/lib").glob("python3*/site-packages")
    assert (packages / "numpy").is_dir()
    assert not (packages / "pip").exists()
    assert not (packages / "setuptools").exists()
    shipped_row("image", SYSTEM, f"{image.size_bytes / 1e6:.0f} MB; no build tools")


def test_compose_services_complete_a_run(compose: Compose, shipped_row: AddRow) -> None:
    embedded = [name for name, service in compose.services.items() if "profiles" not in service]
    assert embedded.index("chrony")
    clock = compose.start("chrony")
    clock.wait_until_healthy()
    services: dict[str, Container] = {}
    for name in embedded:
        if name != "chrony":
            services[name] = compose.start(name)
    coordinator = services["coordinator"]
    for container in services.values():
        container.wait_until_healthy()
        assert rights_of(container) == {"CapEff": "0" * 16, "CapBnd": "0" * 16, "NoNewPrivs": "1"}
    refused = coordinator.execute("sh", "-c", "id -u; touch /etc/written /opt/broadside/written")
    assert refused.stdout.strip() == "10001"
    assert refused.stderr.count("Read-only file system") == 2
    shipped_row("image", SYSTEM, f"{len(embedded)} services healthy, read-only, without rights")

    fired = coordinator.execute(
        *("broadside", "launch", "smoke", "--set", "pairs_count=1", "--plain", "--api", API)
    )
    assert fired.returncode == 0, fired.stdout + fired.stderr + services["client-1"].tail()
    verdict = coordinator.execute("broadside", "verdict", "last", "-o", "json", "--api", API)
    assert json.loads(verdict.stdout)["verdict"] in ("pass", "measured")
    shipped_row("image", SYSTEM, "one pair fired to a verdict")

    # The reduced packages of the image must support these formats.
    for form, output, start in (
        ("parquet", "parquet", b"PAR1"),
        ("xlsx", "run.xlsx", b"PK"),
        ("csv", "csv", b""),
    ):
        argv = ("-o", form, "--file", f"/data/{output}", "--api", API)
        done = coordinator.execute("broadside", "export", "last", *argv)
        assert done.returncode == 0, done.stdout + done.stderr
        files = list((compose.folder / "volume-data").rglob(f"*.{form}"))
        assert files
        assert all(path.read_bytes().startswith(start) for path in files)
    drawn = coordinator.execute(
        *("broadside", "chart", "last", "throughput", "--file", "/data/rate.svg", "--api", API)
    )
    assert drawn.returncode == 0, drawn.stdout + drawn.stderr
    shipped_row("image", SYSTEM, "exports (parquet, xlsx, csv), chart")

    assert services["client-2"].check_health().returncode == 0
    unknown = services["client-2"].check_health({"BROADSIDE_AGENT_AGENT_ID": "client-9"})
    assert unknown.returncode == 1
    assert "agent client-9 has never stored a heartbeat" in unknown.stderr
    assert services["client-3"].stop() == 0
    wait_for("client-3 is unhealthy", partial(is_unhealthy, services["client-2"], "client-3"))
    # uvicorn shuts down in order and then raises the signal again.
    assert coordinator.stop() == 128 + signal.SIGTERM
    code, text = compose.run("coordinator", "healthy", "coordinator")
    assert code == 1, text
    assert "Connection refused" in text
    shipped_row("image", SYSTEM, "health checks of agents and coordinator, both ways")


def rights_of(container: Container) -> dict[str, str]:
    """Return the capabilities of a service as the kernel reports them."""
    lines = Path(f"/proc/{container.pid}/status").read_text().splitlines()
    fields = dict(line.split(":\t", 1) for line in lines)
    return {name: fields[name] for name in ("CapEff", "CapBnd", "NoNewPrivs")}


def is_unhealthy(container: Container, agent_id: str) -> bool:
    return container.check_health({"BROADSIDE_AGENT_AGENT_ID": agent_id}).returncode == 1


def test_emulators_ready_command_creates_tables(
    compose_on_machine: Compose, shipped_row: AddRow
) -> None:
    folder = compose_on_machine.folder / "azurite"
    folder.mkdir()
    with serving(lambda _: Answer(status=200)) as emulator, started(Azurite(folder)) as azurite:
        tables = {"BROADSIDE_TABLES_CONNECTION_STRING": azurite.connection_string()}
        command = ("emulators-ready", f"{emulator}/health")
        code, text = compose_on_machine.run("emulators-ready", *command, environment=tables)
        assert code == 0, text
        # It reads the tables and finds no agent in them.
        code, text = compose_on_machine.run("client-1", "healthy", "agent", environment=tables)
        assert code == 1, text
        assert "agent client-1 has never stored a heartbeat" in text
    shipped_row("image", SYSTEM, "emulators-ready, against Azurite alone")


def test_image_trusts_site_certificate_authorities(
    built: tuple[Mapping[str, Image], Authority], compose_on_machine: Compose, shipped_row: AddRow
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(built[1].issue("localhost", compose_on_machine.folder))
    with serving(lambda _: Answer(status=418), tls=context) as url:
        command = ("runs", "--api", url.replace("127.0.0.1", "localhost"))
        code, text = compose_on_machine.run("coordinator", *command)
        assert code == 4, text
        assert "HTTP 418 without a reason" in text
        public_alone = {"SSL_CERT_FILE": "/etc/ssl/certs/ISRG_Root_X1.pem"}
        code, text = compose_on_machine.run("coordinator", *command, environment=public_alone)
        assert code == 4, text
        assert "certificate" in text.lower()
    shipped_row("image", SYSTEM, "HTTPS with a certificate of the site's own authority")
