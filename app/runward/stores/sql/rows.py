"""Values of the kernel as rows, and back. Where a name differs, the table's is the one SQL allows (`user_id`, `dedupe_key`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from runward.core.ids import canonical_json
from runward.core.kernel.actor import Envelope, Position, Scope, Status
from runward.core.kernel.commit import Changes, IdempotencyKey, NewActor
from runward.core.kernel.mail import Letter, Mail, MailKind
from runward.core.kernel.records import ApprovalClosing, MessageRow, Receipt, Stage
from runward.ports.reads import StoredApproval
from runward.ports.store import Head
from runward.stores.sql.tables import actors, approvals, columns, mail, messages, receipts

Row = Sequence[Any]
Values = dict[str, Any]

# -- reading: the columns, in the order their function unpacks them ------------------------------------------------------

ENVELOPE: Final = columns(
    actors,
    "uid kind format public_id tenant user_id namespace status revision leg recoveries lease_owner lease_until drain_leg last_seq "
    "mail_received mail_applied ready_at care_at rank priority binding agent agent_version session_id parent_uid waiting_on "
    "stop_reason task_outcome metadata context state created_at updated_at started_at ended_at cancel_requested_at "
    "concurrency_key key_slot tenant_slot",
)
HEAD: Final = columns(actors, "uid status revision last_seq leg lease_owner mail_received drain_leg")
MESSAGE: Final = columns(messages, "seq role step content format opaque opaque_format")
RECEIPT: Final = columns(
    receipts,
    "tool_call_id step position tool_name stage effect attempt arguments raw output is_error outcome started_at ended_at detail format",
)
MAIL: Final = columns(mail, "seq kind dedupe_key data principal received_at applied_revision ignored")

APPROVAL: Final = (
    *columns(approvals, "id uid tenant user_id namespace agent tool status created_at expires_at data decided_at decision"),
    actors.c.public_id,
)


def envelope_of(row: Row) -> Envelope:
    (
        uid, kind, format, public_id, tenant, user, namespace, status, revision, leg, recoveries, lease_owner, lease_until, drain_leg,
        last_seq, mail_received, mail_applied, ready_at, care_at, rank, priority, binding, agent, agent_version, session_id, parent_uid,
        waiting_on, stop_reason, task_outcome, metadata, context, state, created_at, updated_at, started_at, ended_at, cancel_requested_at,
        concurrency_key, key_slot, tenant_slot,
    ) = row  # fmt: skip
    return Envelope(
        uid=uid,
        kind=kind,
        format=format,
        public_id=public_id,
        scope=Scope(tenant=tenant, user=user, namespace=namespace),
        status=Status(status),
        revision=revision,
        leg=leg,
        recoveries=recoveries,
        lease_owner=lease_owner,
        lease_until=lease_until,
        drain_leg=drain_leg,
        last_seq=last_seq,
        mail_received=mail_received,
        mail_applied=mail_applied,
        ready_at=ready_at,
        care_at=care_at,
        rank=rank,
        priority=priority,
        binding=binding,
        agent=agent,
        agent_version=agent_version,
        session_id=session_id,
        parent_uid=parent_uid,
        waiting_on=waiting_on,
        stop_reason=stop_reason,
        task_outcome=task_outcome,
        metadata=metadata,
        context=context,
        state=state,
        created_at=created_at,
        updated_at=updated_at,
        started_at=started_at,
        ended_at=ended_at,
        cancel_requested_at=cancel_requested_at,
        concurrency_key=concurrency_key or None,
        key_slot=key_slot,
        tenant_slot=tenant_slot,
    )


def heads_of(rows: Iterable[Row]) -> dict[str, Head]:
    return {
        uid: Head(
            uid=uid,
            status=Status(status),
            position=Position(revision=revision, last_seq=last_seq),
            leg=leg,
            lease_owner=lease_owner,
            mail_received=mail_received,
            drain_leg=drain_leg,
        )
        for uid, status, revision, last_seq, leg, lease_owner, mail_received, drain_leg in rows
    }


def message_of(row: Row) -> MessageRow:
    seq, role, step, content, format, opaque, opaque_format = row
    return MessageRow(seq=seq, role=role, step=step, content=content, format=format, opaque=opaque, opaque_format=opaque_format)


def receipt_of(row: Row) -> Receipt:
    (
        tool_call_id, step, position, tool_name, stage, effect, attempt, arguments, raw, output, is_error, outcome, started_at, ended_at,
        detail, format,
    ) = row  # fmt: skip
    return Receipt(
        tool_call_id=tool_call_id,
        step=step,
        position=position,
        tool_name=tool_name,
        stage=Stage(stage),
        effect=effect,
        attempt=attempt,
        arguments=arguments,
        raw=raw,
        output=output,
        is_error=bool(is_error),
        outcome=outcome,
        started_at=started_at,
        ended_at=ended_at,
        detail=detail,
        format=format,
    )


def mail_of(row: Row) -> Mail:
    seq, kind, key, data, principal, received_at, applied_revision, ignored = row
    return Mail(
        seq=seq,
        kind=MailKind(kind),
        key=key,
        data=data,
        principal=principal,
        received_at=received_at,
        applied_revision=applied_revision,
        ignored=bool(ignored),
    )


def approval_of(row: Row) -> StoredApproval:
    id, uid, tenant, user, namespace, agent, tool, status, created_at, expires_at, data, decided_at, decision, public_id = row
    return StoredApproval(
        id=id,
        uid=uid,
        run_id=public_id,
        scope=Scope(tenant=tenant, user=user, namespace=namespace),
        agent=agent,
        tool=tool,
        status=status,
        created_at=created_at,
        expires_at=expires_at,
        data=data,
        decided_at=decided_at,
        decision=decision,
    )


# -- writing: one mapping of column to value per row ---------------------------------------------------------------------


def actor_values(new: NewActor) -> Values:
    """A new actor's columns, but for those that the clock decides; `ready_at` None means now."""
    return {
        "uid": new.uid,
        "created_at": new.created_at,
        "kind": new.kind,
        "public_id": new.public_id,
        "tenant": new.scope.tenant,
        "user_id": new.scope.user,
        "namespace": new.scope.namespace,
        "agent": new.agent,
        "agent_version": new.agent_version,
        "session_id": new.session_id,
        "parent_uid": new.parent_uid,
        "priority": new.priority,
        "metadata": new.metadata,
        "context": new.context,
        "care_at": new.care_at,
        "ready_at": new.ready_at,
        "binding": new.binding,
        "updated_at": new.created_at,
        "last_seq": len(new.frames),
        "format": new.format,
        "task_outcome": new.task_outcome,
        "state": new.state,
        "concurrency_key": new.concurrency_key or "",
    }


def changed_values(changes: Changes) -> Values:
    """What a commit makes of its actor's columns, its gates included."""
    face, after = changes.face, changes.leads_to
    return {
        "uid": changes.uid,
        "revision": changes.follows.revision,
        "last_seq": changes.follows.last_seq,
        "to_revision": after.revision,
        "to_last_seq": after.last_seq,
        "mail_seen": changes.mail_seen,
        "to_mail_applied": changes.mail_applied,
        "to_status": face.status.value,
        "to_state": face.state,
        "to_format": face.format,
        "to_binding": face.binding,
        "to_ready_at": face.ready_at,
        "to_care_at": face.care_at,
        "to_rank": face.rank,
        "to_waiting_on": face.waiting_on,
        "to_stop_reason": face.stop_reason,
        "to_task_outcome": face.task_outcome,
        "to_updated_at": face.updated_at,
        "to_ended_at": face.ended_at,
        "to_recoveries": face.recoveries,
    }


def message_values(message: MessageRow) -> Values:
    return {
        "seq": message.seq,
        "step": message.step,
        "format": message.format,
        "role": message.role,
        "content": message.content,
        "opaque": message.opaque,
        "opaque_format": message.opaque_format,
    }


def receipt_values(receipt: Receipt) -> Values:
    return {
        "step": receipt.step,
        "position": receipt.position,
        "tool_call_id": receipt.tool_call_id,
        "format": receipt.format,
        "started_at": receipt.started_at,
        "tool_name": receipt.tool_name,
        "effect": receipt.effect,
        "arguments": receipt.arguments,
        "ended_at": receipt.ended_at,
        "attempt": receipt.attempt,
        "is_error": receipt.is_error,
        "stage": receipt.stage.value,
        "outcome": receipt.outcome,
        "raw": receipt.raw,
        "output": receipt.output,
        "detail": receipt.detail,
    }


def letter_values(letter: Letter) -> Values:
    return {"kind": letter.kind.value, "dedupe_key": letter.key, "data": letter.data, "principal": letter.principal}


def approval_values(changes: Changes) -> list[Values]:
    """The approvals a commit opens: pending, or as the same commit closes them."""
    closings = {closing.id: closing for closing in reversed(changes.approval_closings)}
    rows = []
    for approval in changes.approvals:
        closing = closings.get(approval.id)
        rows.append(
            {
                "id": approval.id,
                "created_at": approval.created_at,
                "expires_at": approval.expires_at,
                "tool": approval.tool,
                "data": approval.data,
                "status": "pending" if closing is None else closing.status,
                "decided_at": None if closing is None else closing.decided_at,
                "decision": None if closing is None else closing.decision,
            }
        )
    return rows


def closing_values(closings: Iterable[ApprovalClosing]) -> list[Values]:
    """Each approval is closed once: by the first closing."""
    first = {closing.id: closing for closing in reversed(tuple(closings))}
    return [
        {"id": closing.id, "status": closing.status, "decided_at": closing.decided_at, "decision": closing.decision}
        for closing in first.values()
    ]


def in_columns(rows: Sequence[Mapping[str, Any]], prefix: str, names: Iterable[str]) -> Values:
    """Rows as one list per column, named `<prefix>_<column>`: what `unnest` makes rows of again."""
    return {f"{prefix}_{name}": [row[name] for row in rows] for name in names}


def key_values(key: IdempotencyKey) -> Values:
    """What an idempotency key is found by."""
    return {"scope": _scope_text(key.scope), "route": key.route, "key": key.key}


def _scope_text(scope: Scope) -> str:
    """A scope as one text that no other scope has."""
    return canonical_json([scope.tenant, scope.user, scope.namespace])
