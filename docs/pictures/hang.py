"""Takes the pictures of a job that hangs, of the status page in headless Chromium.

    make dev-install build/rallypoint && .venv/bin/python docs/pictures/hang.py

A `rallypoint serve` and 24 agents, each with one worker. The workers meet at each step through
their round's store; one of them stays in its data loader, so that all others wait for it.
Needs chromium and chromedriver (Debian: chromium, chromium-driver).
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from cluster import ROOT, cluster

sys.path.insert(0, str(ROOT / "python" / "tests"))

from monitoring import browser

NODES = 24
SCRIPT = """\
import os
import time
import rallypoint

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = rallypoint.connect_store(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))

def load_batch(step):
    while rank == 7 and step == 1204:
        time.sleep(1)

def all_reduce(step):
    if store.add(f"arrived/{step}", 1) == size:
        store.set(f"complete/{step}", b"")
    while not store.check([f"complete/{step}"]):
        time.sleep(0.1)

for step in range(1180, 10**6):
    load_batch(step)
    all_reduce(step)
    rallypoint.progress(step)
    time.sleep(0.2)
"""


def main() -> int:
    if why := browser.missing():
        print(f"hang.py: {why}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder, cluster() as c:
        (Path(folder) / "train.py").write_text(SCRIPT)
        for node in (f"gpu-{i:02d}" for i in range(NODES)):
            options = ("--nnodes", str(NODES), "--hang-timeout=10", "train.py")
            env = {**os.environ, "PYTHON_EXEC": sys.executable}
            c.start(node, f"host_name={node}", *options, cwd=folder, env=env)
        with browser.browser(1120, 510) as b:
            b.open(f"http://{c.endpoint}/")
            b.wait("document.body.innerText.includes('load_batch')", 300)
            b.js("document.activeElement.blur()")
            for scheme in ("light", "dark"):
                b.scheme(scheme)
                path = ROOT / "docs" / "pictures" / f"hang-{scheme}.png"
                path.write_bytes(b.screenshot())
                print(f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
