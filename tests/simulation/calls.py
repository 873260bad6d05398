"""The watch over calls: what may start, which receipts may follow which, and whether what is recorded is what happened."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from runward.agents.approvals import Approval
from runward.agents.contexts import ToolContext
from runward.core.ids import approval_id, canonical_json
from runward.core.kernel.actor import Envelope
from runward.core.kernel.records import Receipt, Stage
from runward.core.runs.calls import Effect, ToolTraits
from runward.stores.memory.database import Rows
from tests.simulation.ledger import token
from tests.simulation.tools import WAITING, WatchedTool

if TYPE_CHECKING:
    from tests.simulation.watch import Watch
    from tests.simulation.world import World

SHUT = ("denied", "expired", "cancelled")
OVER = (Stage.COMPLETED, Stage.FAILED)


class Calls:
    """Every call of every run. `starts` counts the attempts that really started, by the call's key."""

    def __init__(self, world: World, watch: Watch) -> None:
        self._world = world
        self._watch = watch
        self.starts: Counter[str] = Counter()
        self._effects: dict[str, Effect] = {}
        self._started: set[tuple[str, int]] = set()
        self._receipts: dict[str, dict[str, Receipt]] = defaultdict(dict)
        self._shut: dict[str, str] = {}
        """Calls that somebody refused, or nobody approved: they never start again."""

    def _check(self, kept: bool, promise: str, what: str) -> None:
        self._watch.check(kept, promise, what)

    # -- starts ------------------------------------------------------------------------------------------------------------

    def starts_now(
        self,
        rows: Rows,
        tool: WatchedTool,
        arguments: Mapping[str, Any],
        context: ToolContext,
        where: str,
    ) -> None:
        """An attempt of a call starts, in a process that has the run."""
        key, attempt = context.idempotency_key, context.attempt
        uid, call_id = key.split("/")
        self._check(call_id == context.tool_call_id and uid == rows.envelope.uid, "I-05 every attempt has the call's key", where)
        self._check((key, attempt) not in self._started, "R13 an attempt starts once", where)
        self._started.add((key, attempt))
        self._checkpoint(context, where)
        receipt, text = rows.receipts.get(call_id), canonical_json(arguments)
        durable = receipt is not None and receipt.stage is Stage.EXECUTING and receipt.outcome is None and receipt.attempt == attempt
        self._check(durable, "I-02 the receipt is durable before the effect", f"{where}: {receipt}")
        self._check(receipt is None or receipt.arguments == text, "I-10 what runs is what was recorded", where)
        self._check(key not in self._shut, "I-31 what was refused never runs", f"{where}: it was {self._shut.get(key)}")
        if tool.approval is not None:
            self._approved(rows, context, tool.approval, text, where)
        self.starts[key] += 1
        self._effects[key] = tool.traits.effect
        self._may_start(key, tool.traits, where)

    def _checkpoint(self, context: ToolContext, where: str) -> None:
        key, ledger = context.idempotency_key, self._world.ledger
        saves, saved = ledger.saves[key], ledger.saved.get(key)
        possible = [saved, *saves[saves.index(saved) + 1 if saved in saves else 0 :]]
        self._check(context.checkpoint in possible, "R13 a checkpoint is durable", f"{where}: {context.checkpoint!r}, {possible}")

    def _approved(self, rows: Rows, context: ToolContext, approval: Approval, text: str, where: str) -> None:
        """Some person approved this call with exactly these arguments, under this version of its approval."""
        uid, call_id, found = rows.envelope.uid, context.tool_call_id, False
        name, again = rows.receipts[call_id].tool_name, self.starts[context.idempotency_key] > 0
        for row, closing in rows.approvals.values():
            asked = json.loads(row.data)
            if asked["tool_call_id"] != call_id or closing is None or closing.status != "approved":
                continue
            edited = json.loads(closing.decision).get("edited_arguments")
            right = text == (asked["arguments"] if edited is None else canonical_json(edited))
            named = row.id == approval_id(uid, call_id, name, approval.version, asked["arguments"])
            said = any(verdict["approved"] and verdict["edited"] == edited for verdict in self._world.ledger.verdicts[row.id])
            found = found or (right and said and (named or again))
        self._check(found, "I-28 nothing runs without a verdict on exactly these arguments", f"{where}: {text}")

    def _may_start(self, key: str, traits: ToolTraits, where: str) -> None:
        """I-03: once, and once more for each question it asked, and each time a person or a probe found that it had not happened."""
        ledger = self._world.ledger
        retries = sum(decision == "retry" for _, decision in ledger.decisions[key])
        most = 1 + ledger.asks[key] + ledger.missing[key] + retries
        what = f"{where}: start {self.starts[key]} of at most {most}"
        self._check(traits.effect.repeatable or self.starts[key] <= most, "I-03 an effect that may not be repeated happens once", what)
        happened = len(ledger.by_key[key])
        allowed = happened <= ledger.risky[key]
        self._check(traits.effect.repeatable or allowed, "I-01 what happened is not done again", f"{where}: it happened {happened} times")

    # -- rows --------------------------------------------------------------------------------------------------------------

    def committed(self, before: Envelope, rows: Rows, where: str) -> None:
        """The receipts of a commit."""
        known, state = self._receipts[rows.envelope.uid], rows.envelope.state
        seen_all = rows.envelope.mail_applied == len(rows.mail)
        for call_id, receipt in rows.receipts.items():
            old = known.get(call_id)
            if old is receipt:
                continue
            known[call_id] = receipt
            self._changed(rows, old, receipt, f"receipt {call_id}: {where}")
            if receipt.stage is Stage.EXECUTING and receipt.outcome is None and (old is None or old.attempt != receipt.attempt):
                self._check(seen_all or receipt.effect == "read", "R6 mail counts before a writing call starts", where)
                self._check('"hold":' not in state, "R39 nothing starts while the run is held", f"receipt {call_id}: {where}")
                self._check('"cancel":' not in state, "I-38 nothing starts after a cancel", f"receipt {call_id}: {where}")

    def _changed(self, rows: Rows, old: Receipt | None, new: Receipt, where: str) -> None:
        if old is None:
            return
        refused = old.outcome in ("denied", "expired") and '"effect_certain":false' in old.detail  # it was to run once more, and did not
        settled = old.outcome == "unknown" or '"told":true' in new.detail or (refused and '"reconciled":' in new.detail)
        self._check(old.stage not in OVER or settled, "I-01 a recorded outcome is never changed", where)
        self._check(old.stage not in OVER or not settled or new.output == old.output, "R10 what the model saw stays", where)
        self._check(new.attempt >= old.attempt, "I-09 attempts are counted", where)
        edits = [json.loads(closing.decision).get("edited_arguments") for _, closing in rows.approvals.values() if closing is not None]
        edited = new.arguments in [canonical_json(edit) for edit in edits if edit is not None] and old.stage is Stage.SUSPENDED
        self._check(new.arguments == old.arguments or edited, "I-10 a call keeps its arguments", f"{where}: {old} and then {new}")
        self._check(old.raw in (None, new.raw), "R12 what a tool returned is kept", where)
        if '"probe":' in new.detail and '"probe":' not in old.detail:
            self._watch.inputs.probed(rows, new.tool_call_id, where)

    def shut(self, uid: str, tool_call_id: str, status: str) -> None:
        """A request for approval was closed."""
        if status in SHUT:
            self._shut[f"{uid}/{tool_call_id}"] = status

    # -- the end of a run --------------------------------------------------------------------------------------------------

    def over(self, rows: Rows, known: Any, where: str) -> None:
        """A run is over, or waits for good; `known` is what its end says of its calls."""
        for receipt in rows.receipts.values():
            self._outcome(rows, receipt, f"{where}: receipt {receipt}")
        for call in known:
            self._known(f"{rows.envelope.uid}/{call['tool_call_id']}", call["state"], f"{where}: {call}")

    def _outcome(self, rows: Rows, receipt: Receipt, where: str) -> None:
        """What is recorded is what happened."""
        key, detail = f"{rows.envelope.uid}/{receipt.tool_call_id}", json.loads(receipt.detail)
        happened = self._world.ledger.by_key[key]
        waits = receipt.stage is Stage.SUSPENDED and not rows.envelope.status.ended
        self._check(receipt.stage in OVER or receipt.outcome == "unknown" or waits, "I-06 every call has one outcome", where)
        if receipt.outcome == "unknown":
            self._check(not Effect(receipt.effect).repeatable, "R13 only what may not be repeated is unknown", where)
        settled = detail.get("reconciled", {})
        reconciled = settled.get("decision") == "result" and receipt.outcome == "reconciled"
        holds = not settled.get("verified") or settled["evidence"]["source"] == "till"
        self._check(holds, "R15 evidence that does not hold settles nothing", where)
        if receipt.stage is Stage.COMPLETED and receipt.tool_name not in WAITING:
            shown = (receipt.raw or "") + (receipt.output or "")
            own = [token(key, attempt) in shown for attempt in happened if reconciled or attempt == receipt.attempt]
            self._check(any(own), "I-01 a result is the tool's own", f"{where}: {happened}")
        if receipt.outcome == "failed" and detail["effect_certain"] and receipt.effect not in ("read", "idempotent_write"):
            again = self._world.ledger.risky[key] > 0  # what it did before somebody had it run again all the same, it does not know
            self._check(not happened or again, "R16 a tool's own error means that it did not happen", where)
        if receipt.attempt == 0:
            self._check(not self.starts[key], "I-02 what was never marked never started", where)
        if receipt.outcome in ("denied", "expired") and detail["effect_certain"]:
            self._check(not happened, "I-31 what was refused did not happen", where)

    def _known(self, key: str, state: str, where: str) -> None:
        """R38: the end says of each call what is known, and that is true."""
        happened = bool(self._world.ledger.by_key[key])
        if state == "not_started":
            self._check(not happened, "R38 not started is true", where)
        if state == "cancelled":
            self._check(self._effects.get(key, Effect.READ).repeatable or not happened, "R38 cancelled is true", where)
        if state == "finished":
            settled = '"reconciled"' in self._receipts[key.split("/", maxsplit=1)[0]][key.split("/")[1]].detail
            self._check(self.starts[key] > 0 or settled, "R38 finished is true", where)
