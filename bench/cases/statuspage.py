"""The status page of a run of ten thousand nodes: when it is on the screen, and what one
viewer costs the control plane.

The browser runs on the same cores as server and nodes.
"""

from __future__ import annotations

import sys
import time
import urllib.request

import psutil
from processes import ROOT, BenchError
from result import Row, Sample

from cases.scale import cpu_of, serving, swarm_of

sys.path.append(str(ROOT / "python" / "tests" / "monitoring"))
import browser

NAME = "statuspage"

NODES = 10_000
REPEAT = 5
FIRST_PAINT_TARGET = 1.0
VIEWER_TARGET = 0.01  # of a core
SECONDS = 40.0


def measure(repeat: int | None) -> list[Row]:
    if why := browser.missing():
        print(f"{NAME}: skipped: {why}", file=sys.stderr)
        return []
    with serving() as (server, address):
        swarm = swarm_of("hold", address, str(NODES), "600")
        try:
            assert swarm.stdout is not None
            if swarm.stdout.readline().strip() != "held":
                raise BenchError(f"swarm of {NODES}: {swarm.communicate()[1]}")
            time.sleep(SECONDS / 8)  # what joining left to do is done
            return [*_requests(server, address), *_viewer(server, address, repeat or REPEAT)]
        finally:
            swarm.kill()
            swarm.communicate()


def _requests(server: psutil.Process, address: str) -> list[Row]:
    """What an answer of each kind costs the server beside what it does anyway."""
    url = f"http://{address}/status?rdzv_id=hold"
    with urllib.request.urlopen(url) as answer:
        tag, size = answer.headers["ETag"], len(answer.read())
    full, same = urllib.request.Request(url), urllib.request.Request(url)
    same.add_header("If-None-Match", tag)
    rest = _share(server, SECONDS / 4)
    rows = []
    for request, times, what in (
        (full, 50, f"an answer of {size / 1e6:.1f} MB: the server's CPU"),
        (same, 1000, "an answer that nothing has changed: the server's CPU"),
    ):
        before, began = cpu_of(server), time.monotonic()
        for _ in range(times):
            try:
                with urllib.request.urlopen(request) as answer:
                    answer.read()
            except urllib.error.HTTPError as err:
                if err.code != 304:
                    raise BenchError(str(err)) from err
        spent = cpu_of(server) - before - rest * (time.monotonic() - began)
        rows.append(Row(NAME, f"{NODES} nodes: {what}", Sample([max(spent, 0) / times])))
    return rows


def _viewer(server: psutil.Process, address: str, repeat: int) -> list[Row]:
    painted = []
    with browser.browser() as b:
        for _ in range(repeat):
            b.open(f"http://{address}/#rdzv_id=hold&nodes=1")
            b.wait("performance.getEntriesByName('drawn').length")
            drawn = b.js("return performance.getEntriesByName('drawn')[0].startTime")
            seats = b.js("return document.querySelectorAll('[role=gridcell]').length")
            if seats != NODES:
                raise BenchError(f"the page shows {seats} seats")
            painted.append(drawn / 1e3)
        looked = _share(server, SECONDS)
        b.open("about:blank")
        rest = _share(server, SECONDS)
    first = Row(NAME, f"{NODES} nodes: navigation to all seats on the screen", Sample(painted))
    first.target = FIRST_PAINT_TARGET
    viewer = Row(
        NAME,
        f"{NODES} nodes: the server's share of a core for a viewer",
        Sample([max(looked - rest, 0)]),
        "cores",
    )
    viewer.target = VIEWER_TARGET
    return [first, viewer]


def _share(server: psutil.Process, seconds: float) -> float:
    before, began = cpu_of(server), time.monotonic()
    time.sleep(seconds)
    return (cpu_of(server) - before) / (time.monotonic() - began)
