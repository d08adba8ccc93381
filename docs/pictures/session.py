"""Plays a session of `rallypoint run`: three nodes, one is killed, another one comes.

    make build/rallypoint
    python docs/pictures/session.py | python docs/pictures/terminal.py > docs/pictures/session.svg

Everything is real: agents, workers, the kill, the times. Of the agents' logs the lines
are shown that say what happens to the round, each with its second and its node.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RALLYPOINT = ROOT / "build" / "rallypoint"
SHOWN = re.compile(r"round \d+: rank|stopping the workers|^worker: rank|nodes here")
HEAD = re.compile(r"^[IWE]\d{4} [\d:.]+ \d+ rallypoint\] ")
WORKER = 'echo "worker: rank $RANK of $WORLD_SIZE"; exec sleep 600'


class Session:
    def __init__(self) -> None:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.endpoint = f"127.0.0.1:{s.getsockname()[1]}"
        self.began = time.monotonic()
        self.nodes: dict[str, subprocess.Popen[str]] = {}
        self._seen: list[str] = []
        self._changed = threading.Condition()

    def say(self, line: str) -> None:
        with self._changed:
            print(line, flush=True)
            self._seen.append(line)
            self._changed.notify_all()

    def start(self, node: str) -> None:
        agent = subprocess.Popen(
            [
                *(RALLYPOINT, "run", "--rdzv-endpoint", self.endpoint, "--rdzv-id=job7"),
                *("--nnodes=2:3", "--max-restarts=3", f"--rdzv-conf=node_id={node}"),
                *("--no-python", "sh", "-c", WORKER),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.nodes[node] = agent
        threading.Thread(target=self._read, args=(node, agent), daemon=True).start()

    def _read(self, node: str, agent: subprocess.Popen[str]) -> None:
        assert agent.stdout is not None
        for line in agent.stdout:
            if SHOWN.search(line):
                text = re.sub(r", store at .*|; the endpoint .*", "", HEAD.sub("", line.rstrip()))
                self.say(f"{time.monotonic() - self.began:6.1f} s  {node:<4} {text}")

    def wait(self, text: str, times: int) -> None:
        with self._changed:
            done = self._changed.wait_for(lambda: sum(text in s for s in self._seen) >= times, 60)
        if not done:
            raise SystemExit(f"session.py: {text!r} did not come {times} times")

    def play(self) -> None:
        options = "--rdzv-endpoint=$ENDPOINT --nnodes=2:3 --max-restarts=3"
        self.say(f"$ rallypoint run {options} $WORKER    # on A, B, C")
        self.start("A")
        self.wait("nodes here", 1)
        self.start("B")
        self.start("C")
        self.wait("worker: rank", 3)
        time.sleep(2)
        self.say("$ kill -9 $AGENT    # on C")
        self.nodes["C"].kill()
        self.wait("worker: rank", 5)
        time.sleep(2)
        self.say(f"$ rallypoint run {options} $WORKER    # on D")
        self.start("D")
        self.wait("worker: rank", 8)
        self.wait("round 3", 3)
        time.sleep(1)
        self.say("$ rallypoint status $ENDPOINT")
        shown = subprocess.run(
            [RALLYPOINT, "status", self.endpoint], capture_output=True, text=True, check=True
        ).stdout
        for line in shown.partition("\n\n")[2].splitlines():
            self.say(line)


def main() -> int:
    session = Session()
    try:
        session.play()
    finally:
        for agent in session.nodes.values():
            agent.kill()
            agent.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
