"""A fake provider in a process of its own: `python -m tests.fakes openai|anthropic [--port N] [--replies FILE]`.

The file holds a JSON list of replies (`tests.fakes.replies.from_json`), given in order; the last one is given for ever.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

from tests.fakes import FakeAnthropic, FakeOpenAI
from tests.fakes.replies import Reply, from_json

KINDS = {"openai": FakeOpenAI, "anthropic": FakeAnthropic}


async def serve(kind: str, port: int, replies: list[Reply]) -> None:
    """Prints the base URL, then serves until the process is ended."""
    async with KINDS[kind](port) as fake:
        if replies:
            fake.reply(*replies)
            fake.default = replies[-1]
        print(fake.url, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="tests.fakes")
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--replies", type=Path)
    arguments = parser.parse_args()
    replies = [from_json(item) for item in json.loads(arguments.replies.read_text())] if arguments.replies else []
    asyncio.run(serve(arguments.kind, arguments.port, replies))


if __name__ == "__main__":
    main()
