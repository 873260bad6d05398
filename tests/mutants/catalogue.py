"""The guards, and how each is taken out: a piece of a file, what stands there instead, and the tests that should notice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One guard less. `file` is under `app/runward`; `old` occurs in it exactly once. `tests` are arguments of pytest."""

    guard: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


FENCE = "tests/contract/test_fence.py"
CLAIM = "tests/contract/test_claim.py"
MAIL = "tests/contract/test_mail.py"
CREATE = "tests/contract/test_create.py"
LEASES = "tests/contract/test_leases.py"


def _on(store: str, *tests: str) -> tuple[str, ...]:
    return (*tests, "-k", store)


FENCES = (
    Mutant(
        guard="fence of the memory store: a leg's write names the position it follows",
        file="stores/memory/database.py",
        old="return position_of(envelope) == follows and envelope.status in DRIVEN",
        new="return envelope.status in DRIVEN",
        tests=_on("memory", FENCE),
    ),
    Mutant(
        guard="fence of SQLite",
        file="stores/sql/gates.py",
        old="standing is not None and standing.position == follows and standing.status in DRIVEN",
        new="standing is not None and standing.status in DRIVEN",
        tests=_on("sqlite", FENCE),
    ),
    Mutant(
        guard="fence of Postgres: the revision",
        file="stores/sql/postgres/commit_statement.py",
        old='        row.c.revision == given("revision", Integer()),\n',
        new="",
        tests=_on("postgres", FENCE),
    ),
    Mutant(
        guard="fence of Postgres: the last frame",
        file="stores/sql/postgres/commit_statement.py",
        old='        row.c.last_seq == given("last_seq", Integer()),\n',
        new="",
        tests=_on("postgres", FENCE),
    ),
    Mutant(
        guard="fence of Postgres for frames between commits",
        file="stores/sql/postgres/commit.py",
        old='for name in ("uid", "revision", "last_seq")), is_driven',
        new='for name in ("uid", "last_seq")), is_driven',
        tests=_on("postgres", FENCE),
    ),
    Mutant(
        guard="what no leg has takes no write of a leg",
        file="stores/sql/postgres/commit_statement.py",
        old='        or_(row.c.status == RUNNING, and_(is_ended(row.c.status), row.c.status == given("to_status", ID))),\n',
        new="",
        tests=("tests/stores/test_invariants.py", *_on("postgres", FENCE)),
    ),
    Mutant(
        guard="an answer that was lost counts only when exactly this write landed",
        file="engine/journal.py",
        old="if uncertain and answer.leg == self._leg and answer.position == leads_to:",
        new="if uncertain:",
        tests=("tests/engine/test_lost_answers.py",),
    ),
    Mutant(
        guard="a write without an answer is sent again",
        file="engine/journal.py",
        old="                uncertain = True\n",
        new="                raise LeaseLost from None\n",
        tests=("tests/engine/test_lost_answers.py",),
    ),
)

LEASE = (
    Mutant(
        guard="a claim begins another leg (memory)",
        file="stores/memory/claims.py",
        old="leg=envelope.leg + 1,",
        new="leg=envelope.leg,",
        tests=_on("memory", CLAIM),
    ),
    Mutant(
        guard="a claim begins another leg (SQLite)",
        file="stores/sql/sqlite/leases.py",
        old='"leg": actors.c.leg + ONE,',
        new='"leg": actors.c.leg,',
        tests=_on("sqlite", CLAIM),
    ),
    Mutant(
        guard="a claim begins another leg (Postgres)",
        file="stores/sql/postgres/claim.py",
        old='"leg": actors.c.leg + ONE,',
        new='"leg": actors.c.leg,',
        tests=_on("postgres", CLAIM),
    ),
    Mutant(
        guard="a claim moves the revision, so that the holder before it is fenced out",
        file="stores/sql/postgres/claim.py",
        old='"revision": actors.c.revision + ONE,',
        new='"revision": actors.c.revision,',
        tests=_on("postgres", FENCE, CLAIM),
    ),
    Mutant(
        guard="a claim asks its conditions again of the row it has locked",
        file="stores/sql/postgres/claim.py",
        old=".where(_still(candidates, now))",
        new=".where(true())",
        tests=_on("postgres", CLAIM, LEASES),
    ),
    Mutant(
        guard="only the owner renews a lease",
        file="stores/sql/sqlite/leases.py",
        old='held = and_(among(actors.c.uid, "uids", SQLITE), actors.c.lease_owner == given("owner", ID))',
        new='held = among(actors.c.uid, "uids", SQLITE)',
        tests=_on("sqlite", LEASES),
    ),
    Mutant(
        guard="a claim that was lost gives back exactly the leg that it took",
        file="stores/memory/claims.py",
        old="if envelope.lease_owner == owner and legs.get(envelope.uid) == envelope.leg]",
        new="if envelope.lease_owner == owner and envelope.uid in legs]",
        tests=_on("memory", LEASES),
    ),
    Mutant(
        guard="no tool starts on a lease that is about to run out",
        file="engine/tool_calls.py",
        old="        await self._hold.fresh()\n",
        new="",
        tests=("tests/engine/test_leases.py",),
    ),
    Mutant(
        guard="no model call starts on a lease that is about to run out",
        file="engine/model_call.py",
        old="            await self._hold.fresh()\n",
        new="",
        tests=("tests/engine/test_leases.py",),
    ),
    Mutant(
        guard="a lease that could have run out writes nothing more",
        file="engine/hold.py",
        old="        if self.remaining <= 0:\n            self.lost = True\n            raise LeaseLost\n",
        new="",
        tests=("tests/engine/test_leases.py", "tests/engine/test_lost_answers.py"),
    ),
    Mutant(
        guard="a renewal that is answered `lost` ends the leg",
        file="engine/worker.py",
        old="            elif leg.hold.older_than(sent_at):\n                leg.lose()\n",
        new="",
        tests=("tests/engine/test_leases.py",),
    ),
    Mutant(
        guard="recoveries have an end",
        file="stores/sql/claims.py",
        old="return or_(actors.c.recoveries >= MAX_RECOVERIES, func.coalesce(actors.c.care_at <= now, FALSE))",
        new="return func.coalesce(actors.c.care_at <= now, FALSE)",
        tests=_on("sqlite", CLAIM),
    ),
    Mutant(
        guard="one suspect per worker at a time",
        file="engine/worker.py",
        old="suspects=0 if any(leg.recoveries >= SUSPECT_RECOVERIES for leg in self._legs.values()) else 1,",
        new="suspects=100,",
        tests=("tests/engine/test_recovery.py",),
    ),
    Mutant(
        guard="a drain leaves the lease of a call that may not be repeated to run out",
        file="core/runs/decide.py",
        old="    if executing:\n        return Work(start=tuple(_running(run)))\n",
        new="",
        tests=("tests/engine/test_drain.py",),
    ),
)

EFFECTS = (
    Mutant(
        guard="no effect before its receipt is durable",
        file="engine/leg.py",
        old="        changed = emitted or run is not self._run or over or self._unsaved\n",
        new="        if isinstance(decision, Work):\n"
        "            self._start([activity for activity in decision.start if self._is_new(activity)], run)\n"
        "        changed = emitted or run is not self._run or over or self._unsaved\n",
        tests=("tests/engine/test_tools.py", "tests/engine/test_lost_answers.py", "tests/engine/test_mail.py"),
    ),
    Mutant(
        guard="a write found half done is unknown, and not run again",
        file="core/runs/calls.py",
        old="How.LOST: After(Then.START_OVER, Then.UNKNOWN)",
        new="How.LOST: After(Then.START_OVER, Then.START_OVER)",
        tests=("tests/unit/core/test_effects.py", "tests/engine/test_tools.py"),
    ),
    Mutant(
        guard="a write that timed out is unknown, and not run again",
        file="core/runs/calls.py",
        old="How.TIMED_OUT: After(Then.TRY_AGAIN, Then.UNKNOWN)",
        new="How.TIMED_OUT: After(Then.TRY_AGAIN, Then.TRY_AGAIN)",
        tests=("tests/unit/core/test_effects.py", "tests/engine/test_tools.py"),
    ),
    Mutant(
        guard="a call with an outcome never runs again",
        file="core/runs/transitions.py",
        old='    Row(CallStage.UNKNOWN, CallEvent.RUN_ENDED, CallStage.ENDED, "R17b"),\n)',
        new='    Row(CallStage.UNKNOWN, CallEvent.RUN_ENDED, CallStage.ENDED, "R17b"),\n'
        '    Row(CallStage.ENDED, CallEvent.MARKED, CallStage.EXECUTING, "R12"),\n)',
        tests=("tests/unit/core/test_life.py",),
    ),
    Mutant(
        guard="a raw result is stored before the author's code sees it",
        file="core/runs/turns.py",
        old="        case Then.COMPLETE if call.projects:\n",
        new="        case Then.COMPLETE if call.projects and fact.raw is None:\n",
        tests=("tests/engine/test_projection.py",),
    ),
    Mutant(
        guard="a turn that was cut off dispatches none of its calls",
        file="core/runs/answers.py",
        old="        if stopped is None and not finalizing:\n            return run, said\n",
        new="        if asked:\n            return run, said\n",
        tests=("tests/unit/core/test_turns.py",),
    ),
    Mutant(
        guard="what a probe finds takes the key of a decision",
        file="core/runs/unknowns.py",
        old="    return run, said + Emitted(closings=(letter,))\n\n\ndef reconciled",
        new="    return run, said\n\n\ndef reconciled",
        tests=("tests/unit/core/test_probes.py", "tests/engine/test_unknowns.py"),
    ),
    Mutant(
        guard="a person who was first is not overruled by a probe",
        file="core/runs/decide.py",
        old="if effect.found is not None and effect.claim is None), None)",
        new="if effect.found is not None), None)",
        tests=("tests/unit/core/test_probes.py", "tests/engine/test_unknowns.py"),
    ),
    Mutant(
        guard="what the model was told of, or what has ended, is not run again",
        file="core/runs/inputs.py",
        old='if data["decision"] == "retry" and (run.status.ended or run.cancel is not None or effect.told):',
        new='if data["decision"] == "retry" and run.cancel is not None:',
        tests=("tests/unit/core/test_unknowns.py",),
    ),
    Mutant(
        guard="a decision is about one attempt",
        file="core/runs/inputs.py",
        old='if effect is None or effect.attempt != data["attempt"] or effect.claim is not None or effect.again:',
        new="if effect is None or effect.claim is not None or effect.again:",
        tests=("tests/unit/core/test_unknowns.py", "tests/unit/core/test_machine.py"),
    ),
)

PEOPLE = (
    Mutant(
        guard="an approval's id is made of the arguments that will run",
        file="core/ids.py",
        old="[uid, tool_call_id, tool_name, version, digest(arguments)]",
        new="[uid, tool_call_id, tool_name, version]",
        tests=("tests/unit/core/test_approvals.py",),
    ),
    Mutant(
        guard="other arguments than those approved are asked for anew",
        file="core/runs/approvals.py",
        old="if gate is None or (gate.version == terms.version and call.arguments == decided_on):",
        new="if gate is None or gate.version == terms.version:",
        tests=("tests/unit/core/test_approvals.py",),
    ),
    Mutant(
        guard="nothing but `true` approves",
        file="core/runs/approvals.py",
        old='approved=data["approved"] is True,',
        new="approved=True,",
        tests=("tests/unit/core/test_approvals.py",),
    ),
    Mutant(
        guard="a verdict is for its own call",
        file="core/runs/inputs.py",
        old='call.gate is not None and call.gate.id == data["approval_id"]:',
        new="call.gate is not None:",
        tests=("tests/unit/core/test_approvals.py", "tests/engine/test_approvals.py"),
    ),
    Mutant(
        guard="the first answer keeps the key (memory)",
        file="stores/memory/mailbox.py",
        old="    if taken:\n        return KeyTaken(keys=taken)\n",
        new="",
        tests=_on("memory", MAIL),
    ),
    Mutant(
        guard="the first answer keeps the key (SQLite and, asked afterwards, Postgres)",
        file="stores/sql/gates.py",
        old="    if taken:\n        return KeyTaken(keys=tuple(letter.key for letter in append.letters if letter.key in taken))\n",
        new="",
        tests=_on("sqlite", MAIL),
    ),
    Mutant(
        guard="a mailbox has each key once, whoever races (the constraint of both databases)",
        file="../../migrations/versions/0001_kernel.py",
        old='        sa.UniqueConstraint("uid", "dedupe_key", name="mail_uid_dedupe_key"),\n',
        new="",
        tests=("tests/stores/test_postgres_keys.py",),
    ),
    Mutant(
        guard="a wait that somebody answered is not closed by the service",
        file="stores/sql/gates.py",
        old="    if taken:\n        return MailArrived(mail_received=standing.mail_received)\n",
        new="",
        tests=_on("sqlite", FENCE, "tests/contract/test_closings.py"),
    ),
    Mutant(
        guard="an expiry takes the key of a verdict",
        file="core/runs/approvals.py",
        old='said = Emitted(closings=(letter,), approval_closings=(_closing(gate, "expired", at),))',
        new='said = Emitted(approval_closings=(_closing(gate, "expired", at),))',
        tests=("tests/unit/core/test_approvals.py", "tests/engine/test_approvals.py"),
    ),
    Mutant(
        guard="another answer than the recorded one is refused",
        file="engine/deliveries.py",
        old="            if same(each.letter, recorded):\n",
        new="            if recorded.kind is each.letter.kind:\n",
        tests=("tests/engine/test_approvals.py", "tests/engine/test_waits.py"),
    ),
    Mutant(
        guard="a decided request never shows as pending",
        file="engine/deliveries.py",
        old="            closings=post.closings,\n",
        new="",
        tests=("tests/engine/test_approvals.py",),
    ),
    Mutant(
        guard="input that expects a revision is refused at any other (memory)",
        file="stores/memory/mailbox.py",
        old="    if append.expected_revision not in (None, envelope.revision):\n        return RevisionMoved(revision=envelope.revision)\n",
        new="",
        tests=_on("memory", MAIL),
    ),
    Mutant(
        guard="input that expects a revision is refused at any other (SQLite)",
        file="stores/sql/gates.py",
        old="    if append.expected_revision not in (None, standing.position.revision):\n"
        "        return RevisionMoved(revision=standing.position.revision)\n",
        new="",
        tests=_on("sqlite", MAIL),
    ),
    Mutant(
        guard="input that expects a revision is refused at any other (Postgres)",
        file="stores/sql/postgres/mailbox.py",
        old='    if shape.expects:\n        gates.append(actors.c.revision == given("revision", Integer()))\n',
        new="",
        tests=_on("postgres", MAIL),
    ),
    Mutant(
        guard="deciding needs its permission",
        file="engine/deliveries.py",
        old="        if given.approvals or given.reconcile:\n            caller.require(Permission.APPROVALS_DECIDE)\n",
        new="",
        tests=("tests/engine/test_approvals.py",),
    ),
    Mutant(
        guard="an approval that expires is closed by time alone",
        file="core/runs/decide.py",
        old="    if due_by(run, at):\n        return Close(at=at)\n",
        new="",
        tests=("tests/unit/core/test_approvals.py",),
    ),
)

LIFE = (
    Mutant(
        guard="an ended actor never changes its status (memory)",
        file="stores/memory/commits.py",
        old="    if envelope.status.ended and changes.face.status is not envelope.status:\n",
        new="    if False:\n",
        tests=("tests/unit/test_memory_store.py",),
    ),
    Mutant(
        guard="an ended actor never changes its status (SQLite)",
        file="stores/sql/gates.py",
        old="    if standing.status.ended and changes.face.status is not standing.status:\n",
        new="    if False:\n",
        tests=_on("sqlite", "tests/stores/test_invariants.py"),
    ),
    Mutant(
        guard="nothing leads out of an end",
        file="core/runs/transitions.py",
        old='    Row(Status.FAILED, RunEvent.RETRIED, Status.QUEUED, "R10"),\n)',
        new='    Row(Status.FAILED, RunEvent.RETRIED, Status.QUEUED, "R10"),\n'
        '    Row(Status.COMPLETED, RunEvent.RETRIED, Status.QUEUED, "R10"),\n)',
        tests=("tests/unit/core/test_life.py",),
    ),
    Mutant(
        guard="an ending, a wait or a marked write that overlooks mail is not written (memory)",
        file="stores/memory/commits.py",
        old="    if changes.mail_seen is not None and envelope.mail_received > changes.mail_seen:\n"
        "        return MailArrived(mail_received=envelope.mail_received)\n",
        new="",
        tests=_on("memory", FENCE),
    ),
    Mutant(
        guard="the same (SQLite)",
        file="stores/sql/gates.py",
        old="    if changes.mail_seen is not None and standing.mail_received > changes.mail_seen:\n"
        "        return MailArrived(mail_received=standing.mail_received)\n",
        new="",
        tests=_on("sqlite", FENCE),
    ),
    Mutant(
        guard="the same (Postgres)",
        file="stores/sql/postgres/commit_statement.py",
        old='    if shape.minds_mail:\n        gates.append(row.c.mail_received <= given("mail_seen", Integer()))\n',
        new="",
        tests=_on("postgres", FENCE),
    ),
    Mutant(
        guard="a leg names the mail it has seen where that matters",
        file="engine/changes.py",
        old="mail_seen=mail_applied if gated else None,",
        new="mail_seen=mail_applied if emitted.closings else None,",
        tests=("tests/engine/test_mail.py",),
    ),
    Mutant(
        guard="a cancel outranks whatever lies beside it",
        file="core/runs/inputs.py",
        old="key=lambda item: (item.kind is not MailKind.CANCEL, item.seq))",
        new="key=lambda item: item.seq)",
        tests=("tests/engine/test_approvals.py", "tests/unit/core"),
    ),
    Mutant(
        guard="a cancel outranks the deadline",
        file="core/runs/decide.py",
        old="    if run.cancel is not None:\n        details",
        new="    if run.cancel is not None and not run.out_of_time:\n        details",
        tests=("tests/unit/core/test_endings.py", "tests/engine/test_cancel.py"),
    ),
    Mutant(
        guard="a run on hold starts no call",
        file="core/runs/decide.py",
        old="    if run.hold is None:\n        if any",
        new="    if True:\n        if any",
        tests=("tests/unit/core/test_holds.py", "tests/engine/test_holds.py"),
    ),
    Mutant(
        guard="a run on hold asks no model",
        file="core/runs/decide.py",
        old="    if run.hold is not None:\n        return Suspend(at=at)\n    if run.draining or run.caretaker or _too_early",
        new="    if run.draining or run.caretaker or _too_early",
        tests=("tests/unit/core/test_holds.py", "tests/engine/test_holds.py"),
    ),
    Mutant(
        guard="only a failure whose cause may pass is tried again",
        file="engine/deliveries.py",
        old="elif row.status is not Status.FAILED or failure is None or not failure.transient:",
        new="elif row.status is not Status.FAILED or failure is None:",
        tests=("tests/engine/test_waits.py",),
    ),
    Mutant(
        guard="text of an attempt that died is dropped",
        file="core/runs/answers.py",
        old="    return run, Emitted(frames=(frame,))\n",
        new="    return run, Emitted()\n",
        tests=("tests/engine/test_models.py",),
    ),
    Mutant(
        guard="a subscriber takes no frame twice",
        file="engine/tail.py",
        old="fresh = [frame for frame in frames if frame.seq > self.last]",
        new="fresh = [*frames]",
        tests=("tests/engine/test_tail.py",),
    ),
    Mutant(
        guard="only what has ended and nobody holds is deleted",
        file="stores/sql/over.py",
        old="OVER: Final = and_(is_ended(actors.c.status), actors.c.lease_owner.is_(None))",
        new="OVER: Final = is_ended(actors.c.status)",
        tests=_on("sqlite", LEASES, "tests/contract/test_pruning.py"),
    ),
)

SCOPE = "tests/api/test_scope.py"

SCOPES = (
    Mutant(
        guard="a user finds a run of its own alone (SQL)",
        file="stores/sql/queries.py",
        old='asked = {"tenant": tenant, "user_id": user, "namespace": namespace}',
        new='asked = {"tenant": tenant, "user_id": False, "namespace": namespace}',
        tests=_on("sqlite", SCOPE),
    ),
    Mutant(
        guard="a namespace shows a run of its own alone (SQL)",
        file="stores/sql/queries.py",
        old='asked = {"tenant": tenant, "user_id": user, "namespace": namespace}',
        new='asked = {"tenant": tenant, "user_id": user, "namespace": False}',
        tests=_on("sqlite", SCOPE),
    ),
    Mutant(
        guard="a list of runs is of its scope (SQL)",
        file="stores/sql/lists.py",
        old="conditions += [*_same(actors, same), *_same(actors, _owned(query.scope))]",
        new="conditions += _same(actors, same)",
        tests=_on("sqlite", SCOPE),
    ),
    Mutant(
        guard="a list of requests for approval is of its scope (SQL)",
        file="stores/sql/lists.py",
        old='*_same(whose, _owned(query.scope) | {"public_id": query.run_id}))',
        new='*_same(whose, {"public_id": query.run_id}))',
        tests=_on("sqlite", SCOPE),
    ),
    Mutant(
        guard="a list of leases is of its scope (SQL)",
        file="stores/sql/lists.py",
        old="where(LEASED, *_same(actors, _owned(scope)))",
        new="where(LEASED)",
        tests=_on("postgres", "tests/contract/test_operator_lists.py"),
    ),
    Mutant(
        guard="a list of what nobody can take is of its scope (SQL)",
        file="stores/sql/lists.py",
        old="or_(foreign, ~READABLE), *_same(actors, _owned(scope)))",
        new="or_(foreign, ~READABLE))",
        tests=_on("postgres", "tests/contract/test_operator_lists.py"),
    ),
    Mutant(
        guard="a request for approval is read in its scope",
        file="engine/approvals.py",
        old="self._services.reads.approval(caller.reads, approval_id)",
        new="self._services.reads.approval(None, approval_id)",
        tests=_on("memory", SCOPE),
    ),
    Mutant(
        guard="a run is looked for in its scope",
        file="engine/found.py",
        old="row = await services.reads.find(KIND, caller.reads, run_id)",
        new="row = await services.reads.find(KIND, None, run_id)",
        tests=_on("memory", SCOPE),
    ),
    Mutant(
        guard="many are cancelled in their scope alone",
        file="engine/operations.py",
        old="query = replace(query, kind=KIND, scope=caller.reads, order=Order.NEWEST",
        new="query = replace(query, kind=KIND, scope=None, order=Order.NEWEST",
        tests=_on("memory", SCOPE),
    ),
    Mutant(
        guard="an agent's runs are bound anew in their scope alone",
        file="engine/rebinding.py",
        old="query = ActorQuery(kind=KIND, scope=caller.reads, statuses=_GOING_ON",
        new="query = ActorQuery(kind=KIND, scope=None, statuses=_GOING_ON",
        tests=_on("memory", "tests/api/test_ops.py", SCOPE),
    ),
    Mutant(
        guard="an idempotency key is its scope's",
        file="stores/sql/rows.py",
        old="return canonical_json([scope.tenant, scope.user, scope.namespace])",
        new="return canonical_json([None, None, None])",
        tests=_on("sqlite", SCOPE),
    ),
    Mutant(
        guard="a token hands on no wider scope than its run's",
        file="engine/tokens.py",
        old="return self._issued(caller, of=row.uid, scope=row.scope, allows",
        new='return self._issued(caller, of=row.uid, scope=Scope(tenant=""), allows',
        tests=("tests/api/test_tokens.py",),
    ),
    Mutant(
        guard="an operator who looks at one tenant acts on no other",
        file="engine/callers.py",
        old="        if self.narrowed:\n",
        new="        if False:\n",
        tests=_on("memory", SCOPE),
    ),
)

BEARERS = "tests/api/test_bearers.py"
KEY_SETS = "tests/engine/test_key_sets.py"

PROVIDERS = (
    Mutant(
        guard="a provider's token is for this service",
        file="engine/bearers.py",
        old='    "verify_exp": False,',
        new='    "verify_aud": False,\n    "verify_exp": False,',
        tests=(BEARERS,),
    ),
    Mutant(
        guard="a provider's token is from this provider",
        file="engine/bearers.py",
        old="issuer=claims.issuer, options",
        new="issuer=None, options",
        tests=(BEARERS,),
    ),
    Mutant(
        guard="a provider's token is good for its time alone",
        file="engine/bearers.py",
        old="        if expires <= now - leeway or begins > now + leeway:\n",
        new="        if begins > now + leeway:\n",
        tests=(BEARERS,),
    ),
    Mutant(
        guard="a provider's token ends though it was signed well",
        file="engine/bearers.py",
        old="        self._check_time(good.begins, good.expires)\n",
        new="",
        tests=(BEARERS,),
    ),
    Mutant(
        guard="a token whose key was withdrawn is not good, though it was signed well",
        file="engine/bearers.py",
        old="        if good is None or await self._keys.key(good.kid) is not good.key:\n",
        new="        if good is None:\n",
        tests=(BEARERS,),
    ),
    Mutant(
        guard="a provider's token is not good yet before its time",
        file="engine/bearers.py",
        old="        if expires <= now - leeway or begins > now + leeway:\n",
        new="        if expires <= now - leeway:\n",
        tests=(BEARERS,),
    ),
    Mutant(
        guard="a claim that a token lacks widens nothing",
        file="engine/bearers.py",
        old="        if not isinstance(name, str) or not is_name(name):\n",
        new="        if name is not None and (not isinstance(name, str) or not is_name(name)):\n",
        tests=(BEARERS,),
    ),
    Mutant(
        guard="an algorithm that is not accepted is not worth a look at the keys",
        file="engine/bearers.py",
        old="""header.get("alg") in claims.algorithms and "kid" in header""",
        new=""""kid" in header""",
        tests=(BEARERS,),
    ),
    Mutant(
        guard="a provider's key is for an algorithm that is accepted",
        file="engine/key_sets.py",
        old="    known = key.algorithm_name in ASYMMETRIC and key.algorithm_name in algorithms\n",
        new="    known = True\n",
        tests=(KEY_SETS,),
    ),
    Mutant(
        guard="a weak key of a provider is none",
        file="engine/key_sets.py",
        old=" and key.Algorithm.check_key_length(key.key) is None",
        new="",
        tests=(KEY_SETS,),
    ),
    Mutant(
        guard="made-up keys cost the provider one fetch in an interval",
        file="engine/key_sets.py",
        old=" and self._clock.monotonic() >= self._next_at",
        new="",
        tests=(KEY_SETS,),
    ),
    Mutant(
        guard="a known key waits for no fetch",
        file="engine/key_sets.py",
        old="            self.begin()\n",
        new="            await self.fetch()\n",
        tests=(KEY_SETS,),
    ),
    Mutant(
        guard="where there is a provider nobody comes in unknown",
        file="api/auth.py",
        old="self._may_be_open and self._bearers is None and not",
        new="self._may_be_open and not",
        tests=(BEARERS,),
    ),
    Mutant(
        guard="what is handed on ends with the provider's token",
        file="engine/tokens.py",
        old="            expires_at = min(expires_at, caller.ends_at)\n",
        new="            pass\n",
        tests=(BEARERS,),
    ),
    Mutant(
        guard="a provider's keys come from its own address alone",
        file="wiring.py",
        old="Destinations(opened=(place,), only=(place,))",
        new="Destinations(opened=(type(place)(host=place.host, port=None, below=False),))",
        tests=(BEARERS,),
    ),
    Mutant(
        guard="a provider's keys come by TLS, or from this machine",
        file="identity.py",
        old="""    if target.scheme != "https" and not here:\n""",
        new="    if False:\n",
        tests=(BEARERS,),
    ),
)

RULES = (
    Mutant(
        guard="a bounded call is made when what it is reserved with is durable",
        file="core/runs/budget.py",
        old="return run.model != before.model or (bounded(run) and run.reservation is not None and reserved(run) != reserved(before))",
        new="return run.model != before.model",
        tests=("tests/unit/core/test_ledger.py",),
    ),
    Mutant(
        guard="what is reserved is for the input as guardrails left it",
        file="core/runs/guarding.py",
        old="    return budget.replanned(run, budget.prompt_of(budget.heard(run, messages))), said",
        new="    return run, said",
        tests=("tests/unit/core/test_guarding.py",),
    ),
    Mutant(
        guard="an answer cut off by the run's bounds is over budget, also after guardrails have looked at it",
        file="core/runs/answers.py",
        old="        cut=fact.cut or reservation.cut,\n",
        new="",
        tests=("tests/unit/core/test_guarding.py",),
    ),
    Mutant(
        guard="a policy narrows: what it allows is what both allow",
        file="agents/rules.py",
        old="    return tuple(name for name in mine if name in theirs)\n",
        new="    return tuple(mine)\n",
        tests=("tests/agents/test_policy.py",),
    ),
    Mutant(
        guard="a policy narrows: what one of both forbids or asks for",
        file="agents/rules.py",
        old="    return tuple(dict.fromkeys((*mine, *theirs)))\n",
        new="    return tuple(dict.fromkeys(theirs))\n",
        tests=("tests/agents/test_policy.py",),
    ),
    Mutant(
        guard="a policy goes by effects as well",
        file="agents/rules.py",
        old="            and (self.allow_effects is None or effect in self.allow_effects)\n",
        new="",
        tests=("tests/engine/test_policies.py",),
    ),
    Mutant(
        guard="a model outside the policy is not asked",
        file="engine/performer.py",
        old="if not self._contexts.policy.permits_model(run.model):",
        new="if False:",
        tests=("tests/engine/test_policies.py",),
    ),
    Mutant(
        guard="a model outside the policy is refused at the door",
        file="engine/commands.py",
        old="if policy is None or listed.model is None or policy.permits_model(listed.model):",
        new="if True:",
        tests=("tests/engine/test_policies.py",),
    ),
    Mutant(
        guard="an input is guarded before a model sees it",
        file="core/runs/decide.py",
        old="    if run.input_unguarded:\n",
        new="    if False:\n",
        tests=("tests/unit/core/test_guarding.py",),
    ),
    Mutant(
        guard="an input enters the transcript when guardrails have let it pass",
        file="core/runs/begin.py",
        old="numbered = () if guards_input else as_input(messages)",
        new="numbered = as_input(messages)",
        tests=("tests/unit/core/test_guarding.py",),
    ),
    Mutant(
        guard="an answer is guarded before it is accepted",
        file="core/runs/answers.py",
        old="if run.guards_output and guarding.looks_at(run, answer):",
        new="if False:",
        tests=("tests/engine/test_guarded.py",),
    ),
    Mutant(
        guard="an answer that waits for guardrails is asked about before anything else",
        file="core/runs/decide.py",
        old="    if run.unguarded is not None:\n",
        new="    if False:\n",
        tests=("tests/unit/core/test_guarding.py",),
    ),
    Mutant(
        guard="an answer is not streamed before guardrails have seen it",
        file="engine/model_call.py",
        old="self._silence if prepared.withheld else self._delta",
        new="self._delta",
        tests=("tests/engine/test_guarded.py",),
    ),
    Mutant(
        guard="a rewritten answer fits its schema",
        file="engine/guarded.py",
        old="            if read.complaint is not None:\n",
        new="            if False:\n",
        tests=("tests/engine/test_guarded.py",),
    ),
    Mutant(
        guard="what guardrails did is said with the state",
        file="engine/durable.py",
        old="SAID_WITH_THE_STATE: Final = (AttemptEnded, AnswerReceived, GenerationEnded, InputGuarded, OutputGuarded)",
        new="SAID_WITH_THE_STATE: Final = (AttemptEnded, AnswerReceived, GenerationEnded)",
        tests=("tests/engine/test_guarded.py",),
    ),
    Mutant(
        guard="whoever approves sees no secret",
        file="engine/approvals.py",
        old="    shown = redactor.json(arguments)\n",
        new="    shown = arguments\n",
        tests=("tests/engine/test_redacted.py",),
    ),
    Mutant(
        guard="a mark in place of a secret is no argument",
        file="engine/letters.py",
        old="        if holds_mark(item.edited_arguments):\n",
        new="        if False:\n",
        tests=("tests/engine/test_redacted.py",),
    ),
)

DOORS = (
    *SCOPES,
    *PROVIDERS,
    Mutant(
        guard="a run is found in its tenant alone",
        file="stores/sql/queries.py",
        old='asked = {"tenant": tenant, "user_id": user, "namespace": namespace}',
        new='asked = {"tenant": False, "user_id": user, "namespace": namespace}',
        tests=_on("sqlite", "tests/contract/test_reads.py", "tests/contract/test_approvals.py"),
    ),
    Mutant(
        guard="lists, of runs and of approvals, show a tenant its own",
        file="stores/sql/lists.py",
        old='{"tenant": scope.tenant, "user_id": scope.user, "namespace": scope.namespace}',
        new='{"tenant": None, "user_id": scope.user, "namespace": scope.namespace}',
        tests=_on("sqlite", "tests/contract/test_lists.py", "tests/contract/test_approvals.py"),
    ),
    Mutant(
        guard="a tenant sees its own (memory)",
        file="core/kernel/actor.py",
        old="return self.tenant == other.tenant and self.user in",
        new="return self.user in",
        tests=_on("memory", "tests/contract/test_lists.py", "tests/contract/test_reads.py"),
    ),
    Mutant(
        guard="letters stay within a tenant",
        file="stores/memory/mailbox.py",
        old="if rows is None or rows.envelope.scope.tenant != tenant or rows.envelope",
        new="if rows is None or rows.envelope",
        tests=_on("memory", "tests/contract/test_mail_to.py"),
    ),
    Mutant(
        guard="a cursor belongs to its list, filter and caller",
        file="engine/pages.py",
        old="if found != mark or type(at) is not int",
        new="if type(at) is not int",
        tests=("tests/engine/test_commands.py",),
    ),
    Mutant(
        guard="a stream's cursor does not lie beyond the journal",
        file="api/cursors.py",
        old="    if cursor > last_seq:\n",
        new="    if False:\n",
        tests=("tests/api/test_streams.py",),
    ),
    Mutant(
        guard="a cursor is a plain number",
        file="api/cursors.py",
        old="return int(text) if _NUMBER.match(text) else None",
        new="return int(text)",
        tests=("tests/api/test_streams.py", "tests/api/test_hostile.py"),
    ),
    Mutant(
        guard="an idempotency key goes with one body (memory)",
        file="stores/memory/database.py",
        old="        if known.fingerprint != key.fingerprint:\n            return KeyReused()\n",
        new="",
        tests=_on("memory", CREATE),
    ),
    Mutant(
        guard="an idempotency key goes with one body (SQL)",
        file="stores/sql/gates.py",
        old="    if fingerprint != key.fingerprint:\n        return KeyReused()\n",
        new="",
        tests=_on("postgres", CREATE),
    ),
    Mutant(
        guard="a revoked or expired key is no key",
        file="api/auth.py",
        old="return key.revoked_at is None and (key.expires_at is None or key.expires_at > self._services.time.now())",
        new="return True",
        tests=("tests/api/test_callers.py",),
    ),
    Mutant(
        guard="an operator alone sees every tenant",
        file="engine/callers.py",
        old="return None if self.operator and not self.narrowed else self.scope",
        new="return None if not self.narrowed else self.scope",
        tests=("tests/api/test_callers.py", "tests/engine/test_commands.py"),
    ),
    Mutant(
        guard="a token is signed with the service's key",
        file="engine/tokens.py",
        old="if found is None or not hmac.compare_digest(found[2].encode(), self._signature(found[1]).encode()):",
        new="if found is None:",
        tests=("tests/api/test_tokens.py",),
    ),
    Mutant(
        guard="a token is good for its time alone",
        file="engine/tokens.py",
        old="if grant is None or grant.expires_at <= self._services.time.now():",
        new="if grant is None:",
        tests=("tests/api/test_tokens.py",),
    ),
    Mutant(
        guard="a token opens the one thing that it was made for",
        file="engine/callers.py",
        old="return self.grant is None or self.grant.of == id",
        new="return True",
        tests=("tests/api/test_tokens.py",),
    ),
    Mutant(
        guard="duplicate keys in a body are refused",
        file="api/strict_json.py",
        old="    if len(made) != len(pairs):\n",
        new="    if False:\n",
        tests=("tests/api/test_hostile.py",),
    ),
    Mutant(
        guard="several that migrate at once wait for each other",
        file="stores/sql/migrate.py",
        old='            await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})\n',
        new="",
        tests=("tests/stores/test_migrations.py",),
    ),
    Mutant(
        guard="of an exception nothing is logged but its kind",
        file="telemetry.py",
        old="""return {"error": kinds, **reason, "trace":""",
        new="""return {"error": [*kinds, str(error)], **reason, "trace":""",
        tests=("tests/e2e/test_logs.py",),
    ),
)

BUDGETS = (
    Mutant(
        guard="what a model call may use is reserved before it is made",
        file="core/runs/budget.py",
        old="own = Amount() if run.reservation is None else run.reservation.amount",
        new="own = Amount()",
        tests=("tests/unit/core/test_ledger.py",),
    ),
    Mutant(
        guard="model calls of author code are under the same bound, all of them",
        file="core/runs/budget.py",
        old="return sum((generation.amount for generation in run.generations), own)",
        new="return own",
        tests=("tests/unit/core/test_generations.py",),
    ),
    Mutant(
        guard="author code asks a model once the reservation is durable",
        file="engine/generating.py",
        old="        await books.keep(fact)\n",
        new="        books.report(fact)\n        for _ in range(9):\n            await asyncio.sleep(0)\n",
        tests=("tests/engine/test_generate.py",),
    ),
    Mutant(
        guard="a model call of author code is settled once",
        file="core/runs/generations.py",
        old="    run = _without(run, generation)\n    rates",
        new="    rates",
        tests=("tests/unit/core/test_generations.py",),
    ),
    Mutant(
        guard="what a leg asked and did not hear of may have been billed",
        file="core/runs/apply.py",
        old="answers.taken_over(generations.all_lost(outputs.taken_over(run)))",
        new="answers.taken_over(replace(outputs.taken_over(run), generations=()))",
        tests=("tests/unit/core/test_generations.py", "tests/engine/test_generate.py"),
    ),
)

ANSWERS = (
    Mutant(
        guard="an answer that does not fit is counted",
        file="core/runs/outputs.py",
        old="run = replace(run, output_attempts=run.output_attempts + 1)",
        new="run = replace(run, output_attempts=run.output_attempts)",
        tests=("tests/unit/core/test_outputs.py", "tests/engine/test_outputs.py"),
    ),
    Mutant(
        guard="no answer is asked for beyond the bound",
        file="core/runs/outputs.py",
        old="    if run.output_attempts >= run.limits.max_output_attempts:\n",
        new="    if run.output_attempts > run.limits.max_output_attempts:\n",
        tests=("tests/unit/core/test_outputs.py",),
    ),
    Mutant(
        guard="a failed call of finalization is an output attempt",
        file="core/runs/answers.py",
        old="run = replace(run, output_attempts=run.output_attempts + 1)",
        new="run = replace(run, output_attempts=run.output_attempts)",
        tests=("tests/unit/core/test_outputs.py",),
    ),
    Mutant(
        guard="a retry finds no output attempt beyond the bound",
        file="core/runs/decide.py",
        old="    if run.outputs is not None and run.output_attempts >= run.limits.max_output_attempts:\n",
        new="    if False:\n",
        tests=("tests/unit/core/test_outputs.py",),
    ),
    Mutant(
        guard="an attempt of the verifier is counted before it begins",
        file="core/runs/outputs.py",
        old="verifying=True, verify_attempts=run.verify_attempts + 1",
        new="verifying=True, verify_attempts=max(run.verify_attempts, 1)",
        tests=("tests/unit/core/test_outputs.py",),
    ),
    Mutant(
        guard="the verifier is not asked beyond the bound",
        file="core/runs/decide.py",
        old="    if run.verify_attempts >= run.limits.max_verify_attempts:\n",
        new="    if False:\n",
        tests=("tests/unit/core/test_outputs.py",),
    ),
    Mutant(
        guard="a rejection without an attempt left stops the run",
        file="core/runs/outputs.py",
        old="            if run.verify_attempts >= run.limits.max_verify_attempts:\n",
        new="            if False:\n",
        tests=("tests/unit/core/test_outputs.py",),
    ),
    Mutant(
        guard="a verdict counts for the attempt it was given in",
        file="core/runs/outputs.py",
        old=" or fact.attempt != run.verify_attempts",
        new="",
        tests=("tests/unit/core/test_outputs.py",),
    ),
    Mutant(
        guard="a candidate with a verifier is no answer yet",
        file="core/runs/outputs.py",
        old="    if run.outputs is not None and run.outputs.verifies:\n",
        new="    if False:\n",
        tests=("tests/unit/core/test_outputs.py", "tests/engine/test_outputs.py"),
    ),
    Mutant(
        guard="a model that failed is not asked again",
        file="core/runs/answers.py",
        old="fallbacks=tuple(left)",
        new="fallbacks=run.fallbacks",
        tests=("tests/unit/core/test_outputs.py", "tests/engine/test_failover.py"),
    ),
    Mutant(
        guard="after its first content no call fails over",
        file="core/runs/answers.py",
        old="passes = fact.transient and not fact.after_content",
        new="passes = fact.transient",
        tests=("tests/unit/core/test_model_calls.py", "tests/engine/test_failover.py"),
    ),
    Mutant(
        guard="an open circuit lets no call through",
        file="engine/circuits.py",
        old="        while self._open_until is not None:\n",
        new="        while False:\n",
        tests=("tests/engine/test_circuits.py",),
    ),
    Mutant(
        guard="one call at a time tries a model again",
        file="engine/circuits.py",
        old="            elif self._probe is not None:\n                await self._probe.wait()\n",
        new="",
        tests=("tests/engine/test_circuits.py",),
    ),
)

OUTBOUND = "tests/tools/test_outbound.py"
HTTP = "tests/tools/test_http.py"

WAY_OUT = (
    Mutant(
        guard="the addresses of a name are looked at before one is connected to",
        file="tools/outbound.py",
        old="            self._destinations.admit_address(target, address)\n",
        new="            continue\n",
        tests=(OUTBOUND,),
    ),
    Mutant(
        guard="the address that was looked at is the one that is connected to",
        file="tools/outbound.py",
        old="target.url.copy_with(host=host, fragment=None)",
        new="target.url.copy_with(fragment=None)",
        tests=(OUTBOUND,),
    ),
    Mutant(
        guard="a redirect is looked at like the first URL",
        file="tools/outbound.py",
        old="for address in await self._addresses(hop.target, outgoing.timeout_seconds):",
        new="for address in await self._addresses(hop.target, outgoing.timeout_seconds) if hop.target.origin == hop.origin else "
        '[ip_address("127.0.0.1")]:',
        tests=(OUTBOUND,),
    ),
    Mutant(
        guard="headers stay with the host that they are for",
        file="tools/outbound.py",
        old="own = outgoing.headers if target.origin == hop.origin else ()",
        new="own = outgoing.headers",
        tests=(OUTBOUND,),
    ),
    Mutant(
        guard="IPv4 inside of IPv6 is what it leads to",
        file="tools/addresses.py",
        old="        return address.ipv4_mapped\n",
        new="        return None\n",
        tests=("tests/tools/test_addresses.py",),
    ),
    Mutant(
        guard="no more is unpacked than there is room for",
        file="tools/answers.py",
        old="self._member.decompress(piece, room + 1)",
        new="self._member.decompress(piece)",
        tests=(OUTBOUND,),
    ),
    Mutant(
        guard="what may have happened elsewhere is unknown, and not done again",
        file="tools/http.py",
        old="if error.sent and not effect.repeatable:",
        new="if False:",
        tests=(HTTP,),
    ),
    Mutant(
        guard="arguments do not lead to another path",
        file="tools/http_requests.py",
        old="if has_dot_segments(path):",
        new="if False:",
        tests=("tests/tools/test_http_requests.py",),
    ),
    Mutant(
        guard="a secret that comes back in a result is not kept",
        file="tools/http.py",
        old="self._results.record(self._secrets.redact_json(_value(incoming)))",
        new="self._results.record(_value(incoming))",
        tests=(HTTP,),
    ),
    Mutant(
        guard="nor in what the model reads of an error",
        file="tools/http.py",
        old="            value = self._secrets.redact_json(_value(incoming))\n",
        new="            value = _value(incoming)\n",
        tests=("tests/e2e/test_http_tools.py",),
    ),
    Mutant(
        guard="a worker does not start without what its HTTP tools need",
        file="wiring.py",
        old="    require_outward(tools, os.environ, destinations)\n",
        new="",
        tests=("tests/e2e/test_http_tools.py",),
    ),
)

MUTANTS: tuple[Mutant, ...] = (*FENCES, *LEASE, *EFFECTS, *PEOPLE, *LIFE, *RULES, *DOORS, *BUDGETS, *WAY_OUT, *ANSWERS)
