"""A worker without torch: tells that it has started and then does as ordered.

Environment (besides torchrun's): RALLYPOINT_TEST_FOLDER, the job's folder, and
RALLYPOINT_TEST_NODE, the node's name. Events are JSON lines appended to
events.jsonl in that folder, each by one write. Orders are files in orders/: `all`, or
the worker's pid. Their text is `finish`, `fail <exit code>`, or `say <text>`, which is
answered by an event and may be given again with another text.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator

FOLDER = os.environ["RALLYPOINT_TEST_FOLDER"]
PAUSE = 0.02


def emit(event: str, **fields: object) -> None:
    line = {
        "event": event,
        "node": os.environ["RALLYPOINT_TEST_NODE"],
        "pid": os.getpid(),
        **fields,
    }
    fd = os.open(
        os.path.join(FOLDER, "events.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
    )
    os.write(fd, (json.dumps(line) + "\n").encode())
    os.close(fd)


def emit_start() -> None:
    """The event that every worker begins with; harness.Worker is its other side."""
    env = os.environ
    emit(
        "start",
        rank=int(env["RANK"]),
        local_rank=int(env["LOCAL_RANK"]),
        group_rank=int(env["GROUP_RANK"]),
        world_size=int(env["WORLD_SIZE"]),
        restart=int(env["TORCHELASTIC_RESTART_COUNT"]),
        round=int(env["RALLYPOINT_ROUND"]),
        run_id=env["TORCHELASTIC_RUN_ID"],
        master=f"{env['MASTER_ADDR']}:{env['MASTER_PORT']}",
    )


def orders() -> Iterator[str]:
    """Yields orders as they come; one that stays is given once."""
    done = dict.fromkeys((str(os.getpid()), "all"), "")
    while True:
        for name, last in done.items():
            try:
                with open(os.path.join(FOLDER, "orders", name), encoding="utf-8") as f:
                    text = f.read()
            except FileNotFoundError:
                continue
            if text != last:
                done[name] = text
                yield text
        time.sleep(PAUSE)


def obey() -> int:
    """Does as ordered; returns the exit code."""
    for order in orders():
        verb, _, rest = order.partition(" ")
        if verb == "finish":
            emit("finish")
            return 0
        if verb == "fail":
            emit("fail")
            return int(rest)
        emit("said", text=rest)
    raise AssertionError("orders never end")


if __name__ == "__main__":
    emit_start()
    sys.exit(obey())
