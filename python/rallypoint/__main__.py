"""`python -m rallypoint`: the command, as the console script `rallypoint`."""

from __future__ import annotations

import sys

from ._cli import main

sys.exit(main())
