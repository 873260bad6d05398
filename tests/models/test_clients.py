"""From a model to its client: names, keys, and what is imported when."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable

import pytest

from runward.agents.models import Reply, ScriptedModel
from runward.core.errors import DefinitionError
from runward.core.messages import FilePart
from runward.engine.clock import SystemClock
from runward.models.clients import ModelClients
from runward.models.connect import Providers
from runward.models.history import history_of
from runward.models.names import missing_variable, require_keys, split_name
from runward.ports import models as port
from tests.fakes import KEY, Answer, FakeOpenAI
from tests.models.calls import CHAT, CLAUDE, RESPONSES, WIRES, line, request, said


def clients(**environ: str) -> ModelClients:
    return ModelClients(SystemClock(), environ)


class OwnModel:
    """A model of the author's own."""

    name = "own:model"

    async def call(self, asked: port.ModelRequest, on_delta: Callable[[port.ModelDelta], Awaitable[None]]) -> port.ModelAnswer:
        raise NotImplementedError


def test_it_is_the_port() -> None:
    given: port.ModelClients = clients()
    own = OwnModel()
    assert given.client(own) is own


def test_a_client_is_made_once() -> None:
    given = clients(OPENAI_API_KEY=KEY, ANTHROPIC_API_KEY=KEY)
    one, two = ScriptedModel([Reply()]), ScriptedModel([Reply()])
    for model in (*WIRES, one, two):
        assert given.client(model) is given.client(model)
    assert given.client(one) is not given.client(two), "two scripts of one name are two models"
    assert [given.client(model).name for model in (*WIRES, one)] == [*WIRES, "scripted:script"]


@pytest.mark.parametrize("model", [None, 7, object(), lambda ctx: CHAT], ids=["none", "number", "object", "function"])
def test_what_is_no_model_is_named(model: object) -> None:
    """A function that chooses a model is the engine's to ask; here its answer arrives."""
    with pytest.raises(DefinitionError, match="is no model"):
        clients().client(model)


@pytest.mark.parametrize("name", ["gpt-5", "openai:", ":gpt-5", "openai: gpt", "nobody:gpt-5"])
def test_a_name_that_leads_nowhere_is_named(name: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        clients(OPENAI_API_KEY=KEY).client(name)
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "environ", "variable"),
    [
        (CHAT, {}, "OPENAI_API_KEY"),
        (CHAT, {"OPENAI_API_KEY": ""}, "OPENAI_API_KEY"),
        (CHAT, {"OPENAI_API_KEY": KEY}, None),
        (CHAT, {"OPENAI_BASE_URL": "http://localhost:1"}, None),
        (RESPONSES, {}, "OPENAI_API_KEY"),
        (CLAUDE, {"OPENAI_API_KEY": KEY}, "ANTHROPIC_API_KEY"),
        (CLAUDE, {"ANTHROPIC_BASE_URL": "http://localhost:1"}, "ANTHROPIC_API_KEY"),
        ("google:gemini-3-pro", {"GEMINI_API_KEY": KEY}, None),
        ("google:gemini-3-pro", {}, "GOOGLE_API_KEY"),
        ("scripted:demo", {}, None),
        ("someone:model", {}, None),
    ],
)
def test_which_variable_is_missing(name: str, environ: dict[str, str], variable: str | None) -> None:
    assert missing_variable(name, environ) == variable


def test_a_missing_key_names_agent_and_variable() -> None:
    models = [("support", CHAT), ("support", CLAUDE), ("demo", "scripted:demo")]
    with pytest.raises(DefinitionError) as caught:
        require_keys(models, {"ANTHROPIC_API_KEY": KEY})
    assert caught.value.code == "missing_key"
    assert "'support'" in caught.value.detail and "OPENAI_API_KEY" in caught.value.detail and "ANTHROPIC" not in caught.value.detail
    require_keys(models, {"ANTHROPIC_API_KEY": KEY, "OPENAI_API_KEY": KEY})


@pytest.mark.parametrize("model", WIRES)
def test_a_client_without_its_key_is_not_made(model: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        clients().client(model)
    assert caught.value.code == "missing_key"


def test_split_names() -> None:
    assert split_name("openai:ft:gpt-4o:org::id") == ("openai", "ft:gpt-4o:org::id")


async def test_a_model_of_ones_own_server_needs_no_key() -> None:
    async with FakeOpenAI() as fake:
        given = clients(OPENAI_BASE_URL=fake.url)
        answer = await given.client("openai:llama").call(request(), ignored)
        await given.close()
        assert answer.text == "ok" and KEY not in str(fake.requests[0].headers)


async def test_a_provider_that_only_the_library_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own environment variables; the same wire, guarded the same way."""
    async with FakeOpenAI() as fake:
        monkeypatch.setenv("OLLAMA_BASE_URL", fake.url)
        monkeypatch.setenv("LITELLM_API_KEY", KEY)
        given = ModelClients(SystemClock())
        fake.reply(Answer(text="Hello"))
        answer = await given.client("ollama:llama").call(request(), ignored)
        assert (answer.text, answer.model) == ("Hello", "ollama:llama")
        await given.close()


def test_of_a_provider_that_only_the_library_knows_nothing_is_fetched_that_a_caller_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """For some of them the library fetches files by itself, and sends them on: a worker stands inside the network."""
    monkeypatch.setenv("CEREBRAS_API_KEY", KEY)
    opened = Providers({"CEREBRAS_API_KEY": KEY}).open("cerebras:llama")
    message = said("What is this?", FilePart(media_type="image/png", url="http://127.0.0.1:1/a.png"))
    with pytest.raises(NotImplementedError, match="by its address"):
        history_of([message], opened.dialect)


async def test_prepare_makes_the_clients_off_the_loop() -> None:
    given = clients(OPENAI_API_KEY=KEY)
    script = ScriptedModel([Reply()])
    await given.prepare([CHAT, script])
    assert given.client(CHAT).name == CHAT
    with pytest.raises(DefinitionError, match="ANTHROPIC_API_KEY"):
        await given.prepare([CLAUDE])
    await given.close()


@pytest.mark.parametrize("model", WIRES)
async def test_one_connection_serves_call_after_call_and_close_ends_it(model: str) -> None:
    async with line(model) as wire:
        for _ in range(3):
            await wire.ask()
        assert wire.fake.connections == 1
        await wire.clients.close()
        await wire.fake.idle()
        assert wire.clients.client(model) is not wire.client, "and a later call opens anew"


@pytest.mark.parametrize("module", ["runward.models", "runward.models.clients", "runward.models.scripted", "runward.models.names"])
def test_nothing_of_a_provider_is_imported_before_it_is_needed(module: str) -> None:
    """Seconds of CPU and tens of megabytes that a process without provider models never pays."""
    run_python(f"""
        import sys
        import {module}
        from runward.models.clients import ModelClients
        from runward.agents.models import Reply, ScriptedModel
        from runward.engine.clock import SystemClock
        ModelClients(SystemClock(), {{}}).client(ScriptedModel([Reply()]))
        heavy = [name for name in sys.modules if name.split(".")[0] in {{"pydantic_ai", "openai", "anthropic", "httpx", "httpx2"}}]
        assert not heavy, heavy[:5]
    """)


@pytest.mark.parametrize(("model", "absent"), [(CHAT, "anthropic"), (CLAUDE, "openai")])
def test_one_provider_does_not_bring_the_other(model: str, absent: str) -> None:
    run_python(f"""
        import sys
        from runward.models.clients import ModelClients
        from runward.engine.clock import SystemClock
        ModelClients(SystemClock(), {{"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"}}).client({model!r})
        assert "pydantic_ai" in sys.modules and {absent!r} not in sys.modules
    """)


def test_a_setting_that_a_model_leaves_out_is_an_error() -> None:
    """It may be the one that forbids retries."""
    run_python("""
        import warnings
        from runward.models import provider
        from pydantic_ai.exceptions import UnsupportedSettingWarning
        try:
            warnings.warn("left out", UnsupportedSettingWarning)
        except UnsupportedSettingWarning:
            pass
        else:
            raise SystemExit("it is only a warning")
    """)


def run_python(code: str) -> None:
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60)


async def ignored(delta: port.ModelDelta) -> None:
    pass
