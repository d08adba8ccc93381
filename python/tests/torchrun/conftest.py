"""Fixtures of the tests with real torchrun nodes; see harness.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from torchrun.harness import Job, Launcher, NewJob

_jobs: list[Job] = []  # those of the running test, for its report


@pytest.fixture(scope="session")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path_factory.mktemp("launcher"))
    yield launcher
    launcher.close()


def _new_job(launcher: Launcher, folder: Path) -> Iterator[NewJob]:
    made: list[Job] = []

    def new(nnodes: str = "2", **options: object) -> Job:
        job = Job(launcher, folder / f"job{len(made)}", nnodes, **options)  # type: ignore[arg-type]
        made.append(job)
        _jobs.append(job)
        return job

    yield new
    for job in made:
        job.close()
        _jobs.remove(job)


@pytest.fixture
def new_job(launcher: Launcher, tmp_path: Path) -> Iterator[NewJob]:
    """Makes jobs, whose nodes end with the test."""
    yield from _new_job(launcher, tmp_path)


@pytest.fixture(scope="module")
def new_module_job(
    launcher: Launcher, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NewJob]:
    """Makes jobs that several tests of a module use."""
    yield from _new_job(launcher, tmp_path_factory.mktemp("module"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Adds the events and the ends of the logs to the report of a failure."""
    report = yield
    if report.failed:
        for job in _jobs:
            report.sections.extend(job.report())
    return report
