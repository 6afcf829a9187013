"""Fixtures of the review tests."""

from collections.abc import Iterator

import pytest

from tests.review.versions import Versions, both


@pytest.fixture(scope="session")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Versions]:
    with both(tmp_path_factory.mktemp("review")) as started:
        yield started
