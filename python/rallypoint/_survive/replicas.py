"""The modules and optimizers of a worker, which are replicas of those of the others."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from contextlib import suppress

import torch
from torch.nn.parallel import DistributedDataParallel


def sharded(part: object, mesh: object) -> bool:
    """Whether a parameter or an optimizer has a part of a state, and not by that mesh."""
    if mesh is not None and getattr(part, "device_mesh", None) is mesh:
        return False
    kinds = (*type(part).__mro__, type(getattr(part, "data", None)))
    names = {"DTensor", "FlatParameter", "ZeroRedundancyOptimizer"}  # not imported for this
    return any(kind.__name__ in names for kind in kinds)


def changes(optimizer: torch.optim.Optimizer, modules: Iterable[torch.nn.Module]) -> bool:
    """Whether an optimizer has a parameter of one of the modules."""
    theirs = {id(p) for m in modules for p in m.parameters()}
    return any(id(p) in theirs for group in optimizer.param_groups for p in group["params"])


def find(modules: Iterable[torch.nn.Module]) -> list[DistributedDataParallel]:
    """This process's DDPs; of those that are frozen, which gc does not list, those in modules."""
    found = {id(o): o for o in gc.get_objects() if DistributedDataParallel in type(o).__mro__}
    parts = (part for module in modules for part in module.modules())
    found.update((id(p), p) for p in parts if isinstance(p, DistributedDataParallel))
    return list(found.values())


def renew(ddp: DistributedDataParallel) -> None:
    """Has a DDP begin anew: its buckets must be those of a newcomer's."""
    hooks = list(getattr(ddp, "_comm_hooks", ()))
    ddp._remove_autograd_hooks()  # of a reducer that torch.compile may keep
    ddp.__setstate__(ddp.__getstate__())
    if ddp.static_graph:
        ddp._static_graph_delay_allreduce_enqueued = False  # or its first step would sum nothing
    for hook, state in hooks:
        with suppress(AttributeError):
            ddp._comm_hooks.remove((hook, state))
        ddp.register_comm_hook(state, hook)
