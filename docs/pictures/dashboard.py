"""Draws docs/grafana.json with the figures of real jobs: docs/pictures/dashboard.svg.

    make dashboard-picture

A `rallypoint serve` with two jobs, a third that one of its nodes hosts, and a Prometheus
(Debian: prometheus) that scrapes all of them every second for a minute and a half. Workers
report steps; nodes are killed, the one that hosts too. Each panel's expressions are evaluated
by that Prometheus, so that what is drawn is what Grafana draws.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RALLYPOINT = ROOT / "build" / "rallypoint"
SECONDS, WINDOW = 90, 10
HOSTED = 4  # nodes of the job that hosts itself
COLUMN, LINE, GAP = 50, 26, 6  # pixels of Grafana's grid
COLOURS = ("#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#8ab8ff", "#96d98d")

# Trains: a step takes SECONDS, a checkpoint is written at every second one.
WORKER = """
import os, time
import rallypoint
checkpoint = os.environ["CHECKPOINT"]
step = int(open(checkpoint).read() or 0) if os.path.exists(checkpoint) else 0
while True:
    time.sleep(float(os.environ["SECONDS"]))
    step += 1
    rallypoint.progress(step)
    if os.environ["RANK"] == "0" and step % 2 == 0:
        with open(checkpoint + ".new", "w") as file:
            file.write(str(step))
        os.replace(checkpoint + ".new", checkpoint)
"""

Series = tuple[str, list[tuple[float, float]]]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Prometheus:
    def __init__(self, targets: list[str], folder: Path) -> None:
        self.port = free_port()
        self.targets, self._targets_file = list[str](), folder / "targets.json"
        self.watch(targets)
        config = folder / "prometheus.yml"
        config.write_text(
            json.dumps(
                {
                    "global": {"scrape_interval": "1s"},
                    "scrape_configs": [
                        {
                            "job_name": "rallypoint",
                            "file_sd_configs": [{"files": [str(self._targets_file)]}],
                        }
                    ],
                }
            )
        )
        self.process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
                "--log.level=error",
            ]
        )

    def watch(self, more: list[str]) -> None:
        self.targets += more
        changed = self._targets_file.with_suffix(".new")
        changed.write_text(json.dumps([{"targets": self.targets}]))
        changed.rename(self._targets_file)

    def ask(self, expr: str, legend: str, start: float, end: float) -> list[Series]:
        for name, value in {"__rate_interval": f"{WINDOW}s", "instance": ".*", "run": ".*"}.items():
            expr = expr.replace(f"${name}", value)
        query = urllib.parse.urlencode({"query": expr, "start": start, "end": end, "step": 1})
        url = f"http://127.0.0.1:{self.port}/api/v1/query_range?{query}"
        with urllib.request.urlopen(url) as answer:
            result = json.load(answer)["data"]["result"]
        found = []
        for one in result:
            labels = one["metric"]

            def value_of(match: re.Match[str], labels: dict[str, str] = labels) -> str:
                return labels.get(match[1], "")

            name = re.sub(r"\{\{(\w+)\}\}", value_of, legend)
            points = [(float(t) - start, float(v)) for t, v in one["values"]]
            found.append((name, [(t, v) for t, v in points if math.isfinite(v)]))
        return [s for s in found if any(v for _, v in s[1])] or found[:1]


@dataclass
class Job:
    """A run, where it meets, and how long a step of its workers takes."""

    run: str
    endpoint: str
    nnodes: str
    seconds: float
    folder: str

    def node(self, name: str, health: int, *more: str) -> subprocess.Popen[bytes]:
        command = [
            *(RALLYPOINT, "run", "--rdzv-endpoint", self.endpoint, "--rdzv-id", self.run),
            *("--rdzv-conf", ",".join([f"node_id={name},quiet_period=3", *more])),
            *("--nnodes", self.nnodes, "--max-restarts", "9"),
            *("--no-python", sys.executable, "-c", WORKER),
        ]
        env = {
            **os.environ,
            "TORCHELASTIC_HEALTH_CHECK_PORT": str(health),
            "CHECKPOINT": f"{self.folder}/{self.run}",
            "SECONDS": str(self.seconds),
        }
        return subprocess.Popen(
            command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )


def figure(value: float, unit: str) -> str:
    if unit == "s":
        return (
            f"{value:.0f} s"
            if value >= 10
            else f"{value * 1e3:.0f} ms"
            if value < 1
            else f"{value:.1f} s"
        )
    if unit == "Bps":
        return f"{value / 1e3:.1f} kB/s"
    text = f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"
    return text + (" req/s" if unit == "reqps" else "")


def text(
    x: float, y: float, what: str, size: int = 11, colour: str = "#9fa7b3", **more: str
) -> str:
    extra = "".join(f' {k.replace("_", "-")}="{v}"' for k, v in more.items())
    place = f'x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="{colour}"'
    return f"<text {place}{extra}>{escape(what)}</text>"


def chart(
    x: float, y: float, w: float, h: float, unit: str, stack: bool, series: list[Series]
) -> list[str]:
    series = series[: len(COLOURS)]
    out: list[str] = []
    legend_x = x
    for i, (name, _) in enumerate(series):
        out.append(
            f'<rect x="{legend_x:.0f}" y="{y + h - 9:.0f}" width="9" height="4" '
            f'fill="{COLOURS[i]}"/>'
        )
        out.append(text(legend_x + 12, y + h - 4, name, 10))
        legend_x += 22 + 5.6 * len(name)
        if legend_x > x + w - 40:
            break
    left, bottom = x + 44, y + h - 30
    base: dict[float, float] = {}
    lines = []
    for _, points in series:
        line = []
        for t, v in points:
            low = base.get(t, 0.0) if stack else 0.0
            line.append((t, low, low + v))
            if stack:
                base[t] = low + v
        lines.append(line)
    most = max((top for line in lines for _, _, top in line), default=0) or 1

    def at(t: float, v: float) -> str:
        return f"{left + t / SECONDS * (x + w - left):.1f},{bottom - v / most * (bottom - y):.1f}"

    for part in (0, 0.5, 1):
        level = bottom - part * (bottom - y)
        out.append(f'<path d="M{left} {level:.1f}H{x + w:.1f}" stroke="#2c3235"/>')
        out.append(text(left - 4, level + 4, figure(part * most, unit), 9, text_anchor="end"))
    for i, line in reversed(list(enumerate(lines))):
        if not line:
            continue
        top = " ".join(at(t, v) for t, _, v in line)
        low = " ".join(at(t, v) for t, v, _ in reversed(line))
        out.append(
            f'<polygon points="{top} {low}" fill="{COLOURS[i]}" opacity="{0.6 if stack else 0.1}"/>'
        )
        out.append(
            f'<polyline points="{top}" fill="none" stroke="{COLOURS[i]}" stroke-width="1.3"/>'
        )
    return out


def draw(dashboard: dict[str, Any], answers: dict[int, list[Series]]) -> str:
    panels = dashboard["panels"]
    height = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in panels) * LINE + 10
    out = [
        '<svg xmlns="http://www.w3.org/2000/svg" role="img"'
        f' viewBox="0 0 {24 * COLUMN + GAP} {height}"'
        ' font-family="system-ui, sans-serif">',
        f"<title>The dashboard {escape(dashboard['title'])} of three jobs</title>",
        '<rect width="100%" height="100%" fill="#111217"/>',
    ]
    for p in panels:
        at = p["gridPos"]
        x, y = at["x"] * COLUMN + GAP, at["y"] * LINE + GAP
        w, h = at["w"] * COLUMN - GAP, at["h"] * LINE - GAP
        if p["type"] == "row":
            out.append(
                text(
                    x + 4,
                    y + 15,
                    p["title"].replace("$run", "All"),
                    13,
                    "#d8d9da",
                    font_weight="600",
                )
            )
            continue
        out.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="2" '
            'fill="#181b1f" stroke="#2c3235"/>'
        )
        out.append(
            text(x + 8, y + 18, p["title"].replace("$run", "All"), 12, "#d8d9da", font_weight="600")
        )
        unit, series = p["fieldConfig"]["defaults"]["unit"], answers[p["id"]]
        if not any(points for _, points in series):
            out.append(text(x + w / 2, y + h / 2, "No data", 12, text_anchor="middle"))
        elif p["type"] == "stat":
            value = series[0][1][-1][1]
            steps = p["fieldConfig"]["defaults"]["thresholds"]["steps"]
            bad = len(steps) > 1 and value >= steps[1]["value"]
            out.append(
                text(
                    x + w / 2,
                    y + h / 2 + 22,
                    figure(value, unit),
                    34,
                    "#ff9830" if bad else "#73bf69",
                    text_anchor="middle",
                )
            )
        else:
            stack = p["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] == "normal"
            out += chart(x + 8, y + 30, w - 18, h - 34, unit, stack, series)
    return "\n".join([*out, "</svg>", ""])


def main() -> int:
    if not shutil.which("prometheus"):
        print("dashboard.py: prometheus is not installed (Debian: prometheus)", file=sys.stderr)
        return 1
    dashboard = json.loads((ROOT / "docs" / "grafana.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        serve = subprocess.Popen(
            [
                *(RALLYPOINT, "serve", "--listen", "127.0.0.1:0", "--log-level", "off"),
                *("--data-dir", f"{folder}/rallypoint"),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert serve.stdout is not None
        endpoint = serve.stdout.readline().split()[-1]
        ports, hosted = [free_port() for _ in range(30)], f"127.0.0.1:{free_port()}"
        agents_at = [f"127.0.0.1:{port}" for port in ports]
        prometheus = Prometheus([endpoint, hosted, *agents_at], Path(folder))
        llama = Job("llama-70b", endpoint, "8:16", 1.6, folder)
        tokenizer = Job("tokenizer", endpoint, "8", 0.4, folder)
        vision = Job("vision", hosted, f"2:{HOSTED}", 0.8, folder)
        agents: list[subprocess.Popen[bytes]] = []
        try:
            start = time.time()

            def until(second: float) -> None:
                time.sleep(max(0, start + second - time.time()))

            def begin(job: Job, names: range, *more: str) -> None:
                for n in names:
                    health = ports[len(agents)]
                    agents.append(job.node(f"gpu-{n:02d}", health, *more))

            until(4)
            begin(vision, range(1))  # the first one hosts
            until(6)
            begin(vision, range(1, HOSTED))
            until(8)
            begin(llama, range(12), "is_host=0")
            until(20)
            with urllib.request.urlopen(f"http://{hosted}/status") as answer:
                standbys = json.load(answer)["server"]["succession"]["standbys"]
            prometheus.watch([standby["address"] for standby in standbys])
            until(25)
            begin(tokenizer, range(8), "is_host=0")
            until(40)
            agents[HOSTED + 3].kill()
            until(46)
            agents[0].kill()  # the host of vision
            until(52)
            begin(llama, range(12, 15), "is_host=0")
            until(65)
            agents[HOSTED + 14].kill()  # tokenizer needs all of its nodes
            until(76)
            begin(tokenizer, range(8, 9), "is_host=0")
            until(SECONDS)
            answers = {
                p["id"]: [
                    s
                    for target in p.get("targets", [])
                    for s in prometheus.ask(
                        target["expr"], target["legendFormat"], start, start + SECONDS
                    )
                ]
                for p in dashboard["panels"]
            }
        finally:
            for process in [*agents, serve, prometheus.process]:
                process.kill()
                process.wait()
    path = ROOT / "docs" / "pictures" / "dashboard.svg"
    path.write_text(draw(dashboard, answers))
    print(f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
