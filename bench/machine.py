"""What the figures were measured on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import time
from pathlib import Path


def describe() -> dict[str, object]:
    """Describes the machine and the software, without names of hosts, users or folders."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cpu": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_kb": int((_field("/proc/meminfo", "MemTotal") or "0").split()[0]),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "rallypoint": _version("rallypoint"),
        "commit": _commit(),
        # Figures of a machine that was busy with other things are worth little.
        "load_average": os.getloadavg()[0],
    }


def one_line(machine: dict[str, object]) -> str:
    return (
        f"{machine['cpu']}, {machine['cores']} cores, load {machine['load_average']:.1f};"
        f" Linux {machine['kernel']}, Python {machine['python']}, torch {machine['torch']},"
        f" rallypoint {machine['rallypoint']} ({machine['commit']})"
    )


def _field(path: str, name: str) -> str | None:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None
