"""docs/grafana.json and docs/alerts.yml against Prometheus's own tool and real scrapes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY
from harness import free_port

RALLYPOINT = Path(sys.executable).with_name("rallypoint")
DASHBOARD = REPOSITORY / "docs" / "grafana.json"
ALERTS = REPOSITORY / "docs" / "alerts.yml"
NEEDS_PROMTOOL = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="there is no promtool (Debian: prometheus)"
)

# What Prometheus makes itself of every target.
PROMETHEUS_OWN = {"up": {"job": set[str](), "instance": set[str]()}}
# What workers report, so that there are metrics of training.
WORKER = "import rallypoint, time; rallypoint.progress(7); time.sleep(600)"
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? \S+$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

# In an expression: labels that metrics are grouped or matched by, and metrics, which are the
# names that are no function's.
GROUPED = re.compile(r"\b(by|on|ignoring) \(([^)]*)\)")
METRIC = re.compile(r"\b(?!and\b|or\b)([a-z_]\w*)\b(?:\{([^}]*)\})?(?! *\()")
MATCHER = re.compile(r'(\w+)(=~?)"([^"]*)"')


def selected(expr: str) -> list[tuple[str, dict[str, tuple[str, str]]]]:
    """Each metric of an expression, with operators and values by labels."""
    return [
        (name, {label: (operator, value) for label, operator, value in MATCHER.findall(labels)})
        for name, labels in METRIC.findall(GROUPED.sub("", expr))
    ]


def grouped(expr: str) -> set[str]:
    return {
        label.strip()
        for how, labels in GROUPED.findall(expr)
        if how == "by"
        for label in labels.split(",")
    }


def checked(folder: Path, expressions: list[str]) -> subprocess.CompletedProcess[str]:
    """The verdict of Prometheus on their syntax."""
    rules = [{"record": f"r:{i}", "expr": expr} for i, expr in enumerate(expressions)]
    file = folder / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "all", "rules": rules}]}))
    return subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True)


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def alert_rules() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return [r for g in yaml.safe_load(ALERTS.read_text())["groups"] for r in g["rules"]]


def dashboard_expressions() -> list[str]:
    """What Grafana asks Prometheus, its variables filled in."""
    dashboard = json.loads(DASHBOARD.read_text())
    found = [t["expr"] for p in panels() for t in p.get("targets", [])]
    found += [a["expr"] for a in dashboard["annotations"]["list"]]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            asked = variable["query"]["query"]
            assert variable["definition"] == asked
            call = re.fullmatch(r"label_values\((.*), (\w+)\)", asked)
            assert call, asked
            found.append(f"count by ({call[2]}) ({call[1]})")
    known = {"rate_interval": "1m", "interval": "1m", "instance": ".*", "run": ".*"}
    filled = [re.sub(r"\$(?:__)?(\w+)", lambda m: known[m[1]], expr) for expr in found]
    assert len(filled) > 20
    return filled


def scrape(address: str, awaited: str) -> str:
    """The metrics, when one of that name is among them."""
    end = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
                text = str(answer.read().decode())
            if f"\n{awaited}" in text:
                return text
        except OSError:
            pass
        assert time.monotonic() < end, f"{address} does not tell of {awaited}"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, set[str]]]]:
    """Every metric of a `serve --data-dir`, of an agent and of what an agent hosts, with
    its labels and their values."""
    data = tmp_path_factory.mktemp("metrics") / "data"
    health, hosted = free_port(), free_port()
    serve = subprocess.Popen(
        [RALLYPOINT, "serve", "--listen", "127.0.0.1:0", "--data-dir", data, "--log-level", "off"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert serve.stdout is not None
    address = serve.stdout.readline().split()[-1]
    agents = [
        subprocess.Popen(
            [
                *(RALLYPOINT, "run", "--rdzv-endpoint", endpoint, "--rdzv-id", "job"),
                *("--rdzv-conf", f"is_host={host}", "--nnodes", "1:2"),
                *("--no-python", sys.executable, "-c", WORKER),
            ],
            env={**os.environ, "TORCHELASTIC_HEALTH_CHECK_PORT": port},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for endpoint, host, port in (
            (address, 0, str(health)),
            (f"127.0.0.1:{hosted}", 1, "0"),
        )
    ]
    try:
        step = "rallypoint_run_training_step{"
        texts = [
            scrape(address, step),
            scrape(f"127.0.0.1:{health}", "rallypoint_agent_training_step "),
            scrape(f"127.0.0.1:{hosted}", step),
        ]
    finally:
        for p in [*agents, serve]:
            p.kill()
            p.wait()
    found: dict[str, dict[str, set[str]]] = {}
    for line in "\n".join(texts).splitlines():
        if sample := SAMPLE.match(line):
            labels = found.setdefault(sample[1], {"instance": set(), "job": set()})
            for name, value in LABEL.findall(sample[2] or ""):
                labels.setdefault(name, set()).add(value)
    yield found | PROMETHEUS_OWN


@pytest.mark.parametrize("where", ["dashboard", "alerts"])
def test_every_metric_and_label_is_there(
    where: str, scraped: dict[str, dict[str, set[str]]]
) -> None:
    expressions = (
        [r["expr"] for r in alert_rules()] if where == "alerts" else dashboard_expressions()
    )
    wrong = []
    for expr in expressions:
        assert selected(expr), expr
        for metric, matchers in selected(expr):
            labels = scraped.get(metric)
            if labels is None:
                wrong.append(f"{metric} in {expr}: there is no such metric")
                continue
            for name in matchers.keys() | grouped(expr):
                if name not in labels:
                    wrong.append(f"{metric} in {expr}: it has no label {name}")
            for name, (operator, value) in matchers.items():
                known = labels.get(name, set())
                asked = value.split("|") if operator == "=~" and value != ".*" else [value]
                if known and value != ".*":
                    wrong += [f"{name}={v} in {expr}" for v in asked if v not in known]
    assert not wrong, "\n".join(wrong)


@NEEDS_PROMTOOL
def test_prometheus_understands_the_dashboard(tmp_path: Path) -> None:
    done = checked(tmp_path, dashboard_expressions())
    assert done.returncode == 0, done.stderr
    done = checked(tmp_path, ["up > 0", 'up{job="rallypoint"} =='])
    assert done.returncode == 1 and "parse error" in done.stderr


def test_alerts_say_what_to_do() -> None:
    rules = alert_rules()
    assert len({r["alert"] for r in rules}) == len(rules) >= 10
    for rule in rules:
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert set(rule["annotations"]) == {"summary", "description"}
    page = (REPOSITORY / "docs" / "dashboard.md").read_text()
    assert [r["alert"] for r in rules if f"`{r['alert']}`" not in page] == []


def test_panels_lie_side_by_side() -> None:
    taken: set[tuple[int, int]] = set()
    assert len({p["id"] for p in panels()}) == len(panels())
    for panel in panels():
        at = panel["gridPos"]
        assert at["x"] >= 0 and at["x"] + at["w"] <= 24, panel["title"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not taken & cells, panel["title"]
        taken |= cells
        targets = panel.get("targets", [])
        assert panel["type"] == "row" or len({t["refId"] for t in targets}) == len(targets) > 0
        for part in [panel, *targets]:
            assert part.get("datasource", {"uid": "${datasource}"})["uid"] == "${datasource}"
