"""The image's file system can be read alone: a process writes to its data and to temporary files, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.deployment import Deployment

HOOK = '''
"""Python runs this at its start: it writes down where the process writes, from the first import on."""

import os
import sys

log = os.open(os.environ["TEST_WRITTEN"], os.O_WRONLY | os.O_APPEND)
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "sqlite3.connect"}


def hook(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        if isinstance(path, int) or not ((mode and set(mode) & set("wax+")) or flags & WRITES):
            return
    elif event in CHANGES:
        path = arguments[0]
    else:
        return
    path = os.fsdecode(path).removeprefix("file:").partition("?")[0]
    os.write(log, os.path.abspath(path).encode() + b"\\n")


sys.addaudithook(hook)
'''


def test_a_service_writes_to_its_data_alone(on_sqlite: Deployment, tmp_path: Path) -> None:
    """From its migration and its first key to a run, a drain, and the next start."""
    written, hook, temporary = (tmp_path / name for name in ("written", "hook", "temporary"))
    for folder in (hook, temporary):
        folder.mkdir()
    written.touch()
    (hook / "sitecustomize.py").write_text(HOOK)
    on_sqlite.foreign = {
        "PYTHONPATH": str(hook),
        "PYTHONDONTWRITEBYTECODE": "1",  # those of the image are made when it is built
        "TEST_WRITTEN": str(written),
        "TMPDIR": str(temporary),
        "HOME": str(tmp_path / "nowhere"),
    }
    assert on_sqlite.run_command("migrate").returncode == 0
    permissions = ["--permission", "runs:write", "--permission", "runs:read"]
    made = json.loads(on_sqlite.run_command("keys", "create", "--tenant", "a", *permissions, "--json").stdout)
    on_sqlite.http.headers["Authorization"] = f"Bearer {made['key']}"
    for _ in range(2):
        program = on_sqlite.serve()
        assert on_sqlite.ended(on_sqlite.create([{"text": "Hello."}]))["status"] == "completed"
        assert program.stop() == 0
    paths = {Path(line) for line in written.read_text().splitlines()}
    assert any(path.name.startswith("runward.db") for path in paths), "the hook heard the process"
    allowed = {Path("/dev/null"), Path("/dev/tty")}
    assert {path for path in paths if path.parent not in (on_sqlite.folder, temporary)} <= allowed
