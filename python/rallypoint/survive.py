"""Training that goes on when a worker dies: the others keep their processes and their state.

An ordinary DistributedDataParallel script changes in five lines (docs/keep-the-rest.md):

    from rallypoint import survive

    survive.init_process_group("gloo")  # instead of torch.distributed's
    ...
    run = survive.Run(model=model, optimizer=optimizer)
    for step in run.steps(1000):
        with run.attempt():  # again, if a worker died in it
            ...

When a worker of the group dies, the others form a new group without it, give the newest state
to those that are behind, and repeat the step that was cut. A worker that starts later comes in
between two steps, and has its state from the others.

That needs `rallypoint run --on-failure regroup`, torch 2.15 or newer and the backend gloo.
Elsewhere, as under torchrun, the same script runs as it would without this module: the loss of a
worker ends the others, and the launcher starts all again.
"""

from __future__ import annotations

import logging
import operator
import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from ._errors import CanceledError, Code, InvalidError, RallypointError
from ._launch.directive import Directive
from ._launch.progress import leaving, progress
from ._launch.world import can_regroup, changeable, changing, regroup
from ._survive import members as _members
from ._survive import replicas as _replicas
from ._survive import state as _state
from ._survive.cut import is_cut as _is_cut
from ._survive.group import Group, StateLostError
from ._survive.snapshot import Snapshot, clone

__all__ = ["Run", "StateLostError", "hsdp_mesh", "init_process_group"]

_log = logging.getLogger("rallypoint")

#: Between two looks of a worker that waits for others to join, or to leave, in seconds.
_PAUSE = 0.01

#: Between two looks at whether the world changes within an attempt, in seconds.
_LOOK = 0.1

#: So many worlds in a row that a worker could not enter, or attempts at a step that were cut, are a
#: defect, and end it.
_ATTEMPTS = 20

_RESTARTS = "a lost worker ends all others, which then start again: %s"
_NO_GROUP = "the script has not called survive.init_process_group"
_OTHER_GROUPS = (
    "the script has process groups of its own (torch.distributed.new_group, or a device mesh), "
    "which are not formed again"
)
_SECOND_LOOP = "the script has a second loop of steps, and a newcomer would begin with the first"

_group: Group | None = None
_called = False  # init_process_group has been
_looping: Run | None = None  # whose loop of steps has begun and not ended
_Enter = Callable[[dict[str, Any]], _members.Members]


def init_process_group(backend: str = "gloo", *, timeout: timedelta | None = None) -> None:
    """Makes torch's default process group, of which workers may be lost.

    Where that is not possible it is torch.distributed.init_process_group, and a line of the
    log says why.

    In a worker that joins a job which is already running, the group has this worker alone until
    Run.steps() begins: it must not wait for the others before.

    Args:
        backend: gloo.
        timeout: of the group's collectives; None is torch's own.
    """
    global _group, _called
    _called = True
    why = _unsupported(backend)
    if why:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            _log.warning(_RESTARTS, why)
        dist.init_process_group(backend, **({} if timeout is None else {"timeout": timeout}))
    else:
        _group = Group(timeout)


def hsdp_mesh(shards: int) -> torch.distributed.DeviceMesh:
    """The mesh for torch's fully_shard(), whose replicas have a lost worker's shard.

    All workers of the world are in it, and it keeps its shape: each step is made by as many.

    Args:
        shards: into how many a model is divided. It divides the number of workers, which has to
            be larger.
    """
    if _group is not None:
        return _group.make_mesh(shards)
    from torch.distributed.device_mesh import init_device_mesh

    shape = (dist.get_world_size() // shards, shards)
    return init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))


def _unsupported(backend: str) -> str:
    """Why a lost worker ends the others; empty: it does not."""
    if not changeable():
        return "this worker's agent was not started with `rallypoint run --on-failure regroup`"
    if not hasattr(dist, "_reconfigure"):
        return (
            f"torch is {torch.__version__}, and workers of a process group can change from 2.15 on"
        )
    if backend != "gloo":
        return f"the backend is {backend!r}, and only gloo is supported"
    return ""


class Run:
    """The steps of a training job, and the state that goes from one to the next.

    Everything that a worker needs to go on from a step is given here by name: modules (DDP or
    not), optimizers, anything else with state_dict() and load_state_dict(), and dicts of plain
    values and tensors. Each worker gives the same names.

    A step is complete in a worker when its attempt has reached its end, or has been cut after
    each of the optimizers made its step. An attempt that is cut before that is taken back: its
    gradients are dropped, and the buffers of modules, dicts and torch's random state of the CPU
    are put back. With several optimizers, what is registered is copied before the first of
    them makes its step, as a cut may come between them.

    So an attempt has its collectives before the steps of its optimizers, each optimizer makes
    one step in it, from gradients of that attempt, and what else is registered, such as
    schedulers, changes after them. If the step of an optimizer itself has collectives and is cut,
    this worker's state is of no use any more: it gets that of another one which has made the step.

    With a mesh of hsdp_mesh() all workers complete a step or none does: before its last optimizer
    makes its step, a worker waits until all have come there.

    Attributes:
        directive: what rallypoint.progress returned, which is called after each step. Once this
            worker has called rallypoint.saved for one that ends the round, the next step waits.

    Args:
        changed: called with rank and size of this worker after each change of the group, before
            the next attempt: for samplers.
        wait_for_all: whether a step waits until workers that join have come in. Each step is
            then made by all workers of the world. With a mesh of hsdp_mesh() it always does.
        state: what is registered, by name.
    """

    def __init__(
        self,
        *,
        changed: Callable[[int, int], object] | None = None,
        wait_for_all: bool = False,
        **state: Any,
    ) -> None:
        self._completed = 0
        self.directive: Directive | None = None
        self._changed, self._wait_for_all, self._state = changed, wait_for_all, state
        self._fresh = True  # has not completed a step, nor received the state of one that has
        self._ended = True  # the last step reached its end
        self._whole = True  # what is registered is the state after a step
        self._cut: BaseException | None = None
        self._met: _members.Members | None = None  # in a world whose group is not yet made
        self._replicas: list[DistributedDataParallel] = []
        self._turn = threading.Lock()  # of the watch, or of a change of what follows
        self._inside = False  # an attempt, or what comes between two of the loop
        self._failed = False  # the last attempt was neither completed nor taken back
        self._agreed = False  # that all workers of a mesh complete it
        self._stepping: set[int] = set()  # optimizers that began their step in it
        self._stepped: set[int] = set()  # of these, those that ended it
        self._cuts = 0  # attempts in a row that were cut and taken back
        self._kept: dict[str, Any] | None = None  # the state before it, of several optimizers
        self._scalers = [s for s in state.values() if isinstance(s, torch.amp.GradScaler)]
        self._modules = [s for s in state.values() if isinstance(s, torch.nn.Module)]
        self._optimizers = [s for s in state.values() if isinstance(s, torch.optim.Optimizer)]
        parameters = (p for m in self._modules for p in m.parameters() if p.requires_grad)
        self._parameter = next(parameters, None)  # one of all
        self._warned = False
        dicts = {n: s for n, s in state.items() if isinstance(s, dict)}
        self._snapshot = Snapshot(self._modules, dicts)
        self._hooks: list[RemovableHandle] = []
        self._hook_optimizers()
        for name, value in state.items():
            if not isinstance(value, dict) and not hasattr(value, "load_state_dict"):
                raise InvalidError(
                    f"{name} is a {type(value).__qualname__}: state is what has state_dict() and "
                    "load_state_dict(), or a dict",
                    Code.INVALID,
                )
        self._group: Group | None = None

    def _find_group(self) -> None:
        """Finds the process group, which the script may have made after the run."""
        self._group = self._group or _group
        if self._group is None:
            if changeable() and not _called:
                self._restarts(_NO_GROUP)
            return
        mesh = self._group.mesh
        if mesh is not None:
            self._wait_for_all = True  # a smaller world is no mesh
        parts = [p for m in self._modules for p in m.parameters()] + self._optimizers
        if any(_replicas.sharded(part, mesh) for part in parts):
            self._restarts(
                "parameters or optimizer states are sharded, and nobody else has a lost worker's"
            )
        elif self._group.has_others():
            self._restarts(_OTHER_GROUPS)
        elif self._group.looped:
            self._restarts(_SECOND_LOOP)

    def _restarts(self, why: str) -> None:
        _log.warning(_RESTARTS, why)
        self._group = None

    @property
    def completed(self) -> int:
        """How many steps are complete. A script that loads a checkpoint sets it before the loop."""
        return self._completed

    @completed.setter
    def completed(self, steps: int) -> None:
        if _looping is self:
            raise InvalidError(
                "completed is set within the loop of steps, which counts them itself: set it "
                "before the loop, as a worker that joins would not know of it",
                Code.INVALID,
            )
        self._completed = operator.index(steps)

    @property
    def rank(self) -> int:
        """This worker's rank in the process group."""
        return int(dist.get_rank())

    @property
    def size(self) -> int:
        """How many workers the process group has."""
        return int(dist.get_world_size())

    def steps(self, total: int) -> Iterator[int]:
        """The numbers of the steps from `completed` to total - 1.

        The number of a step that was cut comes again. After the last one, workers wait for
        each other, as one that is behind may need the state of another.

        There is one loop, which has all steps: in a second one the loss of a worker ends the
        others, as a newcomer would run what comes before that loop beside them.

        Raises:
            InvalidError: another loop has not ended, of this run or another one.
        """
        global _looping
        if _looping is not None:
            raise InvalidError(
                "a loop of steps begins while another one has not ended: make one loop, by one Run",
                Code.INVALID,
            )
        _looping = self
        try:
            yield from self._loop(total)
        finally:
            _looping = None

    def _loop(self, total: int) -> Iterator[int]:
        self._find_group()
        if self._group is None:
            while self.completed < total:
                yield self.completed
            return
        self._group.looped = True
        _state.encode(self._states(), "the state", [])  # which fails now, not when it has to travel
        self._hook_optimizers()
        self._replicas = _replicas.find(self._modules)
        with _Watch(self):
            if self._group.joining:
                self._group.ready()
                self._change(self._group.join, "this worker joins")
            else:
                can_regroup()
            checked = False
            while True:
                self._between(total)
                last = self._wait_for_all or self.completed == total
                if leaving() or (self._group.pending and last):  # a step would only be cut
                    time.sleep(_PAUSE)
                elif self.completed < total:
                    try:
                        yield self.completed
                    except GeneratorExit:
                        if not self._failed:
                            self._group.left()
                        raise
                    if self._cut is not None:
                        self._recover(self._cut)
                    elif not checked and len(self._stepped) == len(self._optimizers):
                        checked = True
                        _state.encode(self._states(), "the state", [])  # with what steps have made
                elif self._all_done(total):
                    return

    def attempt(self) -> AbstractContextManager[None]:
        """A context for the whole body of a step.

        It takes the error of a collective whose peer is gone, and the loop then gives the same
        step again. All other errors pass.

        Raises:
            InvalidError: it is not in the loop of this run's steps, which repeats them, or in
                another attempt.
        """
        return _Attempt(self)

    # The two ends of an attempt.

    def _begin(self) -> None:
        if _looping is not self or self._inside:
            raise InvalidError(
                "an attempt is made in the loop of its run's steps, and not in another attempt",
                Code.INVALID,
            )
        self._agreed, self._failed, self._met = False, True, None
        self._stepping.clear()
        self._stepped.clear()
        self._kept = None
        if self._group is not None:
            self._gradient = self._find_gradient()
            self._snapshot.take()
        self._inside = True

    def _hook_optimizers(self) -> None:
        """Has this run know when optimizers make their steps, after all that comes before them."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = [
            hook
            for optimizer in self._optimizers
            for hook in (
                optimizer.register_step_pre_hook(self._before_step),
                optimizer.register_step_post_hook(self._after_step),
            )
        ]

    def _check_registered(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuses that another one changes what is registered, unless it belongs to one that is."""
        if not self._inside or optimizer in self._optimizers or self._stepping > self._stepped:
            return
        if _replicas.changes(optimizer, self._modules):
            raise InvalidError(
                f"a {type(optimizer).__qualname__} changes a registered module, and is not "
                "registered: give it to the Run, without what a library has wrapped it in",
                Code.INVALID,
            )

    def _find_gradient(self) -> tuple[int, int] | None:
        """Which gradient a parameter has, in which version."""
        gradient = None if self._parameter is None else self._parameter.grad
        return None if gradient is None else (id(gradient), gradient._version)

    def _warn_of_accumulation(self) -> None:
        if self._warned or self._group is None or not self._optimizers or self._scalers:
            return  # a scaler leaves steps out
        if self._find_gradient() not in (None, self._gradient):
            self._warned = True
            _log.warning(
                "step %d has left gradients for the next one: with a lost worker they are lost, "
                "so make all batches of an optimizer's step in one attempt",
                self.completed,
            )

    def _before_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if not self._inside:
            return
        if id(optimizer) in self._stepped:
            raise InvalidError(
                "an optimizer makes its second step in one attempt: make it an attempt of its own",
                Code.INVALID,
            )
        closure = kwargs.get("closure") if len(args) < 2 else args[1]  # may have collectives
        if len(self._stepped) == len(self._optimizers) - 1 and closure is None:
            self._agree()
        self._stepping.add(id(optimizer))
        if self._group is None or self._kept is not None:
            return
        if len(self._optimizers) > 1 or closure is not None:
            self._kept = clone(self._states())

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self._stepped.add(id(optimizer))

    def _agree(self) -> None:
        """Has all workers of a mesh complete this step, or none, as each may have a shard alone.

        It comes after all collectives of the step, and before what cannot be taken back. A worker
        that is cut in it can still do both: it completes the step if another one, which it meets
        in the next world, has done so. It joins that world's group only after its attempt, as the
        others are at something else.
        """
        if self._agreed or self._group is None or self._group.mesh is None:
            return
        try:
            dist.all_reduce(torch.zeros(1))
        except RuntimeError as e:
            if not _is_cut(e) or self._group.has_others():
                raise
            self._met = self._meet(e, prepared=True)
            if not any(self._is_ahead(m) for m in self._met):
                raise
            self._cut = e
        self._agreed = True

    def _is_ahead(self, other: dict[str, Any]) -> bool:
        return not other["fresh"] and other["completed"] > self._completed

    def _exit(self) -> None:
        with self._turn:
            self._inside = False

    @contextmanager
    def _meeting(self) -> Iterator[None]:
        """Waits for others, and is woken if the world changes."""
        self._inside = True
        try:
            yield
        finally:
            self._exit()

    def _complete(self, ended: bool) -> None:
        self._exit()
        self._failed = False
        if ended and not self._stepped:
            self._warn_of_accumulation()
        self._cuts = 0
        self._completed += 1
        self._fresh, self._ended = False, ended
        self.directive = progress(self._completed)

    def _end_cut(self, error: BaseException) -> None:
        """Takes the attempt for complete if its optimizers made their steps, and else back."""
        self._cut, self._failed = error, False
        self._snapshot.restore_modes()
        for scaler in self._scalers:  # the next attempt unscales gradients of its own
            scaler._per_optimizer_states.clear()
        stepped = bool(self._stepped) and len(self._stepped) == len(self._optimizers)
        if stepped and (self._agreed or self._group is None or self._group.mesh is None):
            self._met = None  # where this worker has said that it would reach the end
            self._complete(False)
            return
        self._exit()
        self._cuts += 1
        if self._kept is not None:
            self._load(self._kept)
        elif self._stepping:
            self._whole = False  # an optimizer that has collectives has made a part of its step
        self._snapshot.restore()

    def _states(self) -> dict[str, Any]:
        return {n: s if isinstance(s, dict) else s.state_dict() for n, s in self._state.items()}

    # From one world to the next.

    def _between(self, total: int) -> None:
        """Leaves the world, or admits workers to it, if it is time for that."""
        assert self._group is not None
        try:
            if changing() or (self._group.pending and self._group.has_others()):
                raise CanceledError("others left it, or join", Code.CANCELED)
            if not self._group.pending:
                return
            last = self.completed if self._wait_for_all else total
            with self._meeting():
                due = self._group.admission(self.completed, last)
            if due:
                self._change(self._group.admit, "workers join")
        except RallypointError as e:
            if not _is_cut(e):
                raise
            self._recover(e)

    def _recover(self, why: BaseException) -> None:
        """Enters the next world, with the state of its newest worker."""
        assert self._group is not None
        if self._group.has_others():  # made since the first step
            _log.warning(_RESTARTS, _OTHER_GROUPS)
            raise why
        for _ in range(_ATTEMPTS):
            members, self._met = self._met or self._meet(why), None
            try:
                with self._meeting():
                    self._group.connect(members)
                    return self._settle(members)
            except (RuntimeError, RallypointError) as e:
                if not _is_cut(e):
                    raise
                why = e
        raise why

    def _meet(self, why: BaseException, prepared: bool = False) -> _members.Members:
        """Leaves the world, and meets those that continue in the next one.

        Args:
            why: it is left.
            prepared: whether this worker can complete its step, or take it back.
        """
        assert self._group is not None
        self._exit()
        for _ in range(_ATTEMPTS):
            _log.info(
                "leaving the world %d at step %d: %s", self._group.world.epoch, self._completed, why
            )
            self._group.leave()
            self._group.world = regroup()
            try:
                with self._meeting():
                    return self._group.meet(self._said(prepared))
            except RallypointError as e:
                if not _is_cut(e):
                    raise
                why = e
        raise why

    def _said(self, prepared: bool = False) -> dict[str, Any]:
        """What this worker reports about itself when it meets others."""
        assert self._group is not None
        return {
            "fresh": self._fresh,
            "completed": self._completed if self._whole else -1,
            "ended": self._ended,
            "prepared": prepared,
            "joins": self._group.joining,
            "shard": self._group.shard,
        }

    def _change(self, group: _Enter, why: str) -> None:
        """Enters another group of the same world, or the next world if that fails."""
        _log.info("%s after step %d", why, self.completed)
        try:
            with self._meeting():
                self._settle(group(self._said()))
        except (RuntimeError, RallypointError) as e:
            if not _is_cut(e):
                raise
            self._recover(e)

    def _settle(self, members: _members.Members) -> None:
        """Has the state that the newest worker of the group has, which has just been made."""
        assert self._group is not None
        if self._cut is not None:
            for module in self._modules:
                if hasattr(module, "reset_iter_state"):  # of FSDP, within a step
                    module.reset_iter_state()
        ages = _members.ages(members)
        newest = max(ages)
        same = newest[0] and newest[2]  # in all that have it: who is cut may be behind in its body
        if self.rank == 0 and all(m["joins"] for m in members):
            _log.warning(
                "all workers that had the job's state are gone: it begins at step %d, with what "
                "the script has loaded",
                newest[1],
            )
        if not same or any(age != newest for age in ages):
            behind = not same or ages[self.rank] != newest
            for shard, source in _members.sources(members, ages):
                self._share(source, newest, behind and shard == self._group.shard)
        for module in self._modules:
            for parameter in module.parameters():
                parameter.grad = None
        for ddp in self._replicas:
            _replicas.renew(ddp)
        self._group.joining, self._cut = False, None
        if self._changed is not None:
            self._changed(self.rank, self.size)

    def _share(self, source: int, age: _members.Age, behind: bool) -> None:
        def broadcast(tensor: torch.Tensor) -> None:
            dist.broadcast(tensor, source)

        if self.rank == source:
            return _state.send(self._states(), broadcast)
        state = _state.receive(broadcast, behind, self._group and self._group.mesh)
        if behind:
            self._load(state)
            self._completed, self._fresh, self._ended = age[1], not age[0], True

    def _load(self, state: dict[str, Any]) -> None:
        if not isinstance(state, dict) or state.keys() != self._state.keys():
            raise InvalidError(
                f"this worker registered {sorted(self._state)}, another one {sorted(state)}",
                Code.INVALID,
            )
        self._whole = False
        for name, value in self._state.items():
            _state.load(value, state[name])
        self._whole = True

    def _all_done(self, total: int) -> bool:
        """Waits until all workers of the world have completed the last step."""
        assert self._group is not None
        try:
            store, size = self._group.store, self._group.world.size
            with self._meeting():
                store.set(f"done/{total}/{self._group.world.rank}", "")
                store.wait([f"done/{total}/{rank}" for rank in range(size)], timedelta(days=365))
            return True
        except RallypointError as e:
            if not _is_cut(e):
                raise
            self._recover(e)
            return False


class _Watch:
    """Ends this worker's connections if the world changes while it may wait for others.

    One of them may be gone without a word. When others join, the world changes between attempts.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rallypoint-watch", daemon=True)

    def _watch(self) -> None:
        group = self._run._group
        assert group is not None
        while not self._over.wait(_LOOK):
            with self._run._turn:
                if self._run._inside and changing():
                    group.wake()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


class _Attempt(AbstractContextManager[None]):
    def __init__(self, run: Run) -> None:
        self._run = run

    def __enter__(self) -> None:
        self._run._begin()

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _where: TracebackType | None,
    ) -> bool:
        try:
            if error is None:
                self._run._agree()
        except RuntimeError as e:
            if not _is_cut(e):
                raise
            error = e
        if error is None:
            self._run._complete(True)
            return False
        self._run._exit()
        self._run._failed = not isinstance(error, SystemExit) or bool(error.code)
        # Stores of the script's own have errors, too, which are none of torch's.
        if self._run._group is None or not isinstance(error, RuntimeError) or not _is_cut(error):
            return False
        if self._run._cuts == _ATTEMPTS:
            _log.error("step %d was cut %d times in a row", self._run.completed, _ATTEMPTS + 1)
            return False
        self._run._end_cut(error)
        return True


def _before_any_step(optimizer: torch.optim.Optimizer, *_: object) -> None:
    if _looping is not None:
        _looping._check_registered(optimizer)


register_optimizer_step_pre_hook(_before_any_step)
