"""elastic_launch on several nodes, each launched from a thread."""

from __future__ import annotations

import dataclasses
import functools
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FuturesTimeout
from pathlib import Path
from typing import Any

import launch_jobs as jobs
import pytest
from harness import free_port, until
from launch.harness import PYTHON, alone, launch_all, nodes

import rallypoint
from rallypoint import ChildFailedError, LaunchConfig, elastic_launch
from rallypoint._launch.function import FunctionJob

# Several nodes; each is launched from a thread


@pytest.mark.parametrize(
    "backend",
    ["rallypoint", "c10d", "static", "rallypoint-static", "rallypoint-file", "etcd", "etcd-v2"],
)
def test_two_nodes(tmp_path: Path, backend: str, request: pytest.FixtureRequest) -> None:
    configs = nodes(2, 2, backend)
    if backend in ("etcd", "etcd-v2"):  # torch's names
        etcd = request.getfixturevalue("etcd")
        for config in configs:
            config.run_id, config.rdzv_endpoint = backend, etcd.get_endpoint()
            config.local_addr = "127.0.0.1"
    (tmp_path / "shared").mkdir()
    if backend == "rallypoint-file":
        for config in configs:
            config.rdzv_endpoint, config.local_addr = str(tmp_path / "shared"), "127.0.0.1"
    first, second = launch_all(configs, jobs.sum_of_ranks)
    assert first.result() == {0: 6, 1: 6}
    assert second.result() == {2: 6, 3: 6}


def test_different_numbers_of_workers() -> None:
    """1, 2 and 3 workers: ranks 0 to 5, and the roles' own."""
    configs = nodes(3, 1)
    for i, config in enumerate(configs):
        config.nproc_per_node, config.role = i + 1, "ps" if i == 0 else "trainer"
    results = launch_all(configs, jobs.sum_of_ranks)
    assert [r.result() for r in results] == [{0: 15}, {1: 15, 2: 15}, {3: 15, 4: 15, 5: 15}]


@pytest.mark.parametrize(
    "backend",
    ["rallypoint", *(pytest.param(b, marks=pytest.mark.long) for b in ("etcd", "static"))],
)
@pytest.mark.parametrize(
    "way",
    ["rpc and tcp", *(pytest.param(way, marks=pytest.mark.long) for way in ("rpc", "tcp", "env"))],
)
def test_torch_meets(
    backend: str, way: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RPC between roles, and process groups, through the round's store."""
    pytest.importorskip("torch")
    for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "lo")
    configs = nodes(2, 1, backend)
    for config, role in zip(configs, ("master", "worker")):
        config.role, config.local_addr = role, "127.0.0.1"
        if backend == "etcd":
            config.rdzv_endpoint = request.getfixturevalue("etcd").get_endpoint()
            config.run_id = way.replace(" ", "-")
    if way == "rpc and tcp":
        first, second = launch_all(configs, jobs.torch_rpc_and_sum)
        assert (first.result(), second.result()) == (
            {0: ([("worker", 1, 0)], 1)},
            {1: ([], 1)},
        )
    elif way == "rpc":
        first, second = launch_all(configs, jobs.torch_rpc)
        assert (first.result(), second.result()) == ({0: [("worker", 1, 0)]}, {1: []})
    else:
        first, second = launch_all(configs, jobs.torch_sum, way)
        assert (first.result(), second.result()) == ({0: 1}, {1: 1})


def test_elastic_job_of_one_node() -> None:
    config = LaunchConfig(
        1,
        2,
        2,
        run_id="job",
        rdzv_backend="rallypoint",
        rdzv_endpoint=f"127.0.0.1:{free_port()}",
        rdzv_configs={"last_call_timeout": "0.1", "lease_timeout": "0.2"},
    )
    assert elastic_launch(config, jobs.sum_of_ranks)() == {0: 1, 1: 1}


@pytest.mark.parametrize("backend", ["rallypoint", "static"])
def test_failure_of_another_node(backend: str) -> None:
    futures = launch_all(nodes(2, 1, backend), jobs.fail, 1)
    for future, code in zip(futures, (rallypoint.Code.CLOSED, rallypoint.Code.WORKERS)):
        error = future.exception()
        assert isinstance(error, ChildFailedError) and error.code == code
        rank, failure = error.get_first_failure()
        assert (rank, failure.exitcode) == (1, 1)
        assert "ValueError: rank 1 has had enough" in str(error)


def test_static_nodes_restart_together() -> None:
    results = launch_all(nodes(2, 1, "static", max_restarts=1), jobs.fail_until, 1)
    assert [r.result() for r in results] == [{0: 1}, {1: 1}]


def test_no_other_node() -> None:
    [config, _] = nodes(2, 1)
    config.rdzv_configs["join_timeout"] = 0.2
    with pytest.raises(rallypoint.DeadlineError, match="1 of 2"):
        elastic_launch(config, jobs.nothing)()


@pytest.mark.long
def test_gloo_over_static_nodes() -> None:
    pytest.importorskip("torch")
    first, second = launch_all(nodes(2, 1, "static"), jobs.gloo_sum)
    assert (first.result(), second.result()) == ({0: 1}, {1: 1})


@pytest.mark.long
def test_tensors() -> None:
    [first, second] = elastic_launch(alone(2), jobs.tensor)().values()
    assert first.tolist() == [0, 0, 0] and second.tolist() == [1, 1, 1]


# Two jobs at one endpoint


@pytest.mark.parametrize("kind", ["function", "command"])
def test_second_job(tmp_path: Path, kind: str) -> None:
    """A job of its own is refused at another one's endpoint; a further node of the first waits,
    and is not needed."""
    [config] = nodes(1, 1)
    config.rdzv_configs = {}
    entry: Any = jobs.until_file
    if kind == "command":
        code = "import os, sys, time; open(sys.argv[1], 'w')\n"
        code += "while not os.path.exists(sys.argv[2]): time.sleep(0.1)"
        entry = [PYTHON, "-c", code]
    args = (str(tmp_path / "up"), str(tmp_path / "end"))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(elastic_launch(config, entry), *args)
        until(lambda: (tmp_path / "up").exists())
        try:
            with pytest.raises(rallypoint.RallypointError, match="another command") as refused:
                elastic_launch(config, entry)(*args[:1], str(tmp_path / "never"))
            assert refused.value.code == rallypoint.Code.MISMATCH
            with pytest.raises(rallypoint.RallypointError, match="another command"):
                elastic_launch(dataclasses.replace(config, nproc_per_node=2), entry)(*args)
            spare = pool.submit(elastic_launch(config, entry), *args)
            with pytest.raises(FuturesTimeout):
                spare.result(1)
        finally:
            (tmp_path / "end").touch()
        assert first.result() == {0: None}
        assert spare.result() == {}


def test_words_of_a_function() -> None:
    """They are the same in each process, tell arguments apart, and do not show them."""
    words = [FunctionJob(jobs.arguments, args).command() for args in [(object(),), (object(),)]]
    words += [FunctionJob(jobs.arguments, ("secret", n)).command() for n in (1, 2)]
    words.append(FunctionJob(jobs.arguments, ()).command())
    assert words[0] == words[1]
    assert len(set(words)) == 4
    assert all(w.startswith("launch_jobs.py: arguments(") and "secret" not in w for w in words)
    assert FunctionJob(functools.partial(jobs.arguments, 1), ()).command().count("partial") == 1
