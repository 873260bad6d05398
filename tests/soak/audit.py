"""What has to be true at the end, by plain SQL over the store and by the ledger outside of it. Nothing here knows the engine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping

from tests.e2e.deployment import Deployment
from tests.e2e.outside import in_database

ENDED = "('completed', 'stopped', 'failed')"
NEVER: Mapping[str, str] = {
    "a run failed": "SELECT uid FROM actors WHERE status = 'failed'",
    "a run has neither ended nor waits for anybody": f"SELECT uid FROM actors WHERE status NOT IN {ENDED}",
    "a run that has ended is held by somebody": f"SELECT uid FROM actors WHERE status IN {ENDED} AND lease_owner IS NOT NULL",
    "mail has a gap": "SELECT uid FROM actors WHERE mail_received <> (SELECT count(*) FROM mail WHERE mail.uid = actors.uid)",
    "mail was not applied": "SELECT uid FROM actors WHERE mail_applied <> mail_received",
    "a wait was closed twice": "SELECT uid, dedupe_key FROM mail GROUP BY uid, dedupe_key HAVING count(*) > 1",
    "a request is pending for a run that has ended": "SELECT id FROM approvals WHERE status = 'pending'",
    "a call is still under way": "SELECT receipts.uid, tool_call_id FROM receipts JOIN actors ON actors.uid = receipts.uid"
    " WHERE stage NOT IN ('completed', 'failed') AND task_outcome <> 'needs_reconciliation'",
    "a frame lies beyond the journal": "SELECT frames.uid FROM frames JOIN actors ON actors.uid = frames.uid WHERE frames.seq > last_seq",
    "messages have a gap": "SELECT uid FROM messages GROUP BY uid HAVING count(*) <> max(seq) - min(seq) + 1",
}
WRITES = ("charge", "ship", "quote", "pay", "refund")
"""Tools whose effect may not be repeated unless somebody said so."""


def findings(deployment: Deployment, made: int) -> list[str]:
    """What is wrong; nothing, as it should be."""
    url = deployment.database
    found = [f"{what}: {rows}" for what, statement in NEVER.items() if (rows := in_database(url, statement))]
    for table in ("actors", "idempotency_keys"):
        ((count,),) = in_database(url, f"SELECT count(*) FROM {table}")
        if count != made:
            found.append(f"{made} runs were made, and {table} has {count}")
    return [*found, *_effects(deployment)]


def retries(url: str) -> Counter[str]:
    """How often somebody, or a probe, had a call run once more, by its idempotency key."""
    said = in_database(url, "SELECT uid, data FROM mail WHERE kind = 'reconcile' AND NOT ignored")
    settled = [(uid, json.loads(data)) for uid, data in said]
    return Counter(f"{uid}/{data['tool_call_id']}" for uid, data in settled if data["decision"] == "retry")


def _effects(deployment: Deployment) -> list[str]:
    seen = Counter(arrival.key for arrival in deployment.ledger.arrivals if arrival.key)
    allowed = retries(deployment.database)
    found = []
    for uid, call, tool, outcome, stage in in_database(
        deployment.database, "SELECT uid, tool_call_id, tool_name, outcome, stage FROM receipts"
    ):
        key = f"{uid}/{call}"
        if tool in WRITES and seen[key] > 1 + allowed[key]:
            found.append(f"{tool} happened {seen[key]} times under {key}, and {allowed[key]} repetitions were asked for")
        if tool in WRITES and stage == "completed" and outcome is None and not seen[key]:
            found.append(f"{tool} is recorded as done under {key}, and never happened")
        if outcome in ("denied", "expired") and seen[key]:
            found.append(f"{tool} was {outcome}, and happened under {key}")
    return found
