"""Takes the pictures of the status page, of a real job in headless Chromium.

    make build/rallypoint && python docs/pictures/statuspage.py

A `rallypoint serve` and 40 agents whose workers sleep: two nodes are killed, one is evicted,
others come, and one is stopped by SIGSTOP, so that the others wait for it in the picture.
Needs chromium and chromedriver (Debian: chromium, chromium-driver).
"""

from __future__ import annotations

import signal
import subprocess
import sys

from cluster import RALLYPOINT, ROOT, RUN, Cluster, cluster

sys.path.insert(0, str(ROOT / "python" / "tests"))

from monitoring import browser


def start(c: Cluster, node: str) -> None:
    options = ("--nnodes", "32:48", "--max-restarts", "9", "--no-python", "sleep", "600")
    c.start(node, "quiet_period=5,regroup_timeout=60", *options)


def main() -> int:
    if why := browser.missing():
        print(f"statuspage.py: {why}", file=sys.stderr)
        return 1
    with cluster() as c:
        for i in range(40):
            start(c, f"gpu-{i:02d}")
        with browser.browser(1120, 1010) as b:
            b.open(f"http://{c.endpoint}/")

            def complete(number: int) -> None:
                b.wait(f"document.body.innerText.includes('round {number} is complete')")

            complete(1)
            c.nodes.pop("gpu-07").kill()
            complete(2)
            evict = [RALLYPOINT, "admin", "evict", c.endpoint, "--rdzv-id", RUN, "--node", "gpu-19"]
            subprocess.run([*evict, "--reason", "ECC errors of GPU 3"], check=True)
            complete(3)
            start(c, "gpu-40")
            complete(4)
            c.nodes["gpu-12"].send_signal(signal.SIGSTOP)
            c.nodes.pop("gpu-23").kill()
            b.wait("document.querySelector('.s.lost') && document.querySelector('.s.late')")
            b.js("document.activeElement.blur()")
            for scheme in ("light", "dark"):
                b.scheme(scheme)
                path = ROOT / "docs" / "pictures" / f"statuspage-{scheme}.png"
                path.write_bytes(b.screenshot())
                print(f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
