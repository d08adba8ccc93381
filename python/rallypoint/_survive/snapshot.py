"""What an attempt at a step may change before its optimizers do, as it was before the attempt."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Optional

import torch

#: Larger buffers, in bytes, are copied before an attempt only if torch has counted a change,
#: which it does not for the running statistics of normalisations.
_SMALL = 1 << 20

_Copy = tuple[torch.Tensor, torch.Tensor, Optional[int]]  # of a tensor, in this version


class Snapshot:
    """The buffers of modules, dicts, and torch's random state of the CPU."""

    def __init__(self, modules: Sequence[torch.nn.Module], dicts: Sequence[dict[Any, Any]]) -> None:
        self._dicts = dicts
        self._in_dicts: dict[int, _Copy] = {}
        owners = [part._buffers for m in modules for part in m.modules()]
        self._places = [(buffers, name) for buffers in owners for name in buffers]
        self._find_buffers()

    def take(self) -> None:
        """Takes another one in the place of the last."""
        self._random = torch.get_rng_state()
        if self._dicts:
            self._take_dicts()
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

    def restore(self) -> None:
        """Puts all back, as often as wanted."""
        torch.set_rng_state(self._random)
        if self._dicts:
            self._restore_dicts()
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

    def _find_buffers(self) -> None:
        """Finds the buffers of modules, which a module may have replaced."""
        self._buffers = [buffers.get(name) for buffers, name in self._places]
        found = list({id(b): b for b in self._buffers if b is not None}.values())
        self._small = [b for b in found if b.nbytes <= _SMALL]
        self._kept_small = [b.clone() for b in self._small]
        self._large = [(b, b, -1) for b in found if b.nbytes > _SMALL]

    def _take_dicts(self) -> None:
        tensors: list[torch.Tensor] = []
        self._values = [(value, _copied(value, tensors)) for value in self._dicts]
        before, self._in_dicts = self._in_dicts, {}
        for tensor in tensors:
            kept = before.get(id(tensor))
            if kept is None or kept[0] is not tensor or not _is_of(kept[2], tensor):
                kept = (tensor, tensor.detach().clone(), _version(tensor))
            self._in_dicts[id(tensor)] = kept

    def _restore_dicts(self) -> None:
        for value, kept in self._values:
            value.clear()
            value.update(kept)
        for tensor, copied, version in self._in_dicts.values():
            if not _is_of(version, tensor):
                with torch.no_grad(), torch.inference_mode(tensor.is_inference()):
                    tensor.copy_(copied)
                self._in_dicts[id(tensor)] = (tensor, copied, _version(tensor))


def clone(value: Any) -> Any:
    """A state that has nothing in common with another one; what is no container is copied whole."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        cloned = copy.copy(value)  # with the versions of modules, which are its attribute
        for name, item in value.items():
            cloned[name] = clone(item)
        return cloned
    if type(value) in (list, tuple):
        return type(value)(map(clone, value))
    return copy.deepcopy(value)


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


def _version(tensor: torch.Tensor) -> int | None:
    """How often torch has changed a tensor; None: it does not count that."""
    return None if tensor.is_inference() else tensor._version


def _is_of(version: int | None, tensor: torch.Tensor) -> bool:
    return version is not None and version == _version(tensor)
