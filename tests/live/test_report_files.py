"""Test the printed report and a chart as an image in a real browser."""

import re
import struct
import zlib

import pytest

from broadside.exchange.fabric import FabricSettings, open_fabric
from tests.live.live_site import Site
from tests.unit.coordinator.stored_run import store_run

pytestmark = pytest.mark.live


async def test_writes_report_as_pdf_and_chart_as_png(site: Site) -> None:
    fabric = open_fabric(FabricSettings(data_dir=site.folder / "data"))
    run_id = await store_run(fabric)
    await fabric.close()
    printed = site.run("report", run_id, "--file", "r.pdf")
    assert printed.returncode == 0, printed.stderr
    pdf = (site.folder / "r.pdf").read_bytes()
    assert pdf.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) >= 5
    painted = site.run("chart", run_id, "throughput", "--theme", "dark", "--file", "c.png")
    assert painted.returncode == 0, painted.stderr
    png = (site.folder / "c.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", png[16:24])
    assert (width, height) == (2200, 1040)
    body = b"".join(
        png[at + 4 : at + 4 + struct.unpack(">I", png[at - 4 : at])[0]]
        for at in (match.start() for match in re.finditer(b"IDAT", png))
    )
    # An empty background would have fewer distinct bytes.
    assert len(set(zlib.decompressobj().decompress(body, 4_000_000))) > 20
