"""R31: a model that fails before it has said anything is replaced inside the run."""

from __future__ import annotations

from typing import Any

import pytest

from runward import Limits, ModelRequest, Reply, ScriptedModel
from runward.core.kernel.actor import Status
from tests.engine.rig import DONE, Rig, agent, calls
from tests.engine.test_outputs import look

BACKUP = Reply(text="answered by the backup")


def failing(*errors: Any, then: Reply = DONE) -> tuple[list[int], ScriptedModel]:
    """A model that fails so in its first calls, and the steps in which it was asked."""
    asked: list[int] = []

    def model(request: ModelRequest) -> Reply:
        asked.append(request.step)
        return Reply(error=errors[len(asked) - 1]) if len(asked) <= len(errors) else then

    return asked, ScriptedModel(model)


@pytest.mark.parametrize("error", ["rate_limited", "server_error", "timeout"])
async def test_R31_the_next_model_answers_after_the_calls_own_retries(error: Any) -> None:
    asked, model = failing(*[error] * 9)
    async with Rig(agent(model=model, fallback_models=[ScriptedModel([BACKUP])])) as rig:
        uid = await rig.run()
        view = rig.view(uid)
        assert (view["status"], view["text"], view["steps"], len(asked)) == ("completed", "answered by the backup", 1, 3)
        (failover,) = view["failovers"]
        assert (failover["step"], failover["code"]) == (1, error) and view["model"] == failover["to"] != failover["from"]


@pytest.mark.parametrize("error", ["bad_request", "content_filter"])
async def test_R31_what_another_model_would_not_mend_does_not_fail_over(error: Any) -> None:
    _, model = failing(error)
    async with Rig(agent(model=model, fallback_models=[ScriptedModel([BACKUP])])) as rig:
        uid = await rig.run()
        view = rig.view(uid)
        assert (view["status"], view["error"]["transient"], view["failovers"]) == ("failed", False, [])


async def test_R31_an_answer_that_broke_off_does_not_fail_over() -> None:
    """Content was seen: the run fails, and says that it may be tried again."""
    script = ScriptedModel([Reply(text="half a sen", error="disconnect_mid_stream")])
    async with Rig(agent(model=script, fallback_models=[ScriptedModel([BACKUP])])) as rig:
        uid = await rig.run()
        assert (rig.row(uid).status, rig.view(uid)["failovers"]) == (Status.FAILED, [])


async def test_R31_a_model_that_failed_is_skipped_for_the_rest_of_the_run_also_after_a_retry() -> None:
    asked, model = failing(*["server_error"] * 3)
    second_asked, second = failing(*["server_error"] * 3)
    limits = Limits(model_retries=2)
    async with Rig(agent(model=model, fallback_models=[second], limits=limits)) as rig:
        uid = await rig.run()
        assert rig.row(uid).status is Status.FAILED and len(rig.view(uid)["failovers"]) == 1
        await rig.deliver(uid, retry_failed=True)
        assert (await rig.over(uid)).status is Status.COMPLETED
        assert (len(asked), len(second_asked)) == (3, 4)


async def test_R31_the_step_goes_on_behind_what_ran_already() -> None:
    """No call runs again because another model is asked."""
    script = [calls("look"), Reply(error="server_error")]
    first = ScriptedModel(lambda request: script[min(request.step, 2) - 1])
    async with Rig(agent(model=first, fallback_models=[ScriptedModel(lambda request: BACKUP)], tools=[look])) as rig:
        uid = await rig.run()
        assert (rig.view(uid)["text"], rig.view(uid)["failovers"][0]["step"]) == ("answered by the backup", 2)
        assert rig.rows(uid).receipts["1.1"].attempt == 1
