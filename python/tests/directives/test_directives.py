"""rallypoint.progress, directive and saved while an agent asks for something.

Here the test is the agent: it writes the record and the directive file.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import rallypoint

SAVE, DRAIN, SCALE = 1, 2, 3
HOLD, RELEASE = 1, 2
NONE, HELD, TAKEN, SAVED = range(4)


class Record:
    """A worker's record, as its agent has it: read and written by calls of the system."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(struct.pack("<8sIIq40x", b"rp-steps", 1, 64, -1))
        self.fd = os.open(path, os.O_RDWR)
        self.file = path.with_suffix(".directive")

    def word(self, offset: int) -> int:
        return int(struct.unpack("<q", os.pread(self.fd, 8, offset))[0])

    @property
    def step(self) -> int:
        return self.word(16)

    @property
    def answer(self) -> tuple[int, int]:
        word = self.word(32)
        return word >> 24, word & 0xFF

    def about(self, number: int, kind: int = SAVE, named: bool = False) -> None:
        os.pwrite(self.fd, b"\0", 24)
        os.pwrite(self.fd, struct.pack("<Q", number << 16 | named << 8 | kind)[:7], 25)

    def hold(self, number: int, kind: int = SAVE, named: bool = False) -> None:
        self.about(number, kind, named)
        os.pwrite(self.fd, bytes([HOLD]), 24)

    def release(self, reach: int) -> None:
        os.pwrite(self.fd, struct.pack("<q", reach), 48)
        os.pwrite(self.fd, bytes([RELEASE]), 24)

    def clear(self) -> None:
        os.pwrite(self.fd, b"\0", 24)
        os.pwrite(self.fd, bytes(7), 25)

    def tell(self, **fields: object) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(fields))
        new.replace(self.file)  # as an agent does: a worker finds all of it

    def until(self, answer: tuple[int, int], step: int | None = None) -> None:
        while self.answer != answer or (step is not None and self.step != step):
            time.sleep(0.001)


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record(tmp_path / "record")


def start(script: str, record: Record) -> subprocess.Popen[str]:
    env = os.environ | {
        "RALLYPOINT_PROGRESS_FILE": str(record.path),
        "RALLYPOINT_DIRECTIVE_FILE": str(record.file),
    }
    return subprocess.Popen(
        [sys.executable, "-c", "import rallypoint, time\n" + textwrap.dedent(script)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output(process: subprocess.Popen[str]) -> list[str]:
    out, err = process.communicate()
    assert (process.returncode, err) == (0, ""), err
    return out.split()


STEPS = """
    for step in range(10, 20):
        d = rallypoint.progress(step)
        if d:
            print(step, d.kind, d.step)
    """


def test_a_held_worker_waits_and_takes_the_directive_at_the_agreed_step(record: Record) -> None:
    record.hold(5, DRAIN, named=True)
    record.tell(
        number=5, id="d5", kind="drain", named=True, step=13, deadline=1e9, target=0,
        by="carol", reason="its disk", more="of a newer release",
    )  # fmt: skip
    worker = start(
        """
        for step in range(10, 20):
            d = rallypoint.progress(step)
            if d:
                assert d == rallypoint.Directive(
                    "d5", "drain", 13, 1e9, True, "carol", "its disk", 0), d
                assert rallypoint.directive() == d
                print("at", step, rallypoint.saved(12), rallypoint.saved(step))
        assert rallypoint.directive() == d or d is None
        """,
        record,
    )
    record.until((5, HELD), 10)
    assert record.word(40) == 1
    record.release(13)
    assert output(worker) == ["at", "13", "False", "True"]
    assert (record.answer, record.step) == ((5, SAVED), 19)


def test_every_worker_takes_it_at_one_step_wherever_it_was_held(tmp_path: Path) -> None:
    records = [Record(tmp_path / str(i)) for i in range(3)]
    workers = []
    for first, record in zip((10, 12, 13), records):  # as far apart as ranks get
        record.hold(1)
        workers.append(start(STEPS.replace("10, 20", f"{first}, 20"), record))
    for first, record in zip((10, 12, 13), records):
        record.until((1, HELD), first)
    for record in records:
        record.release(13)
    assert [output(w) for w in workers] == [["13", "save", "13"]] * 3


def test_a_canceled_hold_lets_go(record: Record) -> None:
    record.hold(1)
    worker = start(STEPS, record)
    record.until((1, HELD), 10)
    record.clear()
    assert output(worker) == []
    assert record.answer == (1, NONE)


def test_another_directive_while_held(record: Record) -> None:
    record.hold(1)
    worker = start(STEPS, record)
    record.until((1, HELD), 10)
    record.hold(2, SCALE)
    record.until((2, HELD))  # in between nothing is asked, so that it may have made a step more
    record.release(15)
    assert output(worker) == ["15", "scale", "15"]


def test_it_returns_once(record: Record) -> None:
    record.about(1, 77)
    record.release(0)
    assert output(start(STEPS, record)) == ["10", "kind", "77", "0"]
    assert record.answer == (1, TAKEN)


NO_FILES = {
    "number 2": '{"number": 2, "id": "x"}',
    "target": '{"number": 1, "id": "x", "target": "two"}',
    "no target": '{"number": 1, "id": "x", "target": null}',
    "deadline": '{"number": 1, "id": "x", "deadline": "soon"}',
    "id": '{"number": 1, "id": ["x"]}',
    "deep": '{"number": 1, "id": ' + "[" * 20000 + "]" * 20000 + "}",
    "long": '{"number": 1, "id": "x"}' + " " * 2**24,
    "digits": '{"number": 1, "target": ' + "9" * 10000 + "}",
    **{text: text for text in ("", "[1]", "{}", "\x00")},
}


@pytest.mark.parametrize("name", [None, "fifo", "folder", "endless", *NO_FILES])
def test_without_its_file_the_record_says_what_it_can(record: Record, name: str | None) -> None:
    if name == "fifo":
        os.mkfifo(record.file)
    elif name == "folder":
        record.file.mkdir()
    elif name == "endless":
        record.file.symlink_to("/dev/zero")
    elif name is not None:
        record.file.write_text(NO_FILES[name])
    record.about(1, DRAIN, named=True)
    record.release(11)
    worker = start("print(*[rallypoint.progress(n) for n in (10, 11, 12)], sep=chr(10))", record)
    assert " ".join(output(worker)) == "None " + str(
        rallypoint.Directive("", "drain", 11, named=True)
    ) + " None"  # fmt: skip


def test_steps_that_jump_and_go_back(record: Record) -> None:
    record.about(1)
    record.release(13)
    script = STEPS.replace("range(10, 20)", "(5, 12, 3, 40, 13, 41)")
    assert output(start(script, record)) == ["40", "save", "13"]


def test_a_worker_that_reports_no_step_asks_for_it(record: Record) -> None:
    record.about(3)
    record.release(41200)
    worker = start(
        """
        d = rallypoint.directive()
        print(d.kind, rallypoint.directive() == d, rallypoint.saved(41199), rallypoint.saved(41200))
        """,
        record,
    )
    assert output(worker) == ["save", "True", "False", "True"]
    assert record.answer == (3, SAVED)


def test_a_worker_that_reports_steps_gets_it_by_its_report_first(record: Record) -> None:
    record.about(1)
    record.release(11)
    worker = start(
        """
        rallypoint.progress(10)
        print(rallypoint.directive(), rallypoint.saved(11))
        print(rallypoint.progress(11) == rallypoint.directive() != None)
        """,
        record,
    )
    assert output(worker) == ["None", "False", "True"]


@pytest.mark.parametrize(("asked", "counts"), [("hold", True), ("release", True), ("clear", False)])
def test_what_was_given_can_be_saved_when_the_next_is_asked(
    record: Record, asked: str, counts: bool
) -> None:
    """A save takes long, and the next directive does not wait for it; the end of the first does."""
    record.about(1, DRAIN)
    record.release(10)
    worker = start(
        """
        import os
        rallypoint.progress(10)
        while not os.path.exists(os.environ["RALLYPOINT_DIRECTIVE_FILE"]):
            time.sleep(0.001)
        print(rallypoint.directive(), rallypoint.saved(9), rallypoint.saved(10))
        """,
        record,
    )
    record.until((1, TAKEN))
    if asked == "clear":
        record.clear()
    else:
        record.hold(2)
    if asked == "release":
        record.release(11)
    record.tell(number=2)
    assert output(worker) == ["None", "False", str(counts)]
    assert record.answer == (1, SAVED if counts else TAKEN)


def test_it_returns_once_whatever_another_thread_has_saved_meanwhile(record: Record) -> None:
    """There is one word for the answers about two directives: the last one stands in it."""
    record.about(2)
    record.release(10)
    worker = start(
        """
        import os
        assert rallypoint.progress(10)
        while not os.path.exists(os.environ["RALLYPOINT_DIRECTIVE_FILE"]):
            time.sleep(0.001)
        print(rallypoint.progress(11), rallypoint.directive().id, rallypoint.saved(11))
        """,
        record,
    )
    record.until((2, TAKEN))
    os.pwrite(record.fd, struct.pack("<Q", 1 << 24 | SAVE << 8 | SAVED), 32)
    record.tell(number=2, id="d2")
    assert output(worker) == ["None", "d2", "True"]
    assert record.answer == (2, SAVED)


@pytest.mark.parametrize(("kind", "ends"), [(SAVE, 0), (DRAIN, 1), (SCALE, 1), (77, 0)])
def test_who_has_saved_for_the_end_of_its_round_is_leaving(
    record: Record, kind: int, ends: int
) -> None:
    """... until the directive is withdrawn."""
    record.about(1, kind)
    record.release(10)
    worker = start(
        """
        from rallypoint._launch.progress import leaving
        rallypoint.progress(10)
        before = leaving()
        rallypoint.saved(10)
        print(before, leaving(), flush=True)
        while leaving():
            time.sleep(0.001)
        """,
        record,
    )
    assert worker.stdout is not None
    assert worker.stdout.readline().split() == ["False", str(bool(ends))]
    record.clear()
    output(worker)


def test_without_a_directive_there_is_none() -> None:
    assert (rallypoint.directive(), rallypoint.saved(3)) == (None, False)
    for wrong in (-1, 2**63):
        with pytest.raises(ValueError, match="a step is from 0 to"):
            rallypoint.saved(wrong)
    for wrong in (1.5, "1", None):
        with pytest.raises(TypeError, match="a step is an integer"):
            rallypoint.saved(wrong)  # type: ignore[arg-type]


def test_a_signal_during_the_hold_is_handled(record: Record) -> None:
    """An exception of its handler ends the wait; the agent sees that it is over."""
    record.hold(1)
    worker = start(
        """
        import signal
        def stop(*_): raise InterruptedError
        signal.signal(signal.SIGUSR1, stop)
        try:
            rallypoint.progress(10)
        except InterruptedError:
            print("interrupted")
        """,
        record,
    )
    record.until((1, HELD), 10)
    os.kill(worker.pid, signal.SIGUSR1)
    assert output(worker) == ["interrupted"]
    assert record.answer == (1, NONE)


def test_a_worker_of_a_dead_agent_goes_on(record: Record) -> None:
    record.hold(1)
    worker = start(
        """
        import rallypoint._launch.directive as directive
        now, pause = time.monotonic(), time.sleep
        passed = 0.0
        def sleep(seconds):
            global passed
            passed += 1  # a second each
        time.sleep, time.monotonic = sleep, lambda: now + passed
        rallypoint.progress(10)
        print("went on after", int(passed))
        rallypoint.progress(11)
        print(int(passed))
        """,
        record,
    )
    assert output(worker) == ["went", "on", "after", "10", "10"]
    assert (record.answer, record.step) == ((1, NONE), 11)


def test_threads_and_a_forked_child_share_the_answer(record: Record) -> None:
    record.about(1)
    record.release(11)
    worker = start(
        """
        import os, threading
        print(rallypoint.progress(11).kind)
        child = os.fork()
        if child == 0:
            os._exit(0 if rallypoint.saved(11) else 1)
        print(os.waitpid(child, 0)[1], rallypoint.progress(12))
        """,
        record,
    )
    assert output(worker) == ["save", "0", "None"]
    assert record.answer == (1, SAVED)


def test_steps_are_reported_while_others_ask(record: Record) -> None:
    """Directives come and go while a worker reports: none is lost, none comes twice."""
    worker = start(
        """
        got = []
        step = 0
        while len(got) < 50:
            d = rallypoint.progress(step)
            if d:
                assert step >= d.step
                got.append(step - d.step)
                rallypoint.saved(step)
            step += 1
        print(max(got), len(got))
        """,
        record,
    )
    for number in range(1, 51):
        record.hold(number)
        record.until((number, HELD))
        record.release(record.step + number % 3)
        record.until((number, SAVED))
        record.clear()
    assert output(worker) == ["0", "50"]


def reports_one_step(step: int) -> None:
    rallypoint.progress(step)
    raise SystemExit(3)


def launch(tmp_path: Path, **more: object) -> rallypoint.elastic_launch:
    config = rallypoint.LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=1,
        run_id="job",
        max_restarts=9,
        logs_specs=rallypoint.LogsSpecs(log_dir=str(tmp_path)),
        **more,  # type: ignore[arg-type]
    )
    return rallypoint.elastic_launch(config, reports_one_step)


def test_a_launch_that_gets_nowhere_ends(tmp_path: Path) -> None:
    with pytest.raises(rallypoint.NoProgressError, match="no progress: 2 rounds in a row"):
        launch(tmp_path, max_no_progress=2, restart_window=3600)(7)


def test_options_of_a_launch_that_cannot_be_meant(tmp_path: Path) -> None:
    for wrong, text in (
        ({"directive_signal": "NOPE"}, "'NOPE', which this system does not have"),
        ({"max_no_progress": -1}, "the number of rounds without progress is -1"),
        ({"restart_window": -1}, "restart_window must be non-negative"),
        ({"hang_timeout": 0}, "hang_timeout must be auto, off or more than 0 seconds, got 0"),
        ({"hang_timeout": "20"}, "hang_timeout must be auto"),
        ({"on_hang": "kill"}, "on_hang must be one of report, stacks, restart, got 'kill'"),
        ({"on_signal": "USR1:scale"}, '"scale" says what signal USR1 asks for'),
        ({"on_signal": "NOPE:save"}, 'signal "NOPE" is not known'),
        ({"on_signal": "USR1:save", "drain_timeout": 0}, "it must be greater than 0"),
        ({"on_signal": "USR1:save", "drain_timeout": -1}, "drain_timeout must be non-negative"),
    ):
        with pytest.raises(rallypoint.InvalidError, match=text):
            launch(tmp_path, **wrong)(7)
