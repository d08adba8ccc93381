"""docs/signals.md: each command there exits as the page says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import REPOSITORY

BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PREPARE, *COMMANDS = BLOCK.findall((REPOSITORY / "docs" / "signals.md").read_text())
TOOLS = ("timeout", "tini", "unshare")


def test_there_are_commands() -> None:
    assert "worker.sh" in PREPARE and len(COMMANDS) > 4


@pytest.mark.parametrize("command", COMMANDS, ids=range(len(COMMANDS)))
def test_command(command: str, tmp_path: Path) -> None:
    expected = re.search(r"# exits with (\d+)$", command.strip())
    assert expected
    missing = [tool for tool in TOOLS if tool in command.split() and not shutil.which(tool)]
    if missing or ("unshare" in command and os.geteuid() != 0):
        pytest.skip(f"not here: {missing or 'root, for a pid namespace'}")
    env = {**os.environ, "PATH": f"{REPOSITORY / 'build'}:{os.environ['PATH']}"}
    # A session of its own: timeout signals its whole group.
    done = subprocess.run(
        ["bash", "-c", f"{PREPARE}\n{command}"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
    )
    # timeout -s KILL ends the shell of its group, too, which others' shells show as 137.
    code = done.returncode if done.returncode >= 0 else 128 - done.returncode
    assert code == int(expected[1]), done.stdout + done.stderr
