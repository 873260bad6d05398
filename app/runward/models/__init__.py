"""Model clients: adapters of `ports.models`.

    names.py      `provider:model` names, and the environment variables their keys come from
    clients.py    ModelClients: a model's name or object → its client, made once per process
    scripted.py   the client of a `ScriptedModel`
    provider.py   one request to a provider, streamed: time-outs, deltas, a whole answer or a typed error
    connect.py    opens providers: with_openai.py (with chat.py, lean.py) · with_anthropic.py · opened.py  what they hand over
    history.py    the transcript as a provider's messages · replay.py  what a provider wants back unchanged
    request.py    settings and tools of a call · answers.py  a stream as deltas and an answer
    failures.py   what went wrong with a provider · kinds.py  what kinds of failures there are

Everything from `provider.py` on imports pydantic-ai and a provider's SDK, seconds of CPU and tens of megabytes; it is imported when the
first model of a provider is asked for, and never in a process that only serves the API.
"""
