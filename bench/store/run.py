"""Measures the TCPStore server against torch's libuv server, in one run.

The server is pinned to one core and the load generator (load.c) to another; both
servers face the same one. What counts is the server's CPU time a request, which
says how much one core can carry and does not depend on how fast the clients are.
A ratio is ours / the reference's, which is libuv's unless the row says otherwise.
Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "bench"

OURS = "ours"
LIBUV = "libuv"

# One process holds torch's server and nothing else. It has one client, its own.
LIBUV_SERVER = """
import sys, datetime, torch.distributed as d
s = d.TCPStore("127.0.0.1", 0, is_master=True, use_libuv=True, wait_for_workers=False)
print(s.port, flush=True)
sys.stdin.read()
"""

TICK = 1 / os.sysconf("SC_CLK_TCK")
WARM_UP = 0.3  # seconds
LARGE = 64 << 10


@dataclass(frozen=True)
class Case:
    """One row: a mode of load.c and the most that ours may take, in libuv's figures."""

    mode: str
    connections: int
    value: int = 64
    target: float | None = 1.1
    quick: bool = True

    @property
    def name(self) -> str:
        size = "" if self.value == 64 else f", {self.value >> 10} KiB"
        return f"{self.mode}{size}, {self.connections} connections"


REQUESTS = [
    Case("get", 64),
    Case("get", 1000),
    Case("get", 10000),
    Case("set_get", 64),
    Case("set_get", 1000, quick=False),
    Case("set_get", 10000, quick=False),
    Case("add", 64),
    Case("add", 1000, quick=False),
    Case("check", 64),
    Case("check", 1000, quick=False),
    Case("compare_set", 64),
    Case("compare_set", 1000, quick=False),
    Case("multi_get", 64),
    Case("wake", 1000),
    Case("get", 64, LARGE, target=1.0),
    Case("set_get", 64, LARGE, target=1.0),
]

STORM = 10000  # connects in one second
MEMORY = 10000  # connections
MEMORY_TARGET = 64 << 20
MEMORY_EACH = 6 << 10  # a connection, when there are as many as descriptors allow
MOST = 100000  # connections, if descriptors allow
RESERVED = 500  # descriptors that are left for other things than connections
LOOPS_TARGET = 1.15


class Child:
    """A process that prints a line when it is ready and ends with its input."""

    def __init__(
        self, command: Sequence[str], cores: set[int], preload: Path | None = None
    ) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "LD_PRELOAD": str(preload)} if preload else None,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        self.greeting = self._line()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        try:
            self._process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def ask(self, text: str) -> dict[str, Any]:
        """Sends a line and returns the JSON that answers it."""
        self.begin(text)
        return self.result()

    def begin(self, text: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._line())
        return answer

    def cpu(self) -> float:
        """Seconds of CPU that all threads have used."""
        text = Path(f"/proc/{self._process.pid}/stat").read_text()
        user, system = text.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) * TICK

    def memory(self) -> dict[str, int]:
        """RSS and PSS in bytes."""
        found = {}
        for line in Path(f"/proc/{self._process.pid}/smaps_rollup").read_text().splitlines():
            name, _, amount = line.partition(":")
            if name in ("Rss", "Pss"):
                found[name.lower()] = int(amount.split()[0]) << 10
        return found

    def _line(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended with {self._process.wait()}")
        return line.strip()


def build() -> None:
    """Builds the load generator, what is preloaded into torch's server, and our server."""
    BUILD.mkdir(parents=True, exist_ok=True)
    compiler = os.environ.get("CC", "cc")
    for source, target, flags in (
        ("load.c", "load", []),
        ("numeric_names.c", "numeric_names.so", ["-shared", "-fPIC"]),
    ):
        command = [compiler, "-std=gnu11", "-O2", *flags, "-o", str(BUILD / target)]
        subprocess.run([*command, str(HERE / source)], check=True)
    command = ["go", "build", "-o", str(BUILD / "server"), "./bench/store/server"]
    subprocess.run(command, cwd=ROOT, check=True)


@dataclass(frozen=True)
class Place:
    """Where the processes run, and which server is ours."""

    server: int
    clients: int
    binary: Path

    def start(self, kind: str) -> Child:
        if kind == LIBUV:
            return Child(
                [sys.executable, "-c", LIBUV_SERVER], {self.server}, BUILD / "numeric_names.so"
            )
        return Child([str(self.binary)], {self.server})

    def start_loops(self, loops: int) -> Child:
        """Ours with so many loops, on all cores: the clients' too, if there are only two."""
        cores = os.sched_getaffinity(0)
        if len(cores) > 2:
            cores -= {self.clients}
        return Child([str(self.binary), "-loops", str(loops)], cores)


def load(of: Child, case: Case, core: int) -> Child:
    words = [of.greeting, case.mode, str(case.connections), str(case.value)]
    return Child([str(BUILD / "load"), *words], {core})


def request_cost(of: Child, case: Case, seconds: float, core: int) -> tuple[float, float]:
    """Returns the server's CPU seconds a request, and requests a second."""
    with load(of, case, core) as clients:
        clients.ask(str(WARM_UP))
        before = of.cpu()
        done = clients.ask(str(seconds))
        used = of.cpu() - before
    return used / done["requests"], done["requests"] / done["seconds"]


def compare(
    case: Case, pair: dict[str, Child], repeat: int, seconds: float, place: Place
) -> dict[str, Any]:
    """Measures two servers in turn. The first is ours, the second what it is compared with."""
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in pair}
    for i in range(repeat):
        for name, of in list(pair.items())[:: 1 if i % 2 == 0 else -1]:
            runs[name].append(request_cost(of, case, seconds, place.clients))
    ours, reference = pair
    cost = {name: summary([1e6 * c for c, _ in r]) for name, r in runs.items()}
    return {
        "name": f"CPU a request: {case.name}",
        "unit": "us",
        "ours": cost[ours],
        "reference": cost[reference],
        "reference_name": reference,
        "rate": {name: statistics.median(rate for _, rate in r) for name, r in runs.items()},
    }


def measure_requests(
    cases: Sequence[Case], repeat: int, seconds: float, place: Place
) -> list[dict[str, Any]]:
    rows = []
    with place.start(OURS) as ours, place.start(LIBUV) as libuv:
        for case in cases:
            row = compare(case, {OURS: ours, LIBUV: libuv}, repeat, seconds, place)
            rows.append(finish(row, case.target))
    return rows


def measure_loops(repeat: int, seconds: float, place: Place) -> dict[str, Any]:
    """What a second loop costs. Whether it helps can be seen with four cores or more."""
    with place.start_loops(1) as one, place.start_loops(2) as two:
        pair = {"two loops": two, "one loop": one}
        row = compare(Case("get", 1000), pair, repeat, seconds, place)
    row["name"] = "two loops instead of one: get, 1000 connections"
    return finish(row, LOOPS_TARGET)


def measure_memory(connections: int, repeat: int, place: Place) -> dict[str, Any]:
    """Memory with so many connections, each of which has done one get and is silent."""
    case = Case("idle", connections)
    held: dict[str, list[float]] = {OURS: [], LIBUV: []}
    each: dict[str, list[float]] = {OURS: [], LIBUV: []}
    idle: dict[str, list[float]] = {OURS: [], LIBUV: []}
    for _, kind in in_turn(repeat):
        with place.start(kind) as of:
            empty = of.memory()["rss"]
            with load(of, case, place.clients):
                memory, before = of.memory(), of.cpu()
                time.sleep(1)
                idle[kind].append(of.cpu() - before)
        held[kind].append(memory["rss"] / (1 << 20))
        each[kind].append((memory["rss"] - empty) / connections)
    return {
        "name": f"memory with {connections} silent connections",
        "unit": "MiB",
        "ours": summary(held[OURS]),
        "reference": summary(held[LIBUV]),
        "reference_name": LIBUV,
        "bytes_a_connection": {kind: statistics.median(v) for kind, v in each.items()},
        "idle_cpu": {kind: statistics.median(v) for kind, v in idle.items()},
    }


def measure_storm(repeat: int, seconds: float, place: Place) -> dict[str, Any]:
    """Connects that are answered late or not at all, while 64 others keep the server busy."""
    storm, busy = Case("storm", STORM), Case("get", 64)
    details: dict[str, list[dict[str, Any]]] = {OURS: [], LIBUV: []}
    for _, kind in in_turn(repeat):
        with (
            place.start(kind) as of,
            load(of, busy, place.clients) as others,
            load(of, storm, place.clients) as clients,
        ):
            others.begin(str(3 * seconds))
            details[kind].append(clients.ask(str(seconds)))
            others.result()
    failed = {kind: summary([d["failed"] for d in runs]) for kind, runs in details.items()}
    return {
        "name": f"storm of {STORM} connects in {seconds:g} s: not answered",
        "unit": "",
        "ours": failed[OURS],
        "reference": failed[LIBUV],
        "reference_name": LIBUV,
        "details": details,
    }


def in_turn(repeat: int) -> Iterator[tuple[int, str]]:
    for i in range(repeat):
        for kind in (OURS, LIBUV) if i % 2 == 0 else (LIBUV, OURS):
            yield i, kind


def summary(values: Sequence[float]) -> dict[str, Any]:
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "values": [round(v, 4) for v in values],
    }


def finish(row: dict[str, Any], most: float | None) -> dict[str, Any]:
    """Adds the ratio and whether it is as good as asked for."""
    ours, reference = row["ours"]["median"], row["reference"]["median"]
    row["ratio"] = ours / reference if reference else None
    row["target"] = None if most is None else f"{most:g} x {row['reference_name']}"
    row["passed"] = None if most is None else ours <= most * reference
    return row


def bounded(row: dict[str, Any], value: float, most: float, text: str) -> dict[str, Any]:
    """Adds whether a figure of ours is within a bound of its own."""
    finish(row, None)
    row["target"], row["passed"] = text, value <= most
    return row


def run(
    quick: bool,
    only: Sequence[str] = (),
    binary: Path | None = None,
    repeat: int | None = None,
    seconds: float | None = None,
) -> dict[str, Any]:
    """Measures everything, or what is named in `only`: modes of load.c, loops, memory, storm.

    All rows have name, unit, ours, reference, reference_name, ratio, target and passed.
    """
    build()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    cores = sorted(os.sched_getaffinity(0))
    place = Place(cores[0], cores[-1], binary or BUILD / "server")
    repeat = repeat or (3 if quick else 5)
    seconds = seconds or (1.0 if quick else 2.0)
    try:
        rows = measure(quick, only, repeat, seconds, place, min(hard, MOST) - RESERVED)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return {"cores": len(cores), "repeat": repeat, "seconds": seconds, "rows": rows}


def measure(
    quick: bool, only: Sequence[str], repeat: int, seconds: float, place: Place, most: int
) -> list[dict[str, Any]]:
    def wanted(name: str) -> bool:
        return not only or name in only

    cases = [c for c in REQUESTS if (c.quick or not quick) and wanted(c.mode)]
    rows = measure_requests(cases, repeat, seconds, place) if cases else []
    if wanted("loops"):
        rows.append(measure_loops(repeat, seconds, place))
    fewer = 1 if quick else 3
    if wanted("memory"):
        row = measure_memory(MEMORY, fewer, place)
        limit = MEMORY_TARGET >> 20
        rows.append(bounded(row, row["ours"]["median"], limit, f"{limit} MiB"))
        row = measure_memory(most, 1, place)
        each = row["bytes_a_connection"][OURS]
        rows.append(bounded(row, each, MEMORY_EACH, f"{MEMORY_EACH} bytes a connection"))
    if wanted("storm"):
        row = measure_storm(fewer, 1.0, place)
        rows.append(bounded(row, row["ours"]["max"], 0, "0"))
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [["measured", "ours", "reference", "ratio", "target", ""]]
    for row in rows:
        lines.append(
            [
                row["name"],
                cell(row, "ours"),
                cell(row, "reference"),
                "" if row["ratio"] is None else f"{row['ratio']:.2f}",
                row["target"] or "",
                {None: "", True: "pass", False: "MISS"}[row["passed"]],
            ]
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(text.ljust(width) for text, width in zip(line, widths)) + " |"
        for line in lines
    )


def cell(row: dict[str, Any], column: str) -> str:
    figures = row[column]
    text = f"{figures['median']:.4g} {row['unit']}".strip()
    if len(figures["values"]) > 1:
        text += f" ({figures['min']:.4g} .. {figures['max']:.4g})"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer cases, shorter runs")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="NAME",
        help="modes of load.c, or loops, memory, storm",
    )
    parser.add_argument("--server", type=Path, help="our server, instead of building it")
    parser.add_argument("--repeat", type=int)
    parser.add_argument("--seconds", type=float, help="of one measurement")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where all runs are written")
    args = parser.parse_args()
    print(f"load average before: {os.getloadavg()[0]:.1f}", flush=True)
    result = run(args.quick, args.only, args.server, args.repeat, args.seconds)
    print(table(result["rows"]))
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
