"""The rendezvous handler for torch's elastic agent (torch 2.4 and newer).

torchrun --rdzv-backend=rallypoint finds it by itself. Programs that launch agents
themselves can make one with create_handler.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator, MutableMapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from . import admin
from ._errors import GracefulExitError, RallypointError, invalid
from ._native import library
from ._native.log import logger
from ._rendezvous.endpoint import BACKEND, resolve
from ._rendezvous.member import Ending, Member, Outcome
from ._stores.store import Store
from ._torch import frames
from ._torch.agent_store import AgentStore, Participant
from ._torch.errors import rendezvous_error
from ._torch.store import TorchStore
from ._torch.telemetry import RdzvRecorder

# The names that torch's first documents have for its errors, which ours are kinds of.
RendezvousClosedException = RendezvousClosedError
RendezvousTimeoutException = RendezvousTimeoutError
RendezvousNonRetryableError = RendezvousError

_HEARTBEAT = timedelta(seconds=5)  # torch's default

# Workers inherit it: the round that they belong to.
ROUND_VARIABLE = "RALLYPOINT_ROUND"
ADVERTISED_VARIABLE = "RALLYPOINT_MASTER_ADDR"


class Info(RendezvousInfo):
    """A node's place as torch's RendezvousInfo, and as the triple (store, rank, world_size) that
    handlers returned before torch 2.4."""

    def __iter__(self) -> Iterator[Any]:
        return iter((self.store, self.rank, self.world_size))

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: Any) -> Any:
        return tuple(self)[index]


class RallypointHandler(library.Handle, RendezvousHandler):
    """One node's handler, made by create_handler.

    Its errors are both torch's rendezvous errors and RallypointErrors. It may be used from
    any thread. Methods that wait release the interpreter lock and respond to Ctrl-C within
    0.1 s.

    Each step is recorded as one of torch's rendezvous events. torch drops these unless the
    program has a logging handler of its own under the name dynamic_rendezvous.

    Args:
        member: the node.
        backend: the name that get_backend() returns.
        token: the control plane's token file; None: $RALLYPOINT_TOKEN_FILE, if set.
    """

    def __init__(self, member: Member, backend: str = BACKEND, token: str | None = None) -> None:
        self._member = member
        self._backend = backend
        self._completed = False
        self._defaults: dict[str, str] = {}  # variables that the last round has set
        self._stopped: bool | None = None
        # An exception that is being handled while the handler is made is not ours to
        # read in shutdown().
        self._outer: BaseException | None = sys.exc_info()[1]
        self._regrouping = False  # num_nodes_waiting() was > 0
        self._endpoint, self._token = member.endpoint, token
        self._joining = False  # next_rendezvous() was called
        self._record = RdzvRecorder(member.run_id)
        self._record(
            "create_handler",
            "INIT",
            "The node '%(node)s' takes part in the rendezvous '%(run)s' by the backend "
            "'%(backend)s'.",
            backend=backend,
        )

    def get_backend(self) -> str:
        return self._backend

    def get_run_id(self) -> str:
        return self._member.run_id

    @property
    def use_agent_store(self) -> bool:
        """True: workers connect to the round's store as clients (their environment's
        TORCHELASTIC_USE_AGENT_STORE)."""
        return True

    def next_rendezvous(self) -> Info:
        """Leaves the present round and waits until this node is part of the next.

        Rank and world size are those at the completion of the round, and bootstrap info
        is the same on all its nodes. Before it returns, it sets RALLYPOINT_ROUND in os.environ
        to the round, and RALLYPOINT_MASTER_ADDR to the host of the node that has the round's
        store. It returns torch's RendezvousInfo, which also unpacks to store, rank and world
        size.

        Raises RendezvousClosedError, RendezvousTimeoutError, RendezvousConnectionError,
        RendezvousStateError, and, for a node that a run never needed that has succeeded, an error
        that is both a RendezvousGracefulExitError and a RendezvousClosedError. Under torchrun's
        own main it raises SystemExit(0) instead of that error, which torch's launcher treats as a
        crash.
        """
        self._joining = True
        self._record(
            "next_rendezvous",
            "RUNNING",
            "The node '%(node)s' attempts to join the next round of the rendezvous '%(run)s'.",
        )
        try:
            outcome = self._member.next()
            store = self._member.keys(outcome.round)
        except RallypointError as e:
            error = rendezvous_error(e)
            self._record.failed("next_rendezvous", error)
            if isinstance(e, GracefulExitError):
                how = " any more" if self._completed else ", and no worker ran on it"
                logger.warning("this node was not needed%s: %s", how, e)
                if frames.under_torchrun():
                    raise SystemExit(0) from None
            raise error from None
        except Exception as e:  # of a signal handler
            self._record.failed("next_rendezvous", e)
            raise
        self._completed = True
        self._regrouping = False
        self._record_joined(outcome)
        os.environ[ROUND_VARIABLE] = str(outcome.round)
        os.environ[ADVERTISED_VARIABLE] = outcome.advertised_addr
        self._set_defaults(outcome)
        return Info(
            self._store_of(outcome, store),
            outcome.rank,
            outcome.world_size,
            RendezvousStoreInfo(outcome.store_addr, outcome.store_port),
        )

    def _set_defaults(self, outcome: Outcome) -> None:
        """Sets what libraries need when MASTER_ADDR is a loopback address of each node, unless
        the user has: agent/environment.go has the same."""
        if outcome.advertised_addr == outcome.store_addr:
            return
        for name, value in (
            ("DCP_USE_PREFIX_STORE", "1"),
            ("NEURON_RT_ROOT_COMM_ID", library.address(outcome.advertised_addr, 62182)),
        ):
            if os.environ.get(name) in (None, self._defaults.get(name)):
                os.environ[name] = self._defaults[name] = value

    def _store_of(self, outcome: Outcome, store: Store) -> Any:
        """What the agents of a round talk over; `store` is the control plane's."""
        return AgentStore(store, Participant(self._member, outcome))

    def __repr__(self) -> str:
        return f"<{library.name(self)} of {self._member!r}>"

    def _record_joined(self, outcome: Outcome) -> None:
        fields: dict[str, Any] = {
            "rank": outcome.rank,
            "master_endpoint": library.address(outcome.advertised_addr, outcome.store_port),
            "round": outcome.round,
            "group_rank": outcome.rank,
            "world": outcome.world_size,
        }
        if outcome.rank == 0:
            self._record(
                "mark_rendezvous_complete",
                "SUCCEEDED",
                "The node '%(node)s' is the first of round %(round)d of the rendezvous '%(run)s', "
                "which is complete in a world of size %(world)d.",
                **fields,
            )
        self._record(
            "next_rendezvous",
            "RUNNING",
            "The node '%(node)s' has joined round %(round)d of the rendezvous '%(run)s' as rank "
            "%(group_rank)d in a world of size %(world)d.",
            **fields,
        )

    def is_closed(self) -> bool:
        """Whether the run is known to be closed. A missing connection is not an error.

        Before the first next_rendezvous() it asks the run, for at most 5 s.
        """
        if self._member.is_closed():
            return True
        status = self._ask()
        return status is not None and status.phase == "closed"

    def set_closed(self) -> None:
        """Closes the run: no more nodes can join, and the running round continues."""
        try:
            self._member.set_closed("set_closed() was called")
        except RallypointError as e:
            error = rendezvous_error(e)
            self._record.failed("set_closed", error)
            raise error from None
        self._record(
            "set_closed", "SUCCEEDED", "The node '%(node)s' has closed the rendezvous '%(run)s'."
        )

    def num_nodes_waiting(self) -> int:
        """Number of nodes that are a reason to regroup: lost members, newcomers that fit, a stop.

        A missing connection is not an error. Before the first next_rendezvous() it asks the run,
        for at most 5 s, and counts all nodes that wait beside a complete round.
        """
        status = self._ask()
        if status is not None and status.phase == "running":
            return len(status.document["waiting"])
        count = self._member.nodes_waiting()
        if count > 0 and not self._regrouping:
            self._record(
                "num_nodes_waiting",
                "RUNNING",
                "The node '%(node)s' is to leave its round of the rendezvous '%(run)s': "
                "%(reason)s.",
                reason=self._member.reason(),
            )
        self._regrouping = count > 0
        return count

    def _ask(self) -> admin.Status | None:
        """The status of a run in which this node has not asked for a place; None: it has, or
        the run cannot be asked, which is no error (docs/decisions/0013)."""
        if self._joining or self._stopped is not None:
            return None
        try:
            endpoint = self._asked_at()
            run = admin.Run(endpoint, self._member.run_id, token_file=self._token)
            return run.status()
        except Exception:  # of the program's backend, too
            return None

    def _asked_at(self) -> str:
        """Where the run can be asked."""
        return self._endpoint

    def shutdown(self) -> bool:
        """Ends this node's part in the run; False if the control plane could not be reached.

        torch's agent calls it on almost every exit, so the exception in flight decides. After
        a completed round, the run is closed as a success if there is none, and as failed if it
        is a ChildFailedError. Otherwise this node only leaves. Calling it again does nothing.
        """
        if self._stopped is None and frames.ending_unknown():
            return True
        if self._stopped is None:
            ending, reason = self._ending(sys.exc_info()[1], frames.workers_failed())
            self._outer = None
            self._stopped = False
            try:
                self._member.shutdown(ending, reason)
                self._stopped = True
                self._record(
                    "shutdown",
                    "SUCCEEDED",
                    "The node '%(node)s' has left the rendezvous '%(run)s'."
                    if ending == Ending.LEAVE
                    else "The node '%(node)s' has closed the rendezvous '%(run)s'.",
                )
            except RallypointError as e:
                self._record(
                    "shutdown",
                    "FAILED",
                    "The node '%(node)s' has failed to shutdown the rendezvous '%(run)s' due to an "
                    "error of type %(type)s.",
                    error=e,
                    type=type(rendezvous_error(e)).__name__,
                )
                logger.warning("shutting down: %s", e)
        return self._stopped

    def _ending(
        self, error: BaseException | None, workers_failed: bool = False
    ) -> tuple[Ending, str]:
        if error is self._outer:
            error = None
        if not self._completed:
            return Ending.LEAVE, _summary(error)
        if error is None and workers_failed:
            return Ending.FAILED, "its workers failed"
        if error is None:
            return Ending.SUCCESS, ""
        if isinstance(error, ChildFailedError):
            return Ending.FAILED, _failure(error)
        return Ending.LEAVE, _summary(error)


def _summary(error: BaseException | None) -> str:
    if error is None:
        return ""
    text = str(error).strip().split("\n", 1)[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _failure(error: Any) -> str:
    """Which worker failed first, and how."""
    try:
        rank, failure = error.get_first_failure()
        if failure.exitcode < 0:
            how = f"killed by signal {failure.signal_name()}"
        else:
            how = f"exit code {failure.exitcode}"
        return f"worker with rank {rank} (pid {failure.pid}) of {error.name} failed: {how}"
    except Exception:  # the classes are torch's and may change
        return _summary(error)


def create_handler(params: RendezvousParameters) -> RallypointHandler:
    """Makes the handler for a node. The network is first used in next_rendezvous().

    Args:
        params: torch's, with one of these backends:
            rallypoint: takes every endpoint: host[:port], host[:port],host[:port] of
            servers that succeed each other, file:///DIRECTORY, etcd://HOST[:PORT]
            (etcds:// with TLS), static://HOST:PORT.
            rallypoint-file: also takes a plain path. rallypoint-etcd: also takes plain
            host:port, or several separated by commas.
            rallypoint-static: a fixed set of nodes. The endpoint is host:port of node 0,
            min_nodes equals max_nodes, and each node's rank is the option rank or node_rank,
            or PET_NODE_RANK. (The name static is torch's own.)

    Returns:
        The handler.

    Raises:
        ValueError: something is wrong with the parameters (an InvalidError).
    """
    try:
        endpoint, options = resolve(params.backend, params.endpoint, params.config)
        member = Member(
            params.run_id or "",
            endpoint,
            params.min_nodes,
            params.max_nodes,
            local_addr=params.local_addr,
            options=options,
        )
    except RallypointError as e:
        RdzvRecorder(params.run_id or "").failed("create_handler", e)
        raise
    token = str(options.get("token_file") or os.environ.get("RALLYPOINT_TOKEN_FILE") or "")
    if frames.under_torchrun():
        _keep_from_workers(os.environ)
    return RallypointHandler(member, params.backend, token or None)


# What an agent gives to one worker alone: agent/environment.go has the same. torchrun's workers get
# no generation either.
_OF_ONE_WORKER = (
    "RALLYPOINT_PROGRESS_FILE",
    "RALLYPOINT_DIRECTIVE_FILE",
    "RALLYPOINT_STACKS_FILE",
    "RALLYPOINT_GENERATION",
)


def _keep_from_workers(environment: MutableMapping[str, str]) -> None:
    """Takes out of what torchrun's workers inherit the token's file, for which they have no use,
    and, where torchrun is a worker itself, what its agent has given to it alone.

    A program of the user's own that makes handlers keeps all that, for the next one.
    """
    for name in ("RALLYPOINT_TOKEN_FILE", *_OF_ONE_WORKER):
        environment.pop(name, None)
    if "TORCHELASTIC_RESTART_COUNT" in environment:
        environment.pop("TORCHELASTIC_TIMER_FILE", None)
    options = environment.get("PET_RDZV_CONF")
    if options is not None:
        kept = [o for o in options.split(",") if o.partition("=")[0].strip() != "token_file"]
        environment["PET_RDZV_CONF"] = ",".join(kept)


_by_url: list[RallypointHandler] = []  # they leave when the interpreter exits


def _rendezvous_by_url(
    url: str, timeout: timedelta = timedelta(seconds=300), **_: object
) -> Iterator[tuple[Any, int, int]]:
    """torch.distributed.rendezvous("etcd://HOST:PORT/JOB?min_workers=1&max_workers=3").

    The process is a node. Each item is a round: a TCPStore that its nodes share, this node's rank,
    and their number.
    """
    run_id = urlsplit(url).path.strip("/")
    handler = create_handler(RendezvousParameters(BACKEND, url, run_id, 1, 1, None))
    _by_url.append(handler)
    while True:
        info = handler.next_rendezvous()
        at = info.bootstrap_store_info
        store = dist.TCPStore(
            at.master_addr, at.master_port, is_master=False, timeout=timeout, wait_for_workers=False
        )
        yield store, info.rank, info.world_size


for _scheme in ("etcd", "etcds"):
    with contextlib.suppress(RuntimeError):  # the program has a handler of its own
        dist.register_rendezvous_handler(_scheme, _rendezvous_by_url)


class DynamicRendezvousHandler(RallypointHandler):
    """A handler whose nodes meet in a RendezvousBackend supplied by the user.

    Args:
        member: the node; see from_backend.
        backend: the name that get_backend() returns.
        store: the torch.distributed.Store that the agents use; None: the backend.
        token: the control plane's token file; None: $RALLYPOINT_TOKEN_FILE, if set.
        place: the RendezvousBackend, in which the run can be asked; None: the member's endpoint.
    """

    def __init__(
        self,
        member: Member,
        backend: str = BACKEND,
        store: Any = None,
        token: str | None = None,
        place: Any = None,
    ) -> None:
        super().__init__(member, backend, token)
        self._given = store  # and held, which torch's C++ side does not
        self._place = place

    def _asked_at(self) -> str:
        if self._place is None:
            return super()._asked_at()
        state = self._place.get_state()
        return "record://" + ("" if state is None else bytes(state[0]).hex())

    def _store_of(self, outcome: Outcome, store: Store) -> Any:
        if self._given is None:
            return super()._store_of(outcome, store)
        store.close()
        # torch's own name for it: a round finds no keys of another.
        prefix = f"torch.rendezvous.{self._member.run_id}.{outcome.round}"
        return dist.PrefixStore(prefix, self._given)

    @classmethod
    def from_backend(
        cls,
        run_id: str,
        store: Any,
        backend: Any,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        timeout: Any | None = None,
        keep_alive_interval: float = 5,
        keep_alive_max_attempt: int = 3,
        cas_backoff_max_seconds: float = 0.0,
        **options: object,
    ) -> DynamicRendezvousHandler:
        """Makes a handler from the arguments of torch's DynamicRendezvousHandler.from_backend, in
        the same positions.

        Args:
            run_id: name of the run.
            store: the torch.distributed.Store, or Store of this package, that next_rendezvous()
                returns, under a prefix for each round; its server has to outlive the run. None: the
                agents' keys live in the backend, too.
            backend: a RendezvousBackend, rallypoint's or torch's (its C10dRendezvousBackend and
                others work unchanged); all nodes of a run must use rallypoint.
            min_nodes: fewest nodes of a round.
            max_nodes: most nodes.
            local_addr: address at which the others reach this node; None: determined
                automatically.
            timeout: torch's RendezvousTimeout, of which join, last_call and close are used; None:
                the defaults. A heartbeat other than torch's default is ignored, with a
                UserWarning: the lease applies instead.
            keep_alive_interval: its product with keep_alive_max_attempt is the lease, in
                seconds.
            keep_alive_max_attempt: see keep_alive_interval.
            cas_backoff_max_seconds: only checked; the back-off is determined automatically.
            **options: those of --rdzv-conf.

        Returns:
            The handler.

        Raises:
            ValueError: an argument is wrong. Neither backend nor network is touched.
        """
        if not run_id or not hasattr(backend, "get_state") or not hasattr(backend, "set_state"):
            what = "the run id is empty" if not run_id else f"{backend!r} is no RendezvousBackend"
            raise invalid(what)
        if store is not None and not isinstance(store, dist.Store):
            if not isinstance(store, Store):
                raise invalid(f"{store!r} is not a torch.distributed.Store")
            store = TorchStore(store)
        heartbeat = getattr(timeout, "heartbeat", None)
        if heartbeat not in (None, _HEARTBEAT):
            warnings.warn(
                f"RendezvousTimeout.heartbeat is {heartbeat}, which has no effect here: a node is "
                "lost after keep_alive_interval times keep_alive_max_attempt (docs/deviations.md)",
                stacklevel=2,
            )
        conf: dict[str, object] = {
            "keep_alive_interval": keep_alive_interval,
            "keep_alive_max_attempt": keep_alive_max_attempt,
            "cas_backoff_max_seconds": cas_backoff_max_seconds,
        }
        for option in ("join", "last_call", "close"):
            limit = getattr(timeout, option, None)
            if limit is not None:
                conf[f"{option}_timeout"] = limit.total_seconds()
        name = str(backend.name)
        member = Member(
            run_id,
            name,
            min_nodes,
            max_nodes,
            local_addr=local_addr,
            options={**conf, **options},
            backend=backend,
        )
        token = options.get("token_file")
        return cls(member, name, store, None if token is None else str(token), backend)
