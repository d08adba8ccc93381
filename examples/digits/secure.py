"""The demonstration with a token: machines of their own, a capture of the network between
them, and intruders."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from machines import Capture, Machine, Machines, Seen
from nodes import LAUNCHERS, Node, Setting
from places import RUN_ID, Hosted
from timeline import Timeline

PORT = 29400
RALLYPOINT = LAUNCHERS["rallypoint run"][0]
INTRUDER = Path(__file__).with_name("intruder.py")
NOBODY = 65534
NO_SUCH_USER = 3  # intruder.py's exit code
LIMIT = 60.0  # seconds, for an intruder to be refused


class OpenError(Exception):
    """Something was open, or plain, that should not be."""


@dataclasses.dataclass
class Attempt:
    """An intruder's program, and the line with which a node must refuse it."""

    what: str
    process: subprocess.Popen[str]
    node: Node
    line: str  # a pattern
    log_at: int  # how long the node's log was before

    def refusal(self) -> str:
        """The line in the node's log; "" if it is not there yet."""
        with open(self.node.log, encoding="utf-8", errors="replace") as log:
            log.seek(self.log_at)
            for line in log:
                if line.endswith("\n") and re.search(self.line, line):
                    return line.partition("] ")[2].strip() or line.strip()
        return ""


class Secured(Hosted):
    """A port on one of three machines with one token, on which its node hosts.

    The nodes' names and role, which they tell the control plane, and what marked.py sends are
    texts that are found nowhere else; a capture looks for them and for the token.
    """

    script = Path(__file__).with_name("marked.py")

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = PORT
        planted = {
            name: f"planted-{secrets.token_hex(8)}"
            for name in ("node id", "role", "store key", "store value", "gloo")
        }
        self._planted = planted
        self._token, self._other = (self._new_token(name) for name in ("token", "other-token"))
        self._processes: list[subprocess.Popen[str]] = []
        self.machines = Machines("A", "B", "C", "X", "Y")
        self.endpoint = f"{self._at('A').address}:{PORT}"
        line = self._token.read_text().strip()
        try:
            self._capture = Capture(
                self.machines,
                {
                    **{name: text.encode() for name, text in planted.items()},
                    "token": line.encode(),
                    "token's bytes": bytes.fromhex(line),
                },
                [self._at("X"), self._at("Y")],
            )
        except BaseException:
            self.machines.close()
            raise

    def announce(self, timeline: Timeline) -> None:
        """Says what there is."""
        shown = self._run("token", "show", str(self._token))
        timeline.add("token", f"`rallypoint token new`, fingerprint {shown}, for all three nodes")
        where = ", ".join(f"{n} {m.address}" for n, m in self.machines.by_name.items())
        timeline.add(
            "machines", f"{where}; X has no token, Y has another one; all packets are captured"
        )

    def setting(self, name: str) -> Setting:
        # A new node comes on the machine of the one that was lost.
        return Setting(
            prefix=self._at(name if name in self.machines.by_name else "A").prefix,
            options=(
                f"--rdzv-conf=node_id={name}-{self._planted['node id']}",
                f"--role={self._planted['role']}",
            ),
            environment={
                "RALLYPOINT_TOKEN_FILE": str(self._token),
                "GLOO_SOCKET_IFNAME": "eth0",
                "DEMO_KEY": self._planted["store key"],
                "DEMO_VALUE": self._planted["store value"],
                "DEMO_GLOO": self._planted["gloo"],
            },
        )

    def spare(self, nodes: Sequence[Node]) -> tuple[Node, str] | None:
        host = next(node for node in nodes if node.name == "A")  # the endpoint is its machine's
        return host, "it hosts the control plane"

    # Intruders.

    def joined(self, nodes: Sequence[Node], timeline: Timeline) -> None:
        """Has intruders try each port on which an agent listens, and shows who refuses them."""
        attempts = [a for node in nodes for a in self._intrude(node)]
        until = time.monotonic() + LIMIT
        for attempt in attempts:
            while not (line := attempt.refusal()):
                if attempt.process.poll() == NO_SUCH_USER:
                    break
                if time.monotonic() > until:
                    raise OpenError(f"{attempt.what}: no line of node {attempt.node.name} says no")
                time.sleep(0.05)
            if not line:
                timeline.add("not tried", f"{attempt.what}: this user namespace has no other")
                continue
            self._assert_in_vain(attempt)
            timeline.add(
                "refused",
                f"{attempt.what}\n{'':>23}{attempt.node.name}: {line}",
                node=attempt.node.name,
                attempt=attempt.what,
                line=line,
            )

        self._say_counted(timeline)

    def _say_counted(self, timeline: Timeline) -> None:
        """Says what the control plane's process has counted of that."""
        status = self._run(
            "status", self.endpoint, "--json", "--token-file", str(self._token),
            at=self._at("B").prefix,
        )  # fmt: skip
        server = json.loads(status)["server"]
        where = {"refused": "at its port", "stores_refused": "at its node's store"}
        counted = {name: server[name] for name in where}
        timeline.add(
            "counted",
            f"by A, as `rallypoint status {self.endpoint}` says with the token: "
            + "; ".join(
                f"{where[name]} " + ", ".join(f"{n} {reason}" for reason, n in reasons.items())
                for name, reasons in counted.items()
            ),
            **counted,
        )

    def _intrude(self, node: Node) -> Iterator[Attempt]:
        local: list[str] = []
        for s in sorted(node.listeners(), key=lambda s: s.port):
            place = f"{s.address}:{s.port}"
            if s.address.startswith("127."):
                local.append(place)
            elif s.port == PORT:
                yield from self._at_control_port(node, place)
            else:
                yield from self._at_store(node, place)
        if local:
            first, *more = local
            what = f"user {NOBODY} on {node.name}'s machine reads from its workers' store {first}"
            what += f" and {len(more)} ports beside it" if more else ""
            command = [sys.executable, str(INTRUDER), str(NOBODY), self._key(), *local]
            line = rf"closed: .*\b{NOBODY}\b.*\blisten={re.escape(first)}\b"
            yield self._attempt(what, self._at(node.name), command, node, line)

    def _at_control_port(self, node: Node, place: str) -> Iterator[Attempt]:
        close = [RALLYPOINT, "admin", "close", place, "--rdzv-id", RUN_ID, "--reason", "?"]
        for name, has in (("X", "without a token"), ("Y", "with another token")):
            machine = self._at(name)
            what = f"{name}, {has}, closes the run at {node.name}'s control port {place}"
            line = rf"refused .*address={re.escape(machine.address)}:.*authentication failed"
            yield self._attempt(what, machine, close, node, line)

    def _at_store(self, node: Node, place: str) -> Iterator[Attempt]:
        machine = self._at("X")
        what = f"X, without a token, reads from the round store {place}"
        line = rf"closed: .*peer={re.escape(machine.address)}:.*reason=plain"
        ask = [sys.executable, str(INTRUDER), "-", self._key(), place]
        yield self._attempt(what, machine, ask, node, line)
        machine = self._at("Y")
        what = f"Y, with another token, opens the round store {place}"
        line = rf"closed: .*peer={re.escape(machine.address)}:.*reason=authentication"
        # As a node of a job without a control plane: it connects to the store first.
        join = [RALLYPOINT, "run", "--nnodes=2", "--node-rank=1", "--rdzv-backend=static",
                f"--rdzv-endpoint={place}", "--no-python", "true"]  # fmt: skip
        yield self._attempt(what, machine, join, node, line)

    def _attempt(
        self, what: str, machine: Machine, command: Sequence[str], node: Node, line: str
    ) -> Attempt:
        at = node.log.stat().st_size
        env = {k: v for k, v in os.environ.items() if not k.startswith("RALLYPOINT_")}
        if machine == self._at("Y"):
            env["RALLYPOINT_TOKEN_FILE"] = str(self._other)
        process = subprocess.Popen(
            [*machine.prefix, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        self._processes.append(process)
        return Attempt(what, process, node, line, at)

    def _assert_in_vain(self, attempt: Attempt) -> None:
        """Waits for the end of an intruder, which must have got nothing."""
        command = attempt.process.args
        assert isinstance(command, list)
        if "run" in command:  # it would try on until its timeout
            attempt.process.terminate()
        out, err = attempt.process.communicate(timeout=LIMIT)
        if str(INTRUDER) in command:
            if attempt.process.returncode != 0 or any(json.loads(out).values()):
                raise OpenError(f"{attempt.what}: {out}{err}")
        elif attempt.process.returncode == 0:
            raise OpenError(f"{attempt.what}: has succeeded: {out}{err}")

    def _key(self) -> str:
        return f"/{self._planted['store key']}-0"  # as torch's client names it

    # The capture.

    def finished(self, timeline: Timeline) -> None:
        """Says what the capture has found, and shows that it would have found more."""
        seen = self._capture.take()
        secret = [name for name in seen.found if name != "gloo"]
        timeline.add(
            "captured",
            f"{seen.packets} packets, {seen.bytes / 1e6:.1f} MB, {seen.lost} missed, from the first"
            f" to the last;\n{'':>23}looked for {', '.join(secret)}: "
            + ("none found" if not any(seen.found[n] for n in secret) else "FOUND"),
            packets=seen.packets, bytes=seen.bytes, lost=seen.lost, found=seen.found,
        )  # fmt: skip
        if plain := [name for name in secret if seen.found[name]]:
            places = ", ".join(f"{name} (from {seen.where[name]})" for name in plain)
            raise OpenError(f"found in the capture: {places}")
        if seen.lost:
            raise OpenError(f"the capture has missed {seen.lost} packets: the machine is too busy")
        if not seen.found["gloo"]:
            raise OpenError("the capture has not found what gloo has sent in plain")
        timeline.add("gloo", f"what the workers sent by gloo: found {seen.found['gloo']} times;"
                     " gloo is torch's and stays plain")  # fmt: skip
        plain_store = self._without_a_token()
        timeline.add(
            "without",
            "a token the same key and value, to a plain store on A from B: found"
            f" {plain_store.found['store key']} and {plain_store.found['store value']} times",
            found=plain_store.found,
        )
        if not (plain_store.found["store key"] and plain_store.found["store value"]):
            raise OpenError("the capture does not find what is plain")

    def _without_a_token(self) -> Seen:
        """Sets the key in a store without a token, from another machine; what is seen of it."""
        address = self._at("A").address
        server = subprocess.Popen(
            [*self._at("A").prefix, RALLYPOINT, "store", "serve", "--listen", f"{address}:0"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._processes.append(server)
        assert server.stdout
        said = server.stdout.readline()
        place = re.search(rf"{re.escape(address)}:\d+", said)
        if place is None:
            raise OpenError(f"no plain store: {said}")
        key, value = self._planted["store key"], self._planted["store value"]
        subprocess.run(
            [*self._at("B").prefix, RALLYPOINT, "store", "set", place[0], key, value],
            check=True, timeout=LIMIT,
        )  # fmt: skip
        server.terminate()
        server.wait(LIMIT)
        return self._capture.take()

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream:
                    stream.close()
        self._capture.close()
        self.machines.close()

    def _at(self, name: str) -> Machine:
        return self.machines.by_name[name]

    def _new_token(self, name: str) -> Path:
        path = self._folder / name
        self._run("token", "new", str(path))
        return path

    def _run(self, *arguments: str, at: Sequence[str] = ()) -> str:
        return subprocess.run(
            [*at, RALLYPOINT, *arguments],
            check=True, capture_output=True, text=True, timeout=LIMIT,
        ).stdout.strip()  # fmt: skip
