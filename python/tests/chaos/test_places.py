"""The same job, hurt in the same way, in each place where nodes can meet: a control plane
that one of them hosts, `rallypoint serve` with a data directory, a shared directory, an
etcd, and a backend of the user's own.

Half of its agents are forks of one parent that has loaded nothing of the library, the
others are programs of their own. Beside nodes that are killed and stopped,

- where a node hosts, that node is killed, alone or with another one, stopped, and told to
  end, so that the control plane goes on in another node's process,
- `serve` goes on from a copy of its data directory that was made some faults ago,
- nodes are cut off from the etcd for longer than their lease, all of them at times, and
  come back.

After each fault all nodes have to meet again, none of them may give up, and none may be
left over. What workers wrote down is held against the promises by checks.py; what was
recorded, where something can record, by `rallypoint-audit`.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from chaos.checks import audit, check, check_places, generations, in_order, starts_in
from chaos.node import LOADED
from conftest import etcd_of
from harness import free_port

HERE = Path(__file__).parent
RALLYPOINT = Path(sys.executable).with_name("rallypoint")

NODES, LEAST = 4, 2
LEASE = 2.0
PATIENCE = 60.0

SETTINGS = {
    "lease_timeout": LEASE,
    "reconnect_grace": 0.5,
    "last_call_timeout": 1,
    "admit_delay": 0.2,
    "join_timeout": 300,
}


Fault = Callable[["Faults"], None]


class Parent:
    """The process that forks agents, and what it has said of them."""

    def __init__(self, job: Job) -> None:
        with (job.folder / "parent.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "node.py"), "parent", *["torch"] * job.place.torch],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=job.environment(),
            )  # fmt: skip
        self._said = threading.Condition()
        self._loading = True
        self._pids: dict[str, int] = {}
        self._codes: dict[str, int] = {}
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def start(self, options: dict[str, Any]) -> int:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(options).encode() + b"\n")
        self.process.stdin.flush()
        with self._said:
            self._said.wait_for(lambda: not self._loading)
            assert self._said.wait_for(lambda: options["name"] in self._pids, PATIENCE)
            return self._pids[options["name"]]

    def code(self, name: str, timeout: float) -> int | None:
        with self._said:
            self._said.wait_for(lambda: name in self._codes, timeout)
            return self._codes.get(name)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(PATIENCE)
        self._reader.join()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            what, *rest = json.loads(line)
            with self._said:
                self._loading = False
                if what != "ready":
                    {"started": self._pids, "ended": self._codes}[what][rest[0]] = rest[1]
                self._said.notify_all()
        with self._said:
            self._loading = False  # it has ended
            self._said.notify_all()


class Node:
    """An agent, forked or a program of its own."""

    def __init__(self, job: Job, index: int, forked: bool) -> None:
        self.name = f"{index}#{job.starts}"
        self._parent = job.parent if forked else None
        options = job.options(index, self.name)
        self._log = Path(options["log"])
        self._loads_torch = "value" in options["place"]
        if forked:
            self.pid = job.parent.start(options)
            return
        with Path(options["log"]).open("ab") as log:
            self._process = subprocess.Popen(
                job.command(options), env={**job.environment(), "NODE_NAME": self.name},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self.pid = self._process.pid

    def code(self, timeout: float = 0) -> int | None:
        """How it has ended; None if it runs."""
        if self._parent is not None:
            return self._parent.code(self.name, timeout)
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout)
        return None

    def is_loading(self) -> bool:
        """Whether it still loads torch, which takes a minute on a machine with much to do."""
        said = f"{LOADED} {self.pid}\n"
        if self._loads_torch and self._log.exists():
            self._loads_torch = said not in self._log.read_text()
        return self._loads_torch

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it without a word, with all that it has started."""
        with suppress(psutil.NoSuchProcess):
            agent = psutil.Process(self.pid)
            agent.suspend()
            for process in [*agent.children(recursive=True), agent]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self.code(PATIENCE)


class Place:
    """Where nodes meet: what each of them gets, and what can go wrong there."""

    torch = False  # whether nodes need torch

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings: dict[str, object] = {}

    def records(self) -> list[Path]:
        """Where the history was recorded."""
        return sorted(self.folder.glob("record*"))

    def of(self, index: int) -> dict[str, str]:
        """What node index gets of it."""
        raise NotImplementedError

    def faults(self) -> list[Fault]:
        return []

    def processes(self) -> list[subprocess.Popen[bytes]]:
        return []

    def ended(self) -> None:
        """The job is over: the record gets its end."""

    def close(self) -> None:
        for process in self.processes():
            with suppress(OSError):
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()

    def _spawn(self, *command: str, log: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{log}.log").open("ab") as out:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def _await_log(self, log: str, text: str, times: int = 1) -> None:
        deadline = time.monotonic() + PATIENCE
        while (self.folder / f"{log}.log").read_text().count(text) < times:
            assert time.monotonic() < deadline, (self.folder / f"{log}.log").read_text()
            time.sleep(0.02)


class Hosted(Place):
    """A node hosts the control plane, another one when that is killed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._endpoint = f"127.0.0.1:{free_port()}"
        self.settings["record"] = folder / "record"  # and the id of the node that hosts

    def of(self, index: int) -> dict[str, str]:
        return {"endpoint": self._endpoint}

    def faults(self) -> list[Fault]:
        return [
            self.host_killed, self.host_and_another_killed, self.host_stopped,
            self.host_told_to_end,
        ]  # fmt: skip

    def host_killed(self, faults: Faults) -> None:
        faults.replace([self._host(faults)])

    def host_and_another_killed(self, faults: Faults) -> None:
        host = self._host(faults)
        faults.replace([host, (host + faults.random.randrange(1, NODES)) % NODES])

    def host_stopped(self, faults: Faults) -> None:
        """For up to two leases, with or without another node's death meanwhile."""
        host = self._host(faults)
        faults.job.nodes[host].send(signal.SIGSTOP)
        time.sleep(faults.random.uniform(0, LEASE))
        if faults.random.randrange(2):
            faults.replace([(host + 1) % NODES])
        time.sleep(faults.random.uniform(0, LEASE))
        faults.job.nodes[host].send(signal.SIGCONT)

    def host_told_to_end(self, faults: Faults) -> None:
        """It hands the control plane on, unless the others are not there to take it."""
        host = self._host(faults)
        faults.job.nodes[host].send(signal.SIGTERM)
        faults.job.nodes[host].code(faults.random.uniform(0, 2 * LEASE))
        faults.replace([host])

    def _host(self, faults: Faults) -> int:
        """The node in whose process the control plane was heard of last."""
        heard: dict[int, str] = {}  # process id -> when
        for record in self.records():
            for line in record.read_bytes().splitlines():
                with suppress(ValueError):  # the last one may be half written
                    parsed = json.loads(line)
                    if (parsed.get("event") or {}).get("Hello", {}).get("InHost"):
                        pid = int(parsed["event"]["Hello"]["Label"].rsplit(" ", 1)[1])
                        heard[pid] = max(heard.get(pid, ""), parsed["at"])
        running = {node.pid: index for index, node in enumerate(faults.job.nodes)}
        hosts = [pid for pid in sorted(heard, key=heard.__getitem__) if pid in running]
        return running[hosts[-1]] if hosts else faults.random.randrange(NODES)


class Serve(Place):
    """A control plane with a data directory, which goes back in time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._port = free_port()
        self._data, self._copy = folder / "data", folder / "copy"
        self._record = folder / "record"
        self.settings["is_host"] = 0
        self._starts = 0
        self._start()

    def of(self, index: int) -> dict[str, str]:
        return {"endpoint": f"127.0.0.1:{self._port}"}

    def faults(self) -> list[Fault]:
        return [self.killed_and_copied, self.restored]

    def processes(self) -> list[subprocess.Popen[bytes]]:
        return [self._server]

    def ended(self) -> None:
        self._server.terminate()
        assert self._server.wait(PATIENCE) == 0

    def killed_and_copied(self, faults: Faults) -> None:
        self._kill(faults)
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self._data, self._copy)
        self._start()

    def restored(self, faults: Faults) -> None:
        if not self._copy.exists():
            self.killed_and_copied(faults)
            return
        self._kill(faults)
        shutil.rmtree(self._data)
        shutil.copytree(self._copy, self._data)
        self._start()

    def _kill(self, faults: Faults) -> None:
        self._server.kill()
        self._server.wait()
        time.sleep(faults.random.uniform(0, LEASE))

    def _start(self) -> None:
        self._server = self._spawn(
            str(RALLYPOINT), "serve", "--listen", f"127.0.0.1:{self._port}",
            "--data-dir", str(self._data), "--record", str(self._record), log="server",
        )  # fmt: skip
        self._starts += 1
        self._await_log("server", "listening", self._starts)


class Led(Place):
    """A place that keeps who leads: one of the nodes, which records what it does."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.settings["record"] = folder / "record"  # and the id of the node that leads


class Directory(Led):
    def __init__(self, folder: Path) -> None:
        self._directory = folder / "meet"
        self._directory.mkdir(0o700)
        super().__init__(folder)

    def of(self, index: int) -> dict[str, str]:
        return {"endpoint": f"file://{self._directory}"}

    def ended(self) -> None:
        super().ended()
        assert not list(self._directory.iterdir())


class Etcd(Led):
    """An etcd, which each node reaches over a line of its own."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self._lines: list[subprocess.Popen[bytes]] = []
        super().__init__(folder)
        host, self._port = endpoint.split(":")
        for index in range(NODES):
            line = self._spawn(
                sys.executable, str(HERE / "proxy.py"), self._address(index), self._port,
                host, "0", "0", log=f"line{index}",
            )  # fmt: skip
            self._lines.append(line)
            self._await_log(f"line{index}", "ready")

    def of(self, index: int) -> dict[str, str]:
        return {"endpoint": f"etcd://{self._address(index)}:{self._port}?key_prefix=/chaos"}

    def faults(self) -> list[Fault]:
        return [self.members_cut, self.one_comes_while_others_are_cut]

    def processes(self) -> list[subprocess.Popen[bytes]]:
        return self._lines

    def members_cut(self, faults: Faults) -> None:
        with self._cut(faults.random.sample(range(NODES), faults.random.randint(1, NODES)), faults):
            pass

    def one_comes_while_others_are_cut(self, faults: Faults) -> None:
        """It finds a run whose nodes show no sign of life, and most of the time comes alone."""
        comes = faults.random.randrange(NODES)
        faults.job.nodes[comes].kill()
        with self._cut([index for index in range(NODES) if index != comes], faults):
            faults.start(comes)

    @contextmanager
    def _cut(self, indices: list[int], faults: Faults) -> Iterator[None]:
        """The lines carry nothing for longer than the lease, and then one after the other."""
        for index in indices:
            self._lines[index].send_signal(signal.SIGSTOP)
        time.sleep(LEASE * faults.random.uniform(1.5, 3))
        yield
        time.sleep(LEASE * faults.random.uniform(1, 2.5))
        for index in indices:
            self._lines[index].send_signal(signal.SIGCONT)
            time.sleep(faults.random.uniform(0, LEASE / 4))

    def _address(self, index: int) -> str:
        return f"127.0.{7 + index}.1"


class Own(Place):
    """A value that can be compared and set."""

    torch = True

    def of(self, index: int) -> dict[str, str]:
        return {"value": str(self.folder / "value")}


class Job:
    """Four nodes, in a place."""

    def __init__(self, folder: Path, place: Place) -> None:
        self.folder, self.place = folder, place
        self.history, self.stop = folder / "history", folder / "stop"
        self.history.touch()
        self.temp = folder / "tmp"
        self.temp.mkdir()
        self.starts = 0
        self.parent = Parent(self)
        self.nodes: list[Node] = []

    def environment(self) -> dict[str, str]:
        env = {**os.environ, "TMPDIR": str(self.temp), "LOGLEVEL": "INFO"}
        env.pop("RALLYPOINT_TOKEN_FILE", None)
        return env

    def options(self, index: int, name: str) -> dict[str, Any]:
        """What node.py gets."""
        return {
            "name": name, "place": self.place.of(index), "least": LEAST, "most": NODES,
            "settings": self._settings(), "history": str(self.history), "stop": str(self.stop),
            "log": str(self.folder / f"node-{index}.log"), "environment": {"NODE_NAME": name},
        }  # fmt: skip

    def command(self, options: dict[str, Any]) -> list[str]:
        """The same as a program of its own: `rallypoint run` where it can be."""
        if "value" in options["place"]:
            return [sys.executable, str(HERE / "node.py"), "agent", json.dumps(options)]
        return [
            str(RALLYPOINT), "run", f"--nnodes={LEAST}:{NODES}", "--rdzv-id=chaos",
            f"--rdzv-endpoint={options['place']['endpoint']}", "--max-restarts=1000000",
            "--rdzv-conf=" + ",".join(f"{k}={v}" for k, v in self._settings().items()),
            "--local-addr=127.0.0.1", "--shutdown-timeout=2", "--no-python",
            "/bin/sh", str(HERE / "worker.sh"), options["history"], options["stop"],
        ]  # fmt: skip

    def start(self, index: int, forked: bool) -> Node:
        self.starts += 1
        return Node(self, index, forked)

    def begin(self) -> None:
        for index in range(NODES):
            self.nodes.append(self.start(index, forked=index % 2 == 0))
        self.await_together("at first")

    def await_together(self, after: str) -> None:
        """Until the workers that all nodes started last are of one round.

        Its number may be lower than one before: if all that knew of a group have died, the
        others begin anew.
        """
        deadline = time.monotonic() + PATIENCE
        while not self._together():
            for node in self.nodes:
                if (code := node.code()) is not None:
                    pytest.fail(f"node {node.name} ended with {code} {after}\n{self.tail()}")
            if any(node.is_loading() for node in self.nodes):
                deadline = time.monotonic() + PATIENCE
            if time.monotonic() > deadline:
                pytest.fail(f"not together for {PATIENCE:.0f} s {after}\n{self.tail()}")
            time.sleep(0.05)

    def end(self) -> None:
        """All nodes end well, and leave nothing behind."""
        self.stop.touch()
        for node in self.nodes:
            assert node.code(PATIENCE) == 0, f"node {node.name}: {node.code()}\n{self.tail()}"
        self.parent.close()
        self.place.ended()
        records = self.place.records()
        # Newcomers that come while the host is stopped found the run anew, until it is back.
        check(self.starts_of(), LEAST, NODES, generations(in_order(*records)))
        left = [p for p in psutil.process_iter(["environ"]) if self._ours(p)]
        assert not left, f"left over: {left}"
        if not records:
            return
        audit(*records)
        check_places(self.starts_of(), in_order(*records))

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()
        self.parent.close()

    def starts_of(self) -> list[list[str]]:
        return starts_in(self.history)

    def tail(self) -> str:
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {log.name}\n" + log.read_text()[-1500:] for log in logs)

    def _settings(self) -> dict[str, object]:
        return {**SETTINGS, **{name: str(value) for name, value in self.place.settings.items()}}

    def _together(self) -> bool:
        last = {(s[0], int(s[6])): (s[1], s[5]) for s in self.starts_of()}  # round and store
        rounds = {last.get((node.name, node.pid)) for node in self.nodes}
        return len(rounds) == 1 and None not in rounds

    def _ours(self, process: psutil.Process) -> bool:
        return (process.info["environ"] or {}).get("TMPDIR") == str(self.temp)


class Faults:
    """What can go wrong anywhere, beside what can in a place."""

    def __init__(self, job: Job, random: random.Random) -> None:
        self.job, self.random = job, random
        self.done: dict[str, int] = defaultdict(int)

    def kinds(self) -> list[Fault]:
        return [*self.job.place.faults(), self.replaced, self.two_replaced, self.stopped]

    def let(self, fault: Fault) -> None:
        self.done[fault.__name__] += 1
        fault(self)

    def replaced(self, _: Faults) -> None:
        self.replace([self.random.randrange(NODES)])

    def two_replaced(self, _: Faults) -> None:
        self.replace(self.random.sample(range(NODES), 2))

    def stopped(self, _: Faults) -> None:
        stopped = self.random.sample(self.job.nodes, self.random.randint(1, NODES))
        for node in stopped:
            node.send(signal.SIGSTOP)
        time.sleep(self.random.uniform(0, 2 * LEASE))
        for node in stopped:
            node.send(signal.SIGCONT)

    def replace(self, indices: list[int]) -> None:
        """Nodes are killed, and others come, forks or programs of their own."""
        for index in indices:
            self.job.nodes[index].kill()
        time.sleep(self.random.uniform(0, LEASE))
        for index in indices:
            self.start(index)

    def start(self, index: int) -> None:
        self.job.nodes[index] = self.job.start(index, self.random.randrange(2) == 0)


@contextmanager
def placed(kind: str, folder: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        place: Place
        if kind == "etcd":
            binary = os.environ.get("RALLYPOINT_TEST_ETCD") or shutil.which("etcd")
            if not binary:
                pytest.skip("RALLYPOINT_TEST_ETCD names no etcd, and none is installed")
            place = Etcd(folder, stack.enter_context(etcd_of(binary)).get_endpoint())
        else:
            kinds = {"hosted": Hosted, "serve": Serve, "directory": Directory, "own": Own}
            place = kinds[kind](folder)
        stack.callback(place.close)
        yield place


@contextmanager
def hurt(kind: str, folder: Path) -> Iterator[Faults]:
    """A job to hurt, in such a place; when the block ends it has to come to a good end."""
    seed = int(os.environ.get("RALLYPOINT_TEST_SEED") or random.randrange(1 << 30))
    print(f"seed {seed} (RALLYPOINT_TEST_SEED)")
    with placed(kind, folder) as place:
        job = Job(folder, place)
        try:
            job.begin()
            faults = Faults(job, random.Random(seed))
            yield faults
            rounds = len({start[1] for start in job.starts_of()})
            print(f"{dict(faults.done)}, {rounds} rounds, {job.starts} agents")
            job.end()
        finally:
            job.kill()


@pytest.mark.parametrize("kind", ["hosted", "serve", "etcd"])
def test_what_is_worst_in_a_place(kind: str, tmp_path: Path) -> None:
    with hurt(kind, tmp_path) as faults:
        for fault in faults.job.place.faults():
            faults.let(fault)
            faults.let(faults.replaced)
            faults.job.await_together(f"after {fault.__name__}")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["hosted", "serve", "directory", "etcd", "own"])
def test_each_place_for_two_minutes(kind: str, tmp_path: Path) -> None:
    with hurt(kind, tmp_path) as faults:
        until = time.monotonic() + float(os.environ.get("RALLYPOINT_TEST_SECONDS", "120"))
        while time.monotonic() < until:
            fault = faults.random.choice(faults.kinds())
            faults.let(fault)
            # Sometimes hurt what is just recovering, sometimes what runs.
            time.sleep(faults.random.uniform(0, 1.5))
            if faults.random.randrange(3) == 0:
                faults.job.await_together(f"after {fault.__name__}")
        faults.job.await_together("in the end")
