"""What a caller may ask: check, then create or append mail. HTTP, the command line and every later wire call this and nothing else.

Everything accepted is durable when a method returns. Every error is a `Refused` with a stable code, and nothing was stored; or
`Unavailable`, and repeating the request is safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runward.agents.costs import foreign_complaint
from runward.agents.elsewhere import ClientTool
from runward.agents.estimates import tool_tokens
from runward.agents.output import Output
from runward.agents.rules import Policy
from runward.core.errors import Conflict, DefinitionError, Invalid, NotFound, NotPermitted, Problem, Refused
from runward.core.ids import canonical_json
from runward.core.kernel.actor import FORMAT, Envelope, Scope
from runward.core.kernel.commit import (
    AppendAnswer,
    Appended,
    Created,
    CreatedIsGone,
    HasEnded,
    IdempotencyKey,
    KeyReused,
    KeyTaken,
    NewActor,
    PublicIdTaken,
    Replayed,
)
from runward.core.kernel.mail import Letter, MailKind, cancel_key
from runward.core.messages import Message
from runward.core.runs import codec
from runward.core.runs.begin import begin
from runward.core.runs.dues import care_due
from runward.core.runs.ledger import CallTerms, Rates
from runward.core.runs.limits import Limits, TighterLimits
from runward.core.runs.state import KIND, OutputTerms
from runward.core.runs.view import task_outcome
from runward.engine.callers import Caller, Permission
from runward.engine.catalog import Catalog, Listed
from runward.engine.contexts import brought_text
from runward.engine.encoding import message_row, stored_frame
from runward.engine.found import run_of
from runward.engine.repeats import Repeatable
from runward.engine.sealing import Seal
from runward.engine.services import Services
from runward.ports.bus import Hint, Topic
from runward.ports.store import Append


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A run to be created, as asked for. `start_at` is in milliseconds on the store's clock; None and the past mean now.

    `client_tools` are the fields of a `ClientTool` each.
    """

    agent: str
    messages: Sequence[Message]
    agent_version: str | None = None
    run_id: str | None = None
    user: str | None = None
    namespace: str | None = None
    context: Mapping[str, Any] | None = None
    tool_context: Mapping[str, Mapping[str, Any]] | None = None
    client_tools: Sequence[Mapping[str, Any]] = ()
    limits: TighterLimits = field(default_factory=TighterLimits)
    output: Mapping[str, Any] | None = None
    policy: Policy | None = None
    budgets: Sequence[str] = ()
    concurrency_key: str | None = None
    priority: int = 0
    start_at: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCreated:
    """The run exists. `replayed`: it did before, made by the same key and body."""

    row: Envelope
    replayed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelAnswer:
    """`accepted`: the run will end `cancelled`, whatever happens. Else it had ended already (R37)."""

    row: Envelope
    accepted: bool


class Commands:
    """The writes of the service."""

    def __init__(self, services: Services, catalog: Catalog, seal: Seal) -> None:
        self._services = services
        self._catalog = catalog
        self._seal = seal

    async def create_run(self, caller: Caller, new: NewRun, repeatable: Repeatable | None = None) -> RunCreated:
        """Creates a run (R42). A key that is known is answered before anything else that could be wrong with the request: what was right
        when the run was made, may be wrong by now."""
        caller.require(Permission.RUNS_WRITE)
        key = None
        if repeatable is not None:
            key = IdempotencyKey(scope=caller.scope, route="POST /runs", key=repeatable.key, fingerprint=repeatable.fingerprint)
        try:
            actor = await self._checked(caller, new)
        except Refused:
            known = None if key is None else await self._services.reads.remembered(key)
            if known is None:
                raise
            return await self._known(known)
        match await self._services.store.create(actor, key):
            case Created():
                self._services.bus.publish((Hint(Topic.READY, actor.uid),))
                return RunCreated(row=actor.as_created(actor.ready_at or actor.created_at), replayed=False)
            case PublicIdTaken():
                raise Conflict(f"There is a run {new.run_id!r} already. Choose another run_id, or leave it out.", code="run_exists")
            case known:
                return await self._known(known)

    async def cancel_run(self, caller: Caller, run_id: str, reason: str | None) -> CancelAnswer:
        """Accepts a cancel: it outranks whatever its holder is about to do, and survives it (R37). Idempotent."""
        caller.require(Permission.RUNS_WRITE)
        row = await run_of(self._services, caller, run_id)
        match await self.send_cancel(caller, row.uid, reason):
            case Appended():
                return CancelAnswer(row=await self._got(row.uid), accepted=True)
            case KeyTaken():
                row = await self._got(row.uid)
                return CancelAnswer(row=row, accepted=not row.status.ended or row.stop_reason == "cancelled")
            case HasEnded():
                row = await self._got(row.uid)
                if not row.status.ended:  # somebody has it tried again meanwhile: now it can be cancelled
                    return await self.cancel_run(caller, run_id, reason)
                return CancelAnswer(row=row, accepted=False)
            case _:
                raise _no_such_run()

    async def send_cancel(self, caller: Caller, uid: str, reason: str | None) -> AppendAnswer:
        """Puts a cancel into the inbox of a run that the caller may see."""
        data = canonical_json({"reason": reason} if reason is not None else {})
        letter = Letter(kind=MailKind.CANCEL, key=cancel_key(), data=data, principal=caller.principal)
        answer = await self._services.store.append_mail(Append(uid=uid, letters=(letter,), care=True, marks_cancel=True))
        if isinstance(answer, Appended):
            self._services.bus.publish((Hint(Topic.MAIL, uid), Hint(Topic.READY, uid)))
        return answer

    async def delete_run(self, caller: Caller, run_id: str) -> None:
        """Deletes an ended run, whole. Its idempotency key goes on naming it (R42)."""
        caller.require(Permission.RUNS_WRITE)
        row = await run_of(self._services, caller, run_id)
        if not await self._services.store.delete(row.uid):
            if await self._services.reads.get(row.uid) is None:
                raise _no_such_run()
            raise Conflict("Only a run that has ended, and that nobody works on, can be deleted. Cancel it first.", code="run_not_ended")

    # -- parts -------------------------------------------------------------------------------------------------------------

    async def _checked(self, caller: Caller, new: NewRun) -> NewActor:
        """The actor that a request asks for, if nothing is wrong with it."""
        scope = caller.scope.narrowed(user=new.user, namespace=new.namespace)
        if scope is None:
            raise NotPermitted("This key's scope does not include the scope asked for.")
        listed = await self._catalog.find(new.agent, new.agent_version)
        if listed is None:
            version = "" if new.agent_version is None else f" in version {new.agent_version!r}"
            raise Invalid(f"There is no agent {new.agent!r}{version}. GET /agents lists them.", code="unknown_agent")
        self._catalog.check_context(listed, new.context)
        _check_tools(listed, new.tool_context or {})
        _check_tools(listed, () if new.policy is None else new.policy.tools, *(tool["name"] for tool in new.client_tools))
        _check_output(new.output)
        _check_model(listed, new.policy)
        await self._check_budgets(scope.tenant, new.budgets)
        return self._actor(new, scope, listed, _client_tools(listed, new.client_tools))

    async def _check_budgets(self, tenant: str, keys: Sequence[str]) -> None:
        """A key that nobody has made a budget of is a mistake: the run would be bounded by nothing."""
        known = await self._services.budgets.known(tenant, keys) if keys else ()
        unknown = [(index, key) for index, key in enumerate(keys) if key not in known]
        if unknown:
            detail = f"There is no budget {unknown[0][1]!r}. PUT /budgets/{unknown[0][1]} makes it."
            problems = [
                Problem(pointer=f"/budgets/{index}", code="unknown_budget", detail="There is no such budget.") for index, _ in unknown
            ]
            raise Invalid(detail, code="unknown_budget", problems=problems)

    async def _known(self, known: Replayed | KeyReused | CreatedIsGone) -> RunCreated:
        """What a request is answered whose key is known."""
        match known:
            case Replayed(uid=uid):
                return RunCreated(row=await self._got(uid), replayed=True)
            case KeyReused():
                message = "This Idempotency-Key was used for another request. Use a new key for a new request."
                raise Invalid(message, code="idempotency_key_reused")
            case CreatedIsGone(public_id=public_id):
                message = f"The run {public_id!r} that this Idempotency-Key made was deleted. Use a new key for a new run."
                raise Conflict(message, code="run_deleted")

    def _actor(self, new: NewRun, scope: Scope, listed: Listed, client_tools: Sequence[ClientTool]) -> NewActor:
        uid = self._services.chance.uid()
        now = self._services.time.now()
        run_id = new.run_id or uid
        limits = listed.limits.tightened(new.limits)
        typed = OutputTerms(verifies=listed.verified and new.output is None) if listed.typed or new.output is not None else None
        policy = listed.policy if new.policy is None else listed.policy.narrowed(new.policy)
        fallbacks = tuple(name for name in listed.fallbacks if policy.permits_model(name))
        later = new.start_at if new.start_at is not None and new.start_at > now else None
        run, said = begin(
            uid=uid,
            agent=new.agent,
            created_at=now,
            limits=limits,
            model=listed.model,
            messages=new.messages,
            fallbacks=fallbacks,
            outputs=typed,
            start_at=later,
            loops=bool(listed.tools or client_tools),
            guards_input=listed.guards_input,
            terms=CallTerms(max_output_tokens=listed.max_output_tokens, rates=self._rates([listed.model, *fallbacks], limits, now)),
            budgets=new.budgets,
            overhead=listed.overhead_tokens + tool_tokens(client_tools),
        )
        brought = brought_text(
            context=new.context,
            tool_context=new.tool_context,
            client_tools=client_tools,
            output=new.output,
            policy=None if policy == Policy() else policy,
            input=new.messages if listed.guards_input else (),
        )
        return NewActor(
            uid=uid,
            kind=KIND,
            format=FORMAT,
            public_id=run_id,
            scope=scope,
            ready_at=later,
            care_at=care_due(run),
            priority=new.priority,
            concurrency_key=new.concurrency_key,
            binding=listed.fingerprint,
            agent=listed.name,
            agent_version=listed.version,
            session_id=None,
            parent_uid=None,
            task_outcome=task_outcome(run),
            metadata=canonical_json(dict(new.metadata)),
            context=None if brought is None else self._seal.seal(brought),
            state=codec.encode(run),
            created_at=now,
            frames=tuple(stored_frame(frame, seq=seq, run_id=run_id, at=now) for seq, frame in enumerate(said.frames, 1)),
            messages=tuple(message_row(message) for message in said.messages),
        )

    def _rates(self, models: Sequence[str | None], limits: Limits, at: int) -> Mapping[str, Rates]:
        """What the run's models cost, where dollars bound the run; else nobody has to know it yet."""
        if limits.max_cost_usd is None:
            return {}
        names = [name for name in models if name is not None]
        rates = {name: self._services.prices.rates(name, at) for name in names}
        unpriced = [name for name, known in rates.items() if known is None]
        if unpriced:
            detail = f"max_cost_usd bounds the run, and nobody knows what {unpriced[0]!r} costs. RUNWARD_PRICES can say it."
            raise Invalid(detail, code="unpriced_model")
        return {name: known for name, known in rates.items() if known is not None}

    async def _got(self, uid: str) -> Envelope:
        row = await self._services.reads.get(uid)
        if row is None:
            raise NotFound("The run was deleted meanwhile.")
        return row


def _check_output(output: Mapping[str, Any] | None) -> None:
    """What is wrong with a schema is not told: it would echo what was sent (R46)."""
    if output is None:
        return
    detail = foreign_complaint(output["schema"])
    if detail is None:
        try:
            Output(**output)
        except DefinitionError:
            detail = "`schema` has to be a JSON Schema, and `name` a tool's name."
    if detail is not None:
        raise Invalid(f"/output: {detail}", problems=[Problem(pointer="/output", code="invalid_value", detail=detail)])


def _check_model(listed: Listed, policy: Policy | None) -> None:
    """A model that a function chooses is known only later: the run that chooses another then fails."""
    if policy is None or listed.model is None or policy.permits_model(listed.model):
        return
    detail = f"The agent {listed.name!r} asks the model {listed.model!r}, which this policy does not allow."
    pointer = "/policy/deny_models" if listed.model in policy.deny_models else "/policy/allow_models"
    raise Invalid(f"{pointer}: {detail}", problems=[Problem(pointer=pointer, code="invalid_value", detail=detail)])


def _check_tools(listed: Listed, named: Iterable[str], *besides: str) -> None:
    for name in named:
        if name not in listed.tools and name not in besides:
            raise Invalid(f"The agent {listed.name!r} has no tool {name!r}.", code="unknown_tool")


def _client_tools(listed: Listed, brought: Sequence[Mapping[str, Any]]) -> list[ClientTool]:
    """The tools that a request brings for its run alone. What is wrong with a schema is not told: it would echo what was sent (R46)."""
    tools, names, problems = [], set(listed.tools), []
    for index, fields in enumerate(brought):
        if fields["name"] in names:
            detail = "There is a tool of this name already: the agent's, or one before it."
            problems.append(Problem(pointer=f"/client_tools/{index}/name", code="invalid_value", detail=detail))
        names.add(fields["name"])
        costly = next(filter(None, (foreign_complaint(fields.get(name)) for name in ("parameters", "output_schema"))), None)
        if costly is not None:
            problems.append(Problem(pointer=f"/client_tools/{index}", code="invalid_value", detail=costly))
            continue
        try:
            tools.append(ClientTool(**fields))
        except DefinitionError:
            detail = "`parameters` has to be a JSON Schema of an object, and `output_schema` a JSON Schema."
            problems.append(Problem(pointer=f"/client_tools/{index}", code="invalid_value", detail=detail))
    if problems:
        raise Invalid(f"{problems[0].pointer}: {problems[0].detail}", problems=problems)
    return tools


def _no_such_run() -> NotFound:
    return NotFound("There is no such run.")
