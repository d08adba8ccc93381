"""What an attempt at a step may change before its optimizers do, as it was before the attempt."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .state import PLAIN, encode


class Snapshot:
    """The buffers of modules and whether they are in training, dicts with all that is in them, and
    torch's random state of the CPU.

    Args:
        modules: whose buffers.
        dicts: by the names that they were registered with.
    """

    def __init__(
        self, modules: Sequence[torch.nn.Module], dicts: Mapping[str, dict[Any, Any]]
    ) -> None:
        self._dicts = dicts
        self._parts = [part for m in modules for part in m.modules()]
        self._places = [(part._buffers, name) for part in self._parts for name in part._buffers]
        self._copies, self._copies_in_dicts = _Copies(), _Copies()

    def take(self) -> None:
        """Takes another one in the place of the last.

        Raises:
            InvalidError: a dict has what cannot be sent to another process.
        """
        self._random = torch.get_rng_state()
        self._modes = [part.training for part in self._parts]
        if self._dicts:
            self._take_dicts()
        self._buffers = [buffers.get(name) for buffers, name in self._places]
        self._copies.take(self._buffers)

    def restore_modes(self) -> None:
        """Ends an evaluation that was cut."""
        for part, mode in zip(self._parts, self._modes):
            part.training = mode

    def restore(self) -> None:
        """Puts all back but the modes, as often as wanted."""
        torch.set_rng_state(self._random)
        if self._dicts:
            self._restore_dicts()
        for (buffers, name), buffer in zip(self._places, self._buffers):
            if buffers.get(name) is not buffer:
                buffers[name] = buffer
        self._copies.restore()

    def _take_dicts(self) -> None:
        self._containers: list[tuple[Any, Any]] = []
        tensors: list[torch.Tensor] = []
        if not all(_visit(value, self._containers, tensors) for value in self._dicts.values()):
            encode(self._dicts, "the state", [])  # says what is wrong
        self._copies_in_dicts.take(tensors)

    def _restore_dicts(self) -> None:
        for container, kept in self._containers:
            container.clear()
            if isinstance(container, dict):
                container.update(kept)
            else:
                container.extend(kept)
        self._copies_in_dicts.restore()


class _Copies:
    """What is in tensors, which an attempt may change.

    Whether one has changed is not asked: torch does not count changes that are made through
    `.data` or an array of numpy, nor those of running statistics.
    """

    def __init__(self) -> None:
        self._tensors: Sequence[torch.Tensor | None] = ()
        self._found: list[torch.Tensor] = []

    def take(self, tensors: Sequence[torch.Tensor | None]) -> None:
        if list(map(id, tensors)) != list(map(id, self._tensors)):
            different = {id(t): t for t in tensors if t is not None}
            self._tensors = tensors
            self._found = [_writable(t) for t in different.values()]
            self._kept = [t.clone() for t in self._found]
        elif self._found:
            with torch.inference_mode():  # whether they are of it or not
                torch._foreach_copy_(self._kept, self._found)

    def restore(self) -> None:
        if self._found:
            with torch.inference_mode():
                torch._foreach_copy_(self._found, self._kept)


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


def _visit(value: Any, containers: list[tuple[Any, Any]], tensors: list[torch.Tensor]) -> bool:
    """Finds the containers in a value, with what they hold now, and the tensors.

    Returns:
        Whether all else in it is plain.
    """
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return True
    if isinstance(value, dict):
        containers.append((value, dict(value)))
        items = [item for pair in value.items() for item in pair]
    elif isinstance(value, (list, tuple)):
        items = list(value)
        if isinstance(value, list):
            containers.append((value, items))
    else:
        return value is None or type(value) in PLAIN
    return all(_visit(item, containers, tensors) for item in items)


def _writable(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor, without the repetitions of one that was expanded."""
    if tensor.layout is not torch.strided:
        return tensor  # a detached one would get memory of its own
    tensor = tensor.detach()
    for dimension, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.size(dimension) > 1:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor
