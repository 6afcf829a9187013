"""Common setup for all unit tests: each runs without processes, network, sleep and real time."""

import contextlib
import platform
from collections.abc import Generator, Iterator
from pathlib import Path

import MLRsearch  # noqa: F401 - imported early, because class creation inspects the stack
import pytest
import urllib3.util.connection  # noqa: F401 - imported early: it binds a socket to look for IPv6

from tests.unit.isolation import collecting, install, isolated, violations

install()

# This must follow the installation.
from broadside.exchange.version import version_text  # noqa: E402

# The first call starts git and keeps its answer.
version_text()
# This starts uname once. Azure packages use it when they are imported.
platform.processor()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    if not collector.path.is_relative_to(Path(__file__).parent):
        return (yield)
    with collecting():
        report = yield
    matches = violations()
    if matches:
        report.outcome = "failed"
        report.longrepr = "A unit test must not " + "; ".join(dict.fromkeys(matches))
    return report


# A hook and not only a fixture, so that fixtures of all scopes are included. pytest also calls it
# for tests in other folders.
@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    unit = item.path.is_relative_to(Path(__file__).parent)
    with isolated() if unit else contextlib.nullcontext():
        return (yield)


@pytest.fixture(autouse=True)
def no_process_network_or_sleep() -> Iterator[None]:
    """Fail a test that did this, even if the tested code handled the error."""
    yield
    matches = violations()
    if matches:
        pytest.fail("A unit test must not " + "; ".join(dict.fromkeys(matches)))
