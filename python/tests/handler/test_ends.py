"""How a node's part ends: shutdown, a closed run, spares, timeouts, calls of other threads."""

from __future__ import annotations

import socket
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from handler.harness import PATIENCE, Run, child_failed, fail_with, listens
from harness import until
from torch.distributed.elastic.rendezvous import api as torch_api

import rallypoint
from rallypoint import Code, RallypointError
from rallypoint.handler import DynamicRendezvousHandler, RallypointHandler


class SharedValue:
    """A RendezvousBackend in this process."""

    name = "memory"

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.state: tuple[bytes, int] | None = None

    def get_state(self) -> Any:
        with self.lock:
            return self.state

    def set_state(self, state: bytes, token: Any = None) -> Any:
        with self.lock:
            stored = token == (self.state and self.state[1])
            if stored:
                self.state = (state, (token or 0) + 1)
            return (*self.state, stored) if self.state else None


class TestEnding:
    def test_success(self, run: Run) -> None:
        handlers = [run.handler(), run.handler()]
        run.round(*handlers)
        ended = [run.pool.submit(h.shutdown) for h in handlers]
        assert [e.result(PATIENCE) for e in ended] == [True, True]
        for handler in handlers:
            assert handler.num_nodes_waiting() == 0
            assert handler.shutdown() is True, "again"
        with pytest.raises(torch_api.RendezvousClosedError):
            handlers[0].next_rendezvous()

    def test_worker_failure_stops_all(self, run: Run) -> None:
        handlers = [run.handler(1, 2), run.handler(1, 2)]
        run.round(*handlers)
        failing = run.pool.submit(fail_with, handlers[1], child_failed())
        other = handlers[0]
        until(lambda: other.num_nodes_waiting() > 0)
        assert other.is_closed()
        with pytest.raises(torch_api.RendezvousClosedError) as caught:
            other.next_rendezvous()
        assert "worker with rank 5 (pid 4711) of train.py failed: exit code 3" in str(caught.value)
        assert isinstance(caught.value, rallypoint.ClosedError)
        other.shutdown()
        assert failing.result(PATIENCE) is True

    def test_other_errors_leave(self, run: Run) -> None:
        """An agent that breaks leaves the run to the others."""
        handlers = [run.handler(1, 2), run.handler(1, 2)]
        run.round(*handlers)
        leaving = run.pool.submit(fail_with, handlers[1], KeyError("broken"))
        until(lambda: handlers[0].num_nodes_waiting() > 0)
        assert not handlers[0].is_closed()
        assert "broken" in handlers[0]._member.reason()
        [info] = run.round(handlers[0])
        assert info.world_size == 1
        handlers[0].shutdown()
        assert leaving.result(PATIENCE) is True

    def test_shutdown_before_a_round_leaves(self, run: Run) -> None:
        waiting = run.handler(2, 2)
        [joining] = run.join(waiting)
        short = run.handler(2, 2)
        assert short.shutdown() is True
        other = run.handler(2, 2)
        [info] = run.round(other)
        assert joining.result(PATIENCE).world_size == info.world_size == 2

    def test_error_that_was_there_before(self, run: Run) -> None:
        """Launching from within an except block is no failure."""
        try:
            raise KeyError("an attempt before")
        except KeyError:
            handler = run.handler(1, 1)
            run.round(handler)
            ending = handler._ending(sys.exc_info()[1])
        assert ending == (rallypoint.Ending.SUCCESS, "")

    def test_set_closed(self, run: Run) -> None:
        """Ends admission and leaves the round alone."""
        handlers = [run.handler(1, 2), run.handler(1, 2)]
        run.round(*handlers)
        handlers[0].set_closed()
        handlers[0].set_closed()
        until(handlers[1].is_closed)
        assert handlers[0].is_closed()
        assert [h.num_nodes_waiting() for h in handlers] == [0, 0]

        def come_late() -> BaseException:
            late = run.handler(1, 2)
            with pytest.raises(torch_api.RendezvousClosedError) as caught:
                late.next_rendezvous()
            late.shutdown()
            return caught.value

        error = come_late()
        assert "the-run" in str(error) and "closed" in str(error)
        ending = run.pool.submit(handlers[1].shutdown)
        until(lambda: isinstance(come_late(), torch_api.RendezvousGracefulExitError))
        handlers[0].shutdown()
        assert ending.result(PATIENCE)

    @pytest.mark.parametrize("place", ["hosted", "file", "a backend of the program"])
    def test_before_the_first_round(self, run: Run, place: str, tmp_path: Path) -> None:
        """A handler that has not joined answers as the run does, and changes nothing there."""
        backend = SharedValue()
        if place == "file":
            run.endpoint = f"file://{tmp_path}"

        def handler() -> Any:
            if place != "a backend of the program":
                return run.handler(1, 2)
            made = DynamicRendezvousHandler.from_backend(
                run.run_id, None, backend, 1, 2, "127.0.0.1", last_call_timeout=0.2
            )
            run.handlers.append(made)
            return made

        early = handler()
        assert not early.is_closed() and early.num_nodes_waiting() == 0
        members = [handler(), handler()]
        for joined in run.join(*members):
            joined.result(PATIENCE)
        assert not early.is_closed() and early.num_nodes_waiting() == 0
        late = handler()
        [waiting] = run.join(late)
        until(lambda: early.num_nodes_waiting() == 1)
        members[0].set_closed()
        assert early.is_closed()
        with pytest.raises(torch_api.RendezvousClosedError):
            waiting.result(PATIENCE)
        ended = [run.pool.submit(m.shutdown) for m in (late, early, *members)]
        assert all(e.result(PATIENCE) for e in ended)

    def test_late_for_a_run_that_succeeded(self, run: Run) -> None:
        handlers = [run.handler(1, 2), run.handler(1, 2)]
        run.round(*handlers)
        ending = run.pool.submit(handlers[1].shutdown)
        until(handlers[0].is_closed)
        late = run.handler(1, 2)
        with pytest.raises(torch_api.RendezvousError) as caught:
            late.next_rendezvous()
        assert "success" in str(caught.value)
        late.shutdown()
        handlers[0].shutdown()
        assert ending.result(PATIENCE)


class TestSpares:
    """A node that the run does not need, until it has ended well."""

    def spare(self, run: Run) -> BaseException | None:
        members = [run.handler(1, 2) for _ in range(2)]
        run.round(*members)
        spare = run.handler(1, 2)
        [waiting] = run.join(spare)
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            assert [m.num_nodes_waiting() for m in members] == [0, 0]
            assert not waiting.done()
        ending = [run.pool.submit(m.shutdown) for m in members]
        error = waiting.exception(PATIENCE)
        spare.shutdown()
        assert [e.result(PATIENCE) for e in ending] == [True, True]
        return error

    def test_graceful_exit(self, run: Run, caplog: pytest.LogCaptureFixture) -> None:
        error = self.spare(run)
        assert isinstance(error, torch_api.RendezvousGracefulExitError)
        assert isinstance(error, rallypoint.GracefulExitError)
        said = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
        assert f"this node was not needed, and no worker ran on it: {error}" in said

    def test_of_a_fixed_number_of_nodes(self, run: Run, caplog: pytest.LogCaptureFixture) -> None:
        """It says at once that it waits as a spare, once: perhaps it is of another job."""
        member, spare = run.handler(1, 1), run.handler(1, 1)
        run.round(member)
        [waiting] = run.join(spare)

        def said() -> list[str]:
            texts = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
            return [text for text in texts if "this node runs nothing" in text]

        until(said, PATIENCE, "the spare says that it is one")
        assert "since it is a spare: round 1 runs with 1 of 1 node" in said()[0]
        assert "--rdzv-id" in said()[0]
        ending = run.pool.submit(member.shutdown)
        assert isinstance(waiting.exception(PATIENCE), rallypoint.GracefulExitError)
        spare.shutdown()
        assert ending.result(PATIENCE) and len(said()) == 1

    def test_under_torchrun(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        """There it ends the process, with success."""
        code = "def main(call):\n    return call()\n"
        torchrun: dict[str, Any] = {"__spec__": SimpleNamespace(name="torch.distributed.run")}
        exec(code, torchrun)
        plain = RallypointHandler.next_rendezvous
        monkeypatch.setattr(
            RallypointHandler,
            "next_rendezvous",
            lambda self: torchrun["main"](lambda: plain(self)),
        )
        error = self.spare(run)
        assert isinstance(error, SystemExit) and error.code == 0


class TestTimeouts:
    def test_text(self, run: Run) -> None:
        """Who is here, who is missing, how long, where, and what to do (guarantee 11)."""
        handler = run.handler(3, 4, join_timeout=1.4)
        with pytest.raises(torch_api.RendezvousTimeoutError) as caught:
            handler.next_rendezvous()
        text = str(caught.value)
        assert isinstance(caught.value, rallypoint.DeadlineError)
        assert caught.value.code is Code.TIMEOUT  # type: ignore[attr-defined]
        for part in (
            "the-run",
            run.endpoint,
            "1 of 4",
            "3",
            socket.gethostname().partition(".")[0] + "-",
            "1.4 s",
        ):
            assert part in text, f"{part!r} is not in {text!r}"

    def test_nobody_hosts(self, run: Run) -> None:
        handler = run.handler(1, 1, is_host=0, join_timeout=0.4)
        with pytest.raises(torch_api.RendezvousError) as caught:
            handler.next_rendezvous()
        assert isinstance(
            caught.value, (torch_api.RendezvousConnectionError, torch_api.RendezvousTimeoutError)
        )
        assert run.endpoint in str(caught.value)

    def test_it_may_try_again(self, run: Run) -> None:
        handler = run.handler(2, 2, join_timeout=0.2)
        with pytest.raises(torch_api.RendezvousTimeoutError):
            handler.next_rendezvous()
        other = run.handler(2, 2)
        [waiting] = run.join(other)
        assert run.round(handler)[0].world_size == 2
        assert waiting.result(PATIENCE).world_size == 2

    def test_settings_that_differ(self, run: Run) -> None:
        waiting = run.handler(2, 2)
        joining = run.join(waiting)
        until(lambda: listens(run.endpoint))
        with pytest.raises(torch_api.RendezvousError, match="3") as caught:
            run.handler(2, 3).next_rendezvous()
        assert caught.value.code is Code.MISMATCH  # type: ignore[attr-defined]
        waiting._member.cancel()
        assert isinstance(joining[0].exception(PATIENCE), RallypointError)

    def test_port_of_another_run(self, run: Run) -> None:
        run.round(run.handler(1, 1))
        run.run_id = "another-run"
        with pytest.raises(torch_api.RendezvousError, match="the-run") as caught:
            run.handler(1, 1).next_rendezvous()
        assert caught.value.code is Code.TENANT  # type: ignore[attr-defined]


class TestOtherThreads:
    def test_cancel(self, run: Run) -> None:
        handler = run.handler(2, 2)
        [joining] = run.join(handler)
        until(lambda: listens(run.endpoint))
        handler._member.cancel()
        error = joining.exception(PATIENCE)  # which is less than join_timeout
        assert isinstance(error, torch_api.RendezvousError)
        assert error.code is Code.CANCELED  # type: ignore[attr-defined]

    def test_shutdown_ends_a_join(self, run: Run) -> None:
        handler = run.handler(2, 2)
        [joining] = run.join(handler)
        until(lambda: listens(run.endpoint))
        assert handler.shutdown() is True
        assert isinstance(joining.exception(PATIENCE), torch_api.RendezvousError)

    def test_num_nodes_waiting_meanwhile(self, run: Run) -> None:
        """It never waits for the join of another thread."""
        handler = run.handler(2, 2)
        [joining] = run.join(handler)
        for _ in range(100):
            handler.num_nodes_waiting()
            handler.is_closed()
        handler.shutdown()
        joining.exception(PATIENCE)

    def test_python_runs_on_meanwhile(self, run: Run) -> None:
        """The interpreter lock is not held by a join that waits."""
        handler = run.handler(2, 2)
        [joining] = run.join(handler)
        until(lambda: listens(run.endpoint))
        for _ in range(50):
            time.sleep(0.001)
        assert not joining.done()
        handler.shutdown()
        joining.exception(PATIENCE)
