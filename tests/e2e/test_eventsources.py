"""What a browser that follows a run sees, through restarts of the service and crashes of workers (R44a)."""

from __future__ import annotations

import json

from tests.e2e.deployment import Deployment, Script
from tests.e2e.eventsource import EventSource
from tests.e2e.journal import Frame

FOLLOWERS = 20
TALKING: Script = [{"text": "Word after word. " * 25, "delay": 0.05, "calls": [["note", {"order_id": 1}]]}, {"text": "Noted."}]


def all_got(sources: list[EventSource], count: int) -> None:
    for source in sources:
        source.got(count)


def check(source: EventSource, journal: list[Frame], *, after: int = 0) -> None:
    """It got every frame once, in order, then `[DONE]`, and gave up on the 204."""
    assert source.gives_up(30), "it still comes back"
    assert source.status == 204
    *frames, (last_id, done) = source.events
    assert done == "[DONE]"
    assert [json.loads(data) for _, data in frames] == journal[after:]
    assert [id for id, _ in frames] == [str(frame["seq"]) for frame in journal[after:]] and last_id == frames[-1][0]


def test_R44a_twenty_browsers_follow_a_run_over_restarts_of_the_service(deployment: Deployment) -> None:
    """One orderly, one by SIGKILL, both in the middle of a text: everyone ends with the whole journal, without gap or repeat."""
    first = deployment.serve(drain_grace_seconds="0.2")
    endless = {"text": "Word after word. " * 300, "delay": 0.05}
    run_id = deployment.create([{"point": "talk", **endless, "again": [endless, {"text": "That was all."}]}])
    sources = [EventSource(f"{deployment.url}/runs/{run_id}/events") for _ in range(FOLLOWERS)]
    all_got(sources, 5)
    assert first.stop() == 0
    second = deployment.serve()
    all_got(sources, max(len(source.events) for source in sources) + 5)
    second.kill()
    deployment.serve()
    deployment.ended(run_id)
    journal = deployment.frames(run_id)
    journal.check()
    assert len(journal.of("reset-step")) == 2
    for source in sources:
        check(source, journal.frames)
        assert source.opens >= 3
        assert source.retries[0] == 1.0 and 5.0 in source.retries


def test_R44a_a_crashed_worker_is_followed_through_another_process(deployment: Deployment) -> None:
    deployment.serve("--no-worker")
    dying = deployment.worker()
    run_id = deployment.create(TALKING)
    sources = [EventSource(f"{deployment.url}/runs/{run_id}/events") for _ in range(FOLLOWERS)]
    all_got(sources, 5)
    late = EventSource(f"{deployment.url}/runs/{run_id}/events?after=4")
    late.got(1)
    dying.kill()
    deployment.worker()
    deployment.ended(run_id)
    journal = deployment.frames(run_id)
    journal.check()
    for source in sources:
        check(source, journal.frames)
        assert source.opens == 1, "its one stream went on, through both workers"
    check(late, journal.frames, after=4)


def test_a_browser_that_asks_nonsense_gives_up(on_sqlite: Deployment) -> None:
    on_sqlite.serve()
    run_id = on_sqlite.create([{"text": "Hello."}])
    asked = {"?after=99999": 400, "?after=-1": 400, "?wire=unknown": 422}
    sources = {query: EventSource(f"{on_sqlite.url}/runs/{run_id}/events{query}") for query in asked}
    for query, status in asked.items():
        assert sources[query].gives_up(10) and (sources[query].status, sources[query].events) == (status, [])
    nobody = EventSource(f"{on_sqlite.url}/runs/nobody/events")
    assert nobody.gives_up(10) and nobody.status == 404
