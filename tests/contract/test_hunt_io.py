"""Test that a hunt in several processes has the same result as in one."""

from tests.hunt.world_cases import hunt, numbered


def test_result_does_not_depend_on_the_number_of_workers() -> None:
    single, parallel = (
        hunt(4, 5, ["clean-30s", "forged"], manipulated=False, workers=count) for count in (1, 2)
    )
    assert single == parallel
    assert [(case.kind, case.seed) for case in single] == numbered(4, 5, ["clean-30s", "forged"])
