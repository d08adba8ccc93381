"""docs/grafana.json and docs/alerts.yml against Prometheus's own parser and real scrapes."""

from __future__ import annotations

import json
import os
import re
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
PROMQL = os.environ.get("RALLYPOINT_TEST_PROMQL", "")
NEEDS_PROMQL = pytest.mark.skipif(
    not PROMQL, reason="RALLYPOINT_TEST_PROMQL names no parser; make test-python builds one"
)

# What Prometheus makes itself of every target.
PROMETHEUS_OWN = {"up": {"job": set[str](), "instance": set[str]()}}
# What workers report, so that there are metrics of training.
WORKER = "import rallypoint, time; rallypoint.progress(7); time.sleep(600)"
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? \S+$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def parse(expressions: list[str]) -> subprocess.CompletedProcess[str]:
    """What each of the expressions selects, as requirements/promql says."""
    given = json.dumps(expressions)
    return subprocess.run([PROMQL], input=given, capture_output=True, text=True)


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


@NEEDS_PROMQL
@pytest.mark.parametrize("where", ["dashboard", "alerts"])
def test_every_metric_and_label_is_there(
    where: str, scraped: dict[str, dict[str, set[str]]]
) -> None:
    expressions = (
        [r["expr"] for r in alert_rules()] if where == "alerts" else dashboard_expressions()
    )
    parsed = parse(expressions)
    assert parsed.returncode == 0, parsed.stderr
    wrong = []
    for expr, selected in zip(expressions, json.loads(parsed.stdout), strict=True):
        assert selected, expr
        for s in selected:
            labels = scraped.get(s["metric"])
            if labels is None:
                wrong.append(f"{s['metric']} in {expr}: there is no such metric")
                continue
            for name in [*s["labels"], *s["by"]]:
                if name not in labels:
                    wrong.append(f"{s['metric']} in {expr}: it has no label {name}")
            for name, (operator, value) in s["labels"].items():
                known = labels.get(name, set())
                asked = value.split("|") if operator == "=~" and value != ".*" else [value]
                if known and operator in ("=", "=~") and value != ".*":
                    wrong += [f"{name}={v} in {expr}" for v in asked if v not in known]
    assert not wrong, "\n".join(wrong)


@NEEDS_PROMQL
def test_a_wrong_expression_is_found() -> None:
    done = parse(["up > 0", 'up{job="rallypoint"} =='])
    assert done.returncode == 1 and "promql:" in done.stderr


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
