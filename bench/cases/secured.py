"""One rendezvous of N nodes with a token beside the same without, both ends on this machine."""

from __future__ import annotations

import secrets
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from backends import OURS
from processes import children_cpu
from result import Row, Sample

from cases.rendezvous import REPEAT, rendezvous

NAME = "secured"

MOST = 1.25  # times without


def measure(counts: Sequence[int], repeat: int | None) -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        token = Path(folder, "token")
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        for n in counts:
            times = repeat or REPEAT.get(n, 3)
            secured, plain = Sample(), Sample()
            with_token: dict[str, object] = {"token_file": str(token)}
            cost: dict[int, list[float]] = {id(secured): [], id(plain): []}
            for _ in range(times):  # by turns, so that both see the same machine
                for sample, options in ((plain, None), (secured, with_token)):
                    before = children_cpu()
                    sample.values.append(rendezvous(OURS, n, options))
                    cost[id(sample)].append(children_cpu() - before)
            row = Row(NAME, f"rendezvous of {n} nodes with a token", secured, floor=plain)
            row.target, row.target_why = MOST * (plain.median or 0), f"{MOST:g} x without"
            used = [statistics.median(cost[id(sample)]) for sample in (secured, plain)]
            secured.note = f"CPU of all nodes {used[0]:.2f} s, without {used[1]:.2f} s"
            rows.append(row)
    return rows
