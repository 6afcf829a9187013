"""Tests for HTTPS, where the certificate can be verified."""

from typing import cast

import pytest

from broadside.exchange.engines import engines, offered_bits_per_second, problems, traffic_of
from broadside.exchange.engines.port import Certificate, DaemonReader, Unsupported
from tests.unit.exchange.engines.asks import T0, client_ask, job, server_ask

HTTPS = engines()["https"]


def test_server_uses_its_certificate() -> None:
    shown = Certificate(certificate="/work/x/c.pem", key="/work/x/k.pem")
    text = HTTPS.server(server_ask(certificate=shown)).files[0].text
    assert "listen 10.2.0.4:8080 ssl http2 reuseport;" in text
    assert "ssl_certificate /work/x/c.pem; ssl_certificate_key /work/x/k.pem;" in text


@pytest.mark.parametrize(
    ("tls", "settings"),
    [
        ("", "ssl_protocols TLSv1.2 TLSv1.3;\n"),
        ("1.3", "ssl_protocols TLSv1.3;\n"),
        (
            "1.3:TLS_AES_256_GCM_SHA384",
            "ssl_protocols TLSv1.3; ssl_conf_command Ciphersuites TLS_AES_256_GCM_SHA384;\n",
        ),
        (
            "1.2:ECDHE-RSA-AES128-GCM-SHA256",
            "ssl_protocols TLSv1.2; ssl_ciphers ECDHE-RSA-AES128-GCM-SHA256;\n",
        ),
    ],
)
def test_server_enforces_version_and_cipher_suite(tls: str, settings: str) -> None:
    shown = Certificate(certificate="/work/x/c.pem", key="/work/x/k.pem")
    text = HTTPS.server(server_ask(certificate=shown, tls=tls)).files[0].text
    assert settings in text
    version, _, cipher = tls.partition(":")
    options = ({"tls": version} if version else {}) | ({"tls_cipher": cipher} if cipher else {})
    assert HTTPS.tls_of(traffic_of(engine="https", options=options)) == tls
    assert HTTPS.service_problem(tls) is None
    assert (engines()["http"].service_problem(tls) is None) == (tls == "")


def test_client_verifies_certificates_only_on_request() -> None:
    launch = HTTPS.client(client_ask(job(traffic_of(engine="https"))))
    assert "-insecure" in launch.processes[0].argv
    assert launch.files[0].text.startswith("GET https://10.2.0.4:8080/")
    strict = traffic_of(engine="https", options={"verify": True})
    assert problems(strict) == ()
    assert "-insecure" not in HTTPS.client(client_ask(job(strict))).processes[0].argv


def test_name_version_and_resumption_are_on_the_command_line() -> None:
    chosen = traffic_of(
        engine="https",
        options={
            "server_name": "shop.lab.test",
            "http2": True,
            "tls_resume": True,
            "body_mix": "1000,50000",
            "requests_per_second": 10,
        },
    )
    assert problems(chosen) == ()
    launch = HTTPS.client(client_ask(job(chosen)))
    wanted = {"-connect-to=shop.lab.test:8080:10.2.0.4:8080", "-http2=true", "-session-tickets"}
    assert wanted <= set(launch.processes[0].argv)
    query = "?job=r1.00000.00000.15"
    assert launch.files[0].text.split() == [
        "GET",
        f"https://shop.lab.test:8080/1000{query}",
        "GET",
        f"https://shop.lab.test:8080/50000{query}",
    ]
    assert offered_bits_per_second(chosen) == 10 * 25_500 * 8
    assert "by HTTP/2 over TCP" in HTTPS.statement(chosen)
    with pytest.raises(Unsupported, match="no IPv6 address"):
        HTTPS.client(client_ask(job(chosen, address="fd00::2"), bind=None))


@pytest.mark.parametrize(
    ("engine", "options", "message"),
    [
        ("http", {"http2": True}, "traffic.options.http2: http has no TLS; drop it"),
        ("http", {"tls_resume": True}, "traffic.options.tls_resume: http has no TLS; drop it"),
        ("https", {"body_mix": "1000,1001"}, "traffic.options.body_mix: 1001"),
        ("https", {"server_name": "a/b"}, "traffic.options.server_name: String should match"),
    ],
)
def test_invalid_options_are_rejected(
    engine: str, options: dict[str, object], message: str
) -> None:
    (problem,) = problems(traffic_of(engine=engine, options=options))
    assert problem.startswith(message)


def test_negotiated_protocols_are_counted() -> None:
    reader = HTTPS.server_reader()
    start = f"{T0.timestamp() + 1:.3f} 0.001 200 1000 10.1.0.4 r1.00000.00000.15"
    for end in (
        "HTTP/2.0 TLSv1.3 TLS_AES_128_GCM_SHA256 r shop.lab.test",
        "HTTP/2.0 TLSv1.3 TLS_AES_128_GCM_SHA256 . shop.lab.test",
        "HTTP/1.1 TLSv1.2 ECDHE-ECDSA-AES128-GCM-SHA256 . -",
    ):
        reader.feed(f"{start} {end}".encode(), T0.timestamp() + 1)
    (test,) = cast(DaemonReader, reader).tests.values()
    assert {measure.name: measure.value for measure in test.finish().report.measures} == {
        "server_requests_count": 3,
        "server_http2_count": 2,
        "server_resumed_count": 1,
        "server_named_count": 2,
        "tlsv1_3_tls_aes_128_gcm_sha256_count": 2,
        "tlsv1_2_ecdhe_ecdsa_aes128_gcm_sha256_count": 1,
    }
