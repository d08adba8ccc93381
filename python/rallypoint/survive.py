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

import copy
import gc
import logging
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from ._errors import CanceledError, Code, InvalidError, RallypointError
from ._launch.directive import Directive
from ._launch.progress import progress
from ._launch.world import (
    can_regroup,
    changeable,
    changing,
    regroup,
)
from ._survive import state as _state
from ._survive.group import Group, StateLostError

__all__ = ["Run", "StateLostError", "hsdp_mesh", "init_process_group"]

_log = logging.getLogger("rallypoint")

#: Between two looks for workers that join, of one that waits for them, in seconds.
_PAUSE = 0.01

#: Between two looks at whether the world changes within an attempt, in seconds.
_LOOK = 0.1

#: Larger buffers, in bytes, are copied before an attempt only if torch has counted a change,
#: which it does not for the running statistics of normalisations.
_SMALL = 1 << 20

#: So many worlds in a row that a worker could not enter, or attempts at a step that were cut, are a
#: defect, and end it.
_ATTEMPTS = 20

#: What errors say of a store whose world is over, or soon will be.
_GONE = (Code.TIMEOUT, Code.CANCELED, Code.CONNECTION, Code.ROUND_OVER)

#: What gloo's errors of a broken or timed out connection have in their texts.
_CUT = re.compile(r"\bgloo\b|Connection (closed|reset) by peer", re.IGNORECASE)

_RESTARTS = "a lost worker ends all others, which then start again: %s"
_OTHER_GROUPS = (
    "the script has process groups of its own (torch.distributed.new_group, or a device mesh), "
    "which are not formed again"
)
_SECOND_LOOP = "the script has a second loop of steps, and a newcomer would begin with the first"

_group: Group | None = None
_Enter = Callable[[dict[str, Any]], list[dict[str, Any]]]
_Copy = tuple[torch.Tensor, torch.Tensor, Optional[int]]  # of a tensor, in this version


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
    global _group
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

    Attributes:
        completed: how many steps are complete. A script that loads a checkpoint sets it.
        directive: what rallypoint.progress returned, which is called after each step.

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
        self.completed = 0
        self.directive: Directive | None = None
        self._changed, self._wait_for_all = changed, wait_for_all
        self._state = state
        self._fresh = True  # has not completed a step nor received a state
        self._ended = True  # the last step reached its end
        self._whole = True  # what is registered is the state after a step
        self._cut: BaseException | None = None
        self._replicas: list[DistributedDataParallel] = []
        self._turn = threading.Lock()  # of the watch, or of a change of what follows
        self._inside = False  # an attempt, or what comes between two of the loop
        self._stepping: set[int] = set()  # optimizers that began their step in it
        self._stepped: set[int] = set()  # of these, those that ended it
        self._cuts = 0  # attempts in a row that were cut and taken back
        self._kept: dict[str, Any] | None = None  # the state before it, of several optimizers
        self._dicts = [s for s in state.values() if isinstance(s, dict)]
        self._in_dicts: dict[int, _Copy] = {}
        self._scalers = [s for s in state.values() if isinstance(s, torch.amp.GradScaler)]
        self._modules = [s for s in state.values() if isinstance(s, torch.nn.Module)]
        self._optimizers = [s for s in state.values() if isinstance(s, torch.optim.Optimizer)]
        parameters = (p for m in self._modules for p in m.parameters() if p.requires_grad)
        self._parameter = next(parameters, None)  # one of all
        self._warned = False
        owners = [part._buffers for m in self._modules for part in m.modules()]
        self._places = [(buffers, name) for buffers in owners for name in buffers]
        self._find_buffers()
        self._hooks: list[RemovableHandle] = []
        self._hook_optimizers()
        for name, value in state.items():
            if not isinstance(value, dict) and not hasattr(value, "load_state_dict"):
                raise InvalidError(
                    f"{name} is a {type(value).__qualname__}: state is what has state_dict() and "
                    "load_state_dict(), or a dict",
                    Code.INVALID,
                )
        self._group = _group
        parts = [p for m in self._modules for p in m.parameters()] + self._optimizers
        mesh = None if _group is None else _group.mesh
        if mesh is not None:
            self._wait_for_all = True  # a smaller world is no mesh
        if _group is not None and any(_sharded(part, mesh) for part in parts):
            self._restarts(
                "parameters or optimizer states are sharded, and nobody else has a lost worker's"
            )

    def _restarts(self, why: str) -> None:
        _log.warning(_RESTARTS, why)
        self._group = None

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
        """
        if self._group is not None and self._group.has_others():
            self._restarts(_OTHER_GROUPS)
        if self._group is not None and self._group.looped:
            self._restarts(_SECOND_LOOP)
        if self._group is None:
            while self.completed < total:
                yield self.completed
            return
        self._group.looped = True
        _state.encode(self._states(), "the state", [])  # which fails now, not when it has to travel
        self._hook_optimizers()
        self._replicas = [o for o in gc.get_objects() if DistributedDataParallel in type(o).__mro__]
        with _Watch(self):
            if self._group.joining:
                self._group.ready()
                self._change(self._group.join, "this worker joins")
            else:
                can_regroup()
            while True:
                self._between(total)
                if self._group.pending and (self._wait_for_all or self.completed == total):
                    time.sleep(_PAUSE)
                elif self.completed < total:
                    try:
                        yield self.completed
                    except GeneratorExit:
                        self._group.left()
                        raise
                    if self._cut is not None:
                        self._recover(self._cut)
                elif self._all_done(total):
                    return

    def attempt(self) -> AbstractContextManager[None]:
        """A context for the whole body of a step.

        It takes the error of a collective whose peer is gone, and the loop then gives the same
        step again. All other errors pass.
        """
        return _Attempt(self)

    # The two ends of an attempt.

    def _begin(self) -> None:
        self._stepping.clear()
        self._stepped.clear()
        self._kept = None
        if self._group is not None:
            self._keep()
        self._inside = True

    def _keep(self) -> None:
        """Keeps what a cut puts back."""
        self._gradient = self._find_gradient()
        self._random = torch.get_rng_state()
        if self._dicts:
            self._keep_dicts()
        if any(
            buffers.get(name) is not buffer
            for (buffers, name), buffer in zip(self._places, self._buffers)
        ):
            self._find_buffers()
        with torch.no_grad():
            if self._small:
                torch._foreach_copy_(self._kept_small, self._small)
            for i, (buffer, _, version) in enumerate(self._large):
                if buffer._version != version:
                    self._large[i] = (buffer, buffer.clone(), buffer._version)

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

    def _find_buffers(self) -> None:
        """Finds the buffers of modules, which a module may have replaced."""
        self._buffers = [buffers.get(name) for buffers, name in self._places]
        found = list({id(b): b for b in self._buffers if b is not None}.values())
        self._small = [b for b in found if b.nbytes <= _SMALL]
        self._kept_small = [b.clone() for b in self._small]
        self._large = [(b, b, -1) for b in found if b.nbytes > _SMALL]

    def _keep_dicts(self) -> None:
        tensors: list[torch.Tensor] = []
        self._values = [(value, _copied(value, tensors)) for value in self._dicts]
        before, self._in_dicts = self._in_dicts, {}
        for tensor in tensors:
            kept = before.get(id(tensor))
            if kept is None or kept[0] is not tensor or not _is_of(kept[2], tensor):
                kept = (tensor, tensor.detach().clone(), _version(tensor))
            self._in_dicts[id(tensor)] = kept

    def _put_dicts_back(self) -> None:
        for value, kept in self._values:
            value.clear()
            value.update(kept)
        for tensor, copied, version in self._in_dicts.values():
            if not _is_of(version, tensor):
                with torch.no_grad(), torch.inference_mode(tensor.is_inference()):
                    tensor.copy_(copied)
                self._in_dicts[id(tensor)] = (tensor, copied, _version(tensor))

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
        self._stepping.add(id(optimizer))
        if self._group is None or self._kept is not None:
            return
        closure = kwargs.get("closure") if len(args) < 2 else args[1]  # may have collectives
        if len(self._optimizers) > 1 or closure is not None:
            self._kept = _clone(self._states())

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self._stepped.add(id(optimizer))

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
        if ended and not self._stepped:
            self._warn_of_accumulation()
        self._cuts = 0
        self.completed += 1
        self._fresh, self._ended = False, ended
        self.directive = progress(self.completed)

    def _end_cut(self, error: BaseException) -> None:
        """Takes the attempt for complete if its optimizers made their steps, and else back."""
        self._cut = error
        for scaler in self._scalers:  # the next attempt unscales gradients of its own
            scaler._per_optimizer_states.clear()
        if self._stepped and len(self._stepped) == len(self._optimizers):
            self._complete(False)
            return
        self._exit()
        self._cuts += 1
        if self._kept is not None:
            self._load(self._kept)
        elif self._stepping:
            self._whole = False  # an optimizer that has collectives has made a part of its step
        torch.set_rng_state(self._random)
        if self._dicts:
            self._put_dicts_back()
        for (buffers, name), buffer in zip(self._places, self._buffers):
            if buffers.get(name) is not buffer:
                buffers[name] = buffer
        with torch.no_grad():
            if self._small:
                torch._foreach_copy_(self._small, self._kept_small)
            for i, (buffer, kept, version) in enumerate(self._large):
                if buffer._version != version:
                    buffer.copy_(kept)
                    self._large[i] = (buffer, kept, buffer._version)

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
            _log.info(
                "leaving the world %d at step %d: %s", self._group.world.epoch, self.completed, why
            )
            self._group.leave()
            self._group.world = regroup()
            try:
                with self._meeting():
                    return self._enter(self._group.enter)
            except (RuntimeError, RallypointError) as e:
                if not _is_cut(e):
                    raise
                why = e
        raise why

    def _change(self, group: _Enter, why: str) -> None:
        """Enters another group of the same world, or the next world if that fails."""
        _log.info("%s after step %d", why, self.completed)
        try:
            with self._meeting():
                self._enter(group)
        except (RuntimeError, RallypointError) as e:
            if not _is_cut(e):
                raise
            self._recover(e)

    def _enter(self, group: _Enter) -> None:
        """Enters a group, and has the state that its newest worker has."""
        assert self._group is not None
        completed = self.completed if self._whole else -1
        mine = {"fresh": self._fresh, "completed": completed, "ended": self._ended}
        members = group(mine | {"joins": self._group.joining, "shard": self._group.shard})
        if self._cut is not None:
            for module in self._modules:
                if hasattr(module, "reset_iter_state"):  # of FSDP, within a step
                    module.reset_iter_state()
        ages = [(not m["fresh"], m["completed"], m["ended"]) for m in members]
        newest = max(ages)
        if newest[1] < 0:
            raise StateLostError(
                f"none of the {len(members)} workers that are left has a whole state", Code.STATE
            )
        if self.rank == 0 and all(m["joins"] for m in members):
            _log.warning(
                "all workers that had the job's state are gone: it begins at step %d, with what "
                "the script has loaded",
                newest[1],
            )
        if not newest[0] or any(age != newest for age in ages):
            behind = ages[self.rank] != newest or not newest[0]
            for shard in sorted({m["shard"] for m in members}, key=str):
                have = [i for i, age in enumerate(ages) if age == newest]
                have = [i for i in have if members[i]["shard"] == shard]
                if not have:
                    raise StateLostError(
                        f"no worker that is left has shard {shard} after step {newest[1]}",
                        Code.STATE,
                    )
                self._share(have[0], newest[1], behind and shard == self._group.shard)
        for module in self._modules:
            for parameter in module.parameters():
                parameter.grad = None
        for ddp in self._replicas:
            _renew(ddp)
        self._group.joining, self._cut = False, None
        if self._changed is not None:
            self._changed(self.rank, self.size)

    def _share(self, source: int, completed: int, behind: bool) -> None:
        def broadcast(tensor: torch.Tensor) -> None:
            dist.broadcast(tensor, source)

        if self.rank == source:
            return _state.send(self._states(), broadcast)
        state = _state.receive(broadcast, behind, self._group and self._group.mesh)
        if behind:
            self._load(state)
            self.completed, self._fresh, self._ended = completed, False, True

    def _load(self, state: dict[str, Any]) -> None:
        if not isinstance(state, dict) or state.keys() != self._state.keys():
            raise InvalidError(
                f"this worker registered {sorted(self._state)}, another one {sorted(state)}",
                Code.INVALID,
            )
        self._whole = False
        for name, value in self._state.items():
            if isinstance(value, dict):
                value.clear()
                value.update(state[name])
            else:
                value.load_state_dict(state[name])
            if isinstance(value, torch.optim.Optimizer):
                _restore_types(value, state[name])
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
        if error is None:
            self._run._complete(True)
            return False
        self._run._exit()
        if self._run._group is None or not _is_cut(error):
            return False
        if self._run._cuts == _ATTEMPTS:
            _log.error("step %d was cut %d times in a row", self._run.completed, _ATTEMPTS + 1)
            return False
        self._run._end_cut(error)
        return True


def _copied(value: Any, tensors: list[torch.Tensor]) -> Any:
    """A copy of containers. The tensors in them are the same ones, and are added to a list."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
    elif isinstance(value, dict):
        copied = value.copy()
        for name, item in value.items():
            copied[name] = _copied(item, tensors)
        return copied
    elif type(value) in (list, tuple):
        return type(value)(_copied(item, tensors) for item in value)
    return value


def _clone(value: Any) -> Any:
    """A state that has nothing in common with another one; what is no container is copied whole."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        cloned = copy.copy(value)  # with the versions of modules, which are its attribute
        for name, item in value.items():
            cloned[name] = _clone(item)
        return cloned
    if type(value) in (list, tuple):
        return type(value)(map(_clone, value))
    return copy.deepcopy(value)


def _version(tensor: torch.Tensor) -> int | None:
    """How often torch has changed a tensor; None: it does not count that."""
    return None if tensor.is_inference() else tensor._version


def _is_of(version: int | None, tensor: torch.Tensor) -> bool:
    return version is not None and version == _version(tensor)


def _restore_types(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Gives an optimizer's state the types that it was sent with.

    load_state_dict() gives all tensors of floating-point numbers the type of their parameter, also
    those that the optimizer itself keeps in another one.
    """
    if not {"state", "param_groups"} <= state.keys():
        return  # it has a state of its own kind
    numbers = [n for group in state["param_groups"] for n in group["params"]]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for number, parameter in zip(numbers, parameters):
        loaded = optimizer.state.get(parameter, {})
        for name, sent in state["state"].get(number, {}).items():
            kept = loaded.get(name)
            tensors = isinstance(kept, torch.Tensor) and isinstance(sent, torch.Tensor)
            if tensors and kept.dtype != sent.dtype:
                loaded[name] = sent.to(kept.device)


def _sharded(part: object, mesh: object) -> bool:
    if mesh is not None and getattr(part, "device_mesh", None) is mesh:
        return False
    kinds = (*type(part).__mro__, type(getattr(part, "data", None)))
    names = {"DTensor", "FlatParameter", "ZeroRedundancyOptimizer"}  # not imported for this
    return any(kind.__name__ in names for kind in kinds)


def _is_cut(error: BaseException) -> bool:
    """Whether an error says that a peer, or the world, is gone."""
    if isinstance(error, RallypointError):
        closed = error.code is Code.HANDLE and changing()  # the watch has closed the store
        return closed or error.code in _GONE
    return isinstance(error, RuntimeError) and bool(_CUT.search(str(error)))


def _renew(ddp: DistributedDataParallel) -> None:
    """Has a DDP begin anew: its buckets must be those of a newcomer's."""
    hooks = list(getattr(ddp, "_comm_hooks", ()))
    ddp.__setstate__(ddp.__getstate__())
    for hook, state in hooks:
        with suppress(AttributeError):
            ddp._comm_hooks.remove((hook, state))
        ddp.register_comm_hook(state, hook)
