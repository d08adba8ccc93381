"""A Run in the process of a test, without other workers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rallypoint import survive

CUT = "[gloo/transport/tcp/pair.cc:545] Read error: Connection reset by peer"


@pytest.fixture(autouse=True)
def no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survive, "_looping", None)


def looping(run: survive.Run) -> survive.Run:
    """A run as it is within its loop."""
    survive._looping = run
    return run


def run_of(**registered: Any) -> survive.Run:
    """A run within its loop, whose worker could lose others."""
    run = looping(survive.Run(**registered))
    run._group = a_group()
    return run


def a_group(mesh: object = None) -> Any:
    """A group of which nobody is lost."""
    return SimpleNamespace(
        joining=False,
        looped=False,
        mesh=mesh,
        shard=None,
        pending=0,
        world=SimpleNamespace(epoch=1),
        has_others=lambda: False,
        leave=lambda: None,
        left=lambda: None,
    )


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))


def copied(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(module: torch.nn.Module, kept: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, kept[name]) for name, value in module.state_dict().items())
