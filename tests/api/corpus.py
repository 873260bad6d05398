"""What a hostile newcomer sends (docs of the catalogue: F-01 … F-17), as tables: each value, and what it is answered.

`test_hostile.py` sends them to a store in memory, `test_corpus.py` to SQLite and Postgres side by side.
"""

from __future__ import annotations

import json

JSON = {"Content-Type": "application/json"}
RUN = b'{"agent":"support","input":"hi"%s}'


def field(text: str) -> bytes:
    """A request that is good but for one more field."""
    return RUN % b"," + text.encode() if not text else RUN % (b"," + text.encode())


BODIES: dict[str, tuple[bytes, int, str]] = {
    "F-01 empty": (b"", 400, "invalid_json"),
    "F-01 blank": (b"  \n", 400, "invalid_json"),
    "F-01 truncated": (b'{"agent": "support", ', 400, "invalid_json"),
    "F-01 trailing garbage": (RUN % b"" + b" x", 400, "invalid_json"),
    "F-01 two values": (RUN % b"" + RUN % b"", 400, "invalid_json"),
    "F-01 an array": (b"[]", 422, "invalid_value"),
    "F-01 a string": (b'"run"', 422, "invalid_value"),
    "F-01 null": (b"null", 422, "invalid_value"),
    "F-01 single quotes": (b"{'agent':'support','input':'hi'}", 400, "invalid_json"),
    "F-01 a comment": (RUN % b"/* */", 400, "invalid_json"),
    "F-02 nested 65": (field('"metadata":{"a":' + "[" * 63 + "]" * 63 + "}"), 422, "invalid_value"),
    "F-02 nested 90": (field('"metadata":{"a":' + "[" * 90 + "]" * 90 + "}"), 422, "invalid_value"),
    "F-02 nested 900": (field('"metadata":' + '{"a":' * 900 + "1" + "}" * 900), 422, "invalid_value"),
    "F-02 nested 5,000": (field('"metadata":' + "[" * 5_000 + "]" * 5_000), 422, "invalid_value"),
    "F-02 nested 100,000": (field('"metadata":' + "[" * 100_000 + "]" * 100_000), 422, "invalid_value"),
    "F-02 open 100,000": (b'{"a":' * 100_000, 422, "invalid_value"),
    "F-03 NUL in the input": (rb'{"agent":"support","input":"a\u0000b"}', 422, "invalid_value"),
    "F-03 NUL in a value": (field(r'"metadata":{"k":"\u0000"}'), 422, "invalid_value"),
    "F-03 NUL in a key": (field(r'"metadata":{"\u0000":1}'), 422, "invalid_value"),
    "F-03 NUL in an unknown field": (field(r'"\u0000":1'), 422, "invalid_value"),
    "F-03 a raw NUL": (b'{"agent":"support","input":"a\x00b"}', 400, "invalid_json"),
    "F-03 a raw line feed": (b'{"agent":"support","input":"a\nb"}', 400, "invalid_json"),
    "F-04 half a pair": (rb'{"agent":"support","input":"\ud800"}', 422, "invalid_value"),
    "F-04 the other half": (rb'{"agent":"support","input":"\uDFFF!"}', 422, "invalid_value"),
    "F-04 in a key": (field(r'"metadata":{"\ud800":1}'), 422, "invalid_value"),
    "F-04 in a field that is wrong too": (field(r'"priority":"\ud800"'), 422, "invalid_value"),
    "F-04 deep inside": (field(r'"context":{"a":[{"b":["\udead"]}]}'), 422, "invalid_value"),
    "F-05 NaN": (field('"metadata":{"n":NaN}'), 422, "invalid_value"),
    "F-05 Infinity": (field('"metadata":{"n":Infinity}'), 422, "invalid_value"),
    "F-05 -Infinity": (field('"metadata":{"n":-Infinity}'), 422, "invalid_value"),
    "F-05 1e400": (field('"metadata":{"n":1e400}'), 422, "invalid_value"),
    "F-05 -1e400": (field('"context":{"n":[-1e400]}'), 422, "invalid_value"),
    "F-06 2^63": (field('"metadata":{"n":9223372036854775808}'), 422, "invalid_value"),
    "F-06 -2^63-1": (field('"metadata":{"n":-9223372036854775809}'), 422, "invalid_value"),
    "F-06 10^30": (field('"priority":' + "9" * 30), 422, "invalid_value"),
    "F-06 400 digits": (field('"metadata":{"n":' + "9" * 400 + "}"), 422, "invalid_value"),
    "F-06 5,000 digits": (field('"metadata":{"n":' + "9" * 5_000 + "}"), 422, "invalid_value"),
    "F-07 a key twice": (b'{"agent":"support","input":"a","input":"b"}', 400, "invalid_json"),
    "F-07 twice, deep inside": (field('"metadata":{"a":{"b":1,"b":1}}'), 400, "invalid_json"),
    "F-07 twice, escaped": (rb'{"agent":"support","input":"a","\u0069nput":"b"}', 400, "invalid_json"),
    "F-10 UTF-16": ('{"agent":"support","input":"hi"}'.encode("utf-16"), 400, "invalid_json"),
    "F-10 a byte order mark": (b"\xef\xbb\xbf" + RUN % b"", 400, "invalid_json"),
    "F-10 bad UTF-8": (b'{"agent":"support","input":"\xff"}', 400, "invalid_json"),
    "F-10 a surrogate in UTF-8": (b'{"agent":"support","input":"\xed\xa0\x80"}', 400, "invalid_json"),
    "F-10 overlong UTF-8": (b'{"agent":"support","input":"\xc0\x80"}', 400, "invalid_json"),
    "F-11 true for a number": (field('"priority":true'), 422, "invalid_value"),
    "F-11 a string for a number": (field('"priority":"1"'), 422, "invalid_value"),
    "F-11 1.0 for a number": (field('"priority":1.0'), 422, "invalid_value"),
    "F-11 a number for a string": (b'{"agent":"support","input":1}', 422, "invalid_value"),
    "F-11 true for seconds": (field('"limits":{"timeout_seconds":true}'), 422, "invalid_value"),
    "F-11 a misspelt field": (b'{"agent":"support","inputs":"hi","input":"hi"}', 422, "unknown_field"),
    "F-11 a misspelt field, inside": (field('"limits":{"max_step":1}'), 422, "unknown_field"),
    "F-11 another case": (field('"Priority":1'), 422, "unknown_field"),
    "F-12 a path for an id": (field('"run_id":"../etc/passwd"'), 422, "invalid_value"),
    "F-12 an id with a line feed": (field(r'"run_id":"run\n"'), 422, "invalid_value"),
    "F-12 an id that looks alike": (field('"run_id":"r\u0443n"'), 422, "invalid_value"),
    "F-12 an id with a mark": (field(r'"run_id":"run\u202e"'), 422, "invalid_value"),
    "F-12 an empty id": (field('"run_id":""'), 422, "invalid_value"),
    "F-12 129 characters": (field(f'"run_id":"{"x" * 129}"'), 422, "invalid_value"),
    "F-12 a control character in a user": (field(r'"scope":{"user":"a\u0007"}'), 422, "invalid_value"),
    "F-13 10,000 metadata keys": (field('"metadata":' + json.dumps({str(number): 1 for number in range(10_000)})), 422, "invalid_value"),
    "F-13 65 metadata keys": (field('"metadata":' + json.dumps({str(number): 1 for number in range(65)})), 422, "invalid_value"),
    "F-13 a long metadata key": (field('"metadata":{"' + "k" * 129 + '":1}'), 422, "invalid_value"),
    "F-13 17 KiB of metadata": (field('"metadata":{"k":"' + "x" * 17_000 + '"}'), 422, "invalid_value"),
    "F-13 65 tool contexts": (field('"tool_context":' + json.dumps({f"t{number}": {} for number in range(65)})), 422, "invalid_value"),
    "F-13 101 messages": (
        b'{"agent":"support","input":' + json.dumps([{"role": "user", "content": "x"}] * 101).encode() + b"}",
        422,
        "invalid_value",
    ),
    "F-13 1,000 client tools": (
        field('"client_tools":' + json.dumps([{"name": f"t{number}"} for number in range(1_000)])),
        422,
        "invalid_value",
    ),
    "F-13 a client tool's schema of 5 MB": (
        field('"client_tools":[{"name":"t","parameters":{"title":"' + "x" * 5_000_000 + '"}}]'),
        413,
        "body_too_large",
    ),
    "F-13 101 tool results, of a tool's message": (
        b'{"agent":"support","input":[{"role":"tool","content":'
        + json.dumps([{"type": "tool_result", "tool_call_id": "a", "tool_name": "t", "output": 1}] * 101).encode()
        + b"}]}",
        422,
        "invalid_value",
    ),
    "a policy naming a tool nobody has": (field('"policy":{"deny_tools":["no_such_tool"]}'), 422, "unknown_tool"),
    "an output that is no schema": (field('"output":{"schema":{"type":"nonsense"}}'), 422, "invalid_value"),
    "a schema from the network": (field('"output":{"schema":{"$ref":"https://example.com/schema.json"}}'), 422, "invalid_value"),
    "a schema from the file system": (field('"output":{"schema":{"$ref":"file:///etc/passwd"}}'), 422, "invalid_value"),
    "a schema whose pattern may take for ever": (field('"output":{"schema":{"pattern":"(?=a)+$"}}'), 422, "invalid_value"),
    "a schema that points nowhere": (field('"output":{"schema":{"$ref":"#/$defs/none"}}'), 422, "invalid_value"),
    "a schema that is none": (field('"output":{"schema":true}'), 422, "invalid_value"),
    "an output without a schema": (field('"output":{"name":"answer"}'), 422, "invalid_value"),
    "an output whose name is no tool's": (field('"output":{"schema":{},"name":"a b"}'), 422, "invalid_value"),
    "an output of a mode nobody knows": (field('"output":{"schema":{},"mode":"magic"}'), 422, "invalid_value"),
    "an output that brings a verifier": (field('"output":{"schema":{},"verify":"os.system"}'), 422, "unknown_field"),
    "a budget that nobody has made": (field('"budgets":["user:42"]'), 422, "unknown_budget"),
    "an empty concurrency key": (field('"concurrency_key":""'), 422, "invalid_value"),
    "a concurrency key that is no text": (field('"concurrency_key":7'), 422, "invalid_value"),
    "a bound in dollars that is a number": (field('"limits":{"max_cost_usd":0.5}'), 422, "invalid_value"),
    "a bound of no dollars": (field('"limits":{"max_cost_usd":"0.000"}'), 422, "invalid_value"),
    "a bound of endless dollars": (field('"limits":{"max_cost_usd":"Infinity"}'), 422, "invalid_value"),
    "a bound in dollars on a model without a price": (field('"limits":{"max_cost_usd":"0.50"}'), 422, "unpriced_model"),
    "a bound of no tokens": (field('"limits":{"max_total_tokens":0}'), 422, "invalid_value"),
    "a time without a zone": (field('"start_at":"2030-01-01T00:00:00"'), 422, "invalid_value"),
    "a time that is a number": (field('"start_at":1893456000'), 422, "invalid_value"),
    "a time that never was": (field('"start_at":"2030-02-30T00:00:00Z"'), 422, "invalid_value"),
    "a step limit of nothing": (field('"limits":{"max_steps":0}'), 422, "invalid_value"),
    "a limit that never ends": (field('"limits":{"timeout_seconds":1e300}'), 422, "invalid_value"),
    "an agent nobody has": (b'{"agent":"nobody","input":"hi"}', 422, "unknown_agent"),
    "a version nobody has": (field('"agent_version":"99"'), 422, "unknown_agent"),
    "a context for a tool nobody has": (field('"tool_context":{"refund":{}}'), 422, "unknown_tool"),
}

HEADERS: dict[str, tuple[dict[str, str], bytes, int]] = {
    "F-10 no content type": ({}, RUN % b"", 415),
    "F-10 a form": ({"Content-Type": "application/x-www-form-urlencoded"}, RUN % b"", 415),
    "F-10 text": ({"Content-Type": "text/plain"}, RUN % b"", 415),
    "F-10 another charset": ({"Content-Type": "application/json; charset=utf-16"}, RUN % b"", 415),
    "F-10 gzip": ({**JSON, "Content-Encoding": "gzip"}, b"\x1f\x8b\x08\x00", 415),
    "F-10 JSON, but a patch": ({"Content-Type": "application/merge-patch+json"}, RUN % b"", 415),
    "said UTF-8": ({"Content-Type": "Application/JSON; charset=UTF-8"}, RUN % b"", 202),
    "said identity": ({**JSON, "Content-Encoding": "identity"}, RUN % b"", 202),
    "F-13 an idempotency key of 9 KB": ({**JSON, "Idempotency-Key": "k" * 9_000}, RUN % b"", 400),
    "F-14 a line feed in an idempotency key": ({**JSON, "Idempotency-Key": "a\nb"}, RUN % b"", 400),
    "F-14 an idempotency key that is blank": ({**JSON, "Idempotency-Key": ""}, RUN % b"", 400),
}

IDS = [
    *("%00", "..%2f", "%2e%2e", "x" * 4_096, "run%E2%80%AE", "r%D1%83n", "{run_id}", "run%0A", "%72un-1", "run-1%20", "run-1."),
    *("RUN-1", "-run", "'or'1'='1", "%25"),
]

QUERIES = [
    *("limit=0", "limit=1001", "limit=-1", "limit=1_0", "limit=+5", "limit=%205", "limit=1.0", "limit=", "limit=%D9%A1", "limit=007"),
    *(f"limit={'9' * 30}", "limit=5&limit=5", "limits=5", "order=created", "status=done", "status=", "waiting_on=nothing"),
    *("cancel_requested=1", "cancel_requested=True", "created_after=yesterday", "created_after=2026-01-01"),
    *("created_after=2026-01-01T00:00:00", "agent=", "agent=%00", "agent=%ff", "agent=%", "agent", "&&", "agent=" + "x" * 129),
    *("cursor=" + "x" * 2_000, "metadata.a=1&metadata.a=2", "metadata.a=%00", "metadata.%00=1", "metadata=1", "_named=1", "open_prefix=x"),
    "&".join(["status=failed"] * 101),
]

MALFORMED: dict[str, tuple[bytes, int, str]] = {
    "F-01 truncated": (b'{"a": ', 400, "invalid_json"),
    "F-01 trailing garbage": (b"{} x", 400, "invalid_json"),
    "F-01 an array": (b"[]", 422, "invalid_value"),
    "F-01 a string": (b'"x"', 422, "invalid_value"),
    "F-02 nested 90": (b'{"a":' + b"[" * 90 + b"]" * 90 + b"}", 422, "invalid_value"),
    "F-02 nested 5,000": (b'{"a":' + b"[" * 5_000 + b"]" * 5_000 + b"}", 422, "invalid_value"),
    "F-02 open 100,000": (b'{"a":' * 100_000, 422, "invalid_value"),
    "F-03 NUL in a value": (rb'{"a":"\u0000"}', 422, "invalid_value"),
    "F-03 NUL in a key": (rb'{"\u0000":1}', 422, "invalid_value"),
    "F-03 a raw NUL": (b'{"a":"\x00"}', 400, "invalid_json"),
    "F-04 half a pair": (rb'{"a":"\ud800"}', 422, "invalid_value"),
    "F-04 half a pair in a key": (rb'{"\ud800":1}', 422, "invalid_value"),
    "F-05 NaN": (b'{"a":NaN}', 422, "invalid_value"),
    "F-05 1e400": (b'{"a":1e400}', 422, "invalid_value"),
    "F-06 2^63": (b'{"a":9223372036854775808}', 422, "invalid_value"),
    "F-06 5,000 digits": (b'{"a":' + b"9" * 5_000 + b"}", 422, "invalid_value"),
    "F-07 a key twice": (b'{"a":1,"a":2}', 400, "invalid_json"),
    "F-07 a key twice, deep inside": (b'{"a":[{"b":1,"b":1}]}', 400, "invalid_json"),
    "F-08 too large": (b'{"a":"' + b"x" * 1_100_000 + b'"}', 413, "body_too_large"),
    "F-10 UTF-16": ("{}".encode("utf-16"), 400, "invalid_json"),
    "F-10 a byte order mark": (b"\xef\xbb\xbf{}", 400, "invalid_json"),
    "F-10 bad UTF-8": (b'{"a":"\xff"}', 400, "invalid_json"),
}
"""What no call with a body takes, whatever it is about."""

CURSORS = ["-1", "9" * 30, "1_000", "+5", "garbage", "MQ", "bnVsbA", "W10", "WzEsMiwzXQ", "e30", "%00", "\u0661", "W" * 1_000]
"""What was never given as a cursor."""

PLACES = ["", " ", "-1", "abc", "1e3", "1_0", "+1", "01", "9" * 30, "\u0661", "\x00", "1,2", "x" * 1_000]
"""What is no id of an event."""
