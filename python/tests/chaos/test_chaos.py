"""A job of ten nodes, each in a network namespace of its own, while much goes wrong.

What workers write down when they start is the history that docs/design.md's promises
are held against. Needs the right to make network namespaces; skipped without.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from torchrun.test_partitions import Network, ip

HERE = Path(__file__).parent
RALLYPOINT = Path(sys.executable).with_name("rallypoint")

NODES, LEAST = 10, 3
SLOW = 2  # nodes whose way to the control plane is slow and lossy
PORT = 29400
LEASE = 3.0
PATIENCE = 90.0

SETTINGS = {
    "lease_timeout": LEASE,
    "reconnect_grace": 1,
    "last_call_timeout": 3,
    "quiet_period": 1,
    "admit_delay": 0.5,
    "regroup_timeout": 15,
    "join_timeout": 300,
}


class Chaos:
    def __init__(self, network: Network, folder: Path) -> None:
        self.network = network
        self.folder = folder
        self.history = folder / "history"
        self.history.touch()
        self.stop = folder / "stop"
        self.temp = folder / "tmp"
        self.temp.mkdir()
        self.home, self.address = network.machine()
        self.line, self.line_address = network.machine()
        self.homes = dict(network.machine() for _ in range(NODES))
        self.server = self._spawn(
            self.home, str(RALLYPOINT), "serve", "--listen", f"{self.address}:{PORT}", log="server"
        )
        self.proxy = self._spawn(
            self.line, sys.executable, str(HERE / "proxy.py"),
            self.line_address, str(PORT), self.address, log="proxy",
        )  # fmt: skip
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.starts = self.kills = 0

    def start(self, home: str) -> None:
        """Starts the node that lives in a namespace."""
        slow = list(self.homes).index(home) < SLOW
        self.starts += 1
        self.nodes[home] = self._spawn(
            home, str(RALLYPOINT), "run", f"--nnodes={LEAST}:{NODES}",
            f"--rdzv-endpoint={self.line_address if slow else self.address}:{PORT}",
            "--rdzv-id=chaos", "--rdzv-conf=" + ",".join(f"{k}={v}" for k, v in SETTINGS.items()),
            f"--local-addr={self.homes[home]}", "--no-python", "--shutdown-timeout=2",
            "/bin/sh", str(HERE / "worker.sh"), str(self.history), str(self.stop),
            log=f"node-{home.rsplit('-', 1)[1]}", name=f"{home}#{self.starts}",
        )  # fmt: skip

    def kill(self, home: str) -> None:
        """Ends a node without a word, with all that it has started."""
        self.kills += 1
        node = self.nodes.pop(home)
        family = [psutil.Process(node.pid), *psutil.Process(node.pid).children(recursive=True)]
        for act in psutil.Process.suspend, psutil.Process.kill:
            for process in family:
                with suppress(psutil.NoSuchProcess):  # a worker's own child, which has ended
                    act(process)
        node.wait()

    def _spawn(
        self, namespace: str, *command: str, log: str, name: str = ""
    ) -> subprocess.Popen[bytes]:
        env = {**os.environ, "TMPDIR": str(self.temp), "NODE_NAME": name, "LOGLEVEL": "INFO"}
        env.pop("RALLYPOINT_TOKEN_FILE", None)
        with (self.folder / f"{log}.log").open("ab") as out:
            return subprocess.Popen(
                ["ip", "netns", "exec", namespace, *command],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, start_new_session=True,
            )  # fmt: skip

    def status(self) -> dict[str, object]:
        """What the control plane says of the run; {} if it says nothing."""
        done = subprocess.run(
            ["ip", "netns", "exec", self.home, str(RALLYPOINT), "status",
             f"{self.address}:{PORT}", "--rdzv-id=chaos", "--json"],
            capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            return {}
        run: dict[str, object] = json.loads(done.stdout)["runs"][0]
        return run

    def starts_of(self) -> list[list[str]]:
        return [line.split() for line in self.history.read_text().splitlines()]

    def together(self) -> bool:
        """Whether the last round is one of all nodes, and they have all started in it."""
        starts = self.starts_of()
        last = max((int(s[1]) for s in starts), default=0)
        return len([s for s in starts if int(s[1]) == last]) == NODES and self._at_rest()

    def _at_rest(self) -> bool:
        run = self.status()
        return run.get("phase") == "running" and not run.get("waiting")

    def tail(self) -> str:
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {log.name}\n" + log.read_text()[-1500:] for log in logs)

    def end(self) -> None:
        for node in list(self.nodes):
            if self.nodes[node].poll() is None:
                self.kill(node)
        for process in self.server, self.proxy:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()


class Faults:
    """What can go wrong; each method lets one thing go wrong, and then mends it."""

    def __init__(self, chaos: Chaos, random: random.Random) -> None:
        self.chaos, self.random = chaos, random
        self.done: dict[str, int] = defaultdict(int)

    def any(self, until: float) -> None:
        kinds = [self.node_killed, self.node_stopped, self.link_down, self.one_way]
        kinds += [self.server_stopped]
        fault = self.random.choice(kinds)
        self.done[fault.__name__] += 1
        fault(min(self.random.uniform(0.2, 6), max(0.2, until - time.monotonic())))

    def _home(self) -> str:
        return self.random.choice(list(self.chaos.nodes))

    def node_killed(self, seconds: float) -> None:
        home = self._home()
        self.chaos.kill(home)
        time.sleep(self.random.uniform(0, seconds))
        self.chaos.start(home)

    def node_stopped(self, seconds: float) -> None:
        agent = psutil.Process(self.chaos.nodes[self._home()].pid)
        agent.suspend()
        time.sleep(seconds)
        agent.resume()

    def link_down(self, seconds: float) -> None:
        home = self._home()
        self.chaos.network.cut(home)
        time.sleep(seconds)
        self.chaos.network.mend(home)

    def one_way(self, seconds: float) -> None:
        """The control plane's packets to a node go astray; the node's arrive."""
        chaos = self.chaos
        address = chaos.homes[self._home()]
        ip("-n", chaos.home, "neigh", "replace", address, "lladdr", "02:00:00:00:00:01",
           "dev", "eth0", "nud", "permanent")  # fmt: skip
        time.sleep(seconds)
        ip("-n", chaos.home, "neigh", "del", address, "dev", "eth0")

    def server_stopped(self, seconds: float = 3) -> None:
        self.chaos.server.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.chaos.server.send_signal(signal.SIGCONT)


@pytest.fixture
def chaos(tmp_path: Path) -> Iterator[Chaos]:
    if shutil.which("ip") is None:
        pytest.skip("no network namespaces: there is no command `ip`")
    try:
        network = Network()
    except OSError as e:
        pytest.skip(f"no network namespaces: {e}")
    try:
        made = Chaos(network, tmp_path)
        try:
            yield made
        finally:
            made.end()
    finally:
        network.close()


def await_true(chaos: Chaos, what: str, holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        ended = [home for home, node in chaos.nodes.items() if node.poll() is not None]
        if ended and not chaos.stop.exists():
            pytest.fail(f"{ended} ended while waiting until {what}\n{chaos.tail()}")
        if time.monotonic() > deadline:
            pytest.fail(f"not within {PATIENCE:.0f} s: {what}\n{chaos.status()}\n{chaos.tail()}")
        time.sleep(0.2)


def descriptors(process: subprocess.Popen[bytes]) -> int:
    return psutil.Process(process.pid).num_fds()


def check(history: list[list[str]]) -> None:
    """Holds what the workers have written down against the promises 1 to 4."""
    rounds: dict[int, list[list[str]]] = defaultdict(list)
    last: dict[str, int] = {}
    for start in history:
        name, number = start[0], int(start[1])
        assert number > last.get(name, 0), f"{name} went from round {last[name]} to {number}"
        last[name] = number
        rounds[number].append(start)
    for number, starts in sorted(rounds.items()):
        worlds = {s[4] for s in starts}
        assert len(worlds) == 1, f"round {number} has several sizes: {starts}"
        world = int(worlds.pop())
        assert LEAST <= world <= NODES, f"round {number} has {world} nodes"
        ranks = [int(s[3]) for s in starts]
        assert len(set(ranks)) == len(ranks), f"round {number} has a rank twice: {starts}"
        assert all(0 <= rank < world for rank in ranks), f"round {number}: {starts}"
        assert all(s[2] == s[3] for s in starts), f"round {number}: {starts}"
        assert len({s[5] for s in starts}) == 1, f"round {number} has several stores: {starts}"


@contextmanager
def job(chaos: Chaos) -> Iterator[None]:
    """A job whose nodes have met; when the block ends everything works again, and the
    nodes must meet, finish well and leave nothing behind."""
    await_true(chaos, "the proxy listens", lambda: b"ready" in _log(chaos, "proxy"))
    await_true(chaos, "the server listens", lambda: b"listening" in _log(chaos, "server"))
    before = descriptors(chaos.server)
    for home in chaos.homes:
        chaos.start(home)
    await_true(chaos, "all nodes are together", chaos.together)
    yield
    await_true(chaos, "all nodes are together again", chaos.together)
    chaos.stop.touch()
    for home, node in chaos.nodes.items():
        try:
            code = node.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{home} does not end\n{chaos.tail()}")
        assert code == 0, f"{home} ends with {code}\n{chaos.tail()}"
    check(chaos.starts_of())
    await_true(chaos, "no descriptor is left", lambda: descriptors(chaos.server) <= before)
    left = [p for p in psutil.process_iter(["environ"]) if _ours(p, chaos)]
    assert {p.pid for p in left} <= {chaos.server.pid, chaos.proxy.pid}, f"left over: {left}"
    chaos.server.terminate()
    assert chaos.server.wait(PATIENCE) == 0, chaos.tail()
    # Who was killed could not tidy up.
    assert len(list(chaos.temp.iterdir())) <= chaos.kills, "files are left over"


def _log(chaos: Chaos, name: str) -> bytes:
    return (chaos.folder / f"{name}.log").read_bytes()


def _ours(process: psutil.Process, chaos: Chaos) -> bool:
    return (process.info["environ"] or {}).get("TMPDIR") == str(chaos.temp)


def go_wrong(chaos: Chaos, seconds: float, seed: int) -> None:
    faults = Faults(chaos, random.Random(seed))
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        faults.any(until)
        time.sleep(faults.random.uniform(0, 2))
    print(f"seed {seed}: {dict(faults.done)}, {len(chaos.starts_of())} starts of workers")


def test_chaos_for_a_while(chaos: Chaos) -> None:
    with job(chaos):
        # Long enough for the nodes to notice and to try anew, in vain.
        Faults(chaos, random.Random()).server_stopped(3 * LEASE)
        go_wrong(chaos, 9, random.randrange(1 << 30))


@pytest.mark.long
def test_chaos_for_three_minutes(chaos: Chaos) -> None:
    with job(chaos):
        seed = random.randrange(1 << 30)
        go_wrong(chaos, 70, seed)
        Faults(chaos, random.Random()).server_stopped(30)
        go_wrong(chaos, 80, seed + 1)
