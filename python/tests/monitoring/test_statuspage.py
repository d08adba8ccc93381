"""The status page in a real browser: headless Chromium, skipped with the reason without."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from monitoring import browser

RALLYPOINT = Path(sys.executable).with_name("rallypoint")
NO_BROWSER = browser.missing()
pytestmark = pytest.mark.skipif(NO_BROWSER is not None, reason=str(NO_BROWSER))

MARKUP = '<img src=x onerror="window.owned=1">\'"&lt;</script><script>window.owned=1</script>'


@pytest.fixture(scope="module")
def window() -> Iterator[browser.Browser]:
    with browser.browser() as b:
        yield b


class Serve:
    """`rallypoint serve` and agents of its runs, whose workers sleep."""

    def __init__(self, port: int = 0) -> None:
        command = [RALLYPOINT, "serve", "--log-level", "off", "--listen", f"127.0.0.1:{port}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split()[-1]
        self.agents: list[subprocess.Popen[bytes]] = []

    def agent(self, run: str, node: str, nnodes: str) -> subprocess.Popen[bytes]:
        started = subprocess.Popen(
            [
                *(RALLYPOINT, "run", "--rdzv-endpoint", self.address, "--rdzv-id", run),
                *("--rdzv-conf", f"node_id={node},is_host=0,last_call_timeout=600"),
                *("--nnodes", nnodes, "--max-restarts", "3", "--no-python", "sleep", "600"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.agents.append(started)
        return started

    def close(self) -> None:
        for p in [*self.agents, self.process]:
            p.kill()  # their workers end with them
            p.wait()


@pytest.fixture
def serve() -> Iterator[Serve]:
    s = Serve()
    yield s
    s.close()


@pytest.fixture(scope="module")
def page() -> tuple[bytes, dict[str, str]]:
    """The page and its headers, as a control plane serves them."""
    s = Serve()
    try:
        request = urllib.request.Request(f"http://{s.address}/", headers={"Accept": "text/html"})
        with urllib.request.urlopen(request) as answer:
            headers = {k: v for k, v in answer.headers.items() if k not in ("Date", "Connection")}
            return answer.read(), headers
    finally:
        s.close()


@contextmanager
def told(
    page: tuple[bytes, dict[str, str]],
    status: dict[str, Any],
    brief: dict[str, Any] | None = None,
) -> Iterator[str]:
    """Serves the real page over a status that this test makes up; brief answers nodes=0."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            body, headers = page
            if path != "/":
                answer = brief if brief and "nodes=0" in query else status
                body, headers = json.dumps(answer).encode(), {"Content-Type": "application/json"}
            self.send_response(200 if path in ("/", "/status") else 404)
            for name, value in headers.items():
                if name != "Content-Length":
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def member(rank: int, **more: object) -> dict[str, Any]:
    return {
        "rank": rank, "node": f"node-{rank:05d}", "label": f"trainer{rank} pid {4000 + rank}",
        "address": "10.0.0.5", "state": "running", "cause": "", "host": False, "alive": True,
        "reconnecting": False, "lease_age_s": 0.5, **more,
    }  # fmt: skip


def status(members: list[dict[str, Any]], **more: object) -> dict[str, Any]:
    """A status of one run."""
    at = "2026-03-04T12:00:00Z"
    run = {
        "run_id": "job", "generation": "G", "phase": "running", "lease_timeout_s": 10.0,
        "nodes": {"min": 1, "max": len(members), "unit": 1, "target": 0}, "round": 1,
        "round_at": at, "round_store": "10.0.0.5:41231", "forming_since": None, "not_started": "",
        "missing": {"min": 0, "target": 0, "who": ""}, "members": members, "waiting": [],
        "idle": [], "finished": [], "closed": None, "changes_total": 2,
        "changes": [{"at": at, "text": "node-0 joined", "round": 0},
                    {"at": at, "text": "round 1 is complete", "round": 1}], **more,
    }  # fmt: skip
    server = {
        "id": "S", "version": "0.1.0", "protocol": 1, "address": "10.0.0.5:29400", "pid": 42,
        "host": "trainer0", "only_run": "", "started_at": at, "now": at, "connections": 3,
    }  # fmt: skip
    return {"schema": 1, "server": server, "place": "", "runs": [run], "runs_total": 1}


def seats(b: browser.Browser) -> list[str]:
    """What a screen reader says of each seat."""
    found: list[str] = b.js(
        "return [...document.querySelectorAll('[role=gridcell]')].map(e => e.ariaLabel)"
    )
    return found


def test_follows_a_run_whose_id_looks_like_markup(window: browser.Browser, serve: Serve) -> None:
    run = "<img src=x onerror=window.owned=1>"
    window.open(f"http://{serve.address}/")
    window.wait("document.body.innerText.includes('No run is known here yet')")
    agents = [serve.agent(run, node, "2:3") for node in ("<b>a</b>", "b", "c")]
    window.wait("document.querySelectorAll('.s.running').length === 4")  # and the legend's
    assert window.js("return document.querySelector('h2 bdi').textContent") == run
    assert len([s for s in seats(window) if s.endswith("running")]) == 3
    assert any("<b>a</b>, running" in s for s in seats(window))
    assert window.js("return document.querySelectorAll('main img, main b').length") == 0

    agents[1].kill()
    window.wait("document.body.innerText.includes('Round 2')")
    text = window.wait(
        "document.querySelectorAll('ol.rounds li').length && document.body.innerText"
    )
    assert "after: node b" in text and "lost" in text
    window.wait("document.getElementById('say').textContent !== ''")

    # As one of many runs, by a link that names it.
    other = serve.agent("other", "o", "2")
    window.wait("document.querySelectorAll('tbody a').length === 2")
    window.js("document.querySelector('tbody a').click()")
    window.wait("location.hash.startsWith('#rdzv_id=') && document.querySelector('[role=grid]')")
    window.js("history.back()")
    window.wait("document.querySelectorAll('tbody a').length === 2")
    other.kill()
    assert window.js("return window.owned") is None
    assert window.complaints() == []


def test_no_text_becomes_markup(
    window: browser.Browser, page: tuple[bytes, dict[str, str]]
) -> None:
    def spoil(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {k: spoil(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [spoil(v) for v in value]
        kept = ("at", "round_at", "now", "started_at", "since", "state", "role", "only_run")
        return MARKUP if isinstance(value, str) and key not in kept else value

    waiting = {
        "node": "w", "label": "l", "address": "a", "role": "newcomer", "node_rank": 3,
        "since": "2026-03-04T12:00:00Z", "waiting_s": 3, "reconnecting": False, "lease_age_s": 1,
    }  # fmt: skip
    idle = {"node": "i", "label": "l", "address": "a", "reason": "r", "reconnecting": True}
    doc = spoil(
        status(
            [member(0), member(1, state="lost", cause="c", alive=False, surprise="s")],
            waiting=[waiting, {**waiting, "role": "spare"}],
            idle=[idle],
            closed={"how": "failed", "by": "b", "reason": "r", "at": "2026-03-04T12:00:00Z"},
            missing={"min": 1, "target": 2, "who": "w"},
            not_started="n",
            takeovers=[{"at": "t", "from": "f", MARKUP: "to"}],
            directives=[{"kind": "drain", "nodes": ["n"], "by": "b", "reason": "r", "id": "d"}],
            drained=[{"node": "n", "by": "b", "reason": "r"}],
        )
    )
    with told(page, doc) as url:
        window.open(url)
        window.wait("document.querySelectorAll('[role=gridcell]').length === 7")
        window.js("document.getElementById('every').open = true")
        window.wait("document.querySelectorAll('#rows tbody tr').length === 5")
        window.js("for (const e of document.querySelectorAll('[role=gridcell]')) e.click()")
        doc["runs_total"] = 2
        window.open(url + "#again")
        window.wait("document.querySelector('tbody a')")
        for elements in ("main img, main b, main script, iframe, object, svg", "[onerror]"):
            assert window.js("return document.querySelectorAll(arguments[0]).length", elements) == 0
        assert window.js("return document.scripts.length") == 1
        assert window.js("return window.owned") is None
        assert window.complaints() == []
        # The policy holds what the page's own care would not.
        with pytest.raises(RuntimeError, match="TrustedHTML"):
            window.js("document.body.innerHTML = 'x'")
        window.js("const s = document.createElement('img'); s.src = 'https://example.com/x'")
        window.wait("1")
        assert any("Content Security Policy" in line for line in window.complaints())


def test_what_a_newer_server_tells_is_shown(
    window: browser.Browser, page: tuple[bytes, dict[str, str]]
) -> None:
    takeovers = [{"at": "12:00", "from": "node-1", "to": "node-2", "why": "its host was lost"}]
    doc = status([member(0, gpu="H200", state="paused")], takeovers=takeovers, phase="handing_over")
    with told(page, doc) as url:
        window.open(url)
        text = window.wait("document.querySelector('[role=gridcell]') && document.body.innerText")
        assert "Takeovers" in text and "from node-1, to node-2, why its host was lost" in text
        assert "handing_over" in text
        assert seats(window) == ["rank 0, node-00000, paused"]
        window.js("document.querySelector('[role=gridcell]').focus()")
        assert "H200" in window.js("return document.getElementById('seat').innerText")


def test_the_focus_stays_in_the_table_of_runs(
    window: browser.Browser, page: tuple[bytes, dict[str, str]]
) -> None:
    doc = status([member(0)])
    doc["runs"] = [{**doc["runs"][0], "run_id": name} for name in ("one", "two")]
    doc["runs_total"] = 2
    with told(page, doc) as url:
        window.open(url)
        window.wait("document.querySelectorAll('tbody a').length === 2")
        window.js("document.querySelectorAll('tbody a')[1].focus()")
        doc["runs"][0]["phase"] = "regroup"
        doc["runs"][0]["changes_total"] += 1
        window.wait("document.querySelector('tbody .phase').textContent === 'regroup'")
        assert window.js("return document.activeElement.textContent") == "two"
        window.press("\ue007")  # Enter
        window.wait("document.querySelector('[role=grid]')")


def test_says_who_hosts_and_where_to_look_next(
    window: browser.Browser, page: tuple[bytes, dict[str, str]]
) -> None:
    doc = status([member(0)], stopping="node-0 (<b>maintenance)")
    standbys = [
        {"node": "<b>b", "label": "l", "address": "10.0.0.6:4711", "connected": True},
        {"node": "c", "label": "l", "address": "javascript:alert(1)", "connected": False},
    ]
    doc["server"]["succession"] = {
        "role": "hosting", "group": "g", "term": 2, "host": "10.0.0.5:29400", "host_node": "a",
        "since": "2026-03-04T12:00:00Z", "took_over": "z", "took_over_s": 0.4,
        "standbys": standbys, "not_by": ["d: it has no address"], "quorum": "none",
    }  # fmt: skip
    with told(page, doc) as url:
        window.open(url)
        text = window.wait("document.querySelector('#hosts table') && document.body.innerText")
        assert "Stopping: node-0 (<b>maintenance)" in text
        assert "d: it has no address" in text and "Quorum" in text
        assert window.js("return document.querySelector('#hosts dd').textContent") == "a"
        assert not window.js("return document.getElementById('elsewhere').checkVisibility()")
    window.wait("document.getElementById('elsewhere').checkVisibility()")
    links = "return [...document.querySelectorAll('#elsewhere a')].map(a => a.href)"
    assert window.js(links) == ["http://10.0.0.5:29400/", "http://10.0.0.6:4711/"]


def test_a_server_that_stands_by_says_who_leads(
    window: browser.Browser, page: tuple[bytes, dict[str, str]]
) -> None:
    doc = status([])
    doc |= {"runs": [], "runs_total": 0}
    doc["server"]["succession"] = {
        "role": "waiting", "group": "g", "term": 2, "host": "10.0.0.5:29400", "host_node": "<b>a",
        "standbys": [], "not_by": [],
    }  # fmt: skip
    text = "return document.querySelector('#main .note').textContent"
    link = "return document.querySelector('#main .note a')?.href"
    with told(page, doc) as url:
        window.open(url)
        window.wait("document.querySelector('#main .note')")
        assert window.js(text) == "This server stands by; <b>a leads at 10.0.0.5:29400."
        assert window.js(link) == "http://10.0.0.5:29400/"
        assert "Runs (0)" not in window.js("return document.body.innerText")
    doc["server"]["succession"] |= {"host": "javascript:alert(1)", "missing": "hears 1 of 3"}
    with told(page, doc) as url:
        window.open(url)
        window.wait("document.querySelector('#main .note')")
        assert window.js(text) == "This server stands by: it hears 1 of 3."
        assert window.js(link) is None


def test_lost_nodes_leave_empty_seats(
    window: browser.Browser, page: tuple[bytes, dict[str, str]]
) -> None:
    nodes = {"min": 2, "max": 40, "unit": 1, "target": 0}
    below = {"nodes": 2, "who": "gpu-7, <b>gpu-9"}
    with told(page, status([member(i) for i in range(38)], nodes=nodes, below=below)) as url:
        window.open(url)
        text = window.wait("document.querySelector('[role=grid]') && document.body.innerText")
        assert "2 below the maximum: gpu-7, <b>gpu-9" in text and "38 nodes of 2 to 40" in text
        assert [s for s in seats(window)[38:] if s] == ["vacant", "vacant"]
        assert "Generation" not in text  # which the details have
    below = {"nodes": 38, "who": ""}
    with told(page, status([member(i) for i in range(2)], nodes=nodes, below=below)) as url:
        window.open(url)
        window.wait("document.querySelector('[role=grid]')")
        assert len(seats(window)) == 2  # nobody looks for two among forty empty ones
        assert "38 below the maximum" in window.js("return document.body.innerText")


def test_shows_how_far_the_run_is(
    window: browser.Browser, page: tuple[bytes, dict[str, str]]
) -> None:
    own = {"step": 90, "smallest_step": 88, "seconds_per_step": 0.0, "change_age_s": 12.5}
    behind = {"rank": 1, "node": "<i>slow", "label": "l", "steps": 10, "for_s": 12.5}
    run = {"step": 100, "smallest_step": 88, "seconds_per_step": 3.1, "change_age_s": 0.5}
    doc = status([member(0), member(1, progress=own)], progress={**run, "behind": behind})
    with told(page, doc) as url:
        window.open(url)
        window.wait("document.querySelector('[role=gridcell]')")
        text = window.js("return document.body.innerText")
        assert "100 (slowest 88), 3.1 s each" in text.replace("\n", " ")
        assert "<i>slow, rank 1, is 10 steps behind and has not moved for 1" in text
        window.js("document.querySelectorAll('[role=gridcell]')[1].focus()")
        seat = window.js("return document.getElementById('seat').innerText")
        assert "90 (slowest 88), not moved for" in seat
        assert "Also in the status" not in text
        assert "No step for" not in text
    failed = {"at": "2026-03-04T11:59:20Z", "round": 1, "text": "round 1 stops: <b>boom"}
    with told(page, status([member(0)], last_failure=failed)) as url:
        window.open(url)
        window.wait("document.querySelector('.note.late')")
        text = window.js("return document.querySelector('.note.late').innerText")
        assert text.startswith("Last failure, ") and text.endswith(" ago: round 1 stops: <b>boom")
    stands = {
        "step": 59,
        "smallest_step": 59,
        "seconds_per_step": 1.0,
        "change_age_s": 24.0,
        "nodes": 2,
        "behind": None,
    }
    with told(page, status([member(0), member(1)], progress=stands)) as url:
        window.open(url)
        window.wait("document.querySelector('.note.late')")
        text = window.js("return document.querySelector('.note.late').innerText")
        assert re.fullmatch(r"No step for 2\d s; all nodes are at step 59", text), text
        assert "Optimizer" not in window.js("return document.body.innerText")
    slow = "rank 3 (<b>gpu-b) slows the job down: it waits for others 3 % of the time"
    with told(
        page, status([member(0), member(1)], progress={**run, "slow": {"text": slow}})
    ) as url:
        window.open(url)
        window.wait("document.querySelector('.note.late')")
        assert window.js("return document.querySelector('.note.late').innerText") == "Slow: " + slow
    with told(page, status([member(0), member(1)], progress={**stands, "counted": True})) as url:
        window.open(url)
        window.wait("document.querySelector('.note.late')")
        text = window.js("return document.body.innerText")
        assert "all nodes are at optimizer step 59" in text and "Optimizer step" in text
    named = "no step for 65 s: rank 3 (<b>gpu-b) is at train.py:41 load_batch"
    with told(
        page, status([member(0), member(1)], progress=stands, stalled=named, state="stalled")
    ) as url:
        window.open(url)
        window.wait("document.querySelector('.note.bad')")
        text = window.js("return document.body.innerText")
        assert "Stalled: " + named in text and "No step for" not in text
        assert window.js("return document.querySelector('.phase').innerText") == "stalled"


def test_shows_who_is_drained_and_who_has_proven_the_token(
    window: browser.Browser, page: tuple[bytes, dict[str, str]]
) -> None:
    drain = {
        "id": "d1", "kind": "drain", "nodes": ["node-00001", "<b>spare"], "within_s": 120.0,
        "at": "2026-03-04T11:59:20Z", "by": "root@ops", "reason": "<i>new kernel",
    }  # fmt: skip
    members = [member(i, fingerprint="1a2b3c4d") for i in range(3)]
    members[2]["fingerprint"] = ""
    doc = status(
        members,
        directives=[drain],
        drained=[{"node": "node-9", "by": "ann@ops", "reason": "its fan is broken"}],
    )
    doc["server"] |= {"fingerprints": ["1a2b3c4d", "99aabbcc"], "moon": "full"}
    with told(page, doc) as url:
        window.open(url)
        window.wait("document.querySelector('[role=gridcell]')")
        text = window.js("return document.body.innerText").replace("\n", " ")
        assert re.search(r"Drain: node-00001, <b>spare in (1 m 20|1 m 1\d) s, by root@ops", text)
        assert "root@ops: <i>new kernel (d1)" in text
        assert "Drained, not admitted (1)" in text and "its fan is broken" in text
        assert "1a2b3c4d, 99aabbcc (proven by 2 of 3 nodes)" in text
        assert "Moon full" in text and "Directives" not in text
        assert seats(window)[1] == "rank 1, node-00001, running, to be drained"
        assert "drained" not in seats(window)[0]
        window.js("document.querySelectorAll('[role=gridcell]')[1].focus()")
        seat = window.js("return document.getElementById('seat').innerText").replace("\n", " ")
        assert "Token 1a2b3c4d" in seat and "Drained in 1 m" in seat
        # A control plane that knows nothing of this shows nothing of it.
        for name in ("directives", "drained"):
            del doc["runs"][0][name]
        del doc["server"]["fingerprints"]
        window.wait("!document.body.innerText.includes('Drain')")
        assert window.complaints() == []


def test_ten_thousand_seats_by_keyboard(
    window: browser.Browser, page: tuple[bytes, dict[str, str]]
) -> None:
    members = [member(i) for i in range(10_000)]
    members[4217] = member(4217, state="lost", alive=False, cause="lost: connection closed")
    members[77] = member(77, lease_age_s=8.5)
    with told(page, status(members)) as url:
        window.open(url)
        window.wait("performance.getEntriesByName('drawn').length")
        assert window.js("return document.querySelectorAll('[role=gridcell]').length") == 10_000
        assert window.js("return document.querySelectorAll('[tabindex=\"0\"]').length") == 1
        focused = "return document.activeElement.ariaLabel"
        window.js("document.querySelector('[role=gridcell]').focus()")
        columns = int(window.js("return document.querySelector('[role=grid]').ariaColCount"))
        assert columns >= 50
        for keys, rank in (
            (["\ue014"], 1), (["\ue015"], columns + 1), (["\ue011"], columns),
            (["\ue013", "\ue012"], 0), (["\ue010"], columns - 1), (["n"], 4217), (["n"], 77),
            (["p"], 4217), (["n"], 77), (["\ue00f"], 77 + 10 * columns),
        ):  # fmt: skip
            window.press(*keys)
            assert window.js(focused).startswith(f"rank {rank},"), keys
        assert "Missing or late (2)" in window.js("return document.body.innerText")
        # The focus survives an answer that changes the seats.
        members[0]["state"] = "finished"
        window.wait("document.querySelector('.s.finished')")
        assert window.js(focused).startswith(f"rank {77 + 10 * columns},")
        # A table of them, part by part, filtered.
        window.js("document.getElementById('every').open = true")
        window.wait("document.querySelectorAll('#rows tbody tr').length === 100")
        window.js(
            "const f = document.querySelector('input'); f.value = 'node-04217';"
            "f.dispatchEvent(new Event('input'))"
        )
        window.wait("document.querySelectorAll('#rows tbody tr').length === 1")
        assert window.complaints() == []


@pytest.mark.parametrize("nodes", [2000, 2001])
def test_counts_the_nodes_of_a_large_run(
    window: browser.Browser, page: tuple[bytes, dict[str, str]], nodes: int
) -> None:
    members = [member(i) for i in range(nodes)]
    members[7] = member(7, state="lost", alive=False, cause="lost: connection closed")
    counts = {"running": nodes - 1, "lost": 1, "newcomers": 0, "idle": 0}
    missing = {"min": 0, "target": 3, "who": ""}
    full = status(members, counts=counts, missing=missing)
    brief = status([], counts=counts, missing=missing)
    cells = "return document.querySelectorAll('[role=gridcell]').length"
    with told(page, full, brief) as url:
        window.open(url)
        window.wait("performance.getEntriesByName('drawn').length")
        if nodes == 2000:
            assert window.js(cells) == nodes + 3
            assert "Also in the status" not in window.js("return document.body.innerText")
            return
        assert window.js(cells) == 0
        text = window.js("return document.body.innerText")
        assert f"{nodes - 1} running" in text and "1 lost" in text and "Missing: 3 below" in text
        assert f"{nodes - 1} nodes of " in text and "All nodes as a table" not in text
        window.js("document.getElementById('each').click()")
        window.wait(f"document.querySelectorAll('[role=gridcell]').length === {nodes + 3}")
        assert "All nodes as a table" in window.js("return document.body.innerText")
        window.js("history.back()")
        window.wait("document.querySelectorAll('[role=gridcell]').length === 0")
        assert window.complaints() == []


def test_screen_readers_find_names_and_roles(
    window: browser.Browser, page: tuple[bytes, dict[str, str]]
) -> None:
    lost = member(1, state="lost", alive=False, cause="lost: connection closed")
    with told(page, status([member(0), lost])) as url:
        window.open(url)
        window.wait("document.querySelector('[role=gridcell]')")
        nodes = window.devtools("Accessibility.getFullAXTree")["nodes"]
        found = {
            (n["role"]["value"], n.get("name", {}).get("value", ""))
            for n in nodes
            if not n.get("ignored") and "role" in n
        }
        assert ("grid", "Members of round 1, 2 seats") in found
        assert ("gridcell", "rank 1, node-00001, lost: connection closed") in found
        assert ("button", "Pause") in found
        assert any(role == "status" for role, _ in found)
        assert not [f for f in found if f[0] in ("button", "link", "gridcell", "grid") and not f[1]]


def test_fits_a_phone_and_paper(
    window: browser.Browser, page: tuple[bytes, dict[str, str]]
) -> None:
    """Nothing is wider than the screen, and no number is broken into two lines."""
    own = {"step": 1_234_567, "smallest_step": 1_234_567, "seconds_per_step": 1.0}
    members = [member(i, progress={**own, "change_age_s": 0.5}) for i in range(1000)]
    members[3] = member(3, state="lost", alive=False, cause="lost: " + "connection closed " * 9)
    members[5]["lease_age_s"] = 8.5
    overflow = "return document.documentElement.scrollWidth - innerWidth"
    broken = """
        const lines = e => { const r = document.createRange(); r.selectNodeContents(e);
          return new Set([...r.getClientRects()].map(c => c.top)).size };
        return [...document.querySelectorAll('td')].map(e => [e.innerText, lines(e)])
          .filter(([text, n]) => /^[\\d.]+( s)?$/.test(text) && n > 1);
    """
    with told(page, status(members)) as url:
        for width, height, media in ((390, 844, "screen"), (794, 1123, "print")):
            window.devtools(
                "Emulation.setDeviceMetricsOverride",
                width=width, height=height, deviceScaleFactor=1, mobile=media == "screen",
            )  # fmt: skip
            window.devtools("Emulation.setEmulatedMedia", media=media)
            try:
                window.open(url)
                window.wait("document.querySelectorAll('[role=gridcell]').length === 1000")
                assert window.js(overflow) <= 0, media
                assert window.js(broken) == [], media
                text = window.js("return document.body.innerText")
                assert "Missing or late (2)" in text and "no heartbeat for 8" in text
                assert ("Pause" in text) == (media == "screen")
            finally:
                window.devtools("Emulation.clearDeviceMetricsOverride")
                window.devtools("Emulation.setEmulatedMedia", media="")


# The relative luminance of WCAG 2 and what it makes of two colours.
CONTRASTS = """
const rgb = c => c.match(/[\\d.]+/g).map(Number);
const light = c => rgb(c).slice(0, 3).map(v => (v /= 255) <= 0.03928 ? v / 12.92 :
  ((v + 0.055) / 1.055) ** 2.4).reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((x, y) => x - y);
  return (y + 0.05) / (x + 0.05) };
const clear = c => rgb(c).length === 4 && rgb(c)[3] === 0;
const below = e => { while (clear(getComputedStyle(e).backgroundColor)) e = e.parentElement ||
  document.documentElement; return getComputedStyle(e).backgroundColor };
const poor = [];
for (const e of document.querySelectorAll('body *')) {
  const style = getComputedStyle(e);
  if (style.clipPath !== 'none' || e.closest('.vh, .strip, script, noscript')) continue;
  if (e.closest('details:not([open]) > :not(summary)')) continue;
  if ([...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) && !clear(style.color)) {
    const r = ratio(style.color, below(e));
    if (r < 4.5) poor.push([r, 'text', e.className, e.textContent.slice(0, 40)]);
  }
  if (e.classList.contains('s')) {
    const hollow = [getComputedStyle(document.body).backgroundColor, 'rgba(0, 0, 0, 0)'];
    const colour = hollow.includes(style.backgroundColor) ? style.borderTopColor :
      style.backgroundColor;
    const r = ratio(colour, below(e.parentElement));
    if (r < 3) poor.push([r, 'seat', e.className]);
  }
}
return poor;
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_is_readable_in(
    scheme: str, window: browser.Browser, page: tuple[bytes, dict[str, str]]
) -> None:
    states = ("running", "lost", "unknown", "rejoined", "finished", "running", "running")
    members = [member(i, state=s) for i, s in enumerate(states)]
    members[5]["reconnecting"], members[6]["lease_age_s"] = True, 9
    waiting = [
        {"node": r, "label": "l", "address": "a", "role": r, "node_rank": -1, "lease_age_s": 0}
        for r in ("newcomer", "spare")
    ]
    doc = status(
        members,
        waiting=waiting,
        idle=[{"node": "i", "label": "", "address": "", "reason": "it was dropped"}],
        missing={"min": 1, "target": 3, "who": ""},
        not_started="it regroups",
        closed={"how": "failed", "by": "b", "reason": "r", "at": None},
    )
    window.scheme(scheme)
    with told(page, doc) as url:
        window.open(url)
        window.wait("document.querySelectorAll('[role=gridcell]').length === 13")
        dark = window.js("return getComputedStyle(document.body).backgroundColor") != (
            "rgb(255, 255, 255)"
        )
        assert dark == (scheme == "dark")
        assert window.js(CONTRASTS) == []
    window.scheme("light")


def test_says_when_the_control_plane_is_gone_and_goes_on(window: browser.Browser) -> None:
    s = Serve()
    try:
        window.open(f"http://{s.address}/")
        window.wait("document.getElementById('live').textContent === 'live'")
        s.process.kill()
        s.process.wait()
        window.wait("document.getElementById('live').textContent.startsWith('not connected')")
        assert "not connected" in window.js("return document.getElementById('say').textContent")
        port = int(s.address.rpartition(":")[2])
        s.close()
        s = Serve(port)
        window.wait("document.getElementById('live').textContent === 'live'")
    finally:
        s.close()


def test_pause_and_tell_of_a_run_that_is_not_there(window: browser.Browser, serve: Serve) -> None:
    window.open(f"http://{serve.address}/#rdzv_id=%3Cb%3Enone")
    window.wait("""document.body.innerText.includes('knows no run "<b>none"')""")
    window.js("document.getElementById('pause').click()")
    assert window.js("return document.getElementById('live').textContent") == "paused"
    window.js("location.hash = ''")
    window.wait("document.body.innerText.includes('No run is known here yet')")
