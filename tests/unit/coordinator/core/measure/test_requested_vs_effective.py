"""Tests to compare what an engine used to what was requested."""

from broadside.coordinator.core.measure.requested_vs_effective import settings, tls_setting
from broadside.exchange.engines import traffic_of
from broadside.exchange.messages import EngineReport, Measure, Traffic

REQUESTED = Traffic(streams_count=4)


def test_lists_requested_and_effective_streams() -> None:
    fields = {
        setting.field: setting
        for setting in settings(REQUESTED, 30, EngineReport(engine="iperf3", streams_count=3))
    }
    assert (fields["streams_count"].requested, fields["streams_count"].effective) == (4, (3,))
    assert fields["streams_count"].differing == (3,)


def test_unreported_setting_is_not_a_difference() -> None:
    for engine in (None, EngineReport(engine=REQUESTED.engine)):
        fields = {setting.field: setting for setting in settings(REQUESTED, 30, engine)}
        assert fields["streams_count"].effective == ()
        assert not any(setting.differing for setting in fields.values())


def test_compares_all_processes_with_the_request() -> None:
    parts = tuple(EngineReport(engine=REQUESTED.engine, duration_s=setting) for setting in (30, 29))
    complete = EngineReport(engine=REQUESTED.engine, processes=parts)
    fields = {setting.field: setting for setting in settings(REQUESTED, 30, complete)}
    assert fields["duration_s"].effective == (30, 29)
    assert fields["duration_s"].differing == (29,)
    assert fields["processes_count"].effective == (2,)


def test_negotiated_tls_is_compared_with_the_chosen() -> None:
    measures = tuple(
        Measure(name=f"{name}_count", value=9, unit="count")
        for name in ("tlsv1_2_ecdhe_rsa_aes128_gcm_sha256", "tlsv1_3_tls_aes_256_gcm_sha384", "x")
    )
    served = EngineReport(engine="https", measures=measures)
    for options, differing in (
        ({}, ()),
        ({"tls": "1.3"}, ("tlsv1_2_ecdhe_rsa_aes128_gcm_sha256",)),
        (
            {"tls": "1.2", "tls_cipher": "ECDHE-RSA-AES128-GCM-SHA256"},
            ("tlsv1_3_tls_aes_256_gcm_sha384",),
        ),
    ):
        traffic = traffic_of(engine="https", options=options)
        assert tls_setting(traffic, served).differing == differing
        assert tls_setting(traffic, None).differing == ()
