"""Nodes that are processes: interrupted, killed, stopped, forked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

from handler.harness import PATIENCE, Run, listens
from harness import until

NODE = """
import os, signal, sys, time
from torch.distributed.elastic.rendezvous import RendezvousParameters
from rallypoint.handler import create_handler

def make(**config):
    settings = dict(last_call_timeout=0.2, lease_timeout=2, join_timeout=100)
    return create_handler(RendezvousParameters(
        "rallypoint", sys.argv[1], "the-run", int(sys.argv[2]), 2, None, **{**settings, **config}))

print("loaded")
"""


class Process:
    """A node in an interpreter of its own, whose lines can be awaited."""

    def __init__(self, run: Run, min_nodes: int, code: str) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-u",
                "-c",
                NODE + textwrap.dedent(code),
                run.endpoint,
                str(min_nodes),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def tell(self) -> None:
        """Lets the process that reads a line continue."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def await_line(self, line: str) -> float:
        """Waits until it prints the line; the time when it did."""
        assert self.process.stdout is not None
        for got in self.process.stdout:
            if got.strip() == line:
                return time.monotonic()
        raise AssertionError(f"it ended without {line!r}: {self.process.communicate()[1]}")

    def end(self) -> tuple[int, str]:
        """Waits for its end: the exit code and what it wrote to stderr."""
        _, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, err

    def __enter__(self) -> Process:
        """Awaits that it has loaded torch: no time of a test begins before."""
        try:
            self.await_line("loaded")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


class TestProcesses:
    def test_interrupt(self, run: Run) -> None:
        """Ctrl-C is answered within 0.1 s; the node withdraws and may join again."""
        code = """
            import threading
            handler = make()
            def interrupt():
                global sent
                time.sleep(0.5)
                sent = time.monotonic()
                os.kill(os.getpid(), signal.SIGINT)
            for i in range(2):
                threading.Thread(target=interrupt).start()
                try:
                    handler.next_rendezvous()
                except KeyboardInterrupt:
                    took = time.monotonic() - sent
                    assert took < 0.1, took
                    print("interrupted")
            info = handler.next_rendezvous()
            print(info.world_size)
            handler.shutdown()
            """
        with Process(run, 2, code) as node:
            node.await_line("interrupted")
            node.await_line("interrupted")
            other = run.handler(2, 2)
            [info] = run.round(other)
            assert info.world_size == 2
            node.await_line("2")
            assert other.shutdown()
            assert node.end()[0] == 0

    def test_exit_without_shutdown(self, run: Run) -> None:
        """As after a signal: the others learn it at once, not after the grace."""
        code = """
            sys.stdin.readline()
            handler = make()
            handler.next_rendezvous()
            print("in")
            """
        with Process(run, 2, code) as node:
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

    def test_killed(self, run: Run) -> None:
        code = """
            sys.stdin.readline()
            handler = make()
            handler.next_rendezvous()
            print("in")
            time.sleep(100)
            """
        with Process(run, 2, code) as node:
            handler = run.handler(2, 2)
            [joining] = run.join(handler)
            until(lambda: listens(run.endpoint))  # it hosts
            node.tell()
            node.await_line("in")
            joining.result(PATIENCE)
            node.process.kill()
            until(lambda: handler.num_nodes_waiting() > 0)
            assert "connection closed" in handler._member.reason()  # after the grace
            handler.shutdown()

    def test_stopped_by_sigterm(self, run: Run) -> None:
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
        with Process(run, 2, code) as node:
            node.await_line("ready")
            until(lambda: listens(run.endpoint))
            node.process.send_signal(signal.SIGTERM)
            node.await_line("stopped")
            assert node.end()[0] == 0

    def test_fork(self, run: Run) -> None:
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
        with Process(run, 1, code) as node:
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
