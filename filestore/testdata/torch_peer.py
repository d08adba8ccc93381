"""A process that uses torch.distributed.FileStore as it is told.

Each line of standard input is a JSON list: an operation and its arguments. Each
line of standard output answers one of them: {"ok": value} or {"error": text}.
Bytes are passed as text, one character a byte.
"""

import json
import os
import sys
from datetime import timedelta


def main() -> None:
    try:
        import torch
        from torch.distributed import FileStore, PrefixStore
    except ImportError as e:
        answer(error=str(e))
        return
    stores = {}

    def hammer(path: str, key: str, times: int, processes: int) -> None:
        children = []
        for _ in range(processes):
            pid = os.fork()
            if pid == 0:
                store = FileStore(path, -1)
                for _ in range(times):
                    store.add(key, 1)
                del store
                os._exit(0)
            children.append(pid)
        for pid in children:
            assert os.waitpid(pid, 0)[1] == 0

    def call(name: str, method: str, *args: object) -> object:
        return getattr(stores[name], method)(*args)

    def timeout(name: str, seconds: float) -> None:
        stores[name].set_timeout(timedelta(seconds=seconds))

    operations = {
        "open": lambda name, path, world_size: stores.update({name: FileStore(path, world_size)}),
        "prefix": lambda name, prefix, of: stores.update({name: PrefixStore(prefix, stores[of])}),
        "close": lambda name: stores.pop(name) and None,
        "call": call,
        "timeout": timeout,
        "wait": lambda name, keys, seconds: stores[name].wait(keys, timedelta(seconds=seconds)),
        "hammer": hammer,
    }
    answer(ok=torch.__version__)
    for line in sys.stdin:
        name, *args = json.loads(line)
        try:
            answer(ok=operations[name](*args))
        except Exception as e:  # whatever torch raises is the answer
            answer(error=f"{type(e).__name__}: {e}")


def plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def answer(**what: object) -> None:
    print(json.dumps({k: plain(v) for k, v in what.items()}), flush=True)


main()
