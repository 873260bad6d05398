"""The reads, on either database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runward.core.kernel.actor import Envelope, Scope
from runward.core.kernel.commit import CreatedIsGone, IdempotencyKey, KeyReused, Replayed
from runward.core.kernel.frames import StoredFrame
from runward.core.kernel.mail import Mail
from runward.core.kernel.records import MessageRow, Receipt
from runward.ports.reads import ActorQuery, ApprovalQuery, Place, SlotsTaken, StoredApproval
from runward.stores.sql import lists, queries
from runward.stores.sql.database import Database
from runward.stores.sql.gates import known_key
from runward.stores.sql.journal import unpack
from runward.stores.sql.rows import Values, approval_of, envelope_of, key_values, mail_of, message_of, receipt_of
from runward.stores.sql.statements import as_list


class SqlReads:
    """`ports.reads.Reads`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._dialect = database.dialect

    async def find(self, kind: str, scope: Scope | None, public_id: str) -> Envelope | None:
        rows = await self._database.read(
            queries.find(self._dialect, **_parts(scope)), {"kind": kind, "public_id": public_id, **_scope_values(scope)}
        )
        return envelope_of(rows[0]) if rows else None

    async def tenants_with(self, kind: str, public_id: str) -> Sequence[str]:
        rows = await self._database.read(queries.tenants_with(self._dialect), {"kind": kind, "public_id": public_id})
        return [tenant for (tenant,) in rows]

    async def get(self, uid: str) -> Envelope | None:
        rows = await self._database.read(queries.get(self._dialect), {"uid": uid})
        return envelope_of(rows[0]) if rows else None

    async def list(self, query: ActorQuery) -> Sequence[Envelope]:
        return [envelope_of(row) for row in await self._database.read(lists.listed(self._dialect, query), {})]

    async def frames(self, uid: str, *, after: int, limit: int) -> Sequence[StoredFrame]:
        rows = await self._database.read(queries.frames_after(self._dialect), {"uid": uid, "after": after, "limit": limit})
        return unpack(rows, after=after, limit=limit)

    async def messages(self, uid: str, *, after: int, limit: int | None) -> Sequence[MessageRow]:
        rows = await self._database.read(queries.messages_after(self._dialect), {"uid": uid, "after": after, "limit": _number(limit)})
        return [message_of(row) for row in rows]

    async def receipts(
        self, uid: str, *, step: int | None = None, after: tuple[int, int] = (0, 0), limit: int | None = None
    ) -> Sequence[Receipt]:
        statement = queries.receipts_after(self._dialect, one_step=step is not None)
        values = {"uid": uid, "step": step, "after_step": after[0], "after_position": after[1], "limit": _number(limit)}
        return [receipt_of(row) for row in await self._database.read(statement, values)]

    async def mail(self, uid: str, *, after: int, limit: int | None) -> Sequence[Mail]:
        rows = await self._database.read(queries.mail_after(self._dialect), {"uid": uid, "after": after, "limit": _number(limit)})
        return [mail_of(row) for row in rows]

    async def mail_by_key(self, uid: str, keys: Sequence[str]) -> Mapping[str, Mail]:
        values = {"uid": uid, "keys": as_list(keys, self._dialect)}
        rows = await self._database.read(queries.mail_by_key(self._dialect), values)
        return {mail.key: mail for mail in map(mail_of, rows)}

    async def approval(self, scope: Scope | None, id: str) -> StoredApproval | None:
        rows = await self._database.read(queries.approval(self._dialect, **_parts(scope)), {"id": id, **_scope_values(scope)})
        return approval_of(rows[0]) if rows else None

    async def approvals(self, query: ApprovalQuery) -> Sequence[StoredApproval]:
        return [approval_of(row) for row in await self._database.read(lists.listed_approvals(self._dialect, query), {})]

    async def held(self, scope: Scope | None, *, lapsed_for_ms: int | None, after: Place | None, limit: int) -> Sequence[Envelope]:
        statement = lists.held(self._dialect, scope, lapsed_for_ms=lapsed_for_ms, after=after, limit=limit)
        return [envelope_of(row) for row in await self._database.read(statement, {})]

    async def slots_taken(self, tenant: str, key: str | None) -> SlotsTaken:
        rows = await self._database.read(lists.slots_taken(self._dialect), {"tenant": tenant, "key": key or ""})
        return SlotsTaken(of_key=rows[0][0], of_tenant=rows[0][1])

    async def unclaimable(self, scope: Scope | None, bindings: Sequence[str], *, after: Place | None, limit: int) -> Sequence[Envelope]:
        statement = lists.unclaimable(self._dialect, scope, bindings, after=after, limit=limit)
        return [envelope_of(row) for row in await self._database.read(statement, {})]

    async def remembered(self, key: IdempotencyKey) -> Replayed | KeyReused | CreatedIsGone | None:
        rows = await self._database.read(queries.remembered(self._dialect), key_values(key))
        return known_key(key, tuple(rows[0])) if rows else None


def _parts(scope: Scope | None) -> dict[str, bool]:
    """Which parts of a scope are set."""
    return {
        "tenant": scope is not None,
        "user": scope is not None and scope.user is not None,
        "namespace": scope is not None and scope.namespace is not None,
    }


def _scope_values(scope: Scope | None) -> Values:
    return {} if scope is None else {"tenant": scope.tenant, "user_id": scope.user, "namespace": scope.namespace}


def _number(limit: int | None) -> int:
    return queries.NO_LIMIT if limit is None else limit
