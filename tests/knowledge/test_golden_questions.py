"""Questions that people ask, and the section that should be among the first three.

They go over every chapter, in both languages, with typos and pasted lines.

A page may be rewritten and a section renamed (its old id is then an alias); the question must still lead there.
"""

from __future__ import annotations

import re

import pytest

from skillserver import paths
from skillserver.knowledge import library, search
from skillserver.knowledge.sources import OUR_LICENCE, OURS, Folder

# ruff: noqa: E501
GOLDEN = [  # (question, sections that answer it)
    ("what should I look at when comparing offers of two cloud vendors", ["insights/planning#questions-to-ask-a-cloud-provider"]),
    ("is it worth moving from A100 to H100 right now", ["insights/planning#when-is-it-worth-upgrading-gpus"]),
    ("why do vendors quote twice the flops that I see in the datasheet footnote sparsity", ["hardware/accelerators#dense-or-sparse-tflops"]),
    ("cores and RAM per GPU on a training node", ["hardware/accelerators#how-much-cpu-memory-and-how-many-cores-per-accelerator"]),
    (
        "hidden size not divisible by 128 makes matmul slow",
        [
            "hardware/achievable-flops#which-matrix-shapes-are-fast",
            "hardware/achievable-flops#tile-and-wave-quantisation",
            "training/cost#shapes-multiples-of-8-64-and-128",
        ],
    ),
    ("one GPU of eight is 10% slower than the others", ["hardware/achievable-flops#gpus-of-one-node-differ-in-speed"]),
    ("what does NV18 and NODE mean in the topology output", ["hardware/network#what-the-nvidia-smi-topo-matrix-says"]),
    ("400 Gbps NIC how many GB/s is that", ["hardware/network#bits-and-bytes"]),
    (
        'disk quota is fine but "no space left", millions of tiny files',
        ["hardware/storage#inodes-and-millions-of-small-files", "debugging/errors#no-space-left-on-device"],
    ),
    ("stream a dataset from S3 during training", ["hardware/storage#object-storage-and-streaming-datasets"]),
    ("my job is PD with reason Resources for a day", ["orchestration/slurm#why-a-job-is-pending"]),
    ("submit job B only when job A succeeded", ["orchestration/slurm#job-arrays-and-dependencies"]),
    ("hsdp vs fsdp full shard across nodes", ["training/parallelism#fsdp-fsdp2-and-hsdp"]),
    (
        "pipeline bubble size with 8 stages and 32 micro batches",
        ["training/parallelism#pipeline-parallelism", "training/parallelism#pipeline-pitfalls"],
    ),
    ("how much memory does Adam need per parameter in mixed precision", ["training/memory#bytes-per-parameter"]),
    ("logits of a 128k vocabulary eat the memory", ["training/memory#logits-and-the-loss"]),
    ("mxfp4 and nvfp4 block sizes", ["training/dtypes#microscaling-mxfp8-mxfp4-and-nvfp4"]),
    ("which ops must stay fp32 under autocast", ["training/dtypes#where-fp32-must-stay", "training/dtypes#mixed-precision-what-autocast-does"]),
    ("optimal checkpoint interval when a node dies every 8 hours", ["training/checkpoints#how-often-to-save-the-young-daly-interval"]),
    ("how many GB is a checkpoint of a 7B with Adam", ["training/checkpoints#checkpoint-size"]),
    ("beta2 0.95 or 0.999", ["training/instabilities#adam-settings-beta2-epsilon-weight-decay"]),
    ("what does z-loss do", ["training/instabilities#z-loss-qk-norm-soft-capping-and-embedding-norm"]),
    ("ttft and tpot meaning", ["inference/phases#latency-metrics-ttft-tpot-itl-throughput"]),
    ("what limits tokens per second at batch size one, lower bound", ["inference/phases#prefill-time-and-decode-time-a-lower-bound"]),
    ("rtol atol for bf16 in assert_close", ["testing/basics#tolerances-by-data-type"]),
    ("simulate two nodes on a single machine", ["testing/basics#emulate-several-nodes-on-one-machine"]),
    (
        "[rank3]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970, remote process exited or there was a network error, NCCL version 2.21.5 ncclRemoteError: A call failed possibly due to a network error",
        [
            "debugging/errors#connection-closed-by-remote-peer",
            "debugging/errors#nccl-unhandled-system-error",
            "troubleshooting/nccl#nccl-communicator-was-aborted",
        ],
    ),
    (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=812.0. Some of the step tasks have been OOM Killed.",
        ["troubleshooting/slurm#detected-oom-kill-event-slurm-killed-the-step-for-memory", "debugging/errors#slurm-killed-the-step-for-memory"],
    ),
    (
        "[Mon Mar  3 02:11:09 2025] NVRM: Xid (PCI:0000:9b:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row (0x00000000000a1b2c) marked for remapping",
        ["debugging/gpu-faults#row-remapping", "debugging/gpu-faults#which-xid-means-what"],
    ),
    (
        "bus error in dataloder workers inside kubernetes pod",
        [
            "troubleshooting/pytorch#dataloader-worker-killed-by-bus-error",
            "troubleshooting/containers-and-drivers#kubernetes-pod-bigger-dev-shm",
            "debugging/errors#shared-memory-is-full",
        ],
    ),
    (
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one",
        ["troubleshooting/distributed#expected-to-have-finished-reduction-in-the-prior-iteration"],
    ),
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.31 GiB is free",
        ["debugging/errors#cuda-out-of-memory"],
    ),
    (
        "libcuda.so.1: cannot open shared object file: No such file or directory",
        ["troubleshooting/containers-and-drivers#libcudaso1-cannot-open-shared-object-file"],
    ),
    (
        "ValueError: Cannot use chat template because tokenizer.chat_template is not set vllm",
        ["troubleshooting/vllm#default-chat-template-is-no-longer-allowed"],
    ),
    ("nccl-tests every rank reports itself as rank 0", ["troubleshooting/nccl#nccl-tests-run-separately-on-each-node"]),
    (
        "deepspeed zero3 checkpoint convert to a normal state dict",
        ["troubleshooting/deepspeed-and-megatron#zero-3-saved-model-is-tiny-or-incomplete-convert-with-zero-to-fp32"],
    ),
    (
        "lora training: element 0 of tensors does not require grad and does not have a grad_fn",
        [
            "troubleshooting/transformers-and-accelerate#peft-and-lora-training-element-0-of-tensors-does-not-require-grad",
            "troubleshooting/pytorch#element-0-of-tensors-does-not-require-grad-with-gradient-checkpointing",
        ],
    ),
    ("sbatch: error: Batch script contains DOS line breaks", ["troubleshooting/slurm#batch-script-contains-dos-line-breaks-or-bad-interpreter"]),
    ("vllm preemption warnings in log, throughput bad", ["troubleshooting/vllm#requests-are-preempted-not-enough-kv-cache-space"]),
    (
        "CUDA error: no kernel image is available for execution on the device sm_120",
        [
            "troubleshooting/pytorch#no-kernel-image-is-available-for-execution-on-the-device",
            "troubleshooting/flash-attention#flashattention-3-or-no-kernel-image-on-rtx-5090-blackwell-which-version-for-which-gpu",
        ],
    ),
    (
        'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]]',
        ["troubleshooting/containers-and-drivers#could-not-select-device-driver-with-capabilities-gpu"],
    ),
    (
        "ncclInternalError: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device",
        ["troubleshooting/nccl#duplicate-gpu-detected-rank-1-and-rank-0-both-on-cuda-device"],
    ),
    ("流水线并行的气泡怎么减小", ["training/parallelism#pipeline-parallelism", "training/parallelism#pipeline-pitfalls"]),
    ("张量并行可以跨节点吗", ["training/parallelism#tensor-parallelism", "training/parallelism#choosing-a-layout"]),
    ("优化器状态占多少显存", ["training/memory#bytes-per-parameter"]),
    ("学习率预热要多少步", ["training/instabilities#warm-up-and-learning-rate", "training/cost#learning-rate-schedules"]),
    ("投机解码什么时候没有收益", ["inference/phases#speculative-decoding", "troubleshooting/vllm#speculative-decoding-is-slower-than-without"]),
    ("小文件太多 读取很慢 怎么办", ["hardware/storage#inodes-and-millions-of-small-files"]),
    ("异步保存 checkpoint 会不会影响训练", ["training/checkpoints#asynchronous-checkpoints"]),
    ("显卡温度多少度会降频", ["hardware/accelerators#what-gpu-temperature-is-good-and-when-does-throttling-start"]),
    ("混合专家模型 负载不均衡 专家并行", ["training/parallelism#expert-parallelism-for-moe"]),
    (
        "多机训练 初始化卡住 rendezvous 超时",
        ["troubleshooting/distributed#rendezvous-timeout-nodes-never-join", "debugging/errors#rendezvous-fails-or-times-out"],
    ),
    ("梯度累积和通信的关系", ["training/parallelism#gradient-accumulation-and-communication"]),
    ("交换机内归约 SHARP 有什么好处", ["hardware/network#sharp-reductions-in-the-switch"]),
    (
        "训练吞吐突然下降怎么排查",
        ["training/cost#order-of-throughput-work", "debugging/hangs#slow-or-hung", "debugging/gpu-faults#throttling-and-clocks"],
    ),
    ("NCCL 超时 怎么调大", ["debugging/hangs#nccl-watchdog-timeout", "debugging/hangs#timeouts-what-to-set"]),
    (
        "my edit has no effect which copy of the package is imported",
        ["debugging/methodology#am-i-editing-the-code-that-runs", "debugging/python#which-copy-of-a-package-is-imported"],
    ),
    ("which commit broke it", ["debugging/methodology#find-the-breaking-commit-with-git-bisect"]),
    ("sbatch script reports success although python failed in a pipe", ["debugging/unix-tools#set-euo-pipefail-what-each-stops"]),
    ("memory_summary KeyError on a machine without GPU", ["debugging/memory#memory-summary-how-to-read-it"]),
    ("torch.profiler says 100 ms but the step takes a second", ["debugging/profiling#when-torchprofiler-does-not-explain-it"]),
    ("how to stop in pdb on one rank under torchrun", ["debugging/python#pdb-on-one-rank-distbreakpoint"]),
    ("CPU program takes GPU memory on GB300", ["debugging/memory#coherent-memory-gh200-gb300-dgx-spark"]),
    ("程序卡住了 用什么工具看", ["debugging/methodology#the-three-classic-tools-py-spy-strace-gdb"]),
    ("进程被杀 没有报错", ["debugging/unix-tools#dmesg-why-did-the-process-vanish"]),
    ("反向传播 OOM 找不到代码行", ["debugging/pytorch#error-in-backward-find-the-forward-line"]),
]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> library.Library:
    return library.at((Folder("", str(paths.shipped(OURS)), OUR_LICENCE),), tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize(("question", "sections"), GOLDEN, ids=[question[:40] for question, _ in GOLDEN])
def test_a_question_finds_its_section_among_the_first_three(ours: library.Library, question: str, sections: list[str]) -> None:
    told = search.answer(ours, question, 8000)
    assert not told.startswith("no section answers this")
    wanted = {ours.aliases.get(name, name) for name in sections}
    assert wanted & set(re.findall(r"^## .* \[(\S+)\]$", told, re.M)[:3])
