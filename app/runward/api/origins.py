"""Who may come in without a key: this machine, and not a web page that a browser on it shows."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from starlette.datastructures import Headers

from runward.core.errors import NotPermitted

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:]+)(?::\d+)?\Z")


def check_keyless(headers: Headers, *, method: str, origins: Collection[str]) -> None:
    """Raises NotPermitted for a request under another name than this machine's, which is how a page reaches a loopback address by a name of
    its own, and for a write that a page of another origin sends. `origins` are let in; `*` is all of them."""
    hosts = headers.getlist("host")
    match = _HOST.match(hosts[0].strip()) if len(hosts) == 1 else None
    if match is None or match[1].lower() not in LOOPBACK_NAMES:
        raise NotPermitted("Without a key this service answers to localhost, 127.0.0.1 and [::1] only. Make a key: runward keys create.")
    if method not in ("GET", "HEAD") and not _is_own(headers.getlist("origin"), hosts[0].strip(), origins):
        raise NotPermitted("A page of another origin may not do this. RUNWARD_CORS_ORIGINS lets pages in.")


def _is_own(given: Sequence[str], host: str, origins: Collection[str]) -> bool:
    if not given:
        return True
    return len(given) == 1 and ("*" in origins or given[0] in origins or given[0].lower() in (f"http://{host}", f"https://{host}"))
