"""The guided workflows that a person picks as slash commands: in which order tools are called, what to ask, when to stop.

A step names the tools it needs and is left out where the server does not offer them, so that a prompt never sends a
model to a tool it cannot call. Data only; `prompts` registers them.

>>> WORKFLOWS["run_broke"].text({"explain_error"}, "job 17").splitlines()[0]
'Find out why this training run broke: job 17'
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass


@dataclass(frozen=True)
class Workflow:
    """`steps` are (tools needed, sentence); `needs` are the tools without which there is no workflow."""

    title: str
    goal: str
    ask: str
    steps: tuple[tuple[tuple[str, ...], str], ...]
    stop: str
    needs: frozenset[str]

    def text(self, offered: Set[str], what: str) -> str:
        """The prompt: goal, what to ask the user first, numbered steps of offered tools, when to stop."""
        steps = [sentence for tools, sentence in self.steps if set(tools) <= offered]
        lines = [f"{self.goal}: {what}", f"Ask the user first, unless it is known: {self.ask}"]
        return "\n".join([*lines, *(f"{number}. {sentence}" for number, sentence in enumerate(steps, 1)), f"Stop: {self.stop}"])


WORKFLOWS: dict[str, Workflow] = {
    "run_broke": Workflow(
        "A training run broke",
        "Find out why this training run broke",
        "where the logs of all ranks are, what changed since it last worked, whether it fails at the same place again.",
        (
            (("explain_error",), "explain_error on the log or traceback; believe the culprit. A victim only says whose log to open next."),
            (("check_gpu_health",), "Hardware named? check_gpu_health on that node, or on its pasted nvidia-smi -q and kernel log."),
            (("diagnose_hang",), "A timeout without an earlier error? diagnose_hang with the Flight Recorder dumps or stacks of all ranks."),
            (("diagnose_memory",), "Out of memory? diagnose_memory on the message or, better, a snapshot."),
            (("diagnose_training_log",), "diagnose_training_log for what loss, gradient norm and speed did before the end."),
            (("search_knowledge", "read_knowledge"), "Nothing matches? search_knowledge with the exact message, then read_knowledge."),
        ),
        "when one culprit explains the first error in time. Say what is known, what is a guess, and the one next command to run.",
        frozenset({"explain_error"}),
    ),
    "diagnose_hang": Workflow(
        "Training hangs",
        "Find which rank keeps this job waiting",
        "whether it still hangs now (then nothing is killed yet), how many ranks on which nodes, and where Flight Recorder dumps are.",
        (
            ((), "Still alive? Collect before anything is killed: Flight Recorder dumps and py-spy stacks of all ranks, twice, 30 s apart."),
            (("diagnose_hang",), "diagnose_hang with both moments as two folders; name files rank_N. One moment alone cannot tell slow from hung."),
            (("explain_error",), "explain_error on the log: a rank that died first is the cause, and no stack shows it."),
            (("check_gpu_health",), "A rank or node is named: check_gpu_health there."),
            (("check_connectivity",), "It hangs while the group is made: check_connectivity names pair, interface and kind of fault."),
            (("run_all_reduce_bench",), "All wait in the same collective, nobody is missing: run_all_reduce_bench, without the user's code."),
        ),
        "when `culprits` names ranks and their stacks say why. Culprits empty and verdict unknown: ask for the ranks in `skipped`, do not guess.",
        frozenset({"diagnose_hang"}),
    ),
    "diagnose_slow_training": Workflow(
        "Training is slow",
        "Find out why this training run is slow",
        "slow since when or compared with what, model, tokens a second, parts and their number, and whether one short benchmark may run.",
        (
            (("diagnose_training_log",), "diagnose_training_log: a step change, a slow drift and a periodic dip differ in cause; note the step."),
            (("check_gpu_health",), "check_gpu_health on the slow nodes, or on all: throttling, PCIe width, a power cap."),
            (("estimate_gpu_hours",), "estimate_gpu_hours for this model: is the MFU below what such parts give, or was the hope too high?"),
            (("run_mamf",), "GPU idle and the user agrees: run_mamf, to compare with the published MAMF of that part."),
            (("run_all_reduce_bench",), "run_all_reduce_bench over the GPUs of a node: busbw beside the link; groups='pairs' names who is slow."),
            (("judge_measurement",), "Numbers that the user measured: judge_measurement before believing them."),
            (("plan_parallelism",), "Hardware is fine: plan_parallelism says what the layout costs; then the data loader and checkpoints."),
        ),
        "at the first part that is measured below its own expectation by more than the spread. Do not stack guesses; name what was not measured.",
        frozenset({"diagnose_training_log"}),
    ),
    "diagnose_loss_spike": Workflow(
        "The loss spiked, diverged or is NaN",
        "Find out what made this loss spike, diverge or turn NaN",
        "the log (and that of another run on the same data), the dtype, the learning rate, and the last good checkpoint.",
        (
            (("diagnose_training_log",), "diagnose_training_log: which step, was the gradient norm earlier, did it recover? Two logs in "
             "`paths`: same step = data, another step = optimiser."),
            (("diagnose_numerics",), "NaN or inf: diagnose_numerics without arguments says how to add the hook; rerun from the checkpoint, "
             "then give it the files of all ranks."),
            (("check_gpu_health",), "Only one rank was first: check_gpu_health on its node, and that batch on another GPU."),
            (("search_knowledge", "read_knowledge"), "read_knowledge on the `sections` of the first finding; search_knowledge for the "
             "remedy's published values."),
        ),
        "when the spike recovered by itself (watch, change nothing), or one cause has evidence. Then propose one change and a checkpoint.",
        frozenset({"diagnose_training_log"}),
    ),
    "set_up_cluster": Workflow(
        "Accept and set up GPU nodes",
        "Decide whether these nodes may run jobs",
        "how many nodes and GPUs, which fabric, scheduler and storage, and whether benchmarks may run now and where.",
        (
            (("check_gpu_health",), "check_gpu_health on every node. unknown is not ok: say what was not judged."),
            (("run_mamf",), "run_mamf with the dtype of the training, device='each', then 'all': more than 5% below its peers is a finding."),
            (("run_all_reduce_bench",), "run_all_reduce_bench over all GPUs of a node, large sizes: busbw beside the link, one direction."),
            (("judge_measurement",), "nccl-tests over all nodes, fio on the shared storage, run by the user: judge_measurement."),
            (("search_knowledge",), "search_knowledge for SLURM, network and storage acceptance of that size."),
            (("plan_checkpoints",), "plan_checkpoints: does the storage carry the checkpoints of the first real run?"),
        ),
        "at a critical verdict: run nothing more on that node. Else give one verdict a node with its evidence and what was not checked.",
        frozenset({"check_gpu_health"}),
    ),
    "plan_training": Workflow(
        "Plan a training run",
        "Plan this training run",
        "model, tokens, sequence length, parts and their number, the deadline or budget.",
        (
            (("describe_model",), "describe_model: the true size, active parameters too."),
            (("estimate_gpu_hours",), "estimate_gpu_hours for model, tokens and accelerator: give the interval, not one number."),
            (("compare_accelerators",), "Parts not chosen yet: compare_accelerators."),
            (("estimate_memory",), "estimate_memory: does it fit, with what left over?"),
            (("plan_parallelism",), "plan_parallelism: the fastest layout that fits, and why others lose."),
            (("plan_checkpoints",), "plan_checkpoints: interval, size, goodput."),
            (("search_knowledge",), "search_knowledge for instabilities and published runs of that size."),
        ),
        "when time, cost, memory and layout agree with each other. List the assumptions that a measurement could replace, dearest first.",
        frozenset({"estimate_gpu_hours"}),
    ),
}  # fmt: skip
