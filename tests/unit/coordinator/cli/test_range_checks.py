"""Tests for the boot status on the serial console."""

import pytest

from broadside.coordinator.cli.range_checks import last_status

READY = '{"host": "c0", "stage": "ready", "at": "2026-11-26T12:00:00Z", "error": ""}'


@pytest.mark.parametrize(
    ("console", "stage"),
    [
        ("", None),
        ("Debian GNU/Linux 13 c0 ttyS0\n\nc0 login: ", None),
        (f"[  42.1] fetch.py[511]: broadside-boot: {READY}\r\nc0 login: ", "ready"),
        ('broadside-boot: {"stage": "fetch"}\nbroadside-boot: {"stage": "install"}\n', "install"),
        # The kernel can write to the same line, and the last line can be incomplete.
        (f'broadside-boot: {READY}\nbroadside-boot: {{"sta[ 43.0] veth: up\n', "ready"),
        (f"broadside-boot: {READY}[   43.000] eth0: up\nbroadside-boot: ", "ready"),
        ("broadside-boot: []\nbroadside-boot: 7\n", None),
    ],
)
def test_returns_the_newest_complete_status(console: str, stage: str | None) -> None:
    result = last_status(console)
    assert (result and result["stage"]) == stage
