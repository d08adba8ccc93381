"""A worker whose rank 0 trains: it loads the checkpoint, and replaces it again and again.

writer.py CHECKPOINT HISTORY GUARD. A checkpoint names itself and its parent, which its writer
had loaded or written before. Each write is a line of the history. The guard is "fence", or
"round": that of a number, which examples/digits had before it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path

import rallypoint

PAUSE = 0.05  # a training step

Loaded = tuple[str, Callable[[str], None]]


def by_fence(path: Path) -> Loaded:
    fence = rallypoint.fence(path)

    def save(content: str) -> None:
        with fence.replace() as new:
            Path(new).write_text(content)

    return path.read_text() if fence.exists else "", save


def by_round(path: Path) -> Loaded:
    own = int(os.environ["RALLYPOINT_ROUND"])

    def replace(content: str) -> str:
        with open(f"{path}.lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            present = ""
            with contextlib.suppress(FileNotFoundError):
                present = path.read_text()
                if own < int(json.loads(present)["round"]):
                    raise RuntimeError("the checkpoint belongs to a later round")
            if content or present:
                marked = {**json.loads(content or present), "round": own}
                Path(f"{path}.new").write_text(json.dumps(marked))
                os.replace(f"{path}.new", path)
            return present

    return replace(""), replace


def main(path: Path, history: Path, guard: str) -> None:
    if os.environ["RANK"] != "0":
        time.sleep(1000)
    content, save = {"fence": by_fence, "round": by_round}[guard](path)
    parent = json.loads(content)["id"] if content else ""
    world = int(os.environ["WORLD_SIZE"])
    while True:
        time.sleep(PAUSE)
        new = {"id": secrets.token_hex(8), "parent": parent, "world": world}
        new["round"] = os.environ["RALLYPOINT_ROUND"]
        save(json.dumps(new))
        with history.open("a") as file:
            file.write(json.dumps({**new, "node": os.environ["NODE_NAME"]}) + "\n")
        parent = new["id"]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
