"""The component for TorchX, and TorchX's own dist.ddp with our backend."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY
from harness import free_port

pytest.importorskip("torchx")

COMPONENT = REPOSITORY / "examples" / "torchx" / "component.py"

SCRIPT = """
import os, sys
env = os.environ
line = f"{env['RANK']}/{env['WORLD_SIZE']} {env['RALLYPOINT_ROUND']} {sys.argv[1:]}"
os.write(1, f"said {line}\\n".encode())
"""


def ran(tmp_path: Path, component: str, *arguments: str) -> list[str]:
    """What the workers say in two replicas on this machine, sorted."""
    (tmp_path / "hello.py").write_text(SCRIPT)
    port = free_port()
    bin_folder = str(Path(sys.executable).parent)
    torchx = [f"{bin_folder}/torchx", "run", "--wait", "--log", "-s", "local_cwd", component]
    torchx.append(f"--rdzv_port={port}")
    done = subprocess.run(
        [*torchx, *arguments, "--script", "hello.py", "--", "a b", "$HOME"],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (done.stdout + done.stderr).splitlines()  # what TorchX passes on is on stderr
    return sorted(line.partition("said ")[2] for line in lines if "said " in line)


def test_component(tmp_path: Path, token_file: Path) -> None:
    said = ran(tmp_path, f"{COMPONENT}:ddp", "-j", "1:2x2", f"--token_file={token_file}")
    assert said and all("['a b', '$HOME']" in line for line in said)
    sizes = {line.split()[0].partition("/")[2] for line in said}
    assert sizes <= {"2", "4"}  # elastic: one node may be done before the other comes


@pytest.mark.long
@pytest.mark.timeout(240)
def test_dist_ddp(tmp_path: Path) -> None:
    said = ran(tmp_path, "dist.ddp", "-j", "2x1", "--rdzv_backend", "rallypoint")
    assert [line.split()[0] for line in said] == ["0/2", "1/2"]
