from collections.abc import Callable

import pytest

from broadside.coordinator.core.quantities import parse_rate, parse_size, parse_time


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_rate, "1.5G", 1.5e9),
        (parse_rate, "180 Gbit/s", 180e9),
        (parse_rate, "250mbps", 250e6),
        (parse_rate, "12", 12.0),
        (parse_size, "128K", 131072),
        (parse_size, "4MiB", 4 << 20),
        (parse_size, "1500", 1500),
        (parse_time, "2ms", 0.002),
        (parse_time, "0.1 s", 0.1),
        (parse_time, "50us", 50e-6),
        (parse_time, "9ms", 0.009),
        (parse_time, "5m", 300.0),
        (parse_time, "1.5h", 5400.0),
        (parse_rate, "0.0011T", 1.1e9),
    ],
)
def test_parses_quantities(parse: Callable[[str], float], text: str, value: float) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_rate, "fast"),
        (parse_rate, "-1G"),
        (parse_rate, "0"),
        (parse_size, "1.5X"),
        (parse_size, "0K"),
        (parse_time, "2"),
        (parse_time, "2 minutes"),
    ],
)
def test_rejects_invalid_quantities(parse: Callable[[str], float], text: str) -> None:
    with pytest.raises(ValueError, match="write it like"):
        parse(text)
