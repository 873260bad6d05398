"""The image and the compose file fit the service: its commands, its settings, its ports, and no open door."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]

SETTINGS = frozenset(
    [
        "RUNWARD_DATABASE_URL",
        "RUNWARD_REDIS_URL",
        "RUNWARD_AGENTS",
        "RUNWARD_HOST",
        "RUNWARD_PORT",
        "RUNWARD_WORKER_CONCURRENCY",
        "RUNWARD_LEASE_TTL_SECONDS",
        "RUNWARD_POLL_SECONDS",
        "RUNWARD_DRAIN_GRACE_SECONDS",
        "RUNWARD_CANCEL_GRACE_SECONDS",
        "RUNWARD_MAX_RECOVERIES",
        "RUNWARD_LOOP_STALL_SECONDS",
        "RUNWARD_MAX_BODY_BYTES",
        "RUNWARD_MAX_RESULT_BYTES",
        "RUNWARD_SECRET_KEY",
        "RUNWARD_APPROVAL_TOKENS",
        "RUNWARD_CORS_ORIGINS",
        "RUNWARD_LOG_FORMAT",
    ]
)
"""The documented settings of the service."""

FOREIGN = {"OPENAI_API_KEY", "ANTHROPIC_API_KEY"}
"""What the providers' own libraries read."""

Service = dict[str, Any]


@cache
def services() -> dict[str, Service]:
    """The services of the compose file by name."""
    return dict(yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"])


def ours() -> dict[str, Service]:
    """Those that run our image."""
    return {name: service for name, service in services().items() if service["image"] == "runward"}


@cache
def dockerfile() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile with their arguments, continued lines joined."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in "\n".join(lines).replace("\\\n", "").splitlines())]


def instruction(name: str) -> str:
    """The arguments of the last instruction of a kind."""
    return [rest for kind, rest in dockerfile() if kind == name][-1]


def commands() -> Iterator[list[str]]:
    """Every call of `runward` in the compose file and the Dockerfile, as words."""
    for service in ours().values():
        if service["command"][0] == "runward":
            yield service["command"]
        else:
            yield from (shlex.split(call) for call in re.findall(r"\brunward [^>|;&\n]+", service["command"][-1]))
    yield json.loads(instruction("CMD"))


def image_environment() -> dict[str, str]:
    """The variables that the image sets."""
    return dict(word.split("=", 1) for word in shlex.split(instruction("ENV")))


def waits_for(service: str) -> dict[str, str]:
    """What a service waits for, and until what."""
    return {name: wait["condition"] for name, wait in services()[service]["depends_on"].items()}


def seconds(duration: str) -> int:
    """A compose duration in seconds."""
    return int(duration[:-1]) * {"s": 1, "m": 60}[duration[-1]]


def test_the_documented_settings_are_those_of_the_service() -> None:
    settings = importlib.import_module("runward.settings").Settings
    assert settings.model_config["env_prefix"] == "RUNWARD_"
    assert {f"RUNWARD_{name.upper()}" for name in settings.model_fields} >= SETTINGS


def test_every_variable_is_a_setting() -> None:
    for name, service in ours().items():
        assert service["environment"].keys() <= SETTINGS | FOREIGN, name
    assert {name for name in image_environment() if name.startswith("RUNWARD")} <= SETTINGS


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_every_command_is_one_of_the_cli(words: list[str]) -> None:
    first_option = next((place for place, word in enumerate(words) if word.startswith("-")), len(words))
    command = [str(Path(sys.executable).with_name("runward")), *words[1:first_option], "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}, timeout=60)
    assert shown.returncode == 0, shown.stderr
    assert [option for option in words if option.startswith("--") and option not in shown.stdout] == []


def test_the_service_is_all_there() -> None:
    assert [ours()[name]["command"] for name in ("migrate", "api", "worker")] == [
        ["runward", "migrate"],
        ["runward", "serve", "--no-worker"],
        ["runward", "worker"],
    ]
    assert services()["worker"]["deploy"]["replicas"] == 2


def test_only_the_api_is_published_and_only_on_loopback() -> None:
    published = {name: service["ports"] for name, service in services().items() if "ports" in service}
    api = services()["api"]["environment"]
    assert published == {"api": [f"127.0.0.1:8000:{api['RUNWARD_PORT']}"]}
    assert api["RUNWARD_HOST"] == "0.0.0.0"
    assert instruction("EXPOSE") == "8000"
    assert "'RUNWARD_PORT', '8000'" in instruction("HEALTHCHECK").replace("CMD", "")


def test_the_stores_are_reached_from_inside_alone() -> None:
    networks = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["networks"]
    assert networks["inside"] == {"internal": True}
    assert {name for name, service in services().items() if service["networks"] != ["inside"]} == {"api", "worker"}
    for name, service in ours().items():
        assert service["environment"]["RUNWARD_REDIS_URL"].split("//")[1].split(":")[0] in services(), name
        assert service["environment"]["RUNWARD_DATABASE_URL"].split("@")[1].split(":")[0] in services(), name


def test_nothing_starts_too_early_and_the_api_never_without_a_key() -> None:
    assert waits_for("migrate") == {"postgres": "service_healthy"}
    assert waits_for("first-key") == {"migrate": "service_completed_successfully"}
    for name in ("api", "worker"):
        assert waits_for(name)["migrate"] == "service_completed_successfully"
        assert waits_for(name)["redis"] == "service_healthy"
    assert waits_for("api")["first-key"] == "service_completed_successfully"
    assert all("healthcheck" in services()[name] for name in ("postgres", "redis"))
    one_shot = {name for name, service in services().items() if "restart" not in service}
    assert one_shot == {"migrate", "first-key"}


def test_no_secret_has_a_default() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    assert set(re.findall(r"\$\{(\w+)", text)) == {"RUNWARD_SECRET_KEY", "POSTGRES_PASSWORD"}
    assert re.findall(r"\$\{\w+(?!\w|:\?)", text) == []


def test_a_stop_leaves_time_to_drain() -> None:
    for name in ("api", "worker"):
        assert seconds(services()[name]["stop_grace_period"]) > 25 + 5, "drain grace and cancel grace"


def test_containers_may_do_no_more_than_they_need() -> None:
    for name, service in ours().items():
        assert service["read_only"] is True, name
        assert service["tmpfs"] == ["/tmp"], name
        assert service["cap_drop"] == ["ALL"], name
        assert "user" not in service, f"{name} runs as the image says"
    for name, service in services().items():
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service.keys().isdisjoint(
            {"privileged", "cap_add", "devices", "pid", "ipc", "userns_mode", "network_mode", "extra_hosts"}
        ), name
        assert [volume for volume in service.get("volumes", []) if not re.match(r"[a-z-]+:/", volume)] == [], (
            f"{name} has a folder of the host"
        )


def test_the_image_runs_as_nobody_in_particular_and_writes_to_its_data_alone() -> None:
    user, group = instruction("USER").split(":")
    assert user.isdecimal() and group.isdecimal() and int(user) >= 1_000 and int(group) >= 1_000, "by number, so that a cluster can see it"
    last = [kind for kind, _ in dockerfile()]
    after = dockerfile()[len(last) - last[::-1].index("USER") :]
    assert {kind for kind, _ in after}.isdisjoint({"RUN", "COPY", "ADD", "USER"}), "what the image holds belongs to root"
    (made,) = [rest for kind, rest in dockerfile() if kind == "RUN" and "useradd" in rest]
    assert f"--uid {user} --gid {group} --no-create-home" in made and "--shell /usr/sbin/nologin" in made
    assert "install --directory --owner=runward --group=runward --mode=0700 /data" in made
    assert instruction("VOLUME") == instruction("WORKDIR") == "/data"
    assert image_environment()["RUNWARD_DATABASE_URL"].startswith("sqlite+aiosqlite:////data/")
    assert "--chown" not in str(dockerfile()) and "--read-only --tmpfs /tmp" in (ROOT / "Dockerfile").read_text()


def test_the_first_key_is_made_once_and_kept(tmp_path: Path) -> None:
    stub = tmp_path / "bin" / "runward"
    stub.parent.mkdir()
    stub.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n[ ! -e {tmp_path}/broken ] && echo \'{{"id": "1", "key": "secret"}}\'\n')
    stub.chmod(0o755)
    program, flags, script = services()["first-key"]["command"]
    command = [program, flags, script.replace("/data", str(tmp_path))]
    environment = {**os.environ, "PATH": f"{stub.parent}:{os.environ['PATH']}"}

    (tmp_path / "broken").touch()
    assert subprocess.run(command, env=environment).returncode != 0
    assert not (tmp_path / "first-key.json").exists(), "a failure must not look like a key"

    (tmp_path / "broken").unlink()
    for _ in range(2):
        subprocess.run(command, env=environment, check=True)
    assert json.loads((tmp_path / "first-key.json").read_text())["key"] == "secret"
    assert (tmp_path / "first-key.json").stat().st_mode & 0o077 == 0
    assert len((tmp_path / "calls").read_text().splitlines()) == 2


def test_the_image_is_built_from_what_the_context_lets_in() -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert rules[0] == "*"
    let_in = [rule[1:] for rule in rules if rule.startswith("!")]
    copied = [word for kind, rest in dockerfile() if kind == "COPY" and "--from" not in rest for word in rest.split()[:-1]]
    assert sorted(copied) == sorted(let_in)
    assert not [name for name in (".env", ".git", "tests", "runward.db") if any(fnmatch(name, rule) for rule in let_in)]
