"""Calls to a TCPStore server, one after another, by our clients and by torch's."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from processes import go_benchmarks, go_figures
from result import Row, Sample

NAME = "client"

REPEAT = 15
TIMES = 2000
HOST = "127.0.0.1"

VALUE = "0123456789abcdef"
KEYS = [f"k{i}" for i in range(10)]

OPERATIONS = {
    "get": "get",
    "multi_get": "multi_get of 10 keys",
    "set": "set, until it is done",
    "add": "add",
    "check": "check",
    "wait": "wait for a key that is there",
    "compare_set": "compare_set",
}

#: How many times as long as torch's an operation may take. Where torch's makes one exchange,
#: too, what differs is the way from Python: ours goes by ctypes into Go.
ALLOWED = {"get": 1.0, "multi_get": 1.0, "set": 1.0}
ALLOWED_OTHERS = 1.7

#: The server is a process of its own, ended by the end of its input.
SERVER = f"""
import sys
from rallypoint import StoreServer
with StoreServer("{HOST}") as server:
    print(server.port, flush=True)
    sys.stdin.read()
"""

Samples = dict[str, Sample]


def measure(repeat: int | None) -> list[Row]:
    from torch.distributed import TCPStore

    from rallypoint import connect_store

    reference, python, go = ({name: Sample() for name in OPERATIONS} for _ in range(3))
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as server,
    ):
        assert server.stdout
        port = int(server.stdout.readline())
        program = go_benchmarks("tcpstore", Path(folder))
        torchs = TCPStore(HOST, port, is_master=False, wait_for_workers=False)
        ours = connect_store(HOST, port)
        ours.multi_set(KEYS, [VALUE] * len(KEYS))
        for _ in range(repeat or REPEAT):
            at = f"RALLYPOINT_BENCH_STORE={HOST}:{port}"
            figures = go_figures(program, "BenchmarkClient", TIMES, "ns/op", "env", at)
            for name, took in figures.items():
                go[name].values.append(took[0] / 1000)
            for name in OPERATIONS:
                python[name].values.append(_time(name, ours))
                reference[name].values.append(_time(name, torchs, also_check=name == "set"))
        ours.close()
    reference["set"].note = "torch's set comes back before it is done, so a check comes after it"
    rows = []
    for name, what in OPERATIONS.items():
        for words, sample in ("Python", python[name]), ("Go", go[name]):
            row = Row(NAME, f"{what}, from {words}", sample, "us", reference[name])
            median, allowed = reference[name].median, ALLOWED.get(name, ALLOWED_OTHERS)
            assert median is not None
            row.target = allowed * median
            row.target_why = f"{allowed:g} x torch's from Python"
            rows.append(row)
    return rows


def _time(name: str, store: Any, also_check: bool = False) -> float:
    """Measures an operation of one of the clients, which have the same methods."""
    arguments: tuple[Any, ...] = {
        "get": ("k0",),
        "multi_get": (KEYS,),
        "set": ("k0", VALUE),
        "add": ("n", 1),
        "check": (["k0"],),
        "wait": (["k0"],),
        "compare_set": ("k0", VALUE, VALUE),
    }[name]
    call, one = getattr(store, name), ["k0"]
    began = time.perf_counter()
    if also_check:
        for _ in range(TIMES):
            call(*arguments)
            store.check(one)
    else:
        for _ in range(TIMES):
            call(*arguments)
    return (time.perf_counter() - began) * 1e6 / TIMES
