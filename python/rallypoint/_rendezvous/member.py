"""A node's side of a rendezvous, without torch."""

from __future__ import annotations

import atexit
import copy
import ctypes
import dataclasses
import enum
import select
import threading
import weakref
from collections.abc import Mapping
from typing import Any

from .._errors import CanceledError, Code, RallypointError
from .._native import abi, library, log
from .._native.structs import out_of_range
from .._native.wait import wait as _wait
from .._stores.store import Store
from .backend import open_member
from .endpoint import MemberConfig

# How long an interpreter that exits waits for a member to leave that was never
# shut down.
_EXIT_PATIENCE_MS = 1000

# How long an interrupted call waits for the library to have withdrawn.
_WITHDRAW_PATIENCE_MS = 50


class Ending(enum.IntEnum):
    """How a node's part in a run ends."""

    LEAVE = 0  # it goes; the run stays open
    SUCCESS = 1  # its work is done
    FAILED = 2  # its workers failed for good


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A node's place in a completed round.

    All members of a round see the same round, world_size, store_addr and store_port.

    Args:
        round: its number, which only grows.
        rank: of this node, 0 to world_size - 1.
        world_size: how many nodes the round has.
        store_addr: host of the round's store, MASTER_ADDR of the workers.
        store_port: its port, MASTER_PORT.
        advertised_addr: host of the node that has the store; with a token store_addr is a
            loopback address of this machine.
    """

    round: int
    rank: int
    world_size: int
    store_addr: str
    store_port: int
    advertised_addr: str = ""


class Member(library.Handle):
    """One node of a run.

    All methods may be called from any thread, and release the interpreter lock. Those
    that wait answer Ctrl-C within 0.1 s. A member is ended by shutdown() and close(),
    or by leaving a `with` block; one that is not leaves the run when the interpreter
    exits.

    Args:
        run_id: name of the run, the same on all nodes.
        endpoint: where the nodes meet: host[:port] of the control plane, which one of the
            nodes hosts by itself (or `rallypoint serve`); file:///DIRECTORY, which all
            share; or static://HOST:PORT of node 0 of a fixed set of nodes, each with option
            node_rank.
        min_nodes: fewest nodes of a round.
        max_nodes: most nodes.
        local_addr: address under which the others reach this node; None: found out.
        options: those of --rdzv-conf; unknown ones are logged and ignored. None: none.
        environment: whether hints of schedulers and PET_NODE_RANK are read from the
            environment.
        backend: a RendezvousBackend of rallypoint or of torch, in which the nodes meet;
            the endpoint is then a human-readable name. None: the endpoint says where.

    Raises:
        InvalidError: something is wrong with the arguments. No network is touched.
    """

    def __init__(
        self,
        run_id: str,
        endpoint: str,
        min_nodes: int = 1,
        max_nodes: int = 1,
        *,
        local_addr: str | None = None,
        options: Mapping[str, object] | None = None,
        environment: bool = True,
        backend: Any | None = None,
    ) -> None:
        config = MemberConfig(
            run_id, endpoint, min_nodes, max_nodes, local_addr, options, environment
        ).native()
        self.run_id = run_id
        self.endpoint = endpoint
        self._handle = abi.MemberHandle()
        self._finalizer = library.owned(self, "rp_member_close", self._handle)
        self._finalizer.atexit = False  # _leave_all is before it
        try:
            if backend is None:
                library.call("rp_member_open", ctypes.byref(config), ctypes.byref(self._handle))
            else:
                open_member(ctypes.byref(config), backend, ctypes.byref(self._handle))
        finally:
            log.drain()
        self._next = threading.Lock()
        self._joins = 0  # that have ended, of which the last one ended so:
        self._last: Outcome | RallypointError | None = None
        self._withdrawn = False
        self._ended = False
        _open.add(self)

    def next(self) -> Outcome:
        """Leaves the round this node is in and waits for its place in the next one.

        Waits for at most option join_timeout (600 s), a spare without a limit. Ends
        early by cancel(), shutdown() and close() (CanceledError) and by any exception
        that a signal handler raises, such as KeyboardInterrupt: then the node withdraws.

        Raises ClosedError, GracefulExitError, DeadlineError, CanceledError,
        ConnectionFailedError, StateError, InvalidError, AuthenticationError, or RallypointError
        with the code MISMATCH, TENANT or NODE_IN_USE.

        Calls of several threads at once wait for the same join, and have its result.
        """
        joins = self._joins
        with self._next:
            if joins == self._joins:
                self._join()
            last = self._last
        if isinstance(last, RallypointError):
            raise copy.copy(last)  # each thread's has a traceback of its own
        assert last is not None
        return last

    def _join(self) -> None:
        outcome = abi.Outcome()
        try:
            if self._withdrawn:
                self._finish_withdrawal(outcome)
            if not outcome.round:
                self._await_place(outcome)
            self._last = Outcome(
                round=outcome.round,
                rank=outcome.rank,
                world_size=outcome.world_size,
                store_addr=outcome.store_addr.decode(),
                store_port=outcome.store_port,
                advertised_addr=outcome.advertised_addr.decode(),
            )
        except RallypointError as error:
            self._last = error
        except BaseException:
            self._withdraw(outcome)
            raise
        finally:
            log.drain()
        self._joins += 1

    def _await_place(self, outcome: abi.Outcome) -> None:
        """Waits for the end of a join, by events: a spare may wait for days."""
        fd = ctypes.c_int32()
        library.call("rp_member_fd", self._handle, ctypes.byref(fd))
        changes = select.poll()
        changes.register(fd.value, select.POLLIN)
        while library.call("rp_member_next", self._handle, 0, ctypes.byref(outcome)) == abi.PENDING:
            log.drain()
            happened = changes.poll(log.LOG_MS)
            if not self._finalizer.alive:
                raise CanceledError(f"{self!r}: its place is not waited for", Code.CANCELED)
            if happened:
                library.call("rp_member_wait", self._handle, 0)

    def _withdraw(self, outcome: abi.Outcome) -> None:
        """Takes the join back after an interrupt, for which there is little time."""
        library.call("rp_member_cancel", self._handle)
        try:
            code = library.call(
                "rp_member_next", self._handle, _WITHDRAW_PATIENCE_MS, ctypes.byref(outcome)
            )
            self._withdrawn = code == abi.PENDING
        except Exception:
            self._withdrawn = False

    def _finish_withdrawal(self, outcome: abi.Outcome) -> None:
        """Waits for the end of a join that was withdrawn before.

        If it was completed instead, the outcome is that of the present call.
        """
        try:
            self._await_place(outcome)
        except CanceledError:
            pass
        finally:
            self._withdrawn = False

    def cancel(self) -> None:
        """Ends a next(), shutdown() or set_closed() of another thread.

        next() then raises CanceledError soon, or returns if the round was complete.
        """
        library.call("rp_member_cancel", self._handle)

    def shutdown(self, ending: Ending = Ending.SUCCESS, reason: str = "") -> None:
        """Ends this node's part in the run.

        A process that hosts the control plane or the round's store then waits until all other
        members have ended, at most option close_timeout (30 s). Calling it again waits for the
        first call.

        Args:
            ending: how. SUCCESS and FAILED close the run for all if this node is a member of
                the last round; all else merely leaves.
            reason: what nodes that meet the closed run receive.

        Raises:
            DeadlineError, ConnectionFailedError: the control plane could not be reached.
            CanceledError: cancel() or close() came before.
        """
        self._ended = True
        self._end("rp_member_shutdown", int(ending), reason=reason)

    def _end(self, function: str, *args: object, reason: str) -> None:
        """A call with a reason, which an exception that a signal handler raises cancels."""
        text = library.text(reason.replace("\0", " "))
        try:
            _wait(function, self._handle, *args, text, library.SLICE_MS)
        except RallypointError:
            raise
        except BaseException:
            self.cancel()
            raise
        finally:
            log.drain()

    def set_closed(self, reason: str = "") -> None:
        """Closes the run: no more nodes can join, and the running round continues.

        Args:
            reason: what nodes that meet the closed run receive.

        Raises:
            DeadlineError, ConnectionFailedError: the control plane could not be reached within
                option close_timeout (30 s).
        """
        self._end("rp_member_set_closed", reason=reason)

    def nodes_waiting(self) -> int:
        """How many nodes are a reason to regroup: lost ones, newcomers, an announced stop.

        Answers at once from what is known here, also if the control plane is away.
        """
        count = ctypes.c_int32()
        library.call("rp_member_nodes_waiting", self._handle, ctypes.byref(count))
        log.drain()
        return count.value

    def is_closed(self) -> bool:
        """Whether the run is known to be closed. Answers at once."""
        closed = ctypes.c_int32()
        library.call("rp_member_is_closed", self._handle, ctypes.byref(closed))
        log.drain()
        return bool(closed.value)

    def reason(self) -> str:
        """Why nodes_waiting() or is_closed() last changed, human-readable."""
        size = ctypes.c_size_t(8192)  # reasons are shorter
        text = ctypes.create_string_buffer(size.value)
        library.call("rp_member_reason", self._handle, text, ctypes.byref(size))
        return text.value.decode("utf-8", "replace")

    def keys(self, round: int) -> Store:
        """Opens the store that the nodes of a round share (not that of the workers).

        It lives in the control plane and survives reconnects, and its calls do not fail
        because another node died.

        Args:
            round: number of the round.

        Returns:
            The store; close it. After the round its calls raise the code ROUND_OVER.
        """
        if not 0 <= round < 2**64:  # ctypes takes the lower 64 bits
            raise out_of_range("the round", round)
        handle = abi.StoreHandle()
        store = Store(handle, f"of round {round} of the run {self.run_id!r}")
        library.call("rp_member_keys", self._handle, round, ctypes.byref(handle))
        return store

    def close(self) -> None:
        """Releases everything. A node that was not shut down counts as lost."""
        self._ended = True
        library.close(self._finalizer)
        if not library.forked():
            log.drain()

    def __repr__(self) -> str:
        closed = "" if self._finalizer.alive else ", closed"
        where = library.without_password(self.endpoint)
        return f"<{library.name(self)} of the run {self.run_id!r} at {where}{closed}>"

    def __enter__(self) -> Member:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _where: object) -> None:
        try:
            if not self._ended:
                if error is None:
                    self.shutdown()
                else:
                    self.shutdown(Ending.LEAVE, f"{type(error).__name__}: {error}")
        finally:
            self.close()

    def _leave_at_exit(self) -> None:
        if not self._ended:
            self._ended = True
            library.call(
                "rp_member_shutdown",
                self._handle,
                int(Ending.LEAVE),
                b"its process exited",
                _EXIT_PATIENCE_MS,
            )


_open: weakref.WeakSet[Member] = weakref.WeakSet()


@atexit.register
def _leave_all() -> None:
    if library.forked() or not library.loaded():
        return
    for member in list(_open):
        try:
            if member._finalizer.alive:
                member._leave_at_exit()
        except Exception:
            pass  # the control plane notices that the connection ends
        finally:
            member._finalizer()
    log.drain()
