"""A store in miniature: one run, its inbox and its journal, with every promise checked as it is written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from runward.core.budgets import Terms
from runward.core.ids import canonical_json
from runward.core.kernel.actor import Status
from runward.core.kernel.mail import OPENS_AN_ENDED_ACTOR, Mail, MailKind
from runward.core.kernel.records import Receipt, Stage
from runward.core.messages import Message, TextPart
from runward.core.runs import budget, codec
from runward.core.runs.begin import begin
from runward.core.runs.calls import CallStage
from runward.core.runs.emitted import Emitted
from runward.core.runs.face import face_of
from runward.core.runs.ledger import Amount, CallTerms, picos_of
from runward.core.runs.limits import Limits
from runward.core.runs.receipts import with_results
from runward.core.runs.state import OutputTerms, RunState
from runward.core.runs.transitions import RUN
from runward.core.runs.view import pending, view
from runward.core.runs.waits import Wait, names
from runward.core.usage import Usage
from tests.unit.core.driving import RATES, T0, UID, row_of
from tests.unit.core.folding import Journal, Page
from tests.unit.core.purse import Purse

TERMS = CallTerms(max_output_tokens=64, rates={"test:model": RATES})
STATUS_CHANGES = {(row.source, row.target) for row in RUN}
BEFORE_THEY_RUN = (CallStage.PROPOSED, CallStage.CLEARED, CallStage.READY, CallStage.EXECUTING, CallStage.EXECUTED)


class Store:
    """One run as it is stored. A commit is checked against what was there before."""

    def __init__(
        self,
        limits: Limits,
        model: str | None,
        *,
        outputs: OutputTerms | None = None,
        loops: bool = True,
        fallbacks: tuple[str, ...] = (),
        guards_input: bool = False,
        budgets: Mapping[str, Terms] | None = None,
    ) -> None:
        self.models = (model, *fallbacks)
        self.purse = Purse(budgets or {})
        self.journal = Journal()
        self.messages: list[Message] = []
        self.receipts: dict[str, Receipt] = {}
        self.mail: list[Mail] = []
        self.mail_applied = 0
        self.ignored: set[int] = set()
        self.requests: dict[str, bool] = {}
        """The requests for approval by id, and whether each is still open."""
        self.verdicts: dict[str, Mapping[str, Any]] = {}
        self.leg = 0
        self.revision = 0
        self.status = Status.QUEUED
        self.binding = "b"
        self.updated_at = T0
        self.ready_at: int | None = T0
        self.care_at: int | None = None
        self.cancelled = False
        self.beyond = Amount()
        """What answers used beyond what was reserved for them."""
        self.asked = Amount()
        """What is reserved, since the last commit, for calls of author code: they are not made before it."""
        message = Message(seq=1, role="user", content=(TextPart(text="hello"),))
        self.input = (message,)
        run, emitted = begin(
            uid=UID,
            agent="support",
            created_at=T0,
            limits=limits,
            model=model,
            messages=self.input,
            fallbacks=fallbacks,
            outputs=outputs,
            loops=loops,
            guards_input=guards_input,
            terms=TERMS,
            budgets=self.purse.keys,
        )
        self.text = codec.encode(run)
        self.messages += emitted.messages
        for frame in emitted.frames:
            self.journal.append(frame)

    @property
    def run(self) -> RunState:
        """The run as a new leg reads it."""
        return with_results(codec.decode(self.text), [*self.receipts.values()])

    @property
    def unread(self) -> set[str]:
        """The keys of what has come and is not applied yet."""
        return {mail.key for mail in self.mail[self.mail_applied :]}

    @property
    def pending(self) -> dict[str, Any]:
        """What is shown as pending."""
        return pending(self.run, self.unread)

    def post(self, kind: MailKind, key: str, data: Mapping[str, Any], at: int) -> bool:
        """Mail comes from outside. False when the run has ended, or somebody was first (R19a)."""
        if key in {mail.key for mail in self.mail} or (self.status.ended and kind not in OPENS_AN_ENDED_ACTOR):
            return False
        if kind is MailKind.RETRY and (self.status is not Status.FAILED or not self._may_pass()):
            return False
        self._receive(kind, key, json.dumps(data), at)
        if kind is MailKind.APPROVAL:
            self.requests[data["approval_id"]], self.verdicts[data["approval_id"]] = False, data
        if self.status is Status.SUSPENDED or kind is MailKind.RETRY:
            self.status, self.ready_at = Status.QUEUED, at
        return True

    def _may_pass(self) -> bool:
        ended = self.run.ended
        return ended is not None and ended.failure is not None and ended.failure.transient

    def _receive(self, kind: MailKind, key: str, data: str, at: int) -> None:
        seq = len(self.mail) + 1
        self.mail.append(Mail(seq=seq, kind=kind, key=key, data=data, principal='{"by":"ann"}', received_at=at))

    def claim(self) -> None:
        self.asked = Amount()
        self.leg += 1
        self.revision += 1
        self.status = self.status if self.status.ended else Status.RUNNING

    def takes(self, emitted: Emitted) -> bool:
        """Whether the keys of the service's own closings are free. Whose is taken has to be read: else the leg would try for ever."""
        taken = {letter.key for letter in emitted.closings} & {mail.key for mail in self.mail}
        assert taken <= self.unread, "a wait is closed that was closed and applied before (R19a)"
        return not taken

    def commit(self, run: RunState, emitted: Emitted, *, mail_applied: int, at: int, release: bool) -> None:
        """Everything of a commit, after its gates."""
        before = self.run
        assert len({*emitted.ignored}) == len(emitted.ignored) and not self.ignored & {*emitted.ignored}
        for message in emitted.messages:
            assert message.seq == len(self.messages) + 1
            self.messages.append(message)
        for receipt in emitted.receipts:
            self._keep(receipt)
        for frame in emitted.frames:
            self.journal.append(frame)
        for row in emitted.approvals:
            assert row.id not in self.requests, "asked twice under one id (R18)"
            self.requests[row.id] = True
        for closing in emitted.approval_closings:
            self.requests[closing.id] = False
        for letter in emitted.closings:
            self._receive(letter.kind, letter.key, letter.data, at)
        self.ignored |= {*emitted.ignored}
        self.mail_applied, self.text, self.updated_at = mail_applied + len(emitted.closings), codec.encode(run), at
        self.revision += 1
        self.binding = run.binding
        assert self.status in (Status.RUNNING, run.status)
        self.status = run.status
        self._check(before, run)
        if release:
            self._released(run, at)

    def _released(self, run: RunState, at: int) -> None:
        """Whatever rests can be moved by somebody or by time, and by nothing that would find nothing to do (R8, R41)."""
        if run.shared is not None:
            self.purse.check_rest(run)
        face = face_of(run, binding=run.binding, priority=0, at=at)
        self.ready_at, self.care_at = face.ready_at, face.care_at
        assert face.care_at is None or face.care_at > at, "a caretaker would come back at once"
        if run.status is not Status.SUSPENDED:
            return
        assert face.ready_at is None or face.ready_at > at, "a leg would come back at once"
        assert self.mail_applied == len(self.mail) and run.waiting_on
        held = run.hold is not None
        assert held or not [call for call in run.turn if call.stage in BEFORE_THEY_RUN], "parked with work to do"
        waiting = {call.id for call in run.turn if call.stage in (CallStage.GATED, CallStage.WAITING)}
        assert held or not [effect for effect in run.unknowns if effect.claim or effect.found], "parked with something to settle"
        assert held or {effect.tool_call_id for effect in run.unknowns if effect.again} <= waiting
        shown = {name for name, items in self.pending.items() if items}
        assert shown >= {*names(run.waiting_on)} - ({"unknown_effects"} if held else set())
        assert shown - {*names(run.waiting_on)} <= {"unknown_effects"}
        assert Wait.TIMERS not in run.waiting_on or face.ready_at is not None

    def _keep(self, receipt: Receipt) -> None:
        old, detail = self.receipts.get(receipt.tool_call_id), json.loads(receipt.detail)
        if old is not None:
            assert old.output is None or ("read" in detail and old.output == receipt.output), f"{old} has its outcome (R12)"
            shown = detail.get("approval", {}).get("requested_arguments")
            edited = shown is not None and old.attempt == 0 and canonical_json(shown) == old.arguments
            assert receipt.arguments == old.arguments or edited, "what runs is what was recorded (I-10)"
            assert receipt.attempt >= old.attempt and (old.raw is None or receipt.raw == old.raw)
        assert detail.get("failures", 0) <= 3, "tried too often (R16)"
        self.receipts[receipt.tool_call_id] = receipt

    def _check(self, before: RunState, run: RunState) -> None:
        after = self.run
        unled = replace(
            run,
            leg=0,
            worker="",
            binding="",
            reopened=False,
            caretaker=False,
            draining=False,
            hurried=False,
            guards_output=False,
            terms=CallTerms(),
        )
        assert after == unled, "state and receipts are not the run"
        assert (
            before.status is run.status
            or (before.status, run.status) in STATUS_CHANGES
            or before.status in (Status.QUEUED, Status.SUSPENDED)
            or run.reopened
        )
        if before.status.ended and not run.reopened:
            assert replace(before, unknowns=after.unknowns) == after, "an ended run changed (I-20)"
            assert {effect.tool_call_id for effect in after.unknowns} <= {effect.tool_call_id for effect in before.unknowns}
        assert (before.step, before.attempt) <= (run.step, run.attempt) and run.step <= run.limits.max_steps
        assert before.worked_ms <= run.worked_ms and before.messages <= run.messages == len(self.messages)
        assert before.lost_model_calls <= run.lost_model_calls
        assert (before.holds, before.releases) <= (run.holds, run.releases) and run.holds - run.releases == (run.hold is not None)
        assert all(getattr(before.usage, name.name) <= getattr(run.usage, name.name) for name in fields(Usage))
        self._check_output(before, run)
        self._check_ledger(before, run)
        turn = sum(1_500 + len(call.arguments) + len(call.name) + len(call.provider_id) for call in run.turn)
        unsettled = sum(1_500 + len(effect.arguments) for effect in run.unknowns)
        unseen = run.unguarded
        waits = 0 if unseen is None else 500 + len(unseen.text) + len(unseen.reasoning) + 1_500 * len(unseen.calls)
        shared = 0 if run.shared is None else 800
        assert len(self.text) <= 2_000 + len(run.text or "") + turn + unsettled + waits + shared, "the state grows with the history (R7)"
        self._check_page(run)

    def _check_output(self, before: RunState, run: RunState) -> None:
        """The bounds of R28, and who is asked of R31."""
        limits = run.limits
        assert run.output_attempts <= limits.max_output_attempts and run.verify_attempts <= limits.max_verify_attempts
        assert before.verify_attempts <= run.verify_attempts <= before.verify_attempts + 1
        assert not run.verifying or run.candidate is not None, "the verifier is asked about nothing"
        assert run.candidate is None or (run.outputs is not None and run.outputs.verifies), "a candidate nobody looks at"
        completes = run.ending is not None and run.ending.status is Status.COMPLETED and run.shared is not None  # its budgets hear first
        assert run.output is None or run.status is Status.COMPLETED or completes, "an answer that was not accepted is shown (R9)"
        assert (
            run.failovers[: len(before.failovers)] == before.failovers and len(run.failovers) + len(run.fallbacks) == len(self.models) - 1
        )
        if run.failovers:
            assert run.model == self.models[len(run.failovers)], "a model that failed is asked again (R31)"

    def _check_ledger(self, before: RunState, run: RunState) -> None:
        """What is spent, or may have been, never becomes less, and what is committed keeps to the bounds (R33): but for what a provider
        uses beyond what it was allowed."""
        was, now = before.ledger, run.ledger
        assert was.spent.tokens <= now.spent.tokens and was.unknown.tokens <= now.unknown.tokens
        assert was.spent.picos <= now.spent.picos and was.unknown.picos <= now.unknown.picos and was.unpriced <= now.unpriced
        reserved = budget.reserved(before)
        more = Amount(
            tokens=max(0, now.spent.tokens - was.spent.tokens - reserved.tokens),
            picos=max(0, now.spent.picos - was.spent.picos - reserved.picos),
        )
        self.beyond += more
        open_to_loss, self.asked = reserved + self.asked, Amount()
        assert now.unknown.tokens - was.unknown.tokens <= open_to_loss.tokens, "what was reserved counts once"
        committed = budget.committed(run)
        assert sum(account.usage.model_calls for account in now.accounts) <= run.usage.model_calls
        assert sum(account.usage.total_tokens for account in now.accounts) == run.usage.total_tokens == now.spent.tokens
        if run.limits.max_total_tokens is not None and not run.status.ended:
            assert committed.tokens <= max(run.limits.max_total_tokens, reserved.tokens) + self.beyond.tokens
        if run.limits.max_cost_usd is not None and not run.status.ended:
            assert committed.picos <= max(picos_of(run.limits.max_cost_usd), reserved.picos) + self.beyond.picos

    def _check_page(self, run: RunState) -> None:
        """Whoever loads `/messages` and opens the stream at `events_after` sees what one sees who was there from the start (R32)."""
        page = Page.of(self.messages)
        for frame in self.journal.frames[run.events_after :]:
            page.fold(frame)
        for call in run.turn:
            if call.stage is CallStage.PROPOSED and call.id not in self.journal.page.calls:
                del page.calls[call.id]
        assert page == self.journal.page
        if not run.turn:
            opened = self.journal.open[0] if self.journal.open else None
            told, stored = self.journal.page.without(opened), Page.of(self.messages).without(opened)
            assert told == stored, "the frames say something else than the transcript"

    def check_paired(self) -> None:
        """Every call in the transcript has exactly one result, in the next message, in the model's order (I-07)."""
        for index, message in enumerate(self.messages):
            asked = [call.tool_call_id for call in message.tool_calls]
            answered = [result.tool_call_id for result in self.messages[index + 1].tool_results] if asked else []
            assert asked == answered
        results = [result.tool_call_id for message in self.messages for result in message.tool_results]
        assert len(results) == len({*results}) == sum(len(message.tool_calls) for message in self.messages)

    def check_ended(self) -> None:
        """What holds of every run that is over."""
        run = self.run
        assert run.unguarded is None, "an answer waits for guardrails for ever"
        assert self.journal.ends_final and run.ended is not None and run.turn == () and run.reservation is None and run.hold is None
        assert (run.ending, run.candidate, run.verifying, run.generations, run.spent_out) == (None, None, False, (), None), "it is over"
        assert run.shared is None or (run.shared.closings, run.shared.wait) == ((), None), "its budgets are not told (R34)"
        self.check_paired()
        assert Page.of(self.messages) == self.journal.page
        assert not any(self.requests.values()), "a request for approval outlived its run"
        assert not [effect for effect in run.unknowns if effect.claim or effect.found or effect.again]
        applied = {mail.seq for mail in self.mail[: self.mail_applied] if mail.kind is MailKind.CANCEL} - self.ignored
        assert len(applied) == bool(self.cancelled)
        if self.cancelled:
            assert (run.status, run.ended.reason) == (Status.STOPPED, "cancelled"), "an accepted cancel was not applied (R37)"
        if run.status is Status.COMPLETED:
            cancelled = [receipt for receipt in self.receipts.values() if receipt.outcome == "cancelled"]
            refused = [
                receipt for receipt in cancelled if run.outputs is not None and receipt.attempt == 0
            ]  # calls of a turn of finalization
            assert cancelled == refused, "a drain is no cancel (R39)"
        shown = view(row_of(run), run)
        state = {name: value for name, value in self.journal.control.items() if name != "final"}
        assert state == {name: shown[name] for name in state} and state.keys() >= {"pending", "task_outcome", "usage", "output"}
        stages = {receipt.stage for receipt in self.receipts.values()}
        assert stages <= {Stage.COMPLETED, Stage.FAILED} and all(receipt.output is not None for receipt in self.receipts.values())
