"""rallypoint.admin: what an administrator's program asks a job for."""

from __future__ import annotations

import inspect
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from harness import free_port, until

import rallypoint
from rallypoint import ClosedError, Code, GracefulExitError, InvalidError, Member, admin


@pytest.fixture(params=["hosted", "directory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"127.0.0.1:{free_port()}" if request.param == "hosted" else f"file://{tmp_path}"


@pytest.fixture
def nodes(place: str) -> Iterator[list[Member]]:
    """Four nodes in a round of 2 to 4 by twos, and none waits."""
    options = {"node_unit": 2}
    names = ("n0", "n1", "n2", "n3")  # as many as there may be: no last call
    members = [Member("job", place, 2, 4, options=options | {"node_id": name}) for name in names]
    joins = [threading.Thread(target=m.next) for m in members]
    for join in joins:
        join.start()
    for join in joins:
        join.join()
    yield members
    for m in members:
        m.close()


def test_directives_are_given_taken_back_and_carried_out(place: str, nodes: list[Member]) -> None:
    save = admin.save(place, "job", reason="before the upgrade", by="carol", within=60)
    assert save.directive and save.directive in save.text
    assert "its workers save, within 1m0s" in save.text
    assert "is canceled" in admin.cancel(place, "job", save.directive).text
    with pytest.raises(InvalidError, match="none is standing"):
        admin.cancel(place, "job", save.directive, reason="again")

    named = admin.scale(place, "job", 2, reason="less", within=timedelta(minutes=1), directive="s1")
    assert named.directive == "s1" and "it continues with 2 nodes" in named.text
    drain = admin.drain(place, "job", "n1", reason="its disk", within=0.5, away=3600)
    assert "n1" in drain.text and "in 500ms at the latest, and may come back 1h" in drain.text
    until(lambda: nodes[0].nodes_waiting() > 0)
    assert "drained by admin" in nodes[0].reason()
    assert "may join" in admin.undrain(place, "job", "n1", reason="it is back").text
    assert "evict" in admin.evict(place, "job", "n0", reason="the wrong one").text


def test_nodes_are_cordoned(place: str, nodes: list[Member]) -> None:
    text = admin.cordon(place, "job", "gpu17", reason="its fan", away=60).text
    assert text == 'node gpu17 is kept out of run "job" for 1m0s'
    stays = admin.cordon(place, "job", "n1").text
    assert "until it is uncordoned; 1 node of it runs workers and stays until" in stays
    assert nodes[1].nodes_waiting() == 0
    assert "may join" in admin.uncordon(place, "job", "gpu17").text
    assert "may join" in admin.Run(place, "job").uncordon("n1", reason="it is well").text
    with pytest.raises(InvalidError, match="none is drained"):
        admin.uncordon(place, "job", "n1")


def test_a_job_is_stopped_and_closed(place: str, nodes: list[Member]) -> None:
    stop = admin.stop(place, "job", reason="the maintenance begins", by="carol", within=0)
    assert "it ends, to be queued again, now" in stop.text
    until(nodes[0].is_closed)
    assert "stopped to be queued again by admin carol" in nodes[0].reason()
    with pytest.raises(ClosedError, match="it is closed: it was stopped to be queued again"):
        admin.save(place, "job", reason="why")
    assert admin.close(place, "job", reason="why").directive == ""


def test_a_job_that_is_forgotten_begins_again(tmp_path: Path) -> None:
    place = f"file://{tmp_path}"

    def node(name: str) -> Member:
        return Member("job", place, 1, 1, options={"node_id": name})

    with node("n0") as first:
        first.next()
        with pytest.raises(InvalidError, match="is open: there is nothing to forget"):
            admin.forget(place, "job", reason="once more")
    with node("n1") as late, pytest.raises(GracefulExitError, match="admin forget"):
        late.next()
    assert "begins it again" in admin.forget(place, "job", reason="once more", by="carol").text
    with node("n1") as again:
        assert again.next().round == 1


def test_a_job_is_failed(place: str, nodes: list[Member]) -> None:
    assert admin.close(place, "job", reason="full", by="carol").text
    assert admin.close(place, "job", reason="wrong data", fail=True).text
    until(lambda: nodes[0].nodes_waiting() > 0)
    assert "wrong data" in nodes[0].reason()


def test_what_does_not_fit_the_job_does_nothing(place: str, nodes: list[Member]) -> None:
    def save(run: str = "job", **more: object) -> admin.Answer:
        return admin.save(place, run, reason="why", **more)  # type: ignore[arg-type]

    def scale(target: int) -> admin.Answer:
        return admin.scale(place, "job", target, reason="why")

    def drain(*names: str, **more: float) -> admin.Answer:
        return admin.drain(place, "job", names, reason="why", **more)

    for ask, text in (
        (lambda: save("other"), "other"),
        (lambda: drain("n7"), 'no live node "n7"'),
        (lambda: drain(), "a drain names 1 to"),
        (lambda: drain(*["n0"] * 5000), "a drain names 1 to 1024 nodes, not 5000"),
        (lambda: drain("n" * 600), "n"),
        (lambda: drain("n0", away=-1), "must be between 0"),
        (lambda: scale(1), "needs at least 2 nodes"),
        (lambda: scale(6), "takes at most 4 nodes"),
        (lambda: scale(3), "must be a multiple of node_unit"),
        (lambda: scale(-2), "-2"),
        (lambda: scale(2**40), "out of range"),
        (lambda: save(within=-1), "the deadline is in -1s, it must be between 0 and"),
        (lambda: save(within=-0.0001), "the deadline is in -1ms"),
        (lambda: save(within=1e300), "it must be between 0 and"),
        (lambda: save(within=float("nan")), "not a time"),
        (lambda: save(within=0), "a save needs time"),
        (lambda: save(directive="a\nb"), "all of them printable"),
        (lambda: save(directive="x" * 3000), "at most"),
        (lambda: admin.save(place, "job\0", reason="why"), "NUL"),
        (lambda: admin.evict(place, "job", "n7", reason="why"), "n7"),
        (lambda: admin.undrain(place, "job", "n0", reason="why"), "none is drained"),
    ):
        with pytest.raises(InvalidError) as caught:
            ask()
        assert text in str(caught.value)
        assert caught.value.code is Code.INVALID
    assert [n.nodes_waiting() for n in nodes] == [0] * 4
    assert save().directive, "something stands that was refused"


def test_where_there_is_no_job() -> None:
    with pytest.raises(rallypoint.ConnectionFailedError, match="refused"):
        admin.stop(f"127.0.0.1:{free_port()}", "job", reason="why")
    with pytest.raises(rallypoint.ConnectionFailedError, match="refused"):
        admin.stop(f"static://127.0.0.1:{free_port()}", "job", reason="why")
    with pytest.raises(InvalidError, match="is not valid"):
        admin.stop("gopher://x", "job", reason="why")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(TimeoutError) as caught:
            admin.stop(endpoint, "job", reason="why", timeout=0.2)
    assert isinstance(caught.value, rallypoint.DeadlineError)
    with pytest.raises(rallypoint.RallypointError, match="it has to be there"):
        admin.stop("file:///nowhere", "job", reason="why")


def test_a_control_plane_with_a_token(tmp_path: Path) -> None:
    token, other = tmp_path / "token", tmp_path / "other"
    for path, secret in ((token, "a" * 40), (other, "b" * 40)):
        path.write_text(secret + "\n")
        path.chmod(0o600)
    endpoint = f"127.0.0.1:{free_port()}"
    with Member("job", endpoint, 1, 1, options={"token_file": str(token)}) as member:
        member.next()
        with pytest.raises(rallypoint.AuthenticationError):
            admin.save(endpoint, "job", reason="why", token_file=other)
        assert admin.save(endpoint, "job", reason="why", token_file=token).directive


STACKS_SCRIPT = """
import rallypoint, os, time
def data_wait():
    time.sleep(1e6)
def all_reduce():
    time.sleep(1e6)
data_wait() if os.environ["RANK"] == "3" else all_reduce()
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="an older Python is not asked")
def test_stacks_of_a_job_that_hangs(tmp_path: Path) -> None:
    script = tmp_path / "hang.py"
    script.write_text(STACKS_SCRIPT)
    place = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "rallypoint", "run", "--nproc-per-node=4", "--rdzv-id=hang"]
    job = subprocess.Popen([*command, f"--rdzv-endpoint={place}", "--nnodes=1", str(script)])
    try:
        told: list[admin.Stacks] = []

        def hangs() -> bool:
            try:
                told.append(admin.stacks(place, "hang", timeout=timedelta(seconds=10)))
            except (InvalidError, ConnectionError):
                return False  # it has not begun
            return told[-1].suspects == (3,)

        until(hangs)
    finally:
        job.terminate()
        job.wait()
    got = told[-1]
    assert (got.run_id, got.round, got.nodes, got.ranks, got.silent) == ("hang", 1, 1, 4, ())
    assert got.verdict.startswith(f"rank 3: data_wait ({script}:4)")
    assert [(w.rank, w.node, w.step) for w in got.workers] == [
        (rank, got.workers[0].node, None) for rank in range(4)
    ]
    assert all(w.pid > 1 and w.state and w.host for w in got.workers)
    first, second = got.groups
    assert first.ranks == (3,) and first.source == "faulthandler"
    assert first.threads[0].main and first.threads[0].frames[0] == admin.Frame(
        str(script), 4, "data_wait"
    )
    assert second.ranks == (0, 1, 2) and second.threads[0].frames[0].function == "all_reduce"


LOGS_SCRIPT = """
import os, sys, time
print("rank", os.environ["RANK"], "up", file=sys.stderr, flush=True)
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.05)
    raise ValueError("\\x1b[31mbad batch")
time.sleep(1e6)
"""


def test_logs_of_a_job(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOGS_SCRIPT)
    place = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "rallypoint", "run", "--nproc-per-node=2", "--rdzv-id=logs"]
    command += [f"--rdzv-endpoint={place}", "--nnodes=1", "--max-restarts=1"]
    job = subprocess.Popen(
        [*command, str(script), str(tmp_path / "fail")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    told: list[admin.Logs] = []

    def wrote(text: str, **which: Any) -> bool:
        try:
            told.append(admin.logs(place, "logs", timeout=timedelta(seconds=10), **which))
        except (InvalidError, ConnectionError):
            return False  # it has not begun, or nobody has failed
        return any(text in stream.text for stream in told[-1].streams)

    try:
        until(lambda: wrote("rank 1 up\n", rank=1))
        got = told[-1]
        assert (got.run_id, got.round, got.nodes, got.failure, got.silent) == ("logs", 1, 1, "", ())
        out, err = got.streams
        assert (out.stream, out.text) == ("stdout", "") and "the agent's pipe" in out.why
        assert (err.ranks, err.stream, err.before, err.why) == ((1,), "stderr", 0, "")
        with pytest.raises(InvalidError, match="has no rank 2: ranks 0 to 1"):
            admin.logs(place, "logs", 2)
        (tmp_path / "fail").touch()
        until(lambda: wrote("ValueError: bad batch", culprit=True))
        got = told[-1]
        assert got.round == 1 and "worker of rank 1" in got.failure
        assert "\x1b" not in got.failure + got.streams[1].text
        until(lambda: wrote("rank 1 up\n"))
        assert {stream.ranks for stream in told[-1].streams} == {(0,), (1,)}
    finally:
        job.terminate()
        job.communicate()
    with pytest.raises(InvalidError, match="rank is -1"):
        admin.logs(place, "logs", -1)
    with pytest.raises(InvalidError, match="rank is 3"):
        admin.logs(place, "logs", 3, culprit=True)


def test_status(place: str, nodes: list[Member]) -> None:
    told = admin.status(place, "job")
    assert (told.run_id, told.phase, told.state, told.round) == ("job", "running", "running", 1)
    assert (told.not_started, told.stalled, told.stopping) == ("", "", "")
    assert [(m.rank, m.state, m.alive, m.step) for m in told.members] == [
        (rank, "running", True, None) for rank in range(4)
    ]
    assert {m.node for m in told.members} == {"n0", "n1", "n2", "n3"}
    assert told.document["nodes"]["max"] == 4 and "document" not in repr(told)
    if ":" in place and not place.startswith("file"):
        assert "round 1 is complete" in told.changes[-1].text and told.changes[-1].round == 1
        assert told.changes[-1].at > 1.7e9  # seconds since 1970
    with pytest.raises(InvalidError, match="other"):
        admin.status(place, "other")
    assert admin.status(place).run_id == "job"  # the only one there
    assert admin.stacks(place, timeout=1).run_id == "job"
    admin.cordon(place, None, "n7", away=60)
    assert [out["node"] for out in admin.status(place).document["drained"]] == ["n7"]
    assert "n7" in admin.Run(place).undrain("n7").text


def test_stacks_where_there_are_none(place: str, nodes: list[Member]) -> None:
    told = admin.stacks(place, "job", timeout=1)  # members without an agent of Rallypoint
    assert told.ranks == 0 and told.groups == () and told.verdict == "no node has answered"
    assert [node.rank for node in told.silent] == [0, 1, 2, 3]
    assert {node.node for node in told.silent} == {"n0", "n1", "n2", "n3"}
    with pytest.raises(InvalidError):
        admin.stacks(place, "other", timeout=1)


def test_a_run_keeps_what_its_requests_share(place: str, nodes: list[Member]) -> None:
    run = admin.Run(place, "job", by="carol", timeout=timedelta(seconds=20))
    save = run.save(reason="before the upgrade", within=60)
    assert save.directive in run.cancel(save.directive).text
    if not place.startswith("file:"):
        assert run.status().round == 1
    run.stop(reason="the maintenance begins", within=0)
    until(nodes[0].is_closed)
    assert "by admin carol" in nodes[0].reason()


def test_a_run_shows_no_password() -> None:
    assert repr(admin.Run("etcd://u:secret@e1:2379", "job")) == (
        "rallypoint.admin.Run('etcd://e1:2379', 'job')"
    )


def test_functions_take_what_run_and_its_methods_take() -> None:
    """help() and editors show the arguments of both, and a wrong one is refused by its name."""
    for name in ("drain", "logs", "save"):
        assert getattr(admin, name).__name__ == name
    assert " ".join(inspect.signature(admin.drain).parameters) == (
        "endpoint run_id nodes reason within away directive by token_file timeout"
    )
    assert inspect.signature(admin.drain).parameters["run_id"].default is inspect.Parameter.empty
    assert inspect.signature(admin.logs).parameters["run_id"].default is None
    for call in (lambda: admin.drain("h:1", "job"), lambda: admin.save("h:1", when=1)):
        with pytest.raises(TypeError, match=r"nodes|when"):
            call()
