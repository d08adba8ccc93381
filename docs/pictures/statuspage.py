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
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python" / "tests"))

from monitoring import browser  # noqa: E402

RALLYPOINT = ROOT / "build" / "rallypoint"
RUN = "llama-70b"


def agent(endpoint: str, node: str) -> subprocess.Popen[bytes]:
    command = [
        *(RALLYPOINT, "run", "--rdzv-endpoint", endpoint, "--rdzv-id", RUN),
        *("--rdzv-conf", f"node_id={node},is_host=0,quiet_period=5,regroup_timeout=60"),
        *("--nnodes", "32:48", "--max-restarts", "9", "--no-python", "sleep", "600"),
    ]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main() -> int:
    if why := browser.missing():
        print(f"statuspage.py: {why}", file=sys.stderr)
        return 1
    serve = subprocess.Popen(
        [RALLYPOINT, "serve", "--listen", "127.0.0.1:0", "--log-level", "off"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert serve.stdout is not None
    endpoint = serve.stdout.readline().split()[-1]
    nodes = {f"gpu-{i:02d}": agent(endpoint, f"gpu-{i:02d}") for i in range(40)}
    try:
        with browser.browser(1120, 1010) as b:
            b.open(f"http://{endpoint}/")

            def complete(number: int) -> None:
                b.wait(f"document.body.innerText.includes('round {number} is complete')")

            complete(1)
            nodes.pop("gpu-07").kill()
            complete(2)
            evict = [RALLYPOINT, "admin", "evict", endpoint, "--rdzv-id", RUN, "--node", "gpu-19"]
            subprocess.run([*evict, "--reason", "ECC errors of GPU 3"], check=True)
            complete(3)
            nodes["gpu-40"] = agent(endpoint, "gpu-40")
            complete(4)
            nodes["gpu-12"].send_signal(signal.SIGSTOP)
            nodes.pop("gpu-23").kill()
            b.wait("document.querySelector('.s.lost') && document.querySelector('.s.late')")
            b.js("document.activeElement.blur()")
            for scheme in ("light", "dark"):
                b.scheme(scheme)
                path = ROOT / "docs" / "pictures" / f"statuspage-{scheme}.png"
                path.write_bytes(b.screenshot())
                print(f"written to {path}")
    finally:
        for p in [*nodes.values(), serve]:
            p.kill()
            p.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
