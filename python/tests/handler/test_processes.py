"""Nodes that are processes: interrupted, killed, stopped, forked."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator

import pytest
from handler.harness import PATIENCE, Run, listens
from harness import until

# An interpreter that imports torch once, and forks each node: that has the streams that come with
# its code. The library is not loaded before. One node at a time runs.
TEMPLATE = """
import json, os, signal, socket, sys, time
from torch.distributed.elastic.rendezvous import RendezvousParameters
from rallypoint.handler import create_handler

def make(**config):
    settings = dict(last_call_timeout=0.2, lease_timeout=2, join_timeout=100)
    return create_handler(RendezvousParameters(
        "rallypoint", endpoint, "the-run", min_nodes, 2, None, **{**settings, **config}))

assert "librallypoint" not in open("/proc/self/maps").read()
control = socket.socket(fileno=int(sys.argv[1]))
while True:
    request, streams, _, _ = socket.recv_fds(control, 1 << 16, 3)
    if not request:
        sys.exit()
    pid = os.fork()
    if not pid:
        break
    for stream in streams:
        os.close(stream)
    control.send(b"%d" % pid)
    control.recv(1)  # the pid is the node's until then
    control.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
control.close()
for target, stream in enumerate(streams):
    os.dup2(stream, target)
    os.close(stream)
endpoint, min_nodes, code = json.loads(request)
exec(code)
"""


@pytest.fixture(scope="module")
def template() -> Iterator[socket.socket]:
    """The connection to a process that runs TEMPLATE."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", TEMPLATE, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        ours.settimeout(PATIENCE)
        yield ours
    assert process.wait(PATIENCE) == 0


class Process:
    """A node in a process of its own, whose lines can be awaited."""

    def __init__(self, template: socket.socket, run: Run, min_nodes: int, code: str) -> None:
        pipes = [os.pipe() for _ in range(3)]
        (stdin, self._stdin), (out, stdout), (err, stderr) = pipes
        self._out, self._err = os.fdopen(out), os.fdopen(err)
        request = json.dumps([run.endpoint, min_nodes, textwrap.dedent(code)]).encode()
        socket.send_fds(template, [request], [stdin, stdout, stderr])
        for stream in (stdin, stdout, stderr):
            os.close(stream)
        self.pid = int(template.recv(100))
        self._template = template
        self._code: int | None = None

    def tell(self) -> None:
        """Lets the process that reads a line continue."""
        os.write(self._stdin, b"\n")

    def await_line(self, line: str) -> float:
        """Waits until it prints the line; the time when it did."""
        for got in self._out:
            if got.strip() == line:
                return time.monotonic()
        raise AssertionError(f"it ended without {line!r}: {self._err.read()}")

    def end(self) -> tuple[int, str]:
        """Waits for its end: the exit code and what it wrote to stderr."""
        if self._code is None:
            self._template.send(b".")
            self._code = int(self._template.recv(100))
        return self._code, self._err.read()

    def kill(self) -> None:
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.end()
        os.close(self._stdin)
        self._out.close()
        self._err.close()


class TestProcesses:
    def test_interrupt(self, template: socket.socket, run: Run) -> None:
        """Ctrl-C ends the wait; the node withdraws and may join again."""
        code = """
            import threading, traceback
            handler = make()
            main = threading.get_ident()
            def interrupt():
                frames = sys._current_frames
                while "_await_place" not in str(traceback.extract_stack(frames()[main])):
                    time.sleep(0.01)
                os.kill(os.getpid(), signal.SIGINT)
            for i in range(2):
                threading.Thread(target=interrupt).start()
                try:
                    handler.next_rendezvous()
                except KeyboardInterrupt:
                    print("interrupted")
            info = handler.next_rendezvous()
            print(info.world_size)
            handler.shutdown()
            """
        with Process(template, run, 2, code) as node:
            node.await_line("interrupted")
            node.await_line("interrupted")
            other = run.handler(2, 2)
            [info] = run.round(other)
            assert info.world_size == 2
            node.await_line("2")
            assert other.shutdown()
            assert node.end()[0] == 0

    def test_exit_without_shutdown(self, template: socket.socket, run: Run) -> None:
        """As after a signal: the others learn it at once, not after the grace."""
        code = """
            sys.stdin.readline()
            handler = make()
            handler.next_rendezvous()
            print("in")
            """
        with Process(template, run, 2, code) as node:
            handler = run.handler(2, 2)
            [joining] = run.join(handler)
            until(lambda: listens(run.endpoint))  # it hosts
            node.tell()
            node.await_line("in")
            joining.result(PATIENCE)
            until(lambda: handler.num_nodes_waiting() > 0)
            assert "left: its process exited" in handler._member.reason()
            assert not handler.is_closed()
            assert node.end()[0] == 0

    def test_killed(self, template: socket.socket, run: Run) -> None:
        code = """
            sys.stdin.readline()
            handler = make()
            handler.next_rendezvous()
            print("in")
            time.sleep(100)
            """
        with Process(template, run, 2, code) as node:
            handler = run.handler(2, 2)
            [joining] = run.join(handler)
            until(lambda: listens(run.endpoint))  # it hosts
            node.tell()
            node.await_line("in")
            joining.result(PATIENCE)
            node.kill()
            until(lambda: handler.num_nodes_waiting() > 0)
            assert "connection closed" in handler._member.reason()  # after the grace
            handler.shutdown()

    def test_stopped_by_sigterm(self, template: socket.socket, run: Run) -> None:
        """torch's agent turns SIGTERM into an exception; next_rendezvous lets it out."""
        code = """
            class Stop(BaseException): pass
            def stop(number, frame):
                raise Stop
            signal.signal(signal.SIGTERM, stop)
            print("ready")
            try:
                make().next_rendezvous()
            except Stop:
                print("stopped")
            """
        with Process(template, run, 2, code) as node:
            node.await_line("ready")
            until(lambda: listens(run.endpoint))
            os.kill(node.pid, signal.SIGTERM)
            node.await_line("stopped")
            assert node.end()[0] == 0

    def test_fork(self, template: socket.socket, run: Run) -> None:
        """A forked child's handler raises; the parent's continues."""
        code = """
            handler = make()
            handler.next_rendezvous()
            pid = os.fork()
            if pid == 0:
                signal.alarm(10)
                import rallypoint
                for call in (handler.num_nodes_waiting, handler.next_rendezvous):
                    try:
                        call()
                    except rallypoint.ForkedError:
                        pass
                    except rallypoint.RallypointError as e:
                        assert e.code == rallypoint.Code.FORKED
                    else:
                        raise AssertionError
                sys.exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
            assert handler.num_nodes_waiting() == 0
            assert handler.shutdown() is True
            """
        with Process(template, run, 1, code) as node:
            code, err = node.end()
            assert code == 0, err


def test_threads_are_gone_after_close(run: Run) -> None:
    """No thread of the library is busy for a member that was closed."""
    handler = run.handler(1, 1)
    run.round(handler)
    handler.shutdown()
    handler._member.close()

    def cpu() -> float:
        t = os.times()
        return t.user + t.system

    begin = cpu()
    threading.Event().wait(0.5)
    assert cpu() - begin < 0.1
