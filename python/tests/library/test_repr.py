"""repr() of results and objects: short, useful, without secrets."""

from __future__ import annotations

import rallypoint
from rallypoint import admin


def test_configuration() -> None:
    config = rallypoint.LaunchConfig(1, 4, 8, run_id="job7", max_restarts=5)
    told = "LaunchConfig(nodes=1:4, nproc_per_node=8, run_id='job7', max_restarts=5)"
    assert repr(config) == told
    assert repr(rallypoint.elastic_launch(config, test_configuration)) == (
        f"<rallypoint.elastic_launch of test_configuration: {told}>"
    )


def test_no_secrets() -> None:
    config = rallypoint.LaunchConfig(
        1, 1, 1, rdzv_endpoint="etcd://me:hidden@host", rdzv_configs={"password": "hidden"}
    )
    assert "hidden" not in repr(config) and "etcd://host" in repr(config)


def test_failures() -> None:
    failure = rallypoint.ProcessFailure(local_rank=0, pid=7, exitcode=3, error_file="")
    error = rallypoint.ChildFailedError("train.py", {5: failure, 6: failure}, root=5)
    assert repr(error) == "<rallypoint.ChildFailedError of train.py: rank 5 ended with 3, 1 more>"
    closed = rallypoint.ClosedError("run 'a' is closed", rallypoint.Code.CLOSED)
    assert repr(closed) == """ClosedError("run 'a' is closed", CLOSED)"""


def test_status() -> None:
    member = admin.Member(0, "gpu-a", "gpu-a-K3QD7XBM", "", "", "running", "", True, None)
    lost = admin.Member(1, "gpu-b", "gpu-b-K3QD7XBM", "", "", "lost", "", False, None)
    status = admin.Status(
        "job7", "running", "stalled", 3, "", "", "", (member, lost), (), {"token": "hidden"}
    )
    assert repr(status) == (
        "<rallypoint.admin.Status of job7: stalled, round 3, 1 of 2 members run>"
    )


def test_close_ends_every_object() -> None:
    with rallypoint.StoreServer("127.0.0.1") as server:
        server.close()
        server.stop()  # its other name
        assert repr(server).endswith(", closed>")
    for kind in (rallypoint.EtcdServer, rallypoint.Member, rallypoint.Store):
        assert callable(kind.close)
