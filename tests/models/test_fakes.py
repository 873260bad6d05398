"""The fake providers in a process of their own, as end-to-end tests use them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from runward.engine.clock import SystemClock
from runward.models.clients import ModelClients
from runward.ports.models import ModelCallError
from tests.fakes import KEY, FakeAnthropic, FakeOpenAI, FakeProvider
from tests.models.calls import CHAT, CLAUDE, request
from tests.models.test_clients import ignored

REPLIES = [{"text": "Let me look", "calls": [["weather", {"city": "Paris"}]]}, {"status": 503}, {"text": "Sunny", "usage": {"input": 5}}]


@pytest.mark.parametrize(("kind", "model", "fake"), [("openai", CHAT, FakeOpenAI), ("anthropic", CLAUDE, FakeAnthropic)])
async def test_a_fake_is_scripted_by_a_file(kind: str, model: str, fake: type[FakeProvider], tmp_path: Path) -> None:
    script = tmp_path / "replies.json"
    script.write_text(json.dumps(REPLIES))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.fakes", kind, "--replies", str(script)), stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().strip()
        clients = ModelClients(SystemClock(), {fake.url_variable: url, fake.key_variable: KEY})
        client = clients.client(model)
        first = await client.call(request(), ignored)
        assert (first.text, first.calls[0].arguments) == ("Let me look", '{"city": "Paris"}')
        with pytest.raises(ModelCallError):
            await client.call(request(), ignored)
        for _ in range(2):
            assert (await client.call(request(), ignored)).text == "Sunny", "the last reply is given for ever"
        await clients.close()
        async with httpx.AsyncClient() as looking:
            seen = (await looking.get(url)).json()
        assert len(seen) == 4 and json.loads(seen[0]["body"])["stream"] is True
    finally:
        process.terminate()
        await process.wait()
