"""Settings for sign-in, from ``BROADSIDE_...`` environment variables."""

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class SignInSettings(BaseSettings):
    """Settings for sign-in, limits and TLS of the API."""

    model_config = SettingsConfigDict(env_prefix="BROADSIDE_", extra="ignore", frozen=True)

    sign_in: Literal["off", "on"] = Field(
        "off",
        description="`on`: every route but `/healthz` and `/readyz` needs a bearer token; `off`: "
        "nobody signs in, and the API listens on loopback only",
    )
    entra_tenant_id: str | None = Field(
        None, description="Entra ID tenant (a GUID) whose tokens are accepted beside our own"
    )
    entra_audience: str | None = Field(
        None, description="who its tokens must be for: the app's client id, `api://...`; or both"
    )
    entra_issuers: str | None = Field(
        None,
        description="who may have issued them, comma-separated; default: that tenant's two issuers "
        "in the public cloud",
    )
    entra_jwks_url: str | None = Field(
        None, description="where its signing keys are; default: the tenant's in the public cloud"
    )
    entra_leeway_s: float = Field(
        30.0, ge=0, le=300, description="seconds by which its clock and ours may differ"
    )
    writes_per_minute: int = Field(
        120, ge=1, description="writes that one caller may ask for in any 60 seconds"
    )
    request_max_bytes: int = Field(
        1_048_576, ge=1024, description="largest request body; imports have their own limit"
    )
    import_max_bytes: int = Field(
        268_435_456, ge=1024, description="largest body of an import, in bytes"
    )
    tls_certificate_file: Path | None = Field(
        None, description="PEM file of the API's certificate with its chain: it then speaks https"
    )
    tls_key_file: Path | None = Field(None, description="PEM file of that certificate's key")
    trusted_proxies: str | None = Field(
        None,
        description="addresses whose `X-Forwarded-For` is believed, comma-separated; default: none",
    )
