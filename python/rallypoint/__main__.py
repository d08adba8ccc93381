"""`python -m rallypoint`: the command, as the console script `rallypoint`."""

from __future__ import annotations

import os
import sys

from ._cli import main

os.environ["RALLYPOINT_AS_MODULE"] = "1"  # the user has named the interpreter

sys.exit(main())
