"""Processes that load the library after a fork of one parent, as multiprocessing makes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

PRELUDE = """
    import json, multiprocessing, os, sys
    from rallypoint import LaunchConfig, LogsSpecs, elastic_launch

    SH = "/bin/sh"

    def in_forked_siblings(task, count):
        fork = multiprocessing.get_context("fork")
        answers = fork.Queue()

        def member(number):
            answers.put((number, task(number)))
        members = [fork.Process(target=member, args=(n,)) for n in range(count)]
        for m in members:
            m.start()
        found = dict(answers.get() for _ in members)
        for m in members:
            m.join()
        json.dump([found[n] for n in range(count)], sys.stdout)
"""


def answers_of(script: str, tmp_path: Path) -> Any:
    """What a program that has not loaded the library yet prints, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PRELUDE) + textwrap.dedent(script), str(tmp_path)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        timeout=120,
        check=True,
    )
    return json.loads(done.stdout)


def test_siblings_draw_other_names(tmp_path: Path) -> None:
    """The name of a run's folder is also the mark by which its processes are found."""
    names = answers_of(
        """
        def name(number):
            base = os.path.join(sys.argv[1], str(number))
            config = LaunchConfig(1, 1, 1, run_id="job", logs_specs=LogsSpecs(log_dir=base))
            elastic_launch(config, SH)("-c", "exit 0")
            return os.listdir(base)[0]

        in_forked_siblings(name, 4)
        """,
        tmp_path,
    )
    assert len(set(names)) == 4, names


def test_siblings_leave_each_other_alone(tmp_path: Path) -> None:
    """They end one after another, and none takes workers of those that continue with it."""
    codes = answers_of(
        """
        def launch(number):
            before, after = (os.path.join(sys.argv[1], "ended%d" % n) for n in (number - 1, number))
            wait = 'until [ -e "%s" ]; do sleep 0.02; done' % before
            logs = LogsSpecs(log_dir=os.path.join(sys.argv[1], str(number)))
            config = LaunchConfig(1, 1, 1, run_id="job", max_restarts=0, logs_specs=logs)
            everybody.wait()
            try:
                elastic_launch(config, SH)("-c", wait if number else "sleep 1")
            except BaseException as e:
                return repr(e)
            finally:
                open(after, "w").close()
            return "ok"

        everybody = multiprocessing.get_context("fork").Barrier(6)
        in_forked_siblings(launch, 6)
        """,
        tmp_path,
    )
    assert codes == ["ok"] * 6
