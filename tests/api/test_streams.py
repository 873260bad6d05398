"""Streams over real sockets: replay, then live, without gap or repeat, until there is nothing more to come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from runward.api.following import DONE, RunFollower
from runward.core.kernel.actor import Status
from runward.core.runs.state import KIND
from runward.engine.callers import LOCAL
from runward.engine.tail import PAGE, RING_FRAMES
from tests.api.events import followed, parsed
from tests.api.house import House, served, until
from tests.api.puppet import Puppet, delta, state


@pytest.fixture
async def port(quiet_house: House) -> AsyncIterator[int]:
    async with served(quiet_house) as number:
        yield number


@pytest.fixture
async def puppet(quiet_house: House) -> Puppet:
    run = await quiet_house.created()
    return await Puppet.claim(quiet_house, run["run_id"])


async def test_R44a_replay_goes_over_into_live_without_gap_or_repeat(port: int, puppet: Puppet) -> None:
    await puppet.say(state("running"), *[delta(f"{number} ") for number in range(450)])
    async with followed(port, puppet.run_id) as whole, followed(port, puppet.run_id, after=3) as part:
        await whole.to(200)
        await puppet.say(*[delta(f"live {number} ") for number in range(50)])
        await puppet.say(delta("last"), state("completed", final=True), status=Status.COMPLETED)
        await whole.to_end()
        await part.to_end()
    assert whole.ids == list(range(1, puppet.row.last_seq + 1))
    assert whole.frames == puppet.said
    assert (part.frames, part.done, whole.done) == (puppet.said[3:], True, True)


async def test_the_stream_says_how_to_read_it_at_once(port: int, puppet: Puppet) -> None:
    async with followed(port, puppet.run_id, after=1) as events:
        await events.more()
        assert (events.retries, events.comments, events.seen) == ([1000], 1, [])
        headers = events.response.headers
    assert headers["content-type"] == "text/event-stream"
    assert headers["cache-control"] == "no-store, no-transform"
    assert headers["x-accel-buffering"] == "no"
    assert headers["x-request-id"]


async def test_the_header_wins_over_after(port: int, puppet: Puppet) -> None:
    await puppet.say(delta(), state("completed", final=True), status=Status.COMPLETED)
    async with followed(port, puppet.run_id, last="2", after=0) as events:
        await events.to_end()
    assert events.frames == puppet.said[2:]


async def test_under_suspended_the_stream_ends_where_the_run_waits(port: int, puppet: Puppet) -> None:
    async with followed(port, puppet.run_id, until="suspended") as short, followed(port, puppet.run_id) as long:
        await puppet.say(state("running"), delta())
        await puppet.say(state("suspended"), status=Status.SUSPENDED)
        await short.to_end()
        await long.to(4)
    assert (short.frames, short.done, long.done) == (puppet.said, True, False)


async def test_R10_a_stream_of_a_reopened_run_ends_at_its_last_terminal_frame(port: int, puppet: Puppet, quiet_house: House) -> None:
    await puppet.say(state("failed", final=True), status=Status.FAILED)
    async with followed(port, puppet.run_id) as before:
        await before.to_end()
    assert before.done
    await reopen(quiet_house, puppet)
    async with followed(port, puppet.run_id) as events, followed(port, puppet.run_id, last=str(puppet.row.last_seq)) as later:
        await events.to(2)
        await later.more()
        assert await events.is_quiet()
        assert await later.is_quiet()
        again = await Puppet.claim(quiet_house, puppet.run_id)
        await again.say(delta("better"), state("completed", final=True), status=Status.COMPLETED)
        await events.to_end()
        await later.to_end()
    assert (events.frames, events.done) == (again.said, True)
    assert (later.frames, later.done) == (again.said[2:], True)


async def test_R10_a_slow_reader_is_led_past_a_terminal_frame_that_was_left_behind(quiet_house: House, puppet: Puppet) -> None:
    queries, place = quiet_house.service.queries, await quiet_house.service.queries.place(LOCAL, puppet.run_id)
    sent: list[bytes] = []
    reads = asyncio.Event()

    async def emit(chunk: bytes) -> None:
        sent.append(chunk)
        await reads.wait()

    follower = RunFollower(queries=queries, clock=quiet_house.service.services.clock, place=place, after=0, until="ended")
    following = asyncio.ensure_future(follower.follow(emit))
    await until(lambda: len(sent) == 1)  # and stands still, with the first frame in hand
    await puppet.say(*[delta(f"{number} ") for number in range(PAGE - 1)])
    await puppet.say(state("failed", final=True), status=Status.FAILED)  # the last one of the page that is read next
    assert puppet.row.last_seq == 1 + PAGE
    await reopen(quiet_house, puppet)
    again = await Puppet.claim(quiet_house, puppet.run_id)
    await again.say(*[delta(f"{number} ") for number in range(RING_FRAMES)])
    await again.say(state("completed", final=True), status=Status.COMPLETED)
    reads.set()
    await asyncio.wait_for(following, 10)
    assert b"".join(sent) == b"".join(b"id: %d\ndata: %b\n\n" % frame for frame in enumerate(again.said, 1)) + DONE


async def test_a_run_that_ended_is_streamed_whole_however_late(port: int, puppet: Puppet) -> None:
    await puppet.say(*[delta(f"{number} ") for number in range(2_500)])
    await puppet.say(state("completed", final=True), status=Status.COMPLETED)
    for after in (0, 1, 1_999, puppet.row.last_seq - 1):
        async with followed(port, puppet.run_id, after=after) as events:
            await events.to_end()
        assert (events.frames, events.done) == (puppet.said[after:], True)


async def test_nothing_more_to_come_is_204(quiet_house: House, puppet: Puppet) -> None:
    address = f"/runs/{puppet.run_id}/events"
    await puppet.say(state("suspended"), status=Status.SUSPENDED)
    answer = await quiet_house.http.get(address, params={"until": "suspended"}, headers={"Last-Event-ID": "2"})
    assert (answer.status_code, answer.content) == (204, b"")
    await quiet_house.service.services.store.delete(puppet.row.uid)
    run = await quiet_house.created()
    ended = await Puppet.claim(quiet_house, run["run_id"])
    await ended.say(state("completed", final=True), status=Status.COMPLETED)
    for params, header in (({"after": "2"}, None), ({}, "2"), ({"after": "0"}, "2")):
        headers = {} if header is None else {"Last-Event-ID": header}
        assert (await quiet_house.http.get(f"/runs/{run['run_id']}/events", params=params, headers=headers)).status_code == 204


@pytest.mark.parametrize(
    "cursor", ["", " ", "-1", "+1", "abc", "1e3", "1_0", "1.0", "01", "\u0661", "9" * 30, "3", "1 2", "1,2", "0x1", "x" * 5_000]
)
async def test_a_cursor_that_is_none_is_a_400(quiet_house: House, puppet: Puppet, cursor: str) -> None:
    await puppet.say(delta())
    address = f"/runs/{puppet.run_id}/events"
    by_query = await quiet_house.http.get(address, params={"after": cursor})
    by_header = await quiet_house.http.get(address, headers={b"Last-Event-ID": cursor.encode()})
    for answer in (by_query, by_header):
        if cursor == "x" * 5_000 and answer is by_query:
            assert answer.status_code == 422
        else:
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor")


async def test_two_cursors_are_none(quiet_house: House, puppet: Puppet) -> None:
    address = f"/runs/{puppet.run_id}/events"
    by_header = await quiet_house.http.get(address, headers=[("Last-Event-ID", "1"), ("Last-Event-ID", "1")])
    by_query = await quiet_house.http.get(address + "?after=0&after=0")
    assert [answer.json()["code"] for answer in (by_header, by_query)] == ["invalid_cursor"] * 2


async def test_head_opens_no_stream(port: int, puppet: Puppet, quiet_house: House) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        answer = await http.head(f"/runs/{puppet.run_id}/events")
        assert (answer.status_code, answer.headers["content-type"], answer.content) == (200, "text/event-stream", b"")
        assert (await http.head(f"/runs/{puppet.run_id}/events?after=7")).status_code == 400
        assert (await http.head("/runs/nope/events")).status_code == 404
    assert len(quiet_house.app.state.streams) == 0


async def test_a_run_that_is_deleted_ends_its_streams_without_done(port: int, puppet: Puppet, quiet_house: House) -> None:
    async with followed(port, puppet.run_id, after=1) as events:
        await events.more()
        await puppet.say(state("suspended"), status=Status.SUSPENDED)
        quiet_house.database.actors.pop(puppet.row.uid)
        await events.to_end()
    assert not events.done


async def test_post_runs_can_answer_with_the_run_s_own_stream(open_house: House) -> None:
    async with served(open_house) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        body, headers = {"agent": "support", "input": "hi"}, {"Accept": "text/event-stream", "Idempotency-Key": "k"}
        first = await http.post("/runs", json=body, headers=headers)
        again = await http.post("/runs", json=body, headers=headers)
    assert (first.status_code, again.status_code) == (200, 200)
    assert first.headers["location"] == again.headers["location"]
    assert ("idempotent-replayed" in first.headers, again.headers["idempotent-replayed"]) == (False, "true")
    assert first.content == again.content
    assert first.content.endswith(b"data: [DONE]\n\n")


async def test_no_text_breaks_the_framing(port: int, puppet: Puppet) -> None:
    text = "a\r\nb\rc\u2028d\u2029e\u0085f\x0bg\x0ch\n\ndata: [DONE]\n\nid: 999\n\nevent: x\ni\u200bj \U0001f600"
    await puppet.say(delta(text), state("completed", final=True), status=Status.COMPLETED)
    async with followed(port, puppet.run_id) as events:
        await events.to_end()
    assert events.ids == [1, 2, 3]
    assert parsed(events.frames)[1]["delta"] == text


async def reopen(house: House, puppet: Puppet) -> None:
    """Puts a failed run back into the queue, as `retry` does."""
    from runward.core.kernel.mail import Letter, MailKind, retry_key
    from runward.ports.store import Append

    letter = Letter(kind=MailKind.RETRY, key=retry_key(puppet.row.revision))
    await house.service.services.store.append_mail(Append(uid=puppet.row.uid, letters=(letter,), reopens=True, may_be_ended=True))
    row = await house.service.queries.place(LOCAL, puppet.run_id)
    assert (row.kind, row.status) == (KIND, Status.QUEUED)
