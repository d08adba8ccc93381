"""What DistributedDataParallel and torch.optim.SGD do for a small network, by hand.

Both import torch's compiler when they are made, which takes longer than torch itself: a
demonstration that starts eight workers has no time for that. Training is for them.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn


class Replica(nn.Module):
    """The network, as all ranks have it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.module(images)  # type: ignore[no-any-return]


class MeanSGD:
    """Gradient descent with momentum, by the mean of all ranks' gradients."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, momentum: float) -> None:
        self._parameters = list(parameters)
        self._lr, self._momentum = lr, momentum
        self._velocity = [torch.zeros_like(p) for p in self._parameters]

    def zero_grad(self) -> None:
        for p in self._parameters:
            p.grad = None

    @torch.no_grad()
    def step(self) -> None:
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        flat = torch.cat([g.flatten() for g in gradients])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        parts = flat.split([g.numel() for g in gradients])
        for p, v, mean in zip(self._parameters, self._velocity, parts):
            v.mul_(self._momentum).add_(mean.view_as(p))
            p.sub_(v, alpha=self._lr)

    def state_dict(self) -> dict[str, list[torch.Tensor]]:
        return {"velocity": self._velocity}

    def load_state_dict(self, state: dict[str, list[torch.Tensor]]) -> None:
        self._velocity = [v.clone() for v in state["velocity"]]
