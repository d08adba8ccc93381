"""DistributedDataParallel modules, and samplers, after a change of the world."""

from __future__ import annotations

import gc
import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import REPOSITORY
from survive.runs import CUT, a_group, net, no_loop, run_of  # noqa: F401

from rallypoint import survive
from rallypoint._survive import replicas


@pytest.mark.parametrize("static", [False, True])
def test_a_replica_begins_anew_with_its_hook(static: bool) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        calls: list[int] = []

        def hook(_, bucket):  # type: ignore[no-untyped-def]
            calls.append(bucket.index())
            done = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done

        ddp = torch.nn.parallel.DistributedDataParallel(net(), static_graph=static)
        ddp.register_comm_hook(None, hook)
        for step in range(6):
            ddp.zero_grad()
            ddp(torch.ones(2, 4)).sum().backward()
            assert len(calls) == step + 1
            if step < 4:
                replicas.renew(ddp)
    finally:
        dist.destroy_process_group()


def test_a_replica_begins_anew_after_a_cut() -> None:
    """... in its backward pass, while what it had before is kept, as by torch.compile."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        cut = True

        def hook(_, bucket):  # type: ignore[no-untyped-def]
            if cut:
                raise RuntimeError(CUT)
            done = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done

        ddp = torch.nn.parallel.DistributedDataParallel(net())
        ddp.register_comm_hook(None, hook)
        kept = ddp.reducer
        with pytest.raises(RuntimeError, match="Connection reset"):
            ddp(torch.ones(2, 4)).sum().backward()
        cut = False
        replicas.renew(ddp)
        for _ in range(2):
            ddp(torch.ones(2, 4)).sum().backward()
        assert kept is not ddp.reducer
    finally:
        dist.destroy_process_group()


def test_a_replica_is_found_where_gc_has_frozen_it() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        ddp = torch.nn.parallel.DistributedDataParallel(net())
        gc.freeze()
        run = survive.Run(model=ddp)
        run._group = a_group()
        assert next(run.steps(1)) == 0
        assert sum(replica is ddp for replica in run._replicas) == 1
    finally:
        gc.unfreeze()
        dist.destroy_process_group()


def test_the_sampler_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """... divides the data among whatever workers there are."""
    page = (REPOSITORY / "docs" / "keep-the-rest.md").read_text()
    found = re.search(r"### A sampler\n.*?```python\n(.*?)```", page, re.DOTALL)
    assert found
    monkeypatch.setattr(survive, "init_process_group", lambda _: None)
    monkeypatch.setattr(dist, "get_rank", lambda *_: 2)
    monkeypatch.setattr(dist, "get_world_size", lambda *_: 3)
    names: dict[str, Any] = {}
    exec(found[1], names)
    assert len(names["sampler"]) == 334
    for size in (2, 5):
        parts = []
        for rank in range(size):
            names["changed"](rank, size)
            parts += list(names["sampler"])
        assert sorted(parts) == list(range(1000))


@pytest.mark.parametrize("stepped", [True, False])
def test_a_cut_in_an_evaluation_leaves_no_mode(stepped: bool) -> None:
    """... of evaluation, in which the survivors would train on."""
    module = net()
    module[1].eval()  # which stays as the script has it
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    run = run_of(module=module, optimizer=optimizer)
    with run.attempt():
        if stepped:
            optimizer.step()
        module.eval()
        raise RuntimeError(CUT)
    assert run.completed == stepped
    assert [part.training for part in module.modules()] == [True, True, False]
