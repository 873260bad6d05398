"""Fake model providers: local servers that speak the real wires over real sockets.

    async with FakeOpenAI() as fake:                       # or FakeAnthropic
        fake.reply(Answer(text="Hello"), Plain(status=500, body={}))
        os.environ.update(fake.environ)                    # OPENAI_BASE_URL and OPENAI_API_KEY
        ...
        fake.requests[0].json                              # every request, as it came

In a process of its own: `python -m tests.fakes openai --port 0 --replies replies.json` prints the base URL and serves until it is ended;
`GET` on any path shows the requests so far.
"""

from tests.fakes.anthropic import FakeAnthropic
from tests.fakes.openai import FakeOpenAI
from tests.fakes.replies import HTML, Answer, Call, Ending, NoAnswer, Plain, Reply, Tokens
from tests.fakes.server import KEY, FakeProvider, Received

__all__ = [
    "HTML",
    "KEY",
    "Answer",
    "Call",
    "Ending",
    "FakeAnthropic",
    "FakeOpenAI",
    "FakeProvider",
    "NoAnswer",
    "Plain",
    "Received",
    "Reply",
    "Tokens",
]
