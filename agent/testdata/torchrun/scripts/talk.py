"""Print a few lines to both streams, the same for each run."""
import os, sys

rank = os.environ["RANK"]
for i in range(3):
    sys.stdout.write(f"o{i} of {rank}\n")
    sys.stderr.write(f"e{i} of {rank}\n")
