"""Settings: the environment, a `.env` file, and nothing else. Read once, at start; handed on as values."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

SECRET_KEY_LENGTH = 16
"""The least length of `RUNWARD_SECRET_KEY`, in characters."""


class Settings(BaseSettings):
    """Every setting, by its environment variable `RUNWARD_<NAME>`. Raises pydantic's ValidationError, naming the variable."""

    model_config = SettingsConfigDict(env_prefix="RUNWARD_", env_file=".env", env_ignore_empty=True, extra="ignore", frozen=True)

    database_url: str = "sqlite+aiosqlite:///./runward.db"
    """Where everything is stored: `sqlite+aiosqlite:///path` or `postgresql+asyncpg://user@host/name`."""
    redis_url: SecretStr | None = None
    """The Redis that hints travel through: `redis://user:password@host:6379/0`, `rediss://` over TLS, `unix:///path`. Without it, the
    database."""
    agents: str | None = None
    """Where agents are found: modules, `.py` and `.yaml` files, separated by commas. Without it the demo agents are served."""
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65_535)
    worker_concurrency: int = Field(default=32, ge=1, le=10_000)
    """How many runs one worker drives at a time."""
    concurrency_per_key: int = Field(default=1, ge=1, le=1_000)
    """How many runs with the same `concurrency_key` of one tenant all workers drive at a time. The same for every worker."""
    concurrency_per_tenant: int | None = Field(default=None, ge=1, le=100_000)
    """How many runs of one tenant all workers drive at a time; without it as many as there are slots. The same for every worker."""
    lease_ttl_seconds: float = Field(default=30, ge=0.5, le=3_600)
    """How long a lease lasts without being renewed; it is renewed every third of it."""
    poll_seconds: float = Field(default=1, gt=0, le=60)
    """How often the store is asked while no hint says that something happened; every 5 s while a bus is healthy."""
    drain_grace_seconds: float = Field(default=25, ge=0)
    """How long a stopping worker lets steps in hand go on."""
    cancel_grace_seconds: float = Field(default=5, ge=0)
    """How long a cancelled tool may go on."""
    max_recoveries: int = Field(default=5, ge=1)
    """How often a run is recovered from dead workers before it ends `failed`."""
    loop_stall_seconds: float = Field(default=300, gt=0)
    """After how long without a turn of its event loop a worker gives up and exits."""
    model_circuit_failures: int = Field(default=5, ge=0, le=1_000)
    """How many failures in a row open a model's circuit, so that it is left alone for a while; 0 for never."""
    model_circuit_window_seconds: float = Field(default=30, gt=0, le=3_600)
    """Within what time they have to come."""
    model_circuit_open_seconds: float = Field(default=15, gt=0, le=60)
    """How long the model is left alone before one call tries it again."""
    idempotency_retention_days: float = Field(default=7, ge=1)
    """How long an `Idempotency-Key` is remembered."""
    run_retention_days: float | None = Field(default=None, gt=0)
    """How long ended runs are kept; for good without it."""
    max_body_bytes: int = Field(default=1_048_576, ge=1_024)
    max_result_bytes: int = Field(default=1_048_576, ge=1_024)
    secret_key: SecretStr | None = None
    """Encrypts stored context and signs tokens. Required once an API key exists."""
    approval_tokens: Literal["off", "required"] = "off"
    """Whether deciding an approval takes its access token, and a key alone does not do."""
    rate_limit: float | None = Field(default=None, gt=0, le=1_000_000)
    """How many requests a second each tenant may make of one API process; as many as it likes without it. Operator keys are exempt."""
    rate_burst: int | None = Field(default=None, ge=1, le=1_000_000)
    """How many of them it may make at once; those of two seconds without it."""
    jwt_issuer: str | None = None
    """The identity provider whose signed tokens (JWT) are taken in place of keys, as their `iss` says it. None are without it."""
    jwt_jwks_url: str | None = None
    """Where its public keys are: https, or http on this machine."""
    jwt_audience: str | None = None
    """What `aud` of a token must say, or one of it: this service, as the provider calls it."""
    jwt_algorithms: Annotated[tuple[str, ...], NoDecode] = ("RS256", "ES256")
    """What tokens may be signed with: RS256 to RS512, PS256 to PS512, ES256 to ES512, EdDSA."""
    jwt_leeway_seconds: float = Field(default=30, ge=0, le=300)
    """By how much the provider's clock may differ from the store's."""
    jwt_tenant: str | None = None
    """The tenant that everybody with such a token belongs to."""
    jwt_tenant_claim: str | None = None
    """The claim that names the tenant; one of both is needed."""
    jwt_user_claim: str = "sub"
    """The claim that names the user to whom the caller is confined; `none`: to nobody, the whole tenant is within reach."""
    jwt_namespace_claim: str | None = None
    """The claim that names the namespace to which the caller is confined."""
    jwt_permissions_claim: str = "scope"
    """The claim that lists permissions or roles, as an array or separated by spaces."""
    jwt_roles: Annotated[tuple[str, ...], NoDecode] = ()
    """Which permissions a role is: `agent=runs:read+runs:write,lead=approvals:decide`."""
    cors_origins: Annotated[tuple[str, ...], NoDecode] = ()
    outbound_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    """The hosts that HTTP tools may also reach at private and loopback addresses, and without TLS: `erp.internal,127.0.0.1:9000`."""
    outbound_only: Annotated[tuple[str, ...], NoDecode] = ()
    """The only other hosts that HTTP tools may reach. Without it, any public one."""
    outbound_plain_http: Literal["opened", "any"] = "opened"
    """Where HTTP tools may go without TLS: to the hosts of `outbound_hosts`, or to any."""
    redact: Annotated[tuple[Literal["email", "card", "phone"], ...], NoDecode] = ()
    """What is taken out of approvals, failures and logs besides secrets: `email,card,phone`."""
    prices: str | None = None
    """A JSON or YAML file that says what models cost: USD per million tokens, by model. What it names outranks the built-in table."""
    faults: str | None = None
    """Where the process breaks on purpose, for tests of what is promised: `before_effect:kill@2,after_commit:pause=5`."""
    log_format: Literal["console", "json"] | None = None
    """How logs are written: for people on a terminal, else as JSON lines."""

    @field_validator("cors_origins", "outbound_hosts", "outbound_only", "redact", "jwt_algorithms", "jwt_roles", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("secret_key")
    @classmethod
    def _long_enough(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value.get_secret_value()) < SECRET_KEY_LENGTH:
            raise ValueError(f"must be at least {SECRET_KEY_LENGTH} characters long")
        return value

    @property
    def secret(self) -> str | None:
        """The secret key as text."""
        return None if self.secret_key is None else self.secret_key.get_secret_value()
