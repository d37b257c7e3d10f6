"""A small handbook of our own, so that the tests of the engine do not move when the shipped pages do."""

from __future__ import annotations

from pathlib import Path

import pytest

from skillserver.knowledge import library
from skillserver.knowledge.sources import Folder

PAGES = {
    "debugging/hangs": """---
title: When a run hangs
title_zh: 训练卡死
summary: How to find the rank that holds up the others.
keywords: [hang, deadlock]
aliases: {debugging/stuck: debugging/hangs, debugging/hangs#watchdog: debugging/hangs#nccl-watchdog-timeout}
sources:
  - {title: "PyTorch distributed", url: "https://docs.pytorch.org/docs/stable/distributed.html"}
  - {title: "py-spy", url: "https://github.com/benfred/py-spy"}
---
# When a run hangs
Take the stacks of every rank first: the odd one out is the culprit, the others wait in a collective.

## NCCL watchdog timeout
<!-- zh: NCCL 超时; 看门狗 -->
<!-- keywords: Watchdog caught collective operation timeout, ncclSystemError -->
One rank never entered the collective, so all others ran into the timeout of 10 minutes. Raise it only when the rank was merely slow.

## Stacks with py-spy
`py-spy dump --pid N` prints the stack of a live process. Run it on each node by `srun`.

### Native frames
Add `--native` to see what runs below Python.

## Flight recorder
Set `TORCH_NCCL_TRACE_BUFFER_SIZE=2000` and `TORCH_NCCL_DUMP_ON_TIMEOUT=1`; each rank then writes the collectives it saw.
""",
    "debugging/gpu-faults": """---
title: Faults of a GPU
title_zh: 显卡故障
summary: Xid codes and what to do about them.
keywords: [Xid, ECC, RMA]
---
Read `dmesg` for Xid lines before blaming the code.

## Xid 79: fallen off the bus
<!-- zh: 掉卡; 丢卡 Xid79 -->
The host lost the PCIe link. Drain the node, power-cycle it, and replace the GPU when it comes back.

## Xid 94: contained ECC error
Only the job that touched the bad page dies. Restart it; reset the GPU at the next chance to remap the row.

## Xid 48: double-bit ECC error
Memory returned data beyond repair. Reset the GPU and count how often it happens before an RMA.
""",
    "training/memory": """---
title: Memory of training
title_zh: 训练显存
summary: What fills the memory and what empties it.
keywords: [OOM, out of memory]
keywords_zh: [显存不足]
---
Out of memory means that weights, gradients, optimizer states and activations together exceed the device. Lower the micro batch first.

## ZeRO stages
Stage 1 shards optimizer states, stage 2 gradients too, stage 3 also the weights. FSDP is stage 3 by another name.

## Activation recomputation
Keep only the inputs of a layer and compute the rest again in backward: a third more work, a fraction of the activations.

## Fragmentation
`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` lets the allocator grow a segment instead of leaving holes.

## Python example
```python
# Not a heading
import torch
print(torch.cuda.memory_summary())
```
""",
    "training/instabilities": """---
title: Loss spikes and divergence
title_zh: 训练不稳定
summary: What a curve says.
---
A spike that comes down by itself may be ignored; one that stays needs a rollback.

## Loss spikes
Go back to a checkpoint before the spike, skip the batches around it and go on with a lower learning rate.

## Gradient clipping
Clip the global norm at 1.0. A lower threshold hides a rising norm.

## Loss scale of fp16
When the scaler halves again and again down to 1, gradients hold NaN. bf16 needs no scaler.
""",
    "hardware/network": """---
title: Networks
summary: What links deliver.
---
Links are quoted in both directions; a benchmark sees one.

## Bus bandwidth of all-reduce
busbw = algbw * 2 * (n - 1) / n. Compare it with the unidirectional speed of the slowest link.

## InfiniBand
HDR gives 200 Gbps a port, NDR 400, XDR 800.

## Out-of-band network
A slow Ethernet for the BMC: boot, health, re-imaging.
""",
    "orchestration/slurm": """---
title: SLURM
summary: For users and admins.
---
Ask `sinfo` first.

## Save before the time limit
`#SBATCH --signal=B:USR1@600` sends a signal ten minutes before the end: save and requeue.

## Drained nodes
`scontrol update nodename=N state=resume` brings a node back after "Kill task failed".
""",
}


def write_pages(root: Path, pages: dict[str, str]) -> Path:
    for name, text in pages.items():
        path = root / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


@pytest.fixture(scope="session")
def pages_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pages(tmp_path_factory.mktemp("pages") / "handbook", PAGES)


@pytest.fixture(scope="session")
def shelf(pages_root: Path, tmp_path_factory: pytest.TempPathFactory) -> library.Library:
    return library.at((Folder("", str(pages_root), "ours"),), tmp_path_factory.mktemp("cache"))
