"""How the callbacks fence a folder; test_libraries.py has each with its library."""

from __future__ import annotations

import multiprocessing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import rallypoint

pytest.importorskip("torch")


def ranks_that_save(rank: int, port: int, folder: str, told: Any) -> None:
    import torch.distributed as dist

    from rallypoint.integrations.claims import Claims

    store = dist.TCPStore("127.0.0.1", port, 2, rank == 0, timedelta(seconds=60))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    claims = Claims(True)
    claims.open(folder, rank == 0)
    for step in range(2):
        claims.begin()
        claims.begin()  # nothing
        Path(folder, f"step{step}-{rank}").touch()
        dist.barrier()
        claims.end()
        claims.end()  # nothing
    if rank == 0:
        with rallypoint.fence(folder, into=True).claim():
            pass
    dist.barrier()
    try:
        claims.begin()
    except rallypoint.FencedError as e:
        told.put((rank, str(e), e.code))
    dist.barrier()  # a store that ends would take the other's answer with it


def test_all_ranks_fail_alike(tmp_path: Path) -> None:
    """Another job writes into the folder: the rank that claims it is refused, and the other too."""
    from harness import free_port

    context = multiprocessing.get_context("spawn")
    told, port = context.Queue(), free_port()
    ranks = [
        context.Process(target=ranks_that_save, args=(rank, port, str(tmp_path / "out"), told))
        for rank in range(2)
    ]
    for process in ranks:
        process.start()
    answers = sorted(told.get(timeout=120) for _ in ranks)
    for process in ranks:
        process.join()
    assert [process.exitcode for process in ranks] == [0, 0]
    (_, first, _), (_, second, code) = answers
    assert first == second
    assert "another process has written it" in first
    assert code == rallypoint.Code.FENCED
    assert len(list((tmp_path / "out").glob("step*"))) == 4


def test_alone(tmp_path: Path) -> None:
    from rallypoint.integrations.claims import Claims

    out = tmp_path / "out"
    claims = Claims(True)
    claims.open(out, True)
    other = Claims(rallypoint.fence(out, into=True))
    claims.begin()
    claims.end()
    other.open("elsewhere", True)  # it has its fence
    with pytest.raises(rallypoint.FencedError):
        other.begin()
    off = Claims(False)
    off.open(out, True)
    off.begin()
    off.end()
    nowhere = Claims(True)
    nowhere.open(None, True)
    nowhere.begin()
    claims.open(out, True)  # nothing
    claims.begin()
