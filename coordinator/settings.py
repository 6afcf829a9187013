"""What an operator sets for the coordinator: environment variables ``BROADSIDE_...``."""

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class CoordinatorSettings(BaseSettings):
    """The coordinator's own settings; the fabric's are in :mod:`exchange.fabric`."""

    model_config = SettingsConfigDict(env_prefix="BROADSIDE_", extra="ignore", frozen=True)

    host: str = Field("127.0.0.1", description="address the API listens on; loopback only for now")
    port: int = Field(
        8080, ge=0, le=65535, description="port the API listens on; 0 picks a free one"
    )
    tick_s: float = Field(1.0, gt=0, le=60, description="seconds between two looks at active runs")
    ledger: Literal["none", "lab"] = Field(
        "none", description="where the firewall's own byte counts come from"
    )
    ledger_path: Path | None = Field(
        None, description="file of the `lab` ledger (cumulative IP-layer bytes, a reading a second)"
    )
