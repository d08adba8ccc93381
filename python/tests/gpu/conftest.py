"""Where these tests are skipped; `make test-gpu` runs them."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def gpus() -> int:
    """The number of GPUs. The tests of a machine without one are skipped."""
    torch = pytest.importorskip("torch")
    count: int = torch.cuda.device_count()  # by NVML: it uses none
    if count == 0:
        pytest.skip(f"torch {torch.__version__} sees no GPU")
    return count
