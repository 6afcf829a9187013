from broadside.coordinator.core import formatting

RATES = {
    0.0: "0 bit/s",
    12.5: "12.5 bit/s",
    -3e3: "-3 kbit/s",
    5e8: "500 Mbit/s",
    999_960_000.0: "1 Gbit/s",
    1.7399e9: "1.74 Gbit/s",
    180e9: "180 Gbit/s",
    1.8e12: "1.8 Tbit/s",
    12_345.6e12: "12350 Tbit/s",
}
TIMES = {0.0: "0 s", 2.5e-7: "0.25 µs", 0.000999: "999 µs", 0.0123456: "12.35 ms", 1740.0: "1740 s"}


def test_formats_four_digits_with_decimal_unit() -> None:
    assert {value: formatting.rate(value) for value in RATES} == RATES
    assert {value: formatting.time(value) for value in TIMES} == TIMES
    assert [formatting.size(1.5e12), formatting.size(999.0)] == ["1.5 TB", "999 B"]
    assert [formatting.count(value) for value in (0, 1 / 3, 7.0, 681.5)] == [
        "0",
        "0.33",
        "7",
        "682",
    ]
    assert {formatting.rate(None), formatting.time(None), formatting.number(None)} == {"unknown"}
