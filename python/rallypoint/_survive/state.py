"""The state of a training job on its way from one process to another.

A state is what state_dict() returns: containers of tensors and plain values. The containers
travel as JSON and the tensors as their bytes, in chunks; nothing is pickled.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Iterator, Sequence
from typing import Any, Callable

import torch

from .._errors import Code, InvalidError, StateError

#: Bytes of one broadcast, which bound what a transfer needs beside the state itself.
CHUNK = 16 << 20

#: The kinds of values that travel as they are, beside None.
PLAIN = (bool, int, float, str)

#: The longest description of a state that is taken.
_LONGEST = 256 << 20

_Broadcast = Callable[[torch.Tensor], None]


def encode(value: Any, where: str, tensors: list[torch.Tensor]) -> Any:
    """A value as JSON, with its tensors moved to a list.

    Raises:
        InvalidError: it has what is neither a tensor nor a plain value.
    """
    if value is None or type(value) in PLAIN:
        return value
    if type(value).__name__ == "DTensor":  # which is not imported for this
        local = value.to_local().detach()
        tensors.append(local)
        dims = [getattr(placement, "dim", None) for placement in value.placements]
        whole = [list(value.shape), list(value.stride()), dims]
        return {"shard": [str(local.dtype).removeprefix("torch."), list(local.shape), *whole]}
    if isinstance(value, torch.Tensor):
        strided = value.layout is torch.strided and not value.is_quantized
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or not strided:
            raise _foreign(value, where)
        tensors.append(value.detach().resolve_conj().resolve_neg())
        return {"tensor": [str(value.dtype).removeprefix("torch."), list(value.shape)]}
    if isinstance(value, dict):
        kind = "counter" if isinstance(value, collections.Counter) else "dict"
        items = [
            [encode(k, where, tensors), encode(v, f"{where}[{k!r}]", tensors)]
            for k, v in value.items()
        ]
        versions = getattr(value, "_metadata", None)  # of a module's parts
        if versions is not None:
            return {"module": [items, encode(versions, f"{where}._metadata", tensors)]}
        return {kind: items}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [encode(v, f"{where}[{i}]", tensors) for i, v in enumerate(value)]}
    raise _foreign(value, where)


def _foreign(value: object, where: str) -> InvalidError:
    return InvalidError(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}, which cannot be sent "
        "to another process: a state has dense tensors, numbers and texts of Python's own types, "
        "and dicts, lists and tuples of them",
        Code.INVALID,
    )


def decode(value: Any, tensors: Iterator[torch.Tensor], mesh: Any = None) -> Any:
    """The value that encode took, with tensors from a list in the same order.

    Args:
        value: as JSON.
        tensors: from the list.
        mesh: that shards belong to.
    """
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return next(tensors)
    if kind == "shard":
        from torch.distributed.tensor import DTensor, Replicate, Shard

        _, _, shape, stride, dims = content
        placements = [Replicate() if dim is None else Shard(dim) for dim in dims]
        size = torch.Size(shape)
        return DTensor.from_local(
            next(tensors), mesh, placements, run_check=False, shape=size, stride=tuple(stride)
        )
    if kind == "module":
        items, versions = content
        state: Any = collections.OrderedDict(decode({"dict": items}, tensors, mesh))
        state._metadata = decode(versions, tensors, mesh)
        return state
    if kind in ("dict", "counter"):
        pairs = {decode(k, tensors, mesh): decode(v, tensors, mesh) for k, v in content}
        return pairs if kind == "dict" else collections.Counter(pairs)
    items = [decode(v, tensors, mesh) for v in content]
    return items if kind == "list" else tuple(items)


def _descriptions(value: Any) -> Iterator[Any]:
    """What there is to know of each tensor, in the order of the list."""
    items: Any = value if isinstance(value, list) else ()
    if isinstance(value, dict):
        ((kind, items),) = value.items()
        if kind in ("tensor", "shard"):
            yield items[:2]
            return
    for item in items:
        yield from _descriptions(item)


def send(state: Any, broadcast: _Broadcast) -> None:
    """Gives a state to all others of a process group."""
    tensors: list[torch.Tensor] = []
    text = json.dumps(encode(state, "the state", tensors)).encode()
    broadcast(torch.tensor([len(text)]))
    for chunk in torch.frombuffer(bytearray(text), dtype=torch.uint8).split(CHUNK):
        broadcast(chunk)
    for tensor in tensors:
        for chunk in _chunks(tensor):
            broadcast(chunk.cpu())


def _chunks(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    if tensor.numel() == 0:
        return ()
    chunks: Sequence[torch.Tensor] = tensor.contiguous().reshape(-1).view(torch.uint8).split(CHUNK)
    return chunks


def receive(broadcast: _Broadcast, wanted: bool = True, mesh: Any = None) -> Any:
    """The state that another process sends. It is new memory of the CPU.

    Args:
        broadcast: fills a tensor.
        wanted: False for who has the state, and only takes part: needs memory of one chunk.
        mesh: that shards belong to.

    Raises:
        StateError: what came is no state.
    """
    size = torch.zeros(1, dtype=torch.int64)
    broadcast(size)
    if not 0 < int(size) <= _LONGEST:
        raise StateError(f"a state's description has {int(size)} bytes", Code.STATE)
    text = bytearray(int(size))
    for chunk in torch.frombuffer(text, dtype=torch.uint8).split(CHUNK):
        broadcast(chunk)
    try:
        described = json.loads(text)
        tensors = []
        for dtype, shape in _descriptions(described):
            if wanted:
                tensors.append(_receive(_dtype(dtype), shape, broadcast))
            else:
                _pass(_dtype(dtype), shape, broadcast)
        return decode(described, iter(tensors), mesh) if wanted else None
    except (ValueError, TypeError, AttributeError, StopIteration) as e:
        raise StateError(f"a state's description cannot be read: {e!r:.200}", Code.STATE) from e


def _dtype(name: str) -> torch.dtype:
    kind = getattr(torch, name)
    if not isinstance(kind, torch.dtype):
        raise TypeError(f"{name!r:.50} is no dtype")
    return kind


def _receive(dtype: torch.dtype, shape: list[int], broadcast: _Broadcast) -> torch.Tensor:
    tensor = torch.empty(shape, dtype=dtype)
    for chunk in _chunks(tensor):
        broadcast(chunk)
    return tensor


def _pass(dtype: torch.dtype, shape: list[int], broadcast: _Broadcast) -> None:
    """Takes part in a tensor's way to others."""
    left = torch.empty(shape, dtype=dtype, device="meta").numel() * dtype.itemsize
    scratch = torch.empty(min(left, CHUNK), dtype=torch.uint8)
    while left > 0:
        broadcast(scratch[:left])
        left -= CHUNK


def load(into: Any, state: Any) -> None:
    """Gives what is registered its state."""
    if isinstance(into, dict):
        _moved(state, into)
        return
    into.load_state_dict(state)
    if isinstance(into, torch.optim.Optimizer):
        _restore_types(into, state)


def _moved(value: Any, now: Any) -> Any:
    """A value of a dict as it belongs in the place of another one.

    Its tensors are on the same devices, and its dicts are the same ones: of whatever class.
    """
    if isinstance(value, torch.Tensor) and isinstance(now, torch.Tensor):
        return value.to(now.device)
    if isinstance(value, dict) and isinstance(now, dict):
        moved = {name: _moved(item, now.get(name)) for name, item in value.items()}
        now.clear()
        now.update(moved)
        return now
    elif isinstance(value, list) and isinstance(now, list):
        value[:] = [*map(_moved, value, now), *value[len(now) :]]
    return value


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
