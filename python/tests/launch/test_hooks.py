"""The hooks of a launch: what asks the LogsSpecs, and what passes events on."""

from __future__ import annotations

import gc
import os
import socket
import threading

import pytest

from rallypoint._launch import hooks
from rallypoint._launch.agent import Job


@pytest.mark.parametrize("thread", [1, 2])
def test_a_thread_that_cannot_be_started(thread: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was begun is ended again."""
    started = 0
    start = threading.Thread.start

    def start_some(self: threading.Thread) -> None:
        nonlocal started
        started += 1
        if started == thread:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    gc.disable()
    try:
        descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
        job = Job(["true"], {}, 1, logs=object(), on_event=print)
        with pytest.raises(RuntimeError, match="new thread"), hooks.Hooks(job):
            pytest.fail("it has begun")
        assert (job.logs_fd, job.events_fd) == (0, 0)
        assert len(os.listdir("/proc/self/fd")) == descriptors
        assert threading.active_count() == threads
    finally:
        gc.enable()


def test_without_a_standard_input(run_python) -> None:  # type: ignore[no-untyped-def]
    """Descriptor 0 would be taken for none."""
    run_python(
        """
        import os
        os.close(0)
        from rallypoint._launch import hooks
        from rallypoint._launch.agent import Job
        job = Job(["true"], {}, 1, logs=object(), on_event=print)
        with hooks.Hooks(job):
            assert job.logs_fd > 0 and job.events_fd > 0
        """
    )


def test_event_that_is_cut() -> None:
    """An agent that has waited for a slow reader long enough ends within a line."""
    events: list[str] = []
    theirs, ours = socket.socketpair()
    theirs.sendall(b'{"a": 1}\n{"b": "')
    theirs.close()
    with ours:
        hooks.Hooks(Job(["true"], {}, 1, on_event=events.append))._pass_on(ours)
    assert events == ['{"a": 1}']
