"""What the workers of the tests of elastic_launch and of the agent run: functions of a module that
they can import."""

from __future__ import annotations

import os
import signal
import sys
import time

VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "ROLE_NAME",
    "LOCAL_WORLD_SIZE",
    "WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_SIGNALS_TO_HANDLE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)


def rank() -> int:
    return int(os.environ["RANK"])


def forever() -> None:
    time.sleep(1000)


def until_file(up: str, end: str) -> None:
    with open(up, "w"):
        pass
    while not os.path.exists(end):
        time.sleep(0.1)


def add_rank(number: int) -> int:
    return number + rank()


def arguments(*args: object) -> tuple[object, ...]:
    return args


def environment() -> dict[str, str]:
    return {name: os.environ[name] for name in VARIABLES}


def variable(name: str) -> str:
    return os.environ.get(name, "")


def nothing() -> None:
    pass


def bytes_of(size: int) -> bytes:
    return bytes([rank()]) * size


def fail(culprit: int) -> None:
    if rank() == culprit:
        raise ValueError(f"rank {culprit} has had enough: \u00fc\u20ac")
    forever()


def fail_until(attempt: int) -> int:
    count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if count < attempt:
        if rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        forever()
    return count


def leave(code: object) -> None:
    sys.exit(code)


def exit_or_wait(code: int) -> None:
    """Rank 0 ends with this code, the others wait for ever."""
    if rank() == 0:
        os._exit(code)
    forever()


def leave_hard() -> None:
    os._exit(0)


class _Abort:
    def __del__(self) -> None:
        os.abort()


_kept: list[object] = []


def abort_at_finalisation(end: object = "return") -> int:
    """As a thread of C++ that is ended there."""
    _kept.append(_Abort())
    if end == "raise":
        raise ValueError("the function's own")
    if end != "return":
        sys.exit(end)  # type: ignore[arg-type]
    return rank()


def print_to_full() -> None:
    sys.stdout = open("/dev/full", "w")  # noqa: SIM115
    sys.stdout.write("text")


def print_to_full_and_fail() -> None:
    print_to_full()
    raise ValueError


def leave_unfinished(folder: str) -> None:
    """Leaves to the end of the process what a program may leave to it."""
    import atexit
    import ctypes
    import threading

    def write(name: str) -> None:
        file = open(os.path.join(folder, f"{name}{rank()}"), "w")  # noqa: SIM115
        file.write(name)
        _kept.append(file)

    def last() -> None:
        threading.main_thread().join()
        write("thread")

    def fail() -> None:
        raise ValueError("of an exit callback")

    for callback in (fail, lambda: write("callback")):
        atexit.register(callback)
    threading.Thread(target=last).start()
    write("file")
    print("of Python")
    ctypes.CDLL(None).printf(b"of C\n")


def talk() -> None:
    print(f"out {rank()}", flush=True)
    print(f"err {rank()}", file=sys.stderr, flush=True)


def unpicklable() -> object:
    return lambda: None


def sum_of_ranks() -> int:
    """Adds up the ranks through the store of the round."""
    import rallypoint

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    with rallypoint.connect_store(address, port, 30) as store:
        world = int(os.environ["WORLD_SIZE"])
        store.set(f"rank/{rank()}", str(rank()), 30)
        return sum(int(store.get(f"rank/{i}", 30)) for i in range(world))


def gloo_sum() -> int:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    number = torch.tensor([rank()])
    dist.all_reduce(number)
    dist.destroy_process_group()
    return int(number.item())


def tensor() -> object:
    import torch

    return torch.full((3,), rank())


def hang_once() -> int:
    """Rank 1 hangs in a recursion until its timer expires; the second attempt does not."""
    from rallypoint import timer

    client = timer.FileTimerClient()
    timer.configure(client)
    count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    with timer.expires(after=3600):
        pass
    if count == 0:
        if rank() == 1:
            with timer.expires(after=3600, scope="step"), timer.expires(0.05, "too deep"):
                forever()
        forever()
    return count


def torch_sum(method: str) -> int:
    """The sum of all ranks, by a process group that meets in one of torch's ways."""
    import torch
    import torch.distributed as dist

    assert dist.is_torchelastic_launched()
    if method == "tcp":
        master = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        world = int(os.environ["WORLD_SIZE"])
        dist.init_process_group("gloo", init_method=master, rank=rank(), world_size=world)
    else:
        dist.init_process_group("gloo", init_method="env://")
    number = torch.tensor([rank()])
    dist.all_reduce(number)
    dist.destroy_process_group()
    return int(number.item())


def rpc_answer(number: int) -> tuple[str, int, int]:
    return os.environ["ROLE_NAME"], rank(), number


def torch_rpc_and_sum() -> tuple[list[tuple[str, int, int]], int]:
    """First the one, then the other by tcp://: torch is imported once."""
    return torch_rpc(), torch_sum("tcp")


def torch_rpc() -> list[tuple[str, int, int]]:
    """The master asks each worker; the workers wait for the end of it."""
    import torch.distributed.rpc as rpc

    world = int(os.environ["WORLD_SIZE"])
    master = os.environ["ROLE_NAME"] == "master"
    name = f"{os.environ['ROLE_NAME']}{os.environ['ROLE_RANK']}"
    rpc.init_rpc(name, rpc.BackendType.TENSORPIPE, rank=rank(), world_size=world)
    answers = []
    if master:
        answers = [rpc.rpc_sync(f"worker{i}", rpc_answer, args=(10 * i,)) for i in range(world - 1)]
    rpc.shutdown()
    return answers


def talk_by_every_way() -> None:
    """Writes to both streams as Python, as C, to the descriptors, and in a child."""
    import ctypes
    import subprocess

    c = ctypes.CDLL(None)
    c.printf(b"C out\n")
    c.fflush(None)
    for name, stream in (("out", sys.stdout), ("err", sys.stderr)):
        print(f"Python {name}", file=stream, flush=True)
        os.write(stream.fileno(), f"descriptor {name}\n".encode())
    c.perror(b"C err")
    subprocess.run(["sh", "-c", "echo child out; echo child err >&2"], check=True)
