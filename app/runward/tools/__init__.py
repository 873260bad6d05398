"""What runs tools, behind the port of tools: local.py (functions) · http.py (URLs) · bodies.py (from an agent to what the engine runs).

Beneath: results.py (what a function returned, as JSON that can be kept) · containment.py (author code cannot hurt the worker) ·
threads.py · asides.py (other functions of authors, which may take their time).
The way out: outbound.py (the guarded client, behind the port of outbound requests) · destinations.py (where it may go) · addresses.py (what
an address is) · answers.py (bodies within bounds) · http_requests.py (arguments in a URL) · outward.py (what HTTP tools share) ·
known_secrets.py.
"""
