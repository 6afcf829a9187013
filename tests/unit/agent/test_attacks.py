"""The agents' part of ``make attack``, and that its walk leaves no field and no writer out."""

import pytest

from broadside.exchange.engines import engines
from tests.attack import Attack
from tests.attack.injections import KINDS, PLACES, text_fields, written
from tests.attack.on_agents import ATTACKS


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_it_is_stopped_and_says_by_what(attack: Attack) -> None:
    assert attack.run()


def test_every_field_that_takes_text_is_listed() -> None:
    assert text_fields().keys() == KINDS.keys()


@pytest.mark.parametrize("engine", engines())
def test_the_writers_are_reached(engine: str) -> None:
    """A good value does arrive, so that a bad one's absence means something."""
    assert "10.9.9.9" in written(engine, "endpoint.address", "10.9.9.9")
    assert "10.9.9.9" in written(engine, "bind", "10.9.9.9")
    assert "10.9.9.9" in written(engine, "address", "10.9.9.9")
    assert "/etc/c.pem" in written("https", "certificate", "/etc/c.pem")
    assert "10.9.9.9" in written(engine, "tunnel.inner_server_address", "10.9.9.9")
    assert "eth7" in written(engine, "nic", "eth7")
    assert len(PLACES) == len(set(PLACES))
