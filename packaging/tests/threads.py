"""Many threads over one library, for an interpreter without a global lock; any other will do.

Neither the import nor what follows may turn the lock on again. Ends with 0 if all is well.
"""

import sys
import sysconfig
import threading

FREE = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
THREADS = 8
TIMES = 300


def lock_is_on() -> bool:
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


assert not FREE or not lock_is_on(), "the interpreter was started with its lock on"

import rallypoint  # noqa: E402

failures: list[BaseException] = []


def together(work, *arguments) -> None:
    """Runs work(i, ...) in all threads, which begin at one time."""
    begin = threading.Barrier(THREADS)

    def one(i: int) -> None:
        try:
            begin.wait(60)
            work(i, *arguments)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a thread hangs"
    if failures:
        raise failures[0]


def use(i: int, store: "rallypoint.Store") -> None:
    for n in range(TIMES):
        store.set(f"{i}/{n}", str(n))
        assert store.get(f"{i}/{n}") == str(n).encode()
        store.add("sum", 1)
    store.set(f"done/{i}", "")
    store.wait([f"done/{other}" for other in range(THREADS)])


def open_and_close(i: int, port: int) -> None:
    for _ in range(20):
        with rallypoint.connect_store("127.0.0.1", port, 20) as store:
            store.add("opened", 1)


def raise_errors(i: int, port: int) -> None:
    for n in range(20):
        with rallypoint.connect_store("127.0.0.1", port, 20) as store:
            store.set_timeout(0.01)
            try:
                store.get(f"missing/{i}/{n}")
            except rallypoint.MissingKeyError as error:
                assert f"missing/{i}/{n}" in str(error)
            else:
                raise AssertionError("a key that is not there was read")


def meet(i: int, endpoint: str) -> None:
    with rallypoint.Member("threads", endpoint, THREADS, THREADS) as member:
        ranks.append(member.next().rank)
        member.shutdown(rallypoint.Ending.SUCCESS)


ranks: list[int] = []
with rallypoint.HashStore() as store:
    together(use, store)
    assert store.add("sum", 0) == THREADS * TIMES
with (
    rallypoint.StoreServer("127.0.0.1") as server,
    rallypoint.connect_store("127.0.0.1", server.port, 20) as store,
):
    together(use, store)  # one connection for all
    assert store.add("sum", 0) == THREADS * TIMES
    together(open_and_close, server.port)
    assert store.add("opened", 0) == THREADS * 20
    together(raise_errors, server.port)
together(meet, sys.argv[1])
assert sorted(ranks) == list(range(THREADS)), ranks
assert not FREE or not lock_is_on(), "the library has turned the interpreter's lock on"
print("Python", sys.version.split()[0], "without a global lock" if FREE else "with its lock")
