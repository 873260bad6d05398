"""The watch over what people and clients send: what was accepted is durable, counts once, and shows in what became of the run."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from runward.core.kernel.actor import Envelope
from runward.core.kernel.mail import Mail, MailKind, approval_key
from runward.core.kernel.records import Receipt
from runward.core.runs import codec
from runward.core.runs.calls import CallStage
from runward.core.runs.receipts import to_text
from runward.stores.memory.database import Rows

if TYPE_CHECKING:
    from tests.simulation.watch import Watch
    from tests.simulation.world import World

USELESS_AFTER_A_CANCEL = (MailKind.APPROVAL, MailKind.CLIENT, MailKind.QUESTION)
"""Inputs that always count, unless the run was cancelled: whoever closes their wait has their key."""

PROMPT = 3.0
"""How long an input may wait for the run to heed it, durably, when nothing goes wrong."""


class Inputs:
    """Every input of every run. What was accepted is noted by uid and key."""

    def __init__(self, world: World, watch: Watch) -> None:
        self._world = world
        self._watch = watch
        self._accepted: dict[str, dict[str, Mapping[str, Any]]] = defaultdict(dict)
        self._closed: dict[str, dict[str, str]] = defaultdict(dict)
        self._arrived: dict[tuple[str, int], float] = {}
        self._outranked: dict[str, set[int]] = defaultdict(set)
        """What a leg found in the inbox beside a cancel when it began."""
        self.kinds: Counter[str] = Counter()
        """How many of each kind were accepted: a world that never sends something proves nothing about it."""

    def _check(self, kept: bool, promise: str, what: str) -> None:
        self._watch.check(kept, promise, what)

    # -- what was answered ---------------------------------------------------------------------------------------------------

    def accepted(self, rows: Rows | None, key: str, said: Mapping[str, Any], where: str) -> None:
        """An input was answered `accepted`: it is durable now, and nobody else's was accepted in its place. None: the run is gone."""
        if rows is None:
            return
        uid = rows.envelope.uid
        before = self._accepted[uid].setdefault(key, said)
        self._check(before == said, "I-30 the first answer stands", f"{where}: {key} was accepted as {before}, then as {said}")
        self._recorded(rows, key, said, "I-35 what is accepted is stored", where)
        self.kinds[key.split(":", maxsplit=1)[0]] += 1

    def stored(self, rows: Rows | None, kind: MailKind, said: Mapping[str, Any], where: str) -> None:
        """The same of an input whose key depends on what came before it."""
        if rows is not None:
            found = any(mail.kind is kind and _says(mail, said) for mail in rows.mail)
            self._check(found, "I-35 what is accepted is stored", f"{where}: {kind} {said}")
            self.kinds[kind.value] += 1

    def duplicate(self, rows: Rows | None, key: str, said: Mapping[str, Any], where: str) -> None:
        """An input was answered `duplicate`: the very same is stored."""
        if rows is not None:
            self._recorded(rows, key, said, "R19 a duplicate is the same as what was recorded", where)

    def refused(self, rows: Rows | None, key: str, said: Mapping[str, Any], code: str, where: str) -> None:
        """An input was refused: something else has its key, or nothing waits for it."""
        if rows is not None and code == "already_answered":
            recorded = self._mail(rows, key)
            differs = recorded is not None and not _says(recorded, said)
            self._check(differs, "I-30 the first answer stands", f"{where}: {key} {said} was refused, where {recorded} is stored")

    def _recorded(self, rows: Rows, key: str, said: Mapping[str, Any], promise: str, where: str) -> None:
        recorded = self._mail(rows, key)
        self._check(recorded is not None and _says(recorded, said), promise, f"{where}: {key} {said}, stored {recorded}")

    @staticmethod
    def _mail(rows: Rows, key: str) -> Mail | None:
        seq = rows.mail_seqs.get(key)
        return None if seq is None else rows.mail[seq - 1]

    # -- rows --------------------------------------------------------------------------------------------------------------

    def written(self, before: Envelope, rows: Rows, where: str) -> None:
        """A commit applied mail, a claim found some; whatever was written may have closed requests for approval."""
        after, uid = rows.envelope, rows.envelope.uid
        for seq in range(before.mail_received + 1, after.mail_received + 1):
            self._arrived[uid, seq] = self._world.loop.time()
        for mail in rows.mail[before.mail_applied : after.mail_applied]:
            self._check(mail.applied_revision == after.revision, "R6a every input is applied once", f"{where}: {mail}")
            self._check(
                mail.ignored or mail.seq not in self._outranked[uid], "R37 a cancel outranks what lies beside it", f"{where}: {mail}"
            )
        if after.leg != before.leg:
            found = rows.mail[after.mail_applied :]
            cancelled = any(mail.kind is MailKind.CANCEL for mail in found)
            self._outranked[uid] = {mail.seq for mail in found if cancelled and mail.kind in USELESS_AFTER_A_CANCEL}
        if not rows.approvals:
            return
        closed = self._closed[uid]
        for row, closing in rows.approvals.values():
            if closing is not None and closed.get(row.id) != closing.status:
                self._check(row.id not in closed, "I-30 a decided request stays as it was decided", f"{where}: {row.id}")
                closed[row.id] = closing.status
                self._closing(rows, row.id, closing.status, where)
                self._watch.calls.shut(uid, json.loads(row.data)["tool_call_id"], closing.status)
        self._inbox(rows, where)

    def _closing(self, rows: Rows, approval_id: str, status: str, where: str) -> None:
        """Whoever closes a request has its key (R19a), unless the run takes it along."""
        recorded = self._mail(rows, approval_key(approval_id))
        data = {} if recorded is None else json.loads(recorded.data)
        at = rows.approvals[approval_id][0].expires_at
        early = status == "expired" and (at is None or at > self._world.database.now())
        self._check(not early, "I-34 a wait is over when its time has come", f"{where}: {at}")
        right = {"approved": data.get("approved") is True, "denied": data.get("approved") is False, "expired": data.get("expired") is True}
        self._check(right.get(status, recorded is None), "R19a whoever closes a wait has its key", f"{where}: {status}, {recorded}")

    def probed(self, rows: Rows, tool_call_id: str, where: str) -> None:
        """A probe settled an effect: it has the key that a person's decision would have (R19a)."""
        closings = [json.loads(mail.data) for mail in rows.mail if mail.kind is MailKind.RECONCILE]
        own = any("probe" in data and data["tool_call_id"] == tool_call_id for data in closings)
        self._check(own, "R19a whoever closes a wait has its key", f"{where}: {closings}")

    def _inbox(self, rows: Rows, where: str) -> None:
        """R23: what the inbox shows as pending, the run waits for, but for what has arrived and is not applied yet. A run that is cancelled
        heeds no verdict any more, and takes what waits along when it ends."""
        if '"cancel":' in rows.envelope.state:
            return
        run = codec.decode(rows.envelope.state)
        gated = {call.gate.id for call in run.turn if call.stage is CallStage.GATED and call.gate is not None}
        pending = {row.id for row, closing in rows.approvals.values() if closing is None}
        arrived = {mail.key for mail in rows.mail[rows.envelope.mail_applied :]}
        waited = {each for each in gated if approval_key(each) not in arrived}
        self._check(pending == waited, "R23 the inbox shows what waits", f"{where}: {sorted(pending)} where {sorted(waited)} wait")

    # -- the end of a run --------------------------------------------------------------------------------------------------

    def over(self, rows: Rows, ignored: int, where: str) -> None:
        """A run is over, or waits for good. `ignored` is how often its journal said that an input had no use."""
        said = sum(mail.ignored for mail in rows.mail)
        self._check(said == ignored, "R6a what has no use is ignored aloud", f"{where}: {said} were, {ignored} warnings")
        for mail in rows.mail:
            self._check(mail.applied_revision is not None, "R6 every input is applied", f"{where}: {mail}")
            if mail.ignored and mail.kind in USELESS_AFTER_A_CANCEL:
                self._check(rows.envelope.stop_reason == "cancelled", "I-35 an accepted input counts", f"{where}: {mail}")
        for key, accepted in self._accepted[rows.envelope.uid].items():
            self._recorded(rows, key, accepted, "I-35 what is accepted stays", where)
        for mail in rows.mail:
            if not mail.ignored:
                self._shows(rows, mail, f"{where}: {mail}")

    def _shows(self, rows: Rows, mail: Mail, where: str) -> None:
        """What counted is what became of the call."""
        data = json.loads(mail.data)
        if mail.kind is MailKind.APPROVAL and not data.get("expired"):
            row, closing = rows.approvals[data["approval_id"]]
            receipt = rows.receipts[json.loads(row.data)["tool_call_id"]]
            self._check(closing is not None, "R23 a decided request shows as decided", where)
            if data["approved"] is False:
                read = json.loads(receipt.detail).get("read", {}).get("outcome")  # what the model read, where the effect was settled since
                self._check("denied" in (receipt.outcome, read), "I-31 a denied call is denied", f"{where}: {receipt}")
        if mail.kind is MailKind.CLIENT and not data.get("expired"):
            receipt = rows.receipts[data["tool_call_id"]]
            self._check(_gives(receipt, data["output"], data["is_error"]), "I-33 a client's result is the call's", f"{where}: {receipt}")
        if mail.kind is MailKind.QUESTION:
            receipt = rows.receipts[data["question_id"].rpartition(".")[0]]
            own = receipt.attempt > 0 or data.get("expired") or data.get("declined") or _gives(receipt, data.get("answer"), False)
            self._check(bool(own), "R26 the user's answer is the call's", f"{where}: {receipt}")
            if data.get("expired"):
                self._check(receipt.outcome == "expired", "I-34 a wait that is over is over", f"{where}: {receipt}")


def _says(recorded: Mail, said: Mapping[str, Any]) -> bool:
    """Whether the stored input says this, among reasons, names and numbers of its own."""
    data = json.loads(recorded.data)
    return all(data.get(name) == value for name, value in said.items())


def _gives(receipt: Receipt, output: Any, is_error: bool) -> bool:
    return receipt.output == to_text(output) and receipt.is_error is is_error
