"""The handwritten digits that come with scikit-learn, as tensors: 1797 images of 8 x 8."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch


def prepare_digits(path: Path) -> None:
    """Writes the data to `path` unless it exists.

    Only scikit-learn's file is read: importing scikit-learn takes seconds.
    """
    if path.exists():
        return
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("the digits come with scikit-learn: pip install scikit-learn")
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    temporary = path.with_name("tmp." + path.name)
    np.savez(temporary, images=table[:, :-1] / 16, labels=table[:, -1].astype(np.int64))
    os.replace(temporary, path)


def load_digits(path: Path) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns training images, training labels, test images and test labels.

    One image in five is for testing, and always the same ones.
    """
    with np.load(path) as data:
        images, labels = torch.from_numpy(data["images"]), torch.from_numpy(data["labels"])
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[: len(order) // 5], order[len(order) // 5 :]
    return images[train], labels[train], images[test], labels[test]
