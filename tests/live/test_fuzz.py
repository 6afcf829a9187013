"""Run a short version of ``make fuzz``."""

from pathlib import Path

import pytest

from broadside.coordinator.api.examples import REQUESTS

pytestmark = pytest.mark.live


def test_fuzzed_requests_get_documented_responses(tmp_path: Path) -> None:
    # The import of schemathesis would take a second.
    from tests.fuzz import fuzz

    tally = fuzz(500, seconds_max=240, seed=20261120, folder=tmp_path)
    assert tally.failures == {}
    assert {200, 401, 403, 404, 422} <= tally.statuses.keys()
    works = {f"{method} {path}" for method, path in REQUESTS}
    # It should be possible to send this many requests in 240 s, even if the host is busy.
    assert tally.requests_count > len(works)
    assert len(works & tally.answered.keys()) > len(works) / 2
