"""Whether SGLang's own all-reduce can be set up where CUDA_VISIBLE_DEVICES names GPUs by UUID. Needs SGLang, and no GPU.

Two processes ask what each rank of a server asks first. Exit code 1 if the names are taken for numbers.
"""

import os
import sys
import tempfile
from pathlib import Path

import sglang
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from sglang.srt.distributed.device_communicators.custom_all_reduce_utils import can_use_custom_all_reduce_with_nvlink

RANKS = 2
BY_NUMBER, BY_UUID = "0,1", "GPU-11111111-2222-3333-4444-555555555555,GPU-66666666-7777-8888-9999-000000000000"


def ask(rank: int, folder: str, named: str) -> None:
    """Ask as a rank does, and write down what was raised: without a driver numbers fail too, but later, at NVML."""
    os.environ["CUDA_VISIBLE_DEVICES"] = named
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    try:
        can_use_custom_all_reduce_with_nvlink(dist.group.WORLD, torch.device(f"cuda:{rank}"), [RANKS], "CustomAllreduce")
    except (NameError, ValueError) as error:
        Path(folder, f"rank-{rank}").write_text(f"{type(error).__name__}: {error}")
    finally:
        dist.destroy_process_group()


def find_error(named: str) -> str:
    """What rank 0 was told with GPUs named so; empty where nothing was raised."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(ask, args=(folder, named), nprocs=RANKS)
        told = Path(folder, "rank-0")
        return told.read_text() if told.exists() else ""


if __name__ == "__main__":
    print(f"SGLang {sglang.__version__}")
    errors = {named: find_error(named) for named in (BY_NUMBER, BY_UUID)}
    for named, error in errors.items():
        print(f"CUDA_VISIBLE_DEVICES={named[:20]}: {error or 'no error'}")
    sys.exit(1 if "invalid literal for int()" in errors[BY_UUID] else 0)
