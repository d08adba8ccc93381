"""Loses a node in the middle of a training run, gets another one, and finishes.

Starts three nodes on this machine, each by torchrun or by `rallypoint run`, kills one of
them (agent and worker, with SIGKILL; where one hosts the control plane, that one), lets
the other two continue from the checkpoint, adds a new node, and waits until all three finish
together. Everything stays on 127.0.0.1. The nodes meet at a port that one of them hosts, in
a shared directory or in an etcd: between these only the endpoint differs.

With --secure each node is in a network namespace of its own, and all have one token. A
capture of all that goes between them looks for texts that were planted in it, and intruders
try each port. Nothing leaves these namespaces.

Exit code 0: all of this happened and the network reads more than 95 % of the test
images. 2: it cannot be tried here. Otherwise 1, with the reason and the ends of the
nodes' logs.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from machines import NoMachinesError
from nodes import LAUNCHERS, Node, adopt_orphans, kill_orphans
from places import HOSTED, PLACES, RUN_ID, Place, open_place
from secure import OpenError, Secured
from timeline import Timeline

from rallypoint import RallypointError

EPOCHS = 14
KILL_AT = 2  # epochs done when a node is killed
GATE_AT = 10  # epochs done before which the new node must be in: a slow machine waits there
STEP_DELAY = 0.02  # seconds; an epoch has 22 steps
NODES = 3
MIN_ACCURACY = 0.95
POLL = 0.05
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the last one: its terminal is closed

BEGINNING = """\
Three nodes on this machine; one of them is killed. Python imports torch eight times,
which takes most of the time: 45 s with two free cores, more on busy ones."""
SECURE_BEGINNING = """\
gloo, which carries the training's data, stays plain: it is torch's. All else is encrypted.
Three nodes in network namespaces; one of them is killed. Python imports torch eight
times, which takes most of the time: 50 s with two free cores, more on busy ones."""
NO_MACHINES = (
    "run it as root, or as root of a user namespace: unshare --map-root-user --mount --net "
    "sh -c 'mount -t tmpfs none /run && make demo SECURE=1'"
)

T = TypeVar("T")


class DemoError(Exception):
    """The demonstration did not go as it should."""


class Demo:
    """The scenario. `run` plays it and returns the test accuracy."""

    def __init__(
        self,
        folder: Path,
        launcher: str,
        place: Place,
        timeline: Timeline,
        deadline: float,
        plain: bool,
    ) -> None:
        self.folder = folder
        self.launcher = launcher
        self.nodes: dict[str, Node] = {}
        self._timeline = timeline
        self._deadline = time.monotonic() + deadline
        self._events: list[dict[str, object]] = []
        self._place = place
        self._gate = folder / "gate"
        self._command = [
            "--nnodes=2:3",
            "--nproc-per-node=1",
            "--rdzv-backend=rallypoint",
            f"--rdzv-endpoint={place.endpoint}",
            f"--rdzv-id={RUN_ID}",
            "--max-restarts=3",
            str(place.script),
            f"--folder={folder}",
            f"--epochs={EPOCHS}",
            f"--step-delay={STEP_DELAY}",
            "--gate",
            str(GATE_AT),
            str(self._gate),
            *(["--plain"] if plain else []),
        ]

    def run(self) -> float:
        names = self._start("A", "B", "C")
        since = time.time()
        self._await_round(names, since, "the first round")
        self._say_joined(names, since)
        self._place.joined(
            [self.nodes[str(e["node"])] for e in self._starts(names, since)], self._timeline
        )
        self._await_epoch(KILL_AT)
        names = self._lose_one(names)
        names = self._add_one(names)
        accuracy = self._finish(names)
        self._place.finished(self._timeline)
        return accuracy

    # Each act of the scenario.

    def _start(self, *names: str) -> list[str]:
        for name in names:
            self._open(name)
        self._timeline.add(
            "started",
            f"{', '.join(names)}: {self.launcher} {' '.join(self._command[:6])} ...",
            nodes=names,
        )
        return list(names)

    def _open(self, name: str) -> Node:
        setting = self._place.setting(name)
        self.nodes[name] = Node(name, self.folder, self.launcher, self._command, setting)
        return self.nodes[name]

    def _say_joined(self, names: list[str], since: float) -> None:
        starts = self._starts(names, since)
        ranks = ", ".join(f"{e['node']} is rank {e['rank']}" for e in starts)
        at = max(float(e["time"]) for e in starts)
        self._timeline.add("joined", ranks, at=at, nodes=names, round=starts[0]["round"])

    def _lose_one(self, names: list[str]) -> list[str]:
        by_rank = [self.nodes[str(e["node"])] for e in self._starts(names, 0)]
        node, why = self._await(lambda: self._place.spare(by_rank), "the node to be lost")
        lost = node.name
        del self.nodes[lost]
        killed = time.time()
        pids = node.kill()
        survivors = [n for n in names if n != lost]
        self._timeline.add(
            "node lost",
            f"{lost}: SIGKILL to agent {pids[0]} and worker {', '.join(map(str, pids[1:]))}"
            f" ({why})",
            at=killed,
            node=lost,
        )
        self._await_round(survivors, killed, "the round without the lost node")
        starts = self._starts(survivors, killed)
        regrouped = max(float(e["time"]) for e in starts)
        self._timeline.add(
            "regrouped",
            f"in {regrouped - killed:.1f} s: {' and '.join(survivors)} start their workers again",
            at=regrouped,
            seconds=round(regrouped - killed, 2),
            nodes=survivors,
            round=starts[0]["round"],
        )
        self._say_trained(killed, regrouped, len(survivors))
        return survivors

    def _add_one(self, names: list[str]) -> list[str]:
        new = "D"
        node = self._open(new)
        self._timeline.add("node started", f"{new}: the same command", node=new)
        self._await(lambda: self._place.reached_by(node), "the new node at the endpoint")
        joined = time.time()
        self._timeline.add("node joined", f"{new} waits for a place", node=new)
        names = [*names, new]
        self._await_round(names, joined, "the round with the new node")
        self._gate.touch()
        starts = self._starts(names, joined)
        grown = max(float(e["time"]) for e in starts)
        self._timeline.add(
            "grown",
            f"in {grown - joined:.1f} s: all {len(names)} nodes start their workers",
            at=grown,
            seconds=round(grown - joined, 2),
            nodes=names,
            round=starts[0]["round"],
        )
        self._say_trained(joined, grown, len(names))
        return names

    def _say_trained(self, since: float, started: float, world_size: int) -> None:
        """Waits for the first step of the workers that were started at `started`."""
        step = self._await(
            lambda: next(
                (
                    e
                    for e in self._events
                    if e["event"] == "step"
                    and float(e["time"]) >= started
                    and e["world_size"] == world_size
                ),
                None,
            ),
            f"a training step by {world_size} nodes",
        )
        at = float(step["time"])
        self._timeline.add(
            "training",
            f"resumes in epoch {int(step['epoch']) + 1} with {world_size} nodes, {at - since:.1f} s"
            " after; most of that is Python importing torch",
            at=at,
            epoch=step["epoch"],
            world_size=world_size,
        )

    def _finish(self, names: list[str]) -> float:
        self._await(
            lambda: all(self.nodes[n].exit_code() == 0 for n in names),
            "the end of all nodes",
            may_end=True,
        )
        finished = [e for e in self._events if e["event"] == "finished"]
        if sorted(str(e["node"]) for e in finished) != sorted(names):
            raise DemoError(f"finished: {[e['node'] for e in finished]}, expected: {names}")
        self._timeline.finish()
        self._timeline.add("finished", ", ".join(names) + " together", nodes=names)
        accuracy = min(float(e["accuracy"]) for e in finished)
        self._timeline.add("accuracy", f"{accuracy:.4f} on the test images", accuracy=accuracy)
        if accuracy <= MIN_ACCURACY:
            raise DemoError(f"the accuracy is {accuracy:.4f}, expected more than {MIN_ACCURACY}")
        return accuracy

    # What is waited for.

    def _await_epoch(self, epoch: int) -> None:
        self._await(
            lambda: any(
                e["event"] == "step" and int(e["epoch"]) >= epoch and int(e["step"]) > 2
                for e in self._events
            ),
            f"a step after epoch {epoch}",
        )

    def _await_round(self, names: list[str], since: float, what: str) -> None:
        def started() -> bool:
            there = [str(e["node"]) for e in self._starts(names, since)]
            missing = [name for name in names if name not in there]
            if missing:
                self._timeline.waiting(f"workers of {', '.join(missing)} import torch")
            return not missing

        self._await(started, what)

    def _starts(self, names: Iterable[str], since: float) -> list[dict[str, object]]:
        """Returns the start of each node's worker in a round of exactly `names`, by rank."""
        names = list(names)
        last = {
            e["node"]: e
            for e in self._events
            if e["event"] == "started" and float(e["time"]) >= since and e["node"] in names
        }
        return sorted(
            (e for e in last.values() if e["world_size"] == len(names)),
            key=lambda e: int(e["rank"]),
        )

    def _await(self, condition: Callable[[], T | None], what: str, may_end: bool = False) -> T:
        """Returns the first true value of `condition`, which is asked after new events.

        A node that ends with an error, or ends at all unless it may, is an error.
        """
        while True:
            self._take_events()
            if result := condition():
                return result
            for node in self.nodes.values():
                code = node.exit_code()
                if code is not None and not (may_end and code == 0):
                    raise DemoError(f"node {node.name} ended with code {code} before {what}")
            if time.monotonic() > self._deadline:
                raise DemoError(f"too late: still waiting for {what}")
            time.sleep(POLL)

    def _take_events(self) -> None:
        for node in self.nodes.values():
            for event in node.new_events():
                self._events.append(event)
                if event["event"] == "checkpoint":
                    self._timeline.progress(
                        int(event["epoch"]), EPOCHS, f"{event['world_size']} nodes"
                    )


def handle_ends(handler: Callable[..., None] | signal.Handlers) -> None:
    """Sets the handler of the signals that end the demonstration, but of those it ignores."""
    for number in ENDS:
        if signal.getsignal(number) != signal.SIG_IGN:  # by nohup, say
            signal.signal(number, handler)


def interrupt(*_: object) -> None:
    handle_ends(signal.SIG_IGN)  # one more must not end the cleanup
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the timeline as JSON at the end")
    parser.add_argument("--keep", action="store_true", help="keep logs and checkpoint")
    parser.add_argument("--timeout", type=float, default=300, help="seconds (%(default)s)")
    parser.add_argument(
        "--launcher",
        choices=LAUNCHERS,
        default="rallypoint run",
        help="of the nodes (%(default)s)",
    )
    parser.add_argument(
        "--ddp",
        action="store_true",
        help="train by DistributedDataParallel, whose import of torch's compiler takes longer "
        "than torch's own",
    )
    parser.add_argument(
        "--endpoint",
        choices=PLACES,
        default=HOSTED,
        help="where the nodes meet: at 127.0.0.1 and a free port (hosted), in a temporary "
        "directory (file), in an etcd that is started for them (etcd) (%(default)s)",
    )
    parser.add_argument(
        "--secure",
        action="store_true",
        help="with a token, in network namespaces; capture what goes between them, and try to "
        "intrude (with --endpoint hosted)",
    )
    args = parser.parse_args()
    if args.secure and args.endpoint != HOSTED:
        parser.error(f"--secure is for --endpoint {HOSTED}")

    folder = Path(tempfile.mkdtemp(prefix="rallypoint-demo-"))
    timeline = Timeline(as_json=args.json)
    adopt_orphans()
    reason, accuracy = "", 0.0
    place: Place | None = None
    demo: Demo | None = None
    if not args.json:
        print(SECURE_BEGINNING if args.secure else BEGINNING, flush=True)
    try:
        handle_ends(interrupt)
        if args.secure:
            place = Secured(folder)
            place.announce(timeline)
        else:
            place = open_place(args.endpoint, folder)
        demo = Demo(folder, args.launcher, place, timeline, args.timeout, not args.ddp)
        accuracy = demo.run()
    except NoMachinesError as error:
        shutil.rmtree(folder, ignore_errors=True)
        print(f"demo: no network namespaces here, {error}: {NO_MACHINES}", file=sys.stderr)
        return 2
    except (DemoError, OpenError, RallypointError, subprocess.SubprocessError) as error:
        reason = str(error)
    except KeyboardInterrupt:
        reason = "interrupted"
    finally:
        handle_ends(signal.SIG_IGN)
        for node in demo.nodes.values() if demo else ():
            node.kill()
        if place:
            place.close()
        kill_orphans()
    timeline.finish()

    if args.json:
        timeline.print_json(ok=not reason, reason=reason, accuracy=accuracy)
    if reason:
        for log in sorted(folder.glob("*.log")):
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
            print(f"---- {log}\n{tail}", file=sys.stderr)
        print(f"demo failed: {reason}\nlogs: {folder}", file=sys.stderr)
        return 1
    if args.keep:
        print(f"logs: {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
