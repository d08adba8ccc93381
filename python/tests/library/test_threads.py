"""Many threads over one library, and Python without a global lock where there is one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import REPOSITORY
from harness import free_port

import rallypoint
from rallypoint._native import library

TESTS = REPOSITORY / "packaging" / "tests"


def test_many_threads() -> None:
    """What `make test-free-threaded` runs, in this interpreter."""
    command = [sys.executable, TESTS / "threads.py", f"127.0.0.1:{free_port()}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_it_says_why_it_is_skipped() -> None:
    """And that an interpreter with a lock is none of those that it wants."""
    env = {name: value for name, value in os.environ.items() if name != "FREE_THREADED"}
    env |= {"PATH": "/usr/bin:/bin", "PYENV_ROOT": "/none"}
    wheel = next((REPOSITORY / "dist").glob("rallypoint-*.whl"), TESTS / "threads.py")
    command = [TESTS / "free-threaded", wheel]
    named = subprocess.run(
        command,
        env={**env, "FREE_THREADED": sys.executable},
        capture_output=True,
        text=True,
        timeout=60,
    )
    if named.returncode == 0:  # there is one all the same
        return
    assert "is no free-threaded Python" in named.stderr
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr.startswith("skipped: "), done.stderr


class Calls(list[str]):
    """The functions of the library that were called, and whether a node has asked for its place."""

    def __init__(self, call: Callable[..., int]) -> None:
        self.call, self.asked = call, threading.Event()

    def __call__(self, name: str, *args: object) -> int:
        self.append(name)
        try:
            return self.call(name, *args)
        finally:
            if name == "rp_member_next":
                self.asked.set()

    def once_asked(self, end: Callable[[], object]) -> threading.Thread:
        """A thread that ends a join when there is one: before, there is nothing to end."""

        def wait() -> None:
            assert self.asked.wait(60)
            end()

        thread = threading.Thread(target=wait)
        thread.start()
        return thread


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    seen = Calls(library.call)
    monkeypatch.setattr(library, "call", seen)
    return seen


def test_node_at_rest(calls: Calls) -> None:
    """One that waits for its place, as a spare may for days, waits for events."""
    with waiting_member() as member:

        def end() -> None:
            time.sleep(1)  # what is tested
            member.cancel()

        ends = calls.once_asked(end)
        with pytest.raises(rallypoint.CanceledError):
            member.next()
        ends.join()
    assert calls.count("rp_member_next") < 10, calls


@pytest.mark.parametrize("end", ["cancel", "shutdown", "close"])
def test_another_thread_ends_the_wait_for_a_place(end: str, calls: Calls) -> None:
    member = waiting_member()
    ends = calls.once_asked(getattr(member, end))
    # A member that was shut down before the join, which is asked for, has begun is a closed one.
    with pytest.raises((rallypoint.CanceledError, rallypoint.ClosedError)):
        member.next()
    ends.join()
    member.close()


class Announced:
    """A lock that tells when somebody wants it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.wanted = threading.Semaphore(0)

    def __enter__(self) -> None:
        self.wanted.release()
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def in_two_threads(
    member: rallypoint.Member, end: Callable[[], object], calls: Calls
) -> list[object]:
    """What next() comes to in each of two threads that call it at once, before `end`."""
    results: list[object] = []

    def wait() -> None:
        try:
            results.append(member.next())
        except rallypoint.RallypointError as error:
            results.append(error)

    lock = member._next = Announced()  # type: ignore[assignment]
    threads = [threading.Thread(target=wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert lock.wanted.acquire(timeout=30)
    assert calls.asked.wait(30)
    end()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return results


def test_two_threads_wait_for_the_same_join(calls: Calls) -> None:
    """The second one does not leave the round that the first has just reached."""
    with waiting_member() as first, other_member(first.endpoint) as second:
        other = threading.Thread(target=second.next)
        one, two = in_two_threads(first, other.start, calls)
        other.join(60)
        assert isinstance(one, rallypoint.Outcome) and one == two and one.round == 1
        assert second.nodes_waiting() == 0
        with ThreadPoolExecutor() as pool:  # the one that hosts waits for the other
            list(pool.map(lambda m: m.shutdown(rallypoint.Ending.LEAVE), (first, second)))
    calls.asked.clear()
    with waiting_member() as member:
        one, two = in_two_threads(member, member.cancel, calls)
        for error in (one, two):
            assert isinstance(error, rallypoint.CanceledError), error
            assert error.code == rallypoint.Code.CANCELED
        assert one is not two


def other_member(endpoint: str) -> rallypoint.Member:
    return rallypoint.Member("run", endpoint, 2, 2, options={"node_id": "other"})


def waiting_member() -> rallypoint.Member:
    """One of two nodes, of which the other never comes."""
    return rallypoint.Member("run", f"127.0.0.1:{free_port()}", min_nodes=2, max_nodes=2)
