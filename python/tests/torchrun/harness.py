"""Real torchrun nodes for scenarios: start, watch, hurt and end them.

A Job is one run id with its endpoint, a folder, and Nodes; a Node is one torchrun with
its workers, all below one Launcher process (launcher.py). Workers report by events in
the job's folder. Tests say what must happen and in which order; every wait has the same
generous limit, fails at once if a node ends that should not, and never measures speed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import psutil
from harness import free_port

T = TypeVar("T")

HERE = Path(__file__).parent
WORKER = HERE / "workers" / "worker.py"

# The interpreter of the nodes, which need not be that of the tests: another torch.
PYTHON = os.environ.get("RALLYPOINT_TEST_PYTHON", sys.executable)

# The command `rallypoint` of the installed package.
COMMAND = (PYTHON, "-m", "rallypoint._cli")

MACHINE = socket.gethostname().partition(".")[0]  # nodes are called after it

LIMIT = 60.0  # seconds for anything that is waited for
PAUSE = 0.02  # between two looks at files and processes

# Variables that would change what a node does, or that torchrun sets for its workers.
FOREIGN = re.compile(
    r"(PET_|TORCH|RALLYPOINT_(?!TEST_PYTHON)|SLURM_|OMPI_|PMI_|MPI_|MASTER_|AWS_BATCH_JOB_)"
    r"|(RANK|WORLD_SIZE|LOCAL_RANK|JOB_COMPLETION_INDEX|LOGLEVEL)$"
)


class ScenarioError(AssertionError):
    """Something did not happen, or something else did."""


@dataclasses.dataclass(frozen=True)
class Worker:
    """What a worker says when it starts (workers/worker.py)."""

    node: str
    pid: int
    rank: int
    local_rank: int
    group_rank: int
    world_size: int
    restart: int
    round: int
    run_id: str
    master: str


@dataclasses.dataclass(frozen=True)
class Round:
    """A round in which every worker has started."""

    number: int
    workers: tuple[Worker, ...]  # by rank

    @property
    def master(self) -> str:
        """Address and port of the workers' store, the same for all."""
        return self.workers[0].master

    def of(self, node: str) -> Worker:
        """The first worker of a node."""
        return next(w for w in self.workers if w.node == node)


@dataclasses.dataclass(eq=False)
class Child:
    """A process that the launcher has started."""

    pid: int
    code: int | None = None  # its exit code, or minus the signal; None while it runs


class Children:
    """What the launcher says of its children, by the connection to it.

    A pid is one of a child only while that runs: the system soon gives it to another one.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._running: dict[int, Child] = {}

    def receive(self) -> dict[str, int] | None:
        """Takes the next message; None if the launcher has ended."""
        message = self._control.recv(1 << 17)
        if not message:
            return None
        said: dict[str, int] = json.loads(message)
        if "ended" in said:
            self._running.pop(said["ended"]).code = said["code"]
        elif "started" in said:
            self._running[said["started"]] = Child(said["started"])
        return said

    def running(self, pid: int) -> Child:
        """The child that has the pid now."""
        return self._running[pid]


class Launcher:
    """The process that all nodes of a test session are below."""

    def __init__(self, folder: Path) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log = folder / "launcher.log"
        self._children = Children(self._control)
        with theirs, open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [PYTHON, str(HERE / "launcher.py"), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=base_environment(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._control.settimeout(LIMIT)
        # torch 2.4 does not look for plug-ins.
        self.discovers = bool(self._receive()["discovers"])
        self.torchrun = "torch.distributed.run" if self.discovers else "rallypoint.torchrun"

    def start(self, **request: object) -> Child:
        """Starts a process as launcher.py describes it."""
        self._control.send(json.dumps(request).encode())
        while True:
            answer = self._receive()
            if "started" in answer:
                return self._children.running(answer["started"])

    def code(self, child: Child) -> int | None:
        """Returns the exit code of a process, None while it runs."""
        while child.code is None:
            self._control.setblocking(False)
            try:
                self._receive()
            except BlockingIOError:
                break
            finally:
                self._control.settimeout(LIMIT)
        return child.code

    def close(self) -> None:
        """Ends the launcher, which kills whatever is left below it."""
        self._control.close()
        self._process.wait(LIMIT)

    def _receive(self) -> dict[str, int]:
        said = self._children.receive()
        if said is None:
            raise ScenarioError(f"the launcher has ended:\n{self._log.read_text()}")
        return said


class Node:
    """One torchrun with its workers. Made by Job.start()."""

    def __init__(self, name: str, child: Child, log: Path, launcher: Launcher) -> None:
        self.name = name
        self.pid = child.pid
        self.log = log
        self.may_end = False  # else its end fails whatever is waited for
        self._child = child
        self._launcher = launcher

    @property
    def code(self) -> int | None:
        """The exit code of torchrun, minus the signal if it was killed, None while it runs."""
        return self._launcher.code(self._child)

    def output(self) -> str:
        """What torchrun and its workers have printed so far."""
        return self.log.read_text(errors="replace")

    def lines(self, pattern: str) -> list[str]:
        """The lines of the output that contain a match."""
        return [line for line in self.output().splitlines() if re.search(pattern, line)]

    def tail(self, lines: int = 40) -> str:
        """The last lines of the output."""
        return "\n".join(self.output().splitlines()[-lines:])

    def listens_on(self, port: int) -> bool:
        """Whether torchrun itself has the port."""
        try:
            connections = psutil.Process(self.pid).net_connections("tcp")
        except psutil.Error:
            return False
        return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections)

    def signal(self, number: int) -> None:
        """Sends a signal to torchrun, which may end by it."""
        self.may_end = True
        if self.code is None:
            os.kill(self.pid, number)

    def interrupt(self) -> None:
        """Ctrl-C, as torchrun gets it."""
        self.signal(signal.SIGINT)

    def kill_agent(self) -> None:
        """Kills torchrun; its workers stay, as they do in real life."""
        self.signal(signal.SIGKILL)

    def kill(self) -> None:
        """Kills torchrun and its workers, like the crash of a machine."""
        self.may_end = True
        self._signal_all(signal.SIGKILL)

    def freeze(self) -> None:
        """Stops torchrun and its workers, like a machine that hangs."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        """Lets a frozen node continue."""
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: int) -> None:
        if self.code is not None:
            return
        agent = psutil.Process(self.pid)
        agent.send_signal(signal.SIGSTOP)  # so that it cannot start another worker
        for process in [*agent.children(recursive=True), agent]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)


class Job:
    """One run id. The arguments are torchrun's; `conf` is --rdzv-conf.

    A job with min < max whose tests start fewer than max nodes gives the option `target`,
    so that the first round waits for neither more nodes nor a lease.
    """

    def __init__(
        self,
        launcher: Launcher,
        folder: Path,
        nnodes: str = "2",
        *,
        run_id: str = "job",
        port: int | None = None,
        host: str = "127.0.0.1",
        endpoint: str | None = None,
        backend: str = "rallypoint",
        max_restarts: int = 0,
        nproc: int = 1,
        worker: Path = WORKER,
        conf: Mapping[str, object] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.nnodes = nnodes
        self.run_id = run_id
        self.port = free_port() if port is None else port
        self.host = host
        self.endpoint = endpoint or f"{host}:{self.port}"
        self.backend = backend
        self.max_restarts = max_restarts
        self.nproc = nproc
        self.worker = worker
        self.conf = dict(conf or {})
        self.env = dict(env or {})
        self.nodes: dict[str, Node] = {}
        self._launcher = launcher
        self._events: list[dict[str, object]] = []
        self._read = 0
        (folder / "orders").mkdir(parents=True)

    # Nodes.

    def start(
        self,
        *names: str,
        nnodes: str | None = None,
        run_id: str | None = None,
        conf: Mapping[str, object] | None = None,
        env: Mapping[str, str] | None = None,
        cold: bool = False,
        hook: Path | None = None,
        netns: str | None = None,
    ) -> None:
        """Starts nodes, all at once. `conf` and `env` are added to the job's.

        `cold`: as programs of their own, `python -m torch.distributed.run`, rather than
        forked from the launcher, which saves the import of torch. `hook`: a Python file
        that torchrun's process runs first (not cold). `netns`: their network namespace.
        """
        module: str | None = self._launcher.torchrun
        argv = self.arguments(nnodes=nnodes, run_id=run_id, conf=conf)
        if cold:
            argv = [PYTHON, "-m", self._launcher.torchrun, *argv]
            module = None
        for name in names:
            self.launch(name, argv, module=module, env=env, hook=hook, netns=netns)

    def arguments(
        self,
        *,
        nnodes: str | None = None,
        run_id: str | None = None,
        conf: Mapping[str, object] | None = None,
    ) -> list[str]:
        """torchrun's arguments."""
        options = ",".join(f"{k}={v}" for k, v in {**self.conf, **(conf or {})}.items())
        return [
            f"--nnodes={nnodes or self.nnodes}",
            f"--nproc-per-node={self.nproc}",
            f"--rdzv-backend={self.backend}",
            f"--rdzv-endpoint={self.endpoint}",
            f"--rdzv-id={run_id or self.run_id}",
            f"--max-restarts={self.max_restarts}",
            *([f"--rdzv-conf={options}"] if options else []),
            str(self.worker),
        ]

    def launch(
        self,
        name: str,
        argv: Sequence[str],
        *,
        module: str | None = None,
        env: Mapping[str, str] | None = None,
        hook: Path | None = None,
        netns: str | None = None,
    ) -> Node:
        """Starts any program as a node, or a Python module in a fork of the launcher."""
        log = self.folder / f"{name}.log"
        log.write_text(f"$ {' '.join(argv)}\n")
        child = self._launcher.start(
            argv=list(argv),
            module=module,
            log=str(log),
            hook=str(hook) if hook else None,
            netns=netns,
            env={
                **base_environment(),
                "RALLYPOINT_TEST_FOLDER": str(self.folder),
                "RALLYPOINT_TEST_NODE": name,
                "TMPDIR": str(self.folder),
                **self.env,
                **(env or {}),
            },
        )
        self.nodes[name] = node = Node(name, child, log, self._launcher)
        return node

    def await_listening(self, name: str) -> None:
        """Waits until a node listens at the endpoint."""
        node = self.nodes[name]
        self.wait(lambda: node.listens_on(self.port), f"{name} to listen on port {self.port}")

    # Workers.

    def events(self, event: str, node: str | None = None) -> list[dict[str, object]]:
        """What workers have reported so far, in order."""
        self._take_events()
        return [
            e for e in self._events if e["event"] == event and (node is None or e["node"] == node)
        ]

    def starts(self, node: str | None = None) -> list[Worker]:
        """Every start of a worker so far, in order."""
        fields = [f.name for f in dataclasses.fields(Worker)]
        return [Worker(**{f: e[f] for f in fields}) for e in self.events("start", node)]  # type: ignore[arg-type]

    def tell(self, worker: Worker, order: str) -> None:
        """Gives one worker an order (workers/worker.py)."""
        self._write_order(str(worker.pid), order)

    def tell_all(self, order: str) -> None:
        """Gives an order to every worker, also to those that will start later."""
        self._write_order("all", order)

    def _write_order(self, name: str, order: str) -> None:
        whole = self.folder / "orders" / f".{name}"
        whole.write_text(order)
        whole.rename(self.folder / "orders" / name)

    # Waiting.

    def wait(self, condition: Callable[[], T | None], what: str) -> T:
        """Returns the first true value of `condition`, which is asked again and again.

        Fails after LIMIT, and at once if a node ends that should not.
        """
        until = time.monotonic() + LIMIT
        while True:
            ended = [n for n in self.nodes.values() if not n.may_end and n.code is not None]
            if result := condition():
                return result
            if ended:
                names = ", ".join(f"{n.name} (exit code {n.code})" for n in ended)
                raise ScenarioError(f"ended before {what}: {names}")
            if time.monotonic() > until:
                raise ScenarioError(f"after {LIMIT:.0f} s still waiting for {what}")
            time.sleep(PAUSE)

    def pass_time(self, seconds: float) -> None:
        """Lets a time pass that is part of the scenario, such as a lease.

        Not for waiting until something has happened.
        """
        until = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() >= until, f"{seconds:g} s to pass")

    def await_round(self, *names: str, above: int = 0) -> Round:
        """Waits for a round of exactly these nodes whose number is greater than `above`.

        Checks what holds for every round: its workers agree on the number of workers and
        on the master, and have the ranks 0 to n-1, those of a node in a row.
        """
        wanted = sorted(name for name in names for _ in range(self.nproc))

        def complete() -> list[Worker] | None:
            started = self.starts()
            number = max((w.round for w in started), default=0)
            workers = [w for w in started if w.round == number]
            whole = number > above and sorted(w.node for w in workers) == wanted
            return workers if whole else None

        workers = self.wait(complete, f"a round of {', '.join(names)} above round {above}")
        workers.sort(key=lambda w: w.rank)
        assert [w.rank for w in workers] == list(range(len(wanted))), workers
        assert {w.world_size for w in workers} == {len(wanted)}, workers
        assert len({w.master for w in workers}) == 1, workers
        assert all(w.group_rank == w.rank // self.nproc for w in workers), workers
        return Round(workers[0].round, tuple(workers))

    def await_output(self, name: str, pattern: str) -> str:
        """Waits until a node prints a line with a match and returns the line."""
        node = self.nodes[name]
        return self.wait(lambda: next(iter(node.lines(pattern)), ""), f"{name}: /{pattern}/")

    def await_said(self, worker: Worker, text: str) -> None:
        """Has a worker answer, which shows that it lives."""
        self.tell(worker, f"say {text}")
        self.wait(
            lambda: any(e["pid"] == worker.pid and e["text"] == text for e in self.events("said")),
            f"{worker.node} to say {text!r}",
        )

    def await_end(self, *names: str) -> list[int]:
        """Waits until nodes have ended by themselves and returns their exit codes."""
        nodes = [self.nodes[name] for name in names]
        for node in nodes:
            node.may_end = True
        return self.wait(
            lambda: None if any(n.code is None for n in nodes) else [n.code or 0 for n in nodes],
            f"the end of {', '.join(names)}",
        )

    def finish(self, *names: str) -> None:
        """Lets all workers finish; the named nodes must end with exit code 0."""
        self.tell_all("finish")
        codes = self.await_end(*names)
        assert codes == [0] * len(names), dict(zip(names, codes))

    def close(self) -> None:
        """Kills the nodes that are left."""
        nodes = list(self.nodes.values())
        for node in nodes:
            node.kill()
        self.wait(lambda: all(n.code is not None for n in nodes), "the nodes to be gone")

    def report(self) -> Iterator[tuple[str, str]]:
        """Titles and texts that help to find out why a test failed."""
        self._take_events()
        yield f"events of {self.run_id}", "\n".join(map(str, self._events))
        for node in self.nodes.values():
            state = "runs" if node.code is None else f"exit code {node.code}"
            yield f"node {node.name} of {self.run_id} ({state})", node.tail()

    def _take_events(self) -> None:
        path = self.folder / "events.jsonl"
        if not path.exists():
            return
        with open(path, "rb") as f:
            f.seek(self._read)
            for line in f:
                if not line.endswith(b"\n"):
                    return
                self._read += len(line)
                self._events.append(json.loads(line))


class NewJob(Protocol):
    """Makes a Job (a fixture in conftest.py); the options are those of Job."""

    def __call__(self, nnodes: str = "2", **options: object) -> Job: ...


def base_environment() -> dict[str, str]:
    """The environment of the tests without what would change a node."""
    kept = {k: v for k, v in os.environ.items() if not FOREIGN.match(k)}
    return {
        **kept,
        "LOGLEVEL": "INFO",  # of torchrun
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",  # numpy's threads would not survive the launcher's fork
        "PYTHONUNBUFFERED": "1",
    }
