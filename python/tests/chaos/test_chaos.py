"""A job of ten nodes, each in a network namespace of its own, while much goes wrong.

Afterwards the guarantees of docs/design.md must hold on two histories: what the
control plane has recorded, through all that happened to it, and what workers wrote down
when they started. How the first is checked, guarantee by guarantee, says the comment of the
package conformance; `rallypoint-audit` does it. The second adds what nodes observe:

 1. The rounds in which a node starts workers grow. (check)
 2. Ranks and sizes that workers see. (check)
 3. All workers of a round see the same size and store. (check)
 4. Each start of a worker is a place that the control plane has given to its agent.
    (check_places)
 5. After each fault the job comes to a round of all nodes: no node waits for ever. (job)
 6. The same; members that were cut off are in it again.
 7. No agent stops its workers unless it has to regroup. (check_places)
 8. All agents end well, though they end one after the other. (job)
 9. A node that would join when the run is closed learns by whom and why. (job)
10. What the ranks must be follows from the recorded joins alone. (audit)
11. A node that wants another size is refused, and told what the run's is and on which
    address. (job)

Needs the right to make network namespaces; skipped without.
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
from chaos import checks, clock
from chaos.checks import check, check_places
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
        self.record = folder / "record"
        self.stop = folder / "stop"
        self.temp = folder / "tmp"
        self.temp.mkdir()
        self.home, self.address = network.machine()
        self.line, self.line_address = network.machine()
        self.homes = dict(network.machine() for _ in range(NODES))
        self.serve()
        self.proxy = self._spawn(
            self.line, sys.executable, str(HERE / "proxy.py"),
            self.line_address, str(PORT), self.address, log="proxy",
        )  # fmt: skip
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.starts = self.kills = 0

    def serve(self) -> None:
        """Starts the control plane, which continues from what it has stored."""
        self.server = self._spawn(
            self.home, str(RALLYPOINT), "serve", "--listen", f"{self.address}:{PORT}",
            "--data-dir", str(self.folder / "data"), "--record", str(self.record), log="server",
        )  # fmt: skip

    def start(self, home: str) -> None:
        """Starts the node that lives in a namespace."""
        self.nodes[home] = self.node(home)

    def node(self, home: str, least: int = LEAST) -> subprocess.Popen[bytes]:
        place = list(self.homes).index(home)
        slow, warm = place < SLOW, place % 2
        worker = ["--warm", str(HERE / "worker.py")]
        if not warm:
            worker = ["--no-python", "/bin/sh", str(HERE / "worker.sh")]
        self.starts += 1
        return self._spawn(
            home, str(RALLYPOINT), "run", f"--nnodes={least}:{NODES}",
            f"--rdzv-endpoint={self.line_address if slow else self.address}:{PORT}",
            "--rdzv-id=chaos", "--rdzv-conf=" + ",".join(f"{k}={v}" for k, v in SETTINGS.items()),
            f"--local-addr={self.homes[home]}", "--shutdown-timeout=2",
            *worker, str(self.history), str(self.stop),
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

    def held(self) -> tuple[int, int]:
        """The goroutines and descriptors of the control plane; many if it does not answer."""
        url = f"http://{self.address}:{PORT}/metrics"
        done = subprocess.run(
            ["ip", "netns", "exec", self.home, sys.executable, "-c",
             f"import urllib.request as r; print(r.urlopen({url!r}, timeout=10).read().decode())"],
            capture_output=True, text=True,
        )  # fmt: skip
        for line in done.stdout.splitlines():
            if line.startswith("go_goroutines "):
                return int(line.split()[1]), psutil.Process(self.server.pid).num_fds()
        return sys.maxsize, sys.maxsize

    def descriptors(self) -> dict[str, int]:
        """How many each agent has open."""
        return {home: psutil.Process(node.pid).num_fds() for home, node in self.nodes.items()}

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
        return checks.starts_in(self.history)

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
        fault = self.random.choice(self.kinds())
        self.let(fault, min(self.random.uniform(0.2, 6), max(0.2, until - time.monotonic())))

    def kinds(self) -> list[Callable[[float], None]]:
        kinds = [self.node_killed, self.node_stopped, self.link_down, self.one_way]
        kinds += [self.server_stopped, self.server_killed, self.template_killed]
        return kinds + [self.clock_moved] * clock.AVAILABLE

    def let(self, fault: Callable[[float], None], seconds: float) -> None:
        self.done[fault.__name__] += 1
        fault(seconds)

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

    def template_killed(self, seconds: float) -> None:
        """What a node's workers are forked from; the next ones have another."""
        for child in psutil.Process(self.chaos.nodes[self._home()].pid).children():
            with suppress(psutil.NoSuchProcess, OSError):
                held = child.environ().get("RALLYPOINT_TEMPLATE") == "hold"
                if held and os.readlink(f"/proc/{child.pid}/fd/1") == os.devnull:  # no worker
                    child.kill()

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

    def clock_moved(self, seconds: float) -> None:
        """A node's time of day is an hour ahead, or behind, and then right again."""
        moved = clock.Clock(self.chaos.nodes[self._home()].pid)
        moved.move(self.random.choice([3600, -3600]))
        time.sleep(seconds)
        moved.mend()

    def server_killed(self, seconds: float) -> None:
        self.chaos.server.kill()
        self.chaos.server.wait()
        time.sleep(self.random.uniform(0, seconds))
        self.chaos.serve()

    def server_stopped(self, seconds: float) -> None:
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


def settled(chaos: Chaos) -> dict[str, int]:
    """How many descriptors each agent has open once that has been the same for five looks: a
    node of a whole round may still be on its way to the round's store."""
    looks: list[dict[str, int]] = []

    def steady() -> bool:
        looks.append(chaos.descriptors())
        return len(looks) >= 5 and all(look == looks[-1] for look in looks[-5:])

    await_true(chaos, "the nodes open no more connections", steady)
    return looks[-1]


def audit(chaos: Chaos) -> None:
    """Holds what the control plane has recorded against the guarantees."""
    try:
        checks.audit(chaos.record)
    except AssertionError:
        if keep := os.environ.get("RALLYPOINT_CHAOS_KEEP"):
            shutil.copy(chaos.record, Path(keep) / "record")
        raise


def check_refused(chaos: Chaos, home: str, *words: str, least: int = LEAST, code: int = 1) -> None:
    """A node more, beside a job that runs, is refused and says why."""
    stranger = chaos.node(home, least)
    try:
        ended = stranger.wait(PATIENCE)
    finally:
        stranger.kill()
        stranger.wait()
    said = _log(chaos, f"node-{home.rsplit('-', 1)[1]}").decode()
    assert ended == code, said
    for word in 'run "chaos"', *words:
        assert word in said, f"{word} is not in {said}"


def close(chaos: Chaos, reason: str) -> None:
    """No node joins any more; the round continues."""
    subprocess.run(
        ["ip", "netns", "exec", chaos.home, str(RALLYPOINT), "admin", "close",
         f"{chaos.address}:{PORT}", "--rdzv-id=chaos", f"--reason={reason}"],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip


@contextmanager
def job(chaos: Chaos) -> Iterator[None]:
    """A job whose nodes have met; when the block ends everything works again, and the
    nodes must meet, finish well and leave nothing behind."""
    await_true(chaos, "the proxy listens", lambda: b"ready" in _log(chaos, "proxy"))
    await_true(chaos, "the server listens", lambda: b"listening" in _log(chaos, "server"))
    before = chaos.held()
    for home in chaos.homes:
        chaos.start(home)
    await_true(chaos, "all nodes are together", chaos.together)
    guest = next(iter(chaos.homes))
    check_refused(
        chaos, guest, f"nnodes={LEAST}:{NODES}", f"nnodes={LEAST + 1}:{NODES}", least=LEAST + 1,
        code=2,
    )  # fmt: skip
    first = settled(chaos)
    yield
    await_true(chaos, "all nodes are together again", chaos.together)
    # Who has rank 0 has the round's store. A descriptor left in each of many rounds shows. An
    # agent that tries whether the store can be reached holds one more for some seconds.
    most = max(first.values()) + 3
    await_true(
        chaos, f"no agent has more than {most} descriptors",
        lambda: max(chaos.descriptors().values()) <= most,
    )  # fmt: skip
    close(chaos, "enough went wrong")
    check_refused(chaos, guest, "is closed", "closed by", "enough went wrong")
    chaos.stop.touch()
    for home, node in chaos.nodes.items():
        try:
            code = node.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{home} does not end\n{chaos.tail()}")
        # Under load a node can be lost just before the run is closed: the others have left
        # the round by then, and may not come back.
        assert code == 0 or (code == 1 and _left_to_regroup(chaos, home)), (
            f"{home} ends with {code}\n{chaos.tail()}"
        )
    check(chaos.starts_of(), LEAST, NODES)
    await_true(
        chaos, "no goroutine and no descriptor is left",
        lambda: all(now <= then for now, then in zip(chaos.held(), before, strict=True)),
    )  # fmt: skip
    left = [p for p in psutil.process_iter(["environ"]) if _ours(p, chaos)]
    assert {p.pid for p in left} <= {chaos.server.pid, chaos.proxy.pid}, f"left over: {left}"
    chaos.server.terminate()
    assert chaos.server.wait(PATIENCE) == 0, chaos.tail()
    audit(chaos)
    check_places(chaos.starts_of(), chaos.record.read_text().splitlines())
    # Who was killed could not tidy up.
    assert len(list(chaos.temp.iterdir())) <= chaos.kills, "files are left over"


def _log(chaos: Chaos, name: str) -> bytes:
    return (chaos.folder / f"{name}.log").read_bytes()


def _left_to_regroup(chaos: Chaos, home: str) -> bool:
    """Whether a node stopped its workers for the next round, and learned that there is none."""
    log = _log(chaos, f"node-{home.rsplit('-', 1)[1]}")
    after = log.rpartition(b"started a worker")[2]
    return b"stopping the workers: " in after and b"is closed" in after


def _ours(process: psutil.Process, chaos: Chaos) -> bool:
    return (process.info["environ"] or {}).get("TMPDIR") == str(chaos.temp)


def go_wrong(faults: Faults, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        faults.any(until)
        time.sleep(faults.random.uniform(0, 2))


@contextmanager
def seeded(chaos: Chaos) -> Iterator[Faults]:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    faults = Faults(chaos, random.Random(seed))
    yield faults
    starts = chaos.starts_of()
    rounds = len({start[1] for start in starts})
    print(f"{dict(faults.done)}, {rounds} rounds, {len(starts)} starts of workers")


def test_chaos_for_a_while(chaos: Chaos) -> None:
    with job(chaos), seeded(chaos) as faults:
        # Long enough for the nodes to notice and to try again, in vain.
        faults.let(faults.server_stopped, 3 * LEASE)
        for fault in faults.server_killed, faults.node_killed, faults.link_down:
            faults.let(fault, 1)
        go_wrong(faults, 7)


@pytest.mark.long
def test_chaos_for_three_minutes(chaos: Chaos) -> None:
    with job(chaos), seeded(chaos) as faults:
        for fault in faults.random.sample(faults.kinds(), len(faults.kinds())):
            faults.let(fault, 3)
            time.sleep(faults.random.uniform(0, 2))
        go_wrong(faults, 50)
        faults.let(faults.server_stopped, 30)
        go_wrong(faults, 70)


@pytest.mark.skipif(not clock.AVAILABLE, reason="clocks are moved on x86-64 only")
def test_a_clock_can_be_moved() -> None:
    """Else the chaos would prove nothing about clocks: a program in Python and the library
    in it, in Go, both see the other time, and both see the time between two events."""
    script = (
        "import sys, time, rallypoint\n"
        "for _ in sys.stdin: print(time.time(), time.monotonic(), flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask() -> tuple[float, float]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            wall, monotonic = (float(word) for word in process.stdout.readline().split())
            return wall - time.time(), monotonic - time.monotonic()

        ask()  # it has started
        try:
            moved = clock.Clock(process.pid)
        except PermissionError as e:
            process.kill()
            pytest.skip(f"processes cannot be debugged: {e}")
        for offset in 3600, -3600:
            moved.move(offset)
            wall, monotonic = ask()
            assert abs(wall - offset) < 60
            assert abs(monotonic) < 60
        moved.mend()
        assert abs(ask()[0]) < 60
        process.stdin.close()
