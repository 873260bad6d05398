"""What is logged, and what is taken out before it is."""

from __future__ import annotations

import json
import logging
import threading

import pytest
from pydantic import ValidationError

from runward.core.redaction import knowing
from runward.settings import Settings
from runward.telemetry import logging_telemetry
from runward.wiring import redactor_of

KEY = "sk-abcdefghijklmnopqrstuv"


def test_no_secret_is_logged_whoever_logs_it(capfd: pytest.CaptureFixture[str]) -> None:
    telemetry = logging_telemetry("json", knowing(["the key of this process"]))
    telemetry.event("asked", url=f"https://ann:hunter2@db/x?key={KEY}", nested=[{"password": "hunter2"}], count=7)
    root, before = logging.getLogger(), [*logging.getLogger().handlers]
    level, hook = root.level, threading.excepthook
    try:
        telemetry.take_over()
        logging.getLogger("shop").warning("sent with %s", "the key of this process")
    finally:
        logging.captureWarnings(False)
        root.handlers[:] = before
        root.setLevel(level)
        threading.excepthook = hook
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert lines[0]["url"] == "https://ann:[redacted password]@db/x?key=[redacted key]"
    assert (lines[0]["nested"], lines[0]["count"], lines[0]["event"]) == ([{"password": "[redacted password]"}], 7, "asked")
    assert (lines[1]["event"], lines[1]["logger"]) == ("sent with [redacted secret]", "shop")


def test_a_process_knows_the_secrets_it_was_started_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MISTRAL_API_KEY", "a-provider-key")
    settings = Settings(
        database_url="postgresql+asyncpg://ann:p%40ssword@db/x",
        redis_url="redis://:redis-word@cache/0",  # type: ignore[arg-type]
        secret_key="a secret key of some length",  # type: ignore[arg-type]
    )
    redactor = redactor_of(settings)
    for secret in ("a-provider-key", "p%40ssword", "p@ssword", "redis-word", "a secret key of some length"):
        assert redactor.text(f"<{secret}>") == "<[redacted secret]>"
        assert secret not in repr(redactor)


def test_operators_say_what_is_taken_out_besides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNWARD_REDACT", "email, card")
    text = redactor_of(Settings()).text("ann@example.com, 4111 1111 1111 1111, +1 212 555 0100")
    assert text == "[redacted email], [redacted card], +1 212 555 0100"
    monkeypatch.setenv("RUNWARD_REDACT", "names")
    with pytest.raises(ValidationError, match="redact"):
        Settings()


def test_and_those_that_the_environment_calls_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tools name them as `${ERP_TOKEN}`, or read them themselves."""
    secret = ("ERP_TOKEN", "TOKEN", "shop_api_key", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "X_APIKEY", "GOOGLE_CREDENTIALS")
    for name in secret:
        monkeypatch.setenv(name, f"<{name}> value")
    for name in ("PATH_TO_KEY", "TOKENS_OF_RUNS", "MONKEY"):
        monkeypatch.setenv(name, f"<{name}> value")
    redactor = redactor_of(Settings(database_url="postgresql+asyncpg://ann@db/x?ssl=require&password=p%40ssword"))
    for name in secret:
        assert redactor.text(f"<<{name}> value>") == "<[redacted secret]>", name
    assert redactor.text("<PATH_TO_KEY> value, <TOKENS_OF_RUNS> value, <MONKEY> value").count("redacted") == 0
    assert redactor.text("p@ssword") == "[redacted secret]"
