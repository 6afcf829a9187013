"""Tests for HTTPS, where the certificate can be verified."""

from broadside.exchange.engines import engines, problems, traffic_of
from broadside.exchange.engines.port import Certificate
from tests.unit.exchange.engines.asks import client_ask, job, server_ask

HTTPS = engines()["https"]


def test_server_uses_its_certificate() -> None:
    shown = Certificate(certificate="/work/x/c.pem", key="/work/x/k.pem")
    text = HTTPS.server(server_ask(certificate=shown)).files[0].text
    assert "listen 10.2.0.4:8080 ssl reuseport;" in text
    assert "ssl_certificate /work/x/c.pem; ssl_certificate_key /work/x/k.pem;" in text


def test_client_verifies_certificates_only_on_request() -> None:
    launch = HTTPS.client(client_ask(job(traffic_of(engine="https"))))
    assert "-insecure" in launch.processes[0].argv
    assert launch.files[0].text.startswith("GET https://10.2.0.4:8080/")
    strict = traffic_of(engine="https", options={"verify": True})
    assert problems(strict) == ()
    assert "-insecure" not in HTTPS.client(client_ask(job(strict))).processes[0].argv
