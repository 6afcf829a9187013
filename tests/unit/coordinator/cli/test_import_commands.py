"""Tests for the options of ``broadside import``."""

import pytest
import typer

from broadside.coordinator.cli.import_commands import _parse_declaration
from broadside.coordinator.imports.metric_declaration import MetricDeclaration


def test_parses_metric_declaration() -> None:
    fields = _parse_declaration(
        ["unit=bytes", " layer = ip", "mss_bytes=1448", "lag_s=75", "counts_lost=true"]
    )
    assert MetricDeclaration.model_validate(fields) == MetricDeclaration(
        unit="bytes", layer="ip", mss_bytes=1448, lag_s=75.0, counts_lost=True
    )
    assert _parse_declaration(None) == {}


@pytest.mark.parametrize(
    "text", ["units=bytes", "unit", "mss_bytes=large", "lag_s=", "counts_lost=maybe"]
)
def test_invalid_metric_declaration_is_a_one_line_error(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit):
        _parse_declaration([text])
    err = capsys.readouterr().err
    assert f"--metric {text!r}" in err
    assert err.count("\n") == 1
