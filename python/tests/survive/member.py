"""A script whose worlds are the rounds of a Member of its own: RUN ENDPOINT SIZE SCRIPT ARGS..."""

from __future__ import annotations

import functools
import runpy
import sys

from rallypoint import Member, survive
from rallypoint._rendezvous.worlds import MemberWorlds

run_id, endpoint, size, script = sys.argv[1:5]
sys.argv = sys.argv[4:]
with Member(run_id, endpoint, 1, int(size)) as member:
    survive.init_process_group = functools.partial(
        survive.init_process_group, worlds=MemberWorlds(member)
    )
    runpy.run_path(script, run_name="__main__")
