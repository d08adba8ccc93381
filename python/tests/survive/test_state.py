"""How a state travels from one worker to another."""

from __future__ import annotations

import collections
import weakref
from typing import Any

import pytest
import torch

from rallypoint import InvalidError, StateError
from rallypoint._survive import state

STATE = {
    "tensors": [torch.arange(10.0), torch.tensor(True), torch.zeros(0, 3), torch.ones(2, 3).t()],
    "plain": (1, -0.5, float("inf"), "\u00fc", None, True, 2**70),
    3: {"int keys": {0: [()]}},
    "milestones": collections.Counter([5, 5, 7]),
    "conjugate": torch.tensor([1 + 2j, 3j]).conj(),
    "negative": torch.tensor([1 + 2j, 3j]).conj().imag,
    "half": torch.arange(5).to(torch.bfloat16),
}


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)


class Versioned(torch.nn.Linear):
    """A module whose states differ from version to version, as those of torch's own do."""

    _version = 3

    def _load_from_state_dict(
        self, state: Any, prefix: str, local: dict[str, Any], *rest: Any
    ) -> None:
        self.loaded = local.get("version")
        super()._load_from_state_dict(state, prefix, local, *rest)


def test_the_versions_of_modules_travel() -> None:
    sent: list[torch.Tensor] = []
    module = torch.nn.Sequential(Versioned(2, 2))
    registered = {"module": module.state_dict(), "plain": {"a": 1}}
    state.send(registered, lambda tensor: sent.append(tensor.clone()))
    received = state.receive(lambda tensor: [tensor.copy_(sent.pop(0))].clear())
    assert received["module"]._metadata == registered["module"]._metadata
    assert type(received["plain"]) is dict
    state.load(module, received["module"])
    assert module[0].loaded == 3


@pytest.mark.parametrize("chunk", [7, 16 << 20])
@pytest.mark.parametrize("wanted", [True, False])
def test_a_state_travels(monkeypatch: pytest.MonkeyPatch, chunk: int, wanted: bool) -> None:
    monkeypatch.setattr(state, "CHUNK", chunk)
    sent: list[torch.Tensor] = []
    state.send(STATE, lambda tensor: sent.append(tensor.clone()))
    assert all(tensor.numel() <= chunk for tensor in sent)

    def take(tensor: torch.Tensor) -> None:
        tensor.copy_(sent.pop(0))

    received = state.receive(take, wanted)
    assert not sent
    assert equal(received, STATE) if wanted else received is None


def test_who_has_the_state_needs_memory_of_one_chunk() -> None:
    sent: list[torch.Tensor] = []
    tensors = [torch.zeros(1000) for _ in range(5)]
    state.send(tensors, lambda tensor: sent.append(tensor.clone()))
    taken: list[weakref.ref[torch.Tensor]] = []
    most = 0

    def take(tensor: torch.Tensor) -> None:
        nonlocal most
        tensor.copy_(sent.pop(0))
        if tensor.numel() == 4000:
            taken.append(weakref.ref(tensor if tensor._base is None else tensor._base))
        most = max(most, sum(other() is not None for other in taken))

    state.receive(take, wanted=False)
    assert len(taken) == 5 and most == 1


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_what_cannot_travel_is_named() -> None:
    rows = torch.eye(2).to_sparse_csr()
    for thing, kind in (object(), "builtins.object"), (rows, "torch.Tensor"):
        with pytest.raises(InvalidError, match=rf"the state\['a'\]\[1\] is a {kind}"):
            state.send({"a": [0, thing]}, lambda _: None)


def test_tensors_of_a_dict_stay_on_their_devices() -> None:
    meta = torch.zeros(1, device="meta")
    values = {"a": meta, "more": {"b": [meta]}, "c": None}
    received = [torch.ones(1) for _ in range(5)]
    more = {"b": received[1:3], "new": received[3]}
    state.load(values, {"a": received[0], "more": more, "c": received[4]})
    (b, added), new = values["more"]["b"], values["more"]["new"]
    assert values["a"].is_meta and b.is_meta
    assert [t.device.type for t in (added, new, values["c"])] == ["cpu"] * 3


def test_dicts_of_other_classes_stay_what_they_are() -> None:
    """... which a state does not say."""
    losses: collections.defaultdict[str, list[float]] = collections.defaultdict(list)
    values = {"losses": losses, "order": collections.OrderedDict()}
    state.load(values, {"losses": {"train": [0.5]}, "order": {"b": 1, "a": 2}})
    values["losses"]["test"].append(0.25)
    assert values["losses"] is losses and losses == {"train": [0.5], "test": [0.25]}
    assert values["order"] == collections.OrderedDict(b=1, a=2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_an_optimizers_state_keeps_its_types(dtype: torch.dtype) -> None:
    """NAdam has numbers of float32 for parameters of any type, as optimizers of others do."""
    optimizers = []
    for _ in range(2):
        torch.manual_seed(0)
        module = torch.nn.Linear(4, 4).to(dtype)
        optimizers.append(torch.optim.NAdam(module.parameters(), lr=0.1))
    (parameters,) = [group["params"] for group in optimizers[0].param_groups]
    for _ in range(3):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizers[0].step()
    sent: list[torch.Tensor] = []
    state.send(optimizers[0].state_dict(), lambda tensor: sent.append(tensor.clone()))
    received = state.receive(lambda tensor: [tensor.copy_(sent.pop(0))].clear())
    state.load(optimizers[1], received)
    assert equal(*(optimizer.state_dict() for optimizer in optimizers))


@pytest.mark.parametrize(
    "text", ["[", '{"tensor": ["load", [1]]}', '{"tensor": ["float32"]}', '{"x": 1}', '{"dict": 3}']
)
def test_a_description_that_is_none(text: str) -> None:
    sent = [torch.tensor([len(text)]), torch.tensor(list(text.encode()), dtype=torch.uint8)]
    with pytest.raises(StateError, match="description"):
        state.receive(lambda tensor: [tensor.copy_(sent.pop(0))].clear())
