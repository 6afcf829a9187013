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
        description="`on`: all routes except `/healthz` and `/readyz` require a bearer token. "
        "`off`: no sign-in, and the API accepts only local connections",
    )
    entra_tenant_id: str | None = Field(
        None,
        description="Entra ID tenant (a GUID) whose tokens are accepted, in addition to "
        "static tokens",
    )
    entra_audience: str | None = Field(
        None,
        description="accepted audience of the Entra ID tokens: the client id of the app, "
        "`api://...`, or both",
    )
    entra_issuers: str | None = Field(
        None,
        description="accepted issuers of the Entra ID tokens, comma-separated; default: the "
        "two issuers of the tenant in the public cloud",
    )
    entra_jwks_url: str | None = Field(
        None,
        description="URL of the signing keys of the tenant; default: the URL in the public cloud",
    )
    entra_leeway_s: float = Field(
        30.0,
        ge=0,
        le=300,
        description="largest difference between the clocks of Entra ID and this host, in seconds",
    )
    writes_per_minute: int = Field(
        120, ge=1, description="largest number of write requests per caller in 60 seconds"
    )
    request_max_bytes: int = Field(
        1_048_576,
        ge=1024,
        description="largest request body, in bytes; imports have a separate limit",
    )
    import_max_bytes: int = Field(
        268_435_456, ge=1024, description="largest body of an import, in bytes"
    )
    tls_certificate_file: Path | None = Field(
        None,
        description="PEM file with the certificate of the API and its chain; if set, the API "
        "uses HTTPS",
    )
    tls_key_file: Path | None = Field(None, description="PEM file with the key of the certificate")
    trusted_proxies: str | None = Field(
        None,
        description="addresses of proxies whose `X-Forwarded-For` header is used, "
        "comma-separated; default: none",
    )
