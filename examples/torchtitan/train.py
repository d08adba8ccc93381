"""TorchTitan's trainer on CPUs, with a tiny Llama and random tokens.

    rallypoint run --standalone --nproc-per-node=2 --max-restarts=3 \
        examples/torchtitan/train.py --job.config_file examples/torchtitan/tiny.toml

TorchTitan trains on accelerators alone. So this answers for the CPU where it asks about the device,
and brings its own data; all else is TorchTitan's. With GPUs run its own trainer, as
docs/libraries/torchtitan.md says.
"""

import os

import torch

torch._utils._get_available_device_type = lambda: "cpu"  # TorchTitan asks while it is imported

from torch.distributed.fsdp import FSDPModule  # noqa: E402
from torchtitan import train  # noqa: E402
from torchtitan.components import metrics  # noqa: E402
from torchtitan.components.dataloader import ParallelAwareDataloader  # noqa: E402
from torchtitan.models import llama3  # noqa: E402
from torchtitan.protocols.train_spec import register_train_spec  # noqa: E402

import rallypoint  # noqa: E402


class Memory:
    """What the metrics ask about the memory of a GPU."""

    device_name = "CPU"

    def get_peak_stats(self):
        return metrics.DeviceMemStats(0, 0, 0, 0, 0, 0)

    def reset_peak_stats(self):
        pass


metrics.build_device_memory_monitor = Memory
train.dist_utils.set_pg_timeouts = lambda **_: None  # its barrier names GPUs


class Tokens(torch.utils.data.IterableDataset):
    """Random tokens. A checkpoint has the number of the next sample."""

    def __init__(self, rank, length, vocabulary):
        self.rank, self.length, self.vocabulary, self.next = rank, length, vocabulary, 0

    def __iter__(self):
        while True:
            seed = torch.Generator().manual_seed(1000 * self.next + self.rank)
            self.next += 1
            sample = torch.randint(self.vocabulary, (self.length + 1,), generator=seed)
            yield {"input": sample[:-1]}, sample[1:]

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


def load_tokens(dp_world_size, dp_rank, tokenizer, job_config):
    settings = job_config.training
    tokens = Tokens(dp_rank, settings.seq_len, TINY.vocab_size)
    return ParallelAwareDataloader(
        tokens, dp_rank, dp_world_size, batch_size=settings.local_batch_size
    )


class Trainer(train.Trainer):
    def __init__(self, settings):
        super().__init__(settings)
        for module in self.model_parts[0].modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)  # gloo knows no other

    def train_step(self, data):
        super().train_step(data)
        rallypoint.progress(self.step)
        line = f"rank {os.environ['RANK']} pid {os.getpid()} step {self.step}\n"
        print(line, end="", flush=True)  # one write: the ranks share one output


TINY = llama3.TransformerModelArgs(dim=32, n_layers=2, n_heads=4, vocab_size=64)
spec = llama3.get_train_spec()
spec.model_args = {"tiny": TINY}
spec.build_tokenizer_fn, spec.build_dataloader_fn = None, load_tokens
register_train_spec("tiny", spec)
train.main(Trainer)
