"""The partner of every comparison: the least code that does the job durably, as an anchor for what the machine allows. No product.

`POST /runs` (commit 1: the run and its first event) → a worker in the same process takes the lease (2) → model (3) → tool (4) → model and
the end (5). `GET /runs/{id}/events` replays from the database, then goes on live. No auth, retries, cancelling, limits, recovery or bounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import fastapi
import orjson
import uvicorn
from pydantic import BaseModel
from starlette.responses import StreamingResponse

from tests.bench.floor_stores import Event, FloorStore, encoded, floor_store

DONE = b"data: [DONE]\n\n"
END = b'{"type":"finish"'


class NewRun(BaseModel):
    agent: str
    input: str


class Floor:
    """The service."""

    def __init__(self, store: FloorStore) -> None:
        self._store = store
        self._readers: dict[str, list[asyncio.Queue[Event]]] = {}
        self._working: set[asyncio.Task[None]] = set()

    async def submit(self, body: NewRun) -> str:
        run_id = uuid.uuid4().hex
        data = {"agent": body.agent, "messages": [{"role": "user", "content": body.input}]}
        await self._store.submit(run_id, encoded(data), encoded({"type": "start", "agent": body.agent}))
        task = asyncio.create_task(self._work(run_id))
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        return run_id

    async def frames(self, run_id: str, after: int) -> AsyncIterator[bytes]:
        live: asyncio.Queue[Event] = asyncio.Queue()
        self._readers.setdefault(run_id, []).append(live)
        try:
            stored = [*reversed(await self._store.replay(run_id, after))]
            while True:
                number, event = stored.pop() if stored else await live.get()
                if number <= after:
                    continue
                after = number
                yield b"id: %d\ndata: %b\n\n" % (number, event)
                if event.startswith(END):
                    yield DONE
                    return
        finally:
            self._readers[run_id].remove(live)
            if not self._readers[run_id]:
                del self._readers[run_id]

    async def _work(self, run_id: str) -> None:
        run = Run(id=run_id, data=orjson.loads(await self._store.claim(run_id)))
        messages = run.data["messages"]
        asked = await model(messages)
        messages.append(asked)
        await self._commit(run, "running", {"type": "tool-call", "message": asked})
        arguments = asked["tool_calls"][0]["arguments"]
        result = {"role": "tool", "id": asked["tool_calls"][0]["id"], "content": arguments["a"] + arguments["b"]}
        messages.append(result)
        await self._commit(run, "running", {"type": "tool-output", "message": result})
        said = await model(messages)
        messages.append(said)
        await self._commit(run, "completed", {"type": "message", "message": said}, {"type": "finish", "status": "completed"})

    async def _commit(self, run: Run, status: str, *said: dict[str, Any]) -> None:
        events = [(run.seq + place, encoded(event)) for place, event in enumerate(said)]
        await self._store.step(run.id, run.revision, status, encoded(run.data), events)
        run.revision += 1
        run.seq += len(events)
        for reader in self._readers.get(run.id, ()):
            for event in events:
                reader.put_nowait(event)


@dataclass(slots=True, kw_only=True)
class Run:
    """A run that is worked on: claimed, with one event."""

    id: str
    data: dict[str, Any]
    revision: int = 2
    seq: int = 1


async def model(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """A model that takes no time."""
    if messages[-1]["role"] == "tool":
        return {"role": "assistant", "content": f"The answer is {messages[-1]['content']}."}
    return {"role": "assistant", "tool_calls": [{"id": "call_1", "name": "add", "arguments": {"a": 2, "b": 2}}]}


def application(store: FloorStore) -> fastapi.FastAPI:
    floor = Floor(store)

    @contextlib.asynccontextmanager
    async def lifespan(app: fastapi.FastAPI) -> AsyncIterator[None]:
        await store.open()
        yield
        await store.close()

    app = fastapi.FastAPI(lifespan=lifespan)

    @app.get("/readyz")
    async def ready() -> dict[str, bool]:
        return {"ready": True}

    @app.post("/runs", status_code=202)
    async def create(body: NewRun) -> dict[str, str]:
        return {"run_id": await floor.submit(body)}

    @app.get("/runs/{run_id}/events")
    async def follow(run_id: str, request: fastapi.Request) -> StreamingResponse:
        after = int(request.headers.get("last-event-id", -1))
        return StreamingResponse(floor.frames(run_id, after), media_type="text/event-stream")

    return app


if __name__ == "__main__":
    uvicorn.run(
        application(floor_store(os.environ["FLOOR_DATABASE_URL"])),
        port=int(os.environ["RUNWARD_PORT"]),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
    )
