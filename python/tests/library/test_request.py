"""Calls into the library, whose memory is kept and used again."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rallypoint import (
    Code,
    DeadlineError,
    FileStore,
    HashStore,
    InvalidError,
    Member,
    PrefixStore,
    RallypointError,
    Store,
    StoreServer,
    connect_store,
)
from rallypoint._native import library
from rallypoint._stores.request import _SLICE


@pytest.fixture(params=["HashStore", "FileStore", "PrefixStore", "StoreServer"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with HashStore() as below, StoreServer("127.0.0.1") as server:
        opened = {
            "HashStore": lambda: below,
            "FileStore": lambda: FileStore(tmp_path / "store", timeout=20),
            "PrefixStore": lambda: PrefixStore("p", below),
            "StoreServer": lambda: connect_store("127.0.0.1", server.port),
        }[request.param]()
        with opened:
            opened.timeout = 20
            yield opened


def test_threads_get_their_own_answers(store: Store) -> None:
    def work(i: int) -> None:
        for n in range(300):
            text = f"{i}.{n}" * (n % 7)
            store.set(f"k{i}", text)
            assert store.get(f"k{i}") == text.encode()
            assert store.add(f"n{i}", i) == i * (n + 1)
            assert store.multi_get([f"k{i}", f"n{i}"]) == [text.encode(), b"%d" % (i * (n + 1))]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_a_handler_of_a_signal_may_call(run_python) -> None:  # type: ignore[no-untyped-def]
    """Between any two steps of a call another one is made, on the same thread."""
    run_python(
        """
        import signal, tempfile
        from rallypoint import FileStore
        with tempfile.TemporaryDirectory() as folder, FileStore(folder + "/store") as store:
            ticks = 0
            def tick(number, frame):
                global ticks
                ticks += 1
                store.set("signal", "s" * 1000)
                assert store.add("ticks", 1) == ticks
                assert store.get("signal") == b"s" * 1000
                signal.setitimer(signal.ITIMER_REAL, 0.0005 if ticks < 300 else 0)
            signal.signal(signal.SIGALRM, tick)
            signal.setitimer(signal.ITIMER_REAL, 0.0005)
            n = 0
            while ticks < 300:
                n += 1
                store.set("k", str(n))
                assert store.get("k") == str(n).encode()
                assert store.add("n", 1) == n
                assert store.check(["k", "n"]) and not store.check(["k", "none"])
        """
    )


def test_every_call_has_its_own_timeout(store: Store) -> None:
    for timeout in (0.01, 0.02, 0.01):
        with pytest.raises(DeadlineError):
            store.get("none", timeout)
        store.set("k", "v")
    assert store.get("k", 20) == b"v"
    store.timeout = 0.01
    with pytest.raises(DeadlineError):
        store.get("none")


def test_values_are_let_go(store: Store) -> None:
    value = bytes(100_000)
    before = sys.getrefcount(value)
    store.set("k", value)
    store.append("k", value)
    store.compare_set("k", "x", value)
    store.compare_set("k", value, "x")
    store.multi_set(["a", "b"], [value, value])
    assert sys.getrefcount(value) == before


def test_values_that_ctypes_would_cut(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of more than 2 GiB."""
    monkeypatch.setattr(library, "SHORT", 3)
    value = b"\0long\0" * 1000
    store.set("k", value)
    assert store.get("k") == value
    assert store.compare_set("k", "", "") == value
    assert store.multi_get(["k", "k"]) == [value, value]


def test_a_wait_is_taken_up(store: Store) -> None:
    """A call that has to wait continues in the background, and ends when it can."""
    with ThreadPoolExecutor(4) as pool:
        calls = [
            pool.submit(store.get, "late"),
            pool.submit(store.wait, ["late"]),
            pool.submit(store.multi_get, ["late", "late"]),
        ]
        with pytest.raises(DeadlineError):
            store.get("never", 3 * _SLICE.value / 1000)
        assert not any(c.done() for c in calls)
        store.set("late", "v")
        assert [c.result(20) for c in calls] == [b"v", None, [b"v", b"v"]]


def test_a_lock_that_another_holds(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with FileStore(path, timeout=20) as store, path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DeadlineError, match="lock"):
            store.add("n", 1, timeout=0.15)
        assert not store.check(["n"])  # which on one machine needs no lock
        with ThreadPoolExecutor(1) as pool:
            added = pool.submit(store.add, "n", 1)
            with pytest.raises(DeadlineError):
                store.add("other", 1, timeout=0.1)  # until the lock was asked for in vain
            fcntl.flock(other, fcntl.LOCK_UN)
            assert added.result(20) == 1
        assert store.get("n") == b"1"
        assert not store.check(["other"])


# interrupted() sends Ctrl-C while a call waits, which must end it.
INTERRUPTED = """
import os, signal, threading
def interrupted(call):
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        call()
    except KeyboardInterrupt:
        return
    raise AssertionError
"""


def test_ctrl_c_ends_the_wait_for_a_lock(run_python) -> None:  # type: ignore[no-untyped-def]
    """Nothing is written later, either."""
    run_python(
        INTERRUPTED
        + textwrap.dedent("""
        import fcntl, os, signal, tempfile, threading, time
        from rallypoint import FileStore
        with tempfile.TemporaryDirectory() as folder:
            store = FileStore(folder + "/store")
            other = open(folder + "/store", "rb")
            fcntl.flock(other, fcntl.LOCK_EX)
            interrupted(lambda: store.add("n", 1))
            fcntl.flock(other, fcntl.LOCK_UN)
            assert store.add("n", 1) == 1
        """)
    )


def test_ctrl_c_ends_the_wait_of_close(run_python) -> None:  # type: ignore[no-untyped-def]
    """The call continues: the file is left as soon as its lock is free."""
    run_python(
        """
        import fcntl, os, signal, tempfile, threading, time
        from rallypoint import FileStore
        with tempfile.TemporaryDirectory() as folder:
            path = folder + "/store"
            store = FileStore(path)
            other = open(path, "rb")
            fcntl.flock(other, fcntl.LOCK_EX)
            try:
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
                store.close()
            except KeyboardInterrupt:
                pass
            else:
                raise AssertionError
            store.close()
            fcntl.flock(other, fcntl.LOCK_UN)
            while os.path.exists(path):
                time.sleep(0.01)
        """
    )


SERVER = """
import sys
from rallypoint import StoreServer
with StoreServer("127.0.0.1") as server:
    print(server.port, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def server() -> Iterator[tuple[int, int]]:
    """Process and port of a server that may be stopped."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGCONT)


def test_an_answer_that_is_late(server: tuple[int, int]) -> None:
    """The call continues in the background, and is made once."""
    pid, port = server
    with connect_store("127.0.0.1", port, 20) as store, ThreadPoolExecutor(1) as pool:
        store.set("k", "v" * 100_000)
        for n in range(1, 4):
            os.kill(pid, signal.SIGSTOP)
            os.waitid(os.P_PID, pid, os.WSTOPPED)
            added = pool.submit(store.add, "n", 1)
            with pytest.raises(DeadlineError):
                store.check(["k"], timeout=0.1)  # waits for it
            assert not added.done()
            os.kill(pid, signal.SIGCONT)
            assert added.result(20) == n
            assert store.get("k") == b"v" * 100_000


def test_ctrl_c_while_the_server_hangs(run_python, server: tuple[int, int]) -> None:  # type: ignore[no-untyped-def]
    """The next call has a connection of its own."""
    pid, port = server
    run_python(
        INTERRUPTED
        + textwrap.dedent(f"""
        import os, signal, threading, time
        import rallypoint
        store = rallypoint.connect_store("127.0.0.1", {port})
        store.set("n", "0")
        os.kill({pid}, signal.SIGSTOP)
        tasks = [f"/proc/{pid}/task/{{task}}/stat" for task in os.listdir("/proc/{pid}/task")]
        while any(open(task).read().split()[2] != "T" for task in tasks):
            time.sleep(0.001)
        interrupted(lambda: store.compare_set("n", "0", "1"))
        os.kill({pid}, signal.SIGCONT)
        assert store.add("m", 1) == 1
        """)
    )


def test_no_store_is_lost_to_an_interrupt(run_python) -> None:  # type: ignore[no-untyped-def]
    """Between any two steps of opening and closing one, a handler of a signal raises."""
    run_python(
        """
        import ctypes, gc, os, signal, tempfile, time
        from rallypoint import FileStore, HashStore, PrefixStore
        from rallypoint._native import library

        def handles():
            count = ctypes.c_int64()
            library.call("rp_handles_open", ctypes.byref(count))
            return count.value

        class Interrupt(Exception):
            pass

        def interrupt(number, frame):
            raise Interrupt

        signal.signal(signal.SIGALRM, interrupt)
        with tempfile.TemporaryDirectory() as folder, HashStore() as below:
            path = folder + "/store"
            before = handles()
            for open_store in (
                lambda: FileStore(path), HashStore, lambda: PrefixStore("p", below)
            ):
                for i in range(400):
                    try:
                        signal.setitimer(signal.ITIMER_REAL, 50e-6 + i % 100 * 4e-6)
                        while True:
                            open_store().close()
                    except Interrupt:
                        pass
                gc.collect()
                while handles() > before or os.path.exists(path):
                    time.sleep(0.01)
        """
    )


def test_the_error_after_a_fork_is_one(run_python) -> None:  # type: ignore[no-untyped-def]
    """And says what to do in Python, whether there were calls before or not."""
    run_python(
        """
        import os
        from rallypoint import FileStore, ForkedError, HashStore
        store = HashStore()
        store.set("k", "v")
        pid = os.fork()
        if pid == 0:
            for call in (lambda: store.get("k"), HashStore, lambda: FileStore("store")):
                try:
                    call()
                except ForkedError as e:
                    assert "spawn" in str(e), e
                    assert e.__context__ is None or e.__suppress_context__
                else:
                    os._exit(1)
            store.close()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert store.get("k") == b"v"
        """
    )


def test_a_path_is_text_bytes_or_a_path(tmp_path: Path) -> None:
    path = tmp_path / "st\u00f6re"
    for form in (path, str(path), os.fsencode(path)):
        with FileStore(form, -1) as store:
            assert store.add("n", 1) > 0
    assert path.exists()


def test_close_at_the_very_end(run_python) -> None:  # type: ignore[no-untyped-def]
    """While the interpreter is torn down, when other threads do not get on."""
    run_python(
        """
        import sys
        from rallypoint import HashStore
        class Late:
            def __del__(self, HashStore=HashStore, sys=sys):
                assert sys.is_finalizing()
                with HashStore() as store:
                    store.set("k", "v")
        HashStore().close()
        late = Late()
        """
    )


def test_wrong_arguments_leave_nothing_behind(store: Store) -> None:
    for call in (
        lambda: store.set("k", 5),  # type: ignore[arg-type]
        lambda: store.get(5),  # type: ignore[arg-type]
        lambda: store.add("k", "1"),  # type: ignore[arg-type]
        lambda: store.get("k", "soon"),  # type: ignore[arg-type]
        lambda: store.check([1]),  # type: ignore[list-item]
        lambda: store.wait("one text"),
        lambda: store.multi_set(["k"], "v"),
    ):
        with pytest.raises(TypeError):
            call()
    store.set("k", bytearray(b"x"))
    store.append("k", memoryview(b"y"))  # type: ignore[arg-type]
    assert store.get("k") == b"xy"
    assert store.check([]) and store.multi_get([]) == []


def test_none_is_not_what_the_last_call_was_given(store: Store) -> None:
    """The structs of a call still hold the lengths of the one before."""
    store.multi_set(["long", "n"], ["v" * 5000, "1"])
    store.compare_set("long", "v" * 5000, "w" * 5000)
    assert store.multi_get(["long", "n"]) == [b"w" * 5000, b"1"]
    for call in (
        lambda: store.set("k", None),  # type: ignore[arg-type]
        lambda: store.append("k", None),  # type: ignore[arg-type]
        lambda: store.get(None),  # type: ignore[arg-type]
        lambda: store.delete_key(None),  # type: ignore[arg-type]
        lambda: store.add("n", None),  # type: ignore[arg-type]
        lambda: store.compare_set("long", None, "x"),  # type: ignore[arg-type]
        lambda: store.compare_set("long", "w" * 5000, None),  # type: ignore[arg-type]
        lambda: store.check(None),  # type: ignore[arg-type]
        lambda: store.multi_get(None),  # type: ignore[arg-type]
        lambda: store.multi_set(["k"], None),  # type: ignore[arg-type]
        lambda: store.barrier("b", None),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError):
            call()
    assert store.multi_get(["long", "n"]) == [b"w" * 5000, b"1"]
    assert not store.check(["k"])


def test_numbers_beyond_64_bits_are_refused(store: Store) -> None:
    for number in (2**63, 2**64 + 5, -(2**63) - 1, 10**5000):
        with pytest.raises(ValueError, match="out of range"):
            store.add("n", number)
        with pytest.raises(ValueError, match="out of range"):
            store.barrier("b", number)
    assert not store.check(["n"])
    assert store.add("n", 2**63 - 1) == 2**63 - 1
    assert store.add("n", 1) == -(2**63)  # as everywhere, it wraps


def test_numbers_that_a_field_cannot_hold(tmp_path: Path) -> None:
    for call in (
        lambda: FileStore(tmp_path / "store", 2**64 + 1),
        lambda: StoreServer("127.0.0.1", 2**32),
        lambda: connect_store("127.0.0.1", 2**32 + 1, 1),
    ):
        with pytest.raises(InvalidError, match="out of range"):
            call()
    with Member("run", "127.0.0.1:0") as member:
        assert member.next().round == 1
        for number in (-1, 2**64 + 1):
            with pytest.raises(InvalidError, match=r"the round is .* out of range"):
                member.keys(number)


def test_timeouts_that_are_no_durations(store: Store) -> None:
    store.set("k", "v")
    for timeout in (float("nan"), -float("nan")):
        with pytest.raises(ValueError, match="NaN"):
            store.get("k", timeout)
    for timeout in (0, -1.0, -1e308, -float("inf")):
        with pytest.raises(DeadlineError):
            store.get("none", timeout)
    for timeout in (1e308, float("inf"), 10**400):
        assert store.get("k", timeout) == b"v"


def test_keys_that_are_no_text(store: Store) -> None:
    """What list_keys() returns can be asked for."""
    store.set(b"\xff\x80\0", "v")
    (key,) = (k for k in store.list_keys() if k.startswith("\udcff"))
    assert store.get(key) == b"v"
    with pytest.raises(UnicodeEncodeError):
        store.get("\ud800")


def test_after_close(store: Store) -> None:
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(store.get, "never")
        store.close()
        with pytest.raises(RallypointError):
            waits.result(20)
    with pytest.raises(RallypointError, match="the store is closed") as e:
        store.get("k")
    assert e.value.code == Code.HANDLE


def test_an_error_says_why_however_long_the_key(store: Store) -> None:
    key = "k" * 5000
    limit = 0.5  # so long that the call waits for the key, not for the store
    with pytest.raises(DeadlineError, match=r"get \S*kkk.* (waited|tried) .* timeout") as e:
        store.get(key, limit)
    with pytest.raises(DeadlineError, match=r"wait .*kkk.* and 1 more.* timeout"):
        store.wait([key, "a", "b", "c"], limit)
    assert "context" not in str(e.value) and "deadline" not in str(e.value)
    store.set(key, "v")
    with pytest.raises(RallypointError, match="a number"):
        store.add(key, 1)
