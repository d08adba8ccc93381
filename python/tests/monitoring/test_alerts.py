"""docs/alerts.yml as Prometheus evaluates it: when each alert fires, when not, what it says."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY

yaml = pytest.importorskip("yaml")

ALERTS = REPOSITORY / "docs" / "alerts.yml"
NEEDS_PROMTOOL = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="there is no promtool (Debian: prometheus)"
)

AT = 'instance="host0:29400"'
NODE = 'instance="gpu-3:9000"'

Series = dict[str, str]
"""A series and its values, one a minute, in promtool's notation: 1x4 is 1 five times."""


@dataclass(frozen=True)
class Case:
    """`series` make the alert fire at minute `at`, not before, and not at minute `over`;
    each of `silent` never does."""

    series: Series
    at: int
    summary: str
    labels: dict[str, str] = field(default_factory=dict)
    silent: tuple[Series, ...] = ()
    over: int | None = None


def buckets(below: float) -> Series:
    """A hundred commits a minute, so many of them within half a second."""
    name = f"rallypoint_commit_duration_seconds_bucket{{{AT},le="
    return {
        f'{name}"0.5"}}': f"0+{below}x40",
        f'{name}"1"}}': "0+100x40",
        f'{name}"+Inf"}}': "0+100x40",
    }


def series(name: str, values: str, labels: str = AT) -> Series:
    return {f"{name}{{{labels}}}": values}


def hanging(ages: str, running: str) -> Series:
    """The run job7: seconds since its last training step, and nodes that run."""
    return series("rallypoint_run_training_change_age_seconds", ages, RUN) | series(
        "rallypoint_run_nodes", running, f'{RUN},state="running"'
    )


def voting(hosting: str, voters: str, majority: str) -> Series:
    """A node that hosts, or does not: voters beside it, and whether it hears a majority."""
    return (
        series("rallypoint_hosting", hosting)
        | series("rallypoint_voters", voters)
        | series("rallypoint_majority", majority)
    )


def hosted(hosting: str, standbys: str, running: str) -> Series:
    """A node that hosts, or does not: nodes that stand by, and that run."""
    return (
        series("rallypoint_hosting", hosting)
        | series("rallypoint_standbys", standbys)
        | series("rallypoint_nodes", running, f'{AT},state="running"')
    )


def phases(seconds: str, joining: str, running: str) -> Series:
    """An agent: seconds in its phase, and whether that is each of the two."""
    return (
        series("rallypoint_agent_phase_seconds", seconds, NODE)
        | series("rallypoint_agent_phase", joining, f'{NODE},phase="joining"')
        | series("rallypoint_agent_phase", running, f'{NODE},phase="running"')
    )


def restarts(remaining: str, most: str) -> Series:
    """An agent: restarts that remain, of so many."""
    return series("rallypoint_agent_remaining_restarts", remaining, NODE) | series(
        "rallypoint_agent_max_restarts", most, NODE
    )


RUN = f'{AT},run="job7"'
LOST = f'{AT},cause="lease"'
REFUSED = f'{AT},reason="authentication"'
OTHER = f'{AT},reason="other_user"'
TERM = "rallypoint_term"

CASES = {
    "RallypointDown": Case(
        series("up", "1x4 0x20", f'{AT},job="rallypoint"'),
        at=6,
        labels={"job": "rallypoint"},
        summary="The control plane at host0:29400 does not answer",
        silent=(
            series("up", "1x40", f'{AT},job="rallypoint"'),
            series("up", "1x4 0 1x40", f'{AT},job="rallypoint"'),
            series("up", "0x40", f'{AT},job="another"'),
        ),
    ),
    "RallypointRoundDoesNotForm": Case(
        series("rallypoint_longest_forming_seconds", "0+60x12 0x20"),
        at=11,
        over=13,
        summary="A job at host0:29400 has been waiting for nodes for 11m 0s",
        silent=(series("rallypoint_longest_forming_seconds", "0+60x10 0x20"),),
    ),
    "RallypointNodesMissing": Case(
        series("rallypoint_run_missing_nodes", "0 2x20", RUN),
        at=11,
        labels={"run": "job7"},
        summary="Run job7 lacks 2 nodes for its minimum",
        silent=(series("rallypoint_run_missing_nodes", "2x8 0 2x8 0x20", RUN),),
    ),
    "RallypointNodesSilent": Case(
        series("rallypoint_nodes_lost_total", "0x5 1x40", LOST),
        at=6,
        over=17,
        labels={"cause": "lease"},
        summary="Nodes at host0:29400 were lost because they stopped sending heartbeats",
        silent=(series("rallypoint_nodes_lost_total", "0+3x40", f'{AT},cause="connection"'),),
    ),
    "RallypointStalls": Case(
        series("rallypoint_stalls_total", "0x5 1x40"),
        at=6,
        over=17,
        summary="The control plane at host0:29400 does not get its CPU",
        silent=(series("rallypoint_stalls_total", "7x40"),),
    ),
    "RallypointCannotStore": Case(
        series("rallypoint_commit_failures_total", "0x5 1x40"),
        at=6,
        over=12,
        summary="The data directory of host0:29400 cannot be written",
        silent=(series("rallypoint_commit_failures_total", "7x40"),),
    ),
    "RallypointCommitsSlow": Case(
        buckets(below=50),
        at=11,
        summary="A commit at host0:29400 takes 990ms",
        silent=(buckets(below=99.5),),
    ),
    "RallypointRefusesNodes": Case(
        series("rallypoint_refused_total", "0x5 1x40", REFUSED),
        at=11,
        over=17,
        labels={"reason": "authentication"},
        summary="host0:29400 refuses connections: authentication",
        silent=(
            series("rallypoint_refused_total", "0+9x40", f'{AT},reason="foreign"'),
            series("rallypoint_refused_total", "7x40", REFUSED),
        ),
    ),
    "RallypointOtherUser": Case(
        series("rallypoint_round_store_refused_total", "0x5 1x40", OTHER),
        at=6,
        over=17,
        labels={"reason": "other_user"},
        summary="Another user's process tried to connect to host0:29400 and was refused",
        silent=(series("rallypoint_refused_total", "0+9x40", REFUSED),),
    ),
    "RallypointRunsFail": Case(
        series("rallypoint_runs_closed_total", "0x1 1 2 3 4x80", f'{AT},how="failed"'),
        at=5,
        over=70,
        labels={"how": "failed"},
        summary="4 jobs at host0:29400 have failed within an hour",
        silent=(
            series("rallypoint_runs_closed_total", "0x1 3x40", f'{AT},how="failed"'),
            series("rallypoint_runs_closed_total", "0+9x40", f'{AT},how="succeeded"'),
        ),
    ),
    "RallypointJobHangs": Case(
        hanging("0+60x20", "4x20"),
        at=11,
        labels={"run": "job7"},
        summary="No worker of run job7 has reported another step for 11m 0s",
        silent=(
            # Its nodes wait for another; only a run without reports has some that run.
            hanging("0+60x40", "0x40")
            | series("rallypoint_run_nodes", "4x40", f'{AT},run="other",state="running"'),
            hanging("0+60x9 0+60x9 0x20", "4x40"),
        ),
    ),
    "RallypointJobStalled": Case(
        series("rallypoint_run_stalled", "0x2 1x20", RUN),
        at=3,
        labels={"run": "job7"},
        summary="Run job7 makes no progress",
        silent=(series("rallypoint_run_stalled", "0x40", RUN),),
    ),
    "RallypointTrainingTimeLost": Case(
        series("rallypoint_training_lost_seconds_total", "0x1 660x80", f'{AT},cause="node_lost"'),
        at=2,
        over=70,
        labels={"cause": "node_lost"},
        summary="Jobs at host0:29400 have lost 11m 0s of training within an hour (node_lost)",
        silent=(series("rallypoint_training_lost_seconds_total", "0x1 600x40", f'{AT},cause="x"'),),
    ),
    "RallypointHostsDieAgain": Case(
        series(TERM, "1 1 2 2 3 3 4x80"),
        at=6,
        over=70,
        summary="The job of host0:29400 has lost 3 hosts within an hour",
        # Two at once, just after it was first looked at; a standby that comes to an old job.
        silent=(series(TERM, "1 3x60"), series(TERM, "9x60"), series(TERM, "1x40 2x40 3x40 4x40")),
    ),
    "RallypointNoMajority": Case(
        voting("1x40", "2x40", "1x4 0x10 1x20"),
        at=6,
        over=17,
        summary="The host at host0:29400 does not reach a majority of its voters",
        silent=(
            # One missed look; nobody votes; one that stands by.
            voting("1x40", "2x40", "1x4 0 1x30"),
            voting("1x40", "0x40", "0x40"),
            voting("0x40", "2x40", "0x40"),
        ),
    ),
    "RallypointNoStandby": Case(
        hosted("1x20", "2x4 0x20", "3x20"),
        at=15,
        summary="No node stands by for the host at host0:29400",
        silent=(
            # One node alone; one that stands by itself; `serve`, which has no such metrics.
            hosted("1x40", "0x40", "1x40"),
            hosted("0x40", "0x40", "3x40"),
            series("rallypoint_nodes", "3x40", f'{AT},state="running"'),
        ),
    ),
    "RallypointAgentWaits": Case(
        phases("0+60x20", "1x20", "0x20"),
        at=11,
        labels={"instance": "gpu-3:9000"},
        summary="The node gpu-3:9000 has been waiting for its job for 11m 0s",
        silent=(phases("0+60x40", "0x40", "1x40"),),
    ),
    "RallypointAgentFailsAgain": Case(
        series("rallypoint_agent_failures_total", "0x1 1 2 3 4x80", f'{NODE},cause="signal"'),
        at=5,
        over=70,
        labels={"instance": "gpu-3:9000", "cause": "signal"},
        summary="Workers of gpu-3:9000 keep failing: signal",
        silent=(series("rallypoint_agent_failures_total", "0 1 2 3x40", f'{NODE},cause="signal"'),),
    ),
    "RallypointAgentMayNotLeave": Case(
        series("rallypoint_agent_leaves_refused_total", "0x1 1x80", NODE),
        at=2,
        over=70,
        labels={"instance": "gpu-3:9000"},
        summary="gpu-3:9000 keeps failing and may not leave its job",
        silent=(series("rallypoint_agent_leaves_refused_total", "0x40", NODE),),
    ),
    "RallypointAgentLastAttempt": Case(
        restarts("2 1 0x20", "2x20"),
        at=2,
        labels={"instance": "gpu-3:9000"},
        summary="The job of gpu-3:9000 ends at the next failure of a worker",
        silent=(
            # A job that ends at its first failure.
            restarts("0x40", "0x40"),
        ),
    ),
}


def rules() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def promtool_tests() -> list[dict[str, Any]]:
    tests = []
    for name, rule in rules().items():
        case = CASES[name]
        labels = {"instance": "host0:29400", **rule["labels"], **case.labels}
        said = {"summary": case.summary, "description": rule["annotations"]["description"]}
        assert "{{" not in said["description"], "a case says only what the summary becomes"
        expected = {case.at: [{"exp_labels": labels, "exp_annotations": said}]}
        expected |= {minute: [] for minute in (case.at - 1, case.over) if minute is not None}
        tests.append((name, case.series, expected))
        tests += [(name, quiet, {m: [] for m in range(41)}) for quiet in case.silent]
    return [
        {
            "name": name,
            "interval": "1m",
            "input_series": [{"series": s, "values": v} for s, v in given.items()],
            "alert_rule_test": [
                {"alertname": name, "eval_time": f"{minute}m", "exp_alerts": alerts}
                for minute, alerts in expected.items()
            ],
        }
        for name, given, expected in tests
    ]


def promtool(folder: Path, rule_file: Path) -> subprocess.CompletedProcess[str]:
    tests = folder / "tests.yml"
    tests.write_text(json.dumps({"rule_files": [str(rule_file)], "tests": promtool_tests()}))
    return subprocess.run(["promtool", "test", "rules", tests], capture_output=True, text=True)


def test_each_rule_has_a_case() -> None:
    assert rules().keys() == CASES.keys()
    assert all(case.silent for case in CASES.values())


@NEEDS_PROMTOOL
def test_they_fire_when_they_should(tmp_path: Path) -> None:
    checked = subprocess.run(["promtool", "check", "rules", ALERTS], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    done = promtool(tmp_path, ALERTS)
    assert done.returncode == 0, done.stdout + done.stderr


@NEEDS_PROMTOOL
def test_each_case_finds_a_rule_that_is_off(tmp_path: Path) -> None:
    """No case passes for the wrong reason: with other bounds each of them fails."""
    text = ALERTS.read_text()
    for rule in rules().values():
        expr = rule["expr"]
        bound = " != 1e9" if expr.endswith("== 0") else "1e9"
        start = expr.rindex(" == 0") if expr.endswith("== 0") else expr.rindex(" ") + 1
        text = text.replace(f"expr: {expr}\n", f"expr: {expr[:start]}{bound}\n")
    bad = tmp_path / "alerts.yml"
    bad.write_text(text)
    done = promtool(tmp_path, bad)
    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert [name for name in CASES if f"alertname: {name}," not in said] == []
