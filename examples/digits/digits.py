"""The handwritten digits that come with scikit-learn, as tensors: 1797 images of 8 x 8."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch


def prepare_digits(path: Path) -> None:
    """Writes the data to `path` unless it is there.

    Importing scikit-learn takes seconds; a restarted worker should not pay for it again.
    """
    if path.exists():
        return
    from sklearn.datasets import load_digits

    digits = load_digits()
    temporary = path.with_name("tmp." + path.name)
    np.savez(temporary, images=digits.data.astype(np.float32) / 16, labels=digits.target)
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
