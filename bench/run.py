"""Runs the benchmarks: a table on the standard output, all figures as JSON in a file.

The reference is torch's own c10d rendezvous, or its libuv TCPStore server, measured in
the same run. The floor is what is needed anyway: for a rendezvous, to load the library
and to make one connection; for a store, one receive and one send.

Exit code 0 unless something broke; with --strict 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import machine
from backends import import_everything
from cases import (
    abi,
    beset,
    bootstrap,
    client,
    directive,
    durable,
    etcd,
    files,
    fold,
    goodput,
    inplace,
    launch,
    load,
    loss,
    places,
    progress,
    regroup,
    rendezvous,
    scale,
    secured,
    stacks,
    statuspage,
    store,
    storetls,
    succession,
    unfit,
    warm,
)
from isolation import isolate
from processes import BenchError
from result import Row, notes, table

RESULTS = Path(__file__).with_name("results")
CASES = [
    load.NAME,
    abi.NAME,
    progress.NAME,
    directive.NAME,
    rendezvous.NAME,
    secured.NAME,
    places.NAME,
    etcd.NAME,
    loss.NAME,
    regroup.NAME,
    succession.NAME,
    unfit.NAME,
    scale.NAME,
    beset.NAME,
    durable.NAME,
    statuspage.NAME,
    launch.NAME,
    warm.NAME,
    inplace.NAME,
    goodput.NAME,
    stacks.NAME,
    fold.NAME,
    store.NAME,
    storetls.NAME,
    bootstrap.NAME,
    files.NAME,
    client.NAME,
]


def main() -> int:
    args = parse_args()
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # or torch warns of each nameless peer
    description = {**machine.describe(), "isolated": isolate()}
    print(machine.one_line(description), flush=True)
    if not description["isolated"]:
        say("no network namespace allowed: torch's questions to the name server are measured, too")
    rows: list[Row] = []
    try:
        for case in measure(args):
            rows += case
    except (BenchError, TimeoutError) as e:
        print(f"bench: {e}", file=sys.stderr)
        return 1
    print(f"\n{table(rows)}\n{notes(rows)}\n")
    path = args.json or RESULTS / time.strftime("%Y%m%d-%H%M%S.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"machine": description, "rows": [row.as_json() for row in rows]}
    path.write_text(json.dumps(content, indent=2) + "\n")
    print(f"written to {os.path.relpath(path)}")
    missed = [row.name for row in rows if row.passed is False]
    if missed:
        print(f"missed: {', '.join(missed)}")
    return 1 if missed and args.strict else 0


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=CASES, default=CASES, help="these cases only")
    parser.add_argument(
        "--n", nargs="+", type=int, default=[2, 32, 128], help="nodes of a rendezvous (%(default)s)"
    )
    parser.add_argument("--full", action="store_true", help="store: every case; 8 minutes more")
    parser.add_argument("--repeat", type=int, help="repetitions, instead of each case's own number")
    parser.add_argument(
        "--no-reference", dest="reference", action="store_false", help="do not measure torch's"
    )
    parser.add_argument(
        "--reference-max",
        type=int,
        default=128,
        help="most nodes for c10d, whose work grows with their square (%(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="instead of one in bench/results")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a target is missed")
    return parser.parse_args()


def measure(args: argparse.Namespace) -> Iterator[list[Row]]:
    if load.NAME in args.only:
        say("importing the package and loading the library")
        yield load.measure(args.repeat, args.reference)
    if abi.NAME in args.only:
        say("calls through the C interface")
        yield abi.measure(args.repeat)
    if progress.NAME in args.only:
        say("reporting a step")
        yield progress.measure(args.repeat)
    if directive.NAME in args.only:
        say("stopping together, and learning of a directive")
        yield directive.measure(args.repeat)
    if scale.NAME in args.only:
        say("thousands of nodes at one control plane")
        yield scale.measure(args.repeat)
    if beset.NAME in args.only:
        say("one control plane among bad clients")
        yield beset.measure(args.repeat)
    if durable.NAME in args.only:
        say("storing what is promised")
        yield durable.measure(args.repeat)
    if statuspage.NAME in args.only:
        say("the status page of ten thousand nodes")
        yield statuspage.measure(args.repeat)
    if succession.NAME in args.only:
        say("losing the node that hosts the control plane")
        yield succession.measure(args.repeat)
    if unfit.NAME in args.only:
        say("a node that leaves because its workers fail")
        yield unfit.measure(args.repeat)
    if launch.NAME in args.only:
        say("the launcher")
        yield launch.measure(args.repeat, args.reference)
    if warm.NAME in args.only:
        say("warm workers")
        yield warm.measure(args.repeat, args.reference)
    if goodput.NAME in args.only:
        say("an hour with a fault every three minutes, three times six minutes")
        yield goodput.measure(args.repeat, args.reference)
    if inplace.NAME in args.only:
        say("a lost worker or node, whose others keep their processes")
        yield inplace.measure(args.repeat, args.reference)
    if stacks.NAME in args.only:
        say("where many workers are")
        yield stacks.measure(args.repeat)
    if fold.NAME in args.only:
        say("lines of workers, folded")
        yield fold.measure(args.repeat, args.reference)
    if store.NAME in args.only:
        say("the store server, CPU time a request (wants a machine with nothing else to do)")
        yield store.measure(args.repeat, args.reference, args.full)
    if storetls.NAME in args.only:
        say("the store server with a token (wants a machine with nothing else to do)")
        yield storetls.measure(args.repeat)
    if bootstrap.NAME in args.only:
        say("what ranks ask before they train (wants a machine with nothing else to do)")
        yield bootstrap.measure(args.repeat, args.reference)
    import_everything()
    if rendezvous.NAME in args.only:
        say(f"rendezvous of {', '.join(map(str, args.n))} nodes")
        yield rendezvous.measure(args.n, args.repeat, args.reference, args.reference_max)
    if secured.NAME in args.only:
        counts = [n for n in args.n if n > 2] or args.n
        say(f"rendezvous with a token: {', '.join(map(str, counts))} nodes")
        yield secured.measure(counts, args.repeat)
    if places.NAME in args.only:
        say(f"in a directory and in a blob: {', '.join(map(str, args.n))} nodes")
        yield places.measure(args.n, args.repeat, args.reference, args.reference_max)
        say("whole jobs in a directory, in an etcd and hosted")
        yield places.measure_jobs(args.repeat)
    if etcd.NAME in args.only:
        say("rendezvous in an etcd")
        yield etcd.measure(args.n, args.repeat, args.reference, args.reference_max)
    if loss.NAME in args.only:
        say("losing a node")
        yield loss.measure(args.repeat, args.reference)
    if regroup.NAME in args.only:
        say("shrinking and growing")
        yield regroup.measure(args.repeat, args.reference)
    # Last: they use the library in this process, from which no node can be forked any more.
    if files.NAME in args.only:
        say("stores in files")
        yield files.measure(args.repeat)
    if client.NAME in args.only:
        say("calls to a store server")
        yield client.measure(args.repeat)


def say(text: str) -> None:
    print(f"... {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
