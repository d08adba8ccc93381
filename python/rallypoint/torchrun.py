"""torchrun for torch 2.4, whose own torchrun does not look for entry points.

    python -m rallypoint.torchrun --rdzv-backend=rallypoint ... train.py

takes torchrun's arguments and does what torchrun does. torch 2.5 and newer find this
backend by themselves.
"""

from __future__ import annotations

from ._entrypoint import creator_factory


def main() -> None:
    """Registers the backend and runs torchrun's main with this process's arguments."""
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
    from torch.distributed.run import main as torchrun

    rendezvous_handler_registry.register("rallypoint", creator_factory())
    torchrun()


if __name__ == "__main__":
    main()
