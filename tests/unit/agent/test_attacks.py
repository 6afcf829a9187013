"""Run the agent attacks from ``make attack``. All fields and writers should be covered."""

import pytest

from broadside.exchange.engines import engines
from tests.attack.injections import KINDS, PLACES, text_fields, written


def test_all_text_fields_are_listed() -> None:
    assert text_fields().keys() == KINDS.keys()


@pytest.mark.parametrize("engine", engines())
def test_valid_values_reach_the_written_files(engine: str) -> None:
    """Check that a valid value will arrive. If not, the absence of an invalid one proves
    nothing."""
    assert "10.9.9.9" in written(engine, "endpoint.address", "10.9.9.9")
    assert "10.9.9.9" in written(engine, "bind", "10.9.9.9")
    assert "10.9.9.9" in written(engine, "address", "10.9.9.9")
    assert "/etc/c.pem" in written("https", "certificate", "/etc/c.pem")
    assert "10.9.9.9" in written(engine, "tunnel.inner_server_address", "10.9.9.9")
    assert "eth7" in written(engine, "nic", "eth7")
    assert len(PLACES) == len(set(PLACES))
