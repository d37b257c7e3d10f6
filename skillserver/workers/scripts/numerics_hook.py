"""Watches the numbers of a training run from inside: the first NaN or infinity, and how large values grow before it.

Stand-alone (standard library and torch 2.4 or newer), Python 3.9 syntax: copy it beside the training script. Writes JSON lines, one
file a rank (`numerics.rank0.jsonl`); `skillserver call diagnose_numerics` reads them.

    hello   once a start: rank, torch, every, and `unseen`, what this watch cannot see
    module  once a module and dtype: its class and the largest number of that dtype
    scan    each watched pass: largest absolute output per module, largest gradient and parameter, loss scale
    range   once a module and dtype: its output passed a quarter of what its dtype can hold
    bad     the first non-finite values of a pass, in the order in which they appeared
    harmless  in a pass that is finite otherwise: an output with -inf (most often a mask), or a bad input; said once

What it costs: on a watched pass one reduction for each module output, parameter and gradient, and one copy to the host
(no synchronisation in between); on the others a Python call a module. `every=1` finds the exact pass. What it cannot
see: inside torch.compile (inputs, outputs, parameters and gradients remain), CUDA graphs, fused custom kernels, and code
between modules, which is caught at the next module's input. FSDP: each rank sees its own shard. Evaluation is skipped.

>>> import numerics_hook
>>> watcher = numerics_hook.watch(model, optimizer, scaler=scaler, every=10, file="numerics.jsonl")
"""

from __future__ import annotations

import atexit
import collections
import functools
import json
import math
import os
import pathlib
import sys
import time
import weakref

import torch

VERSION = 1
FIRST_BAD = 12  # records of one pass; what follows the first few is consequence
TROUBLED = 10  # passes with trouble that are written before the watch ends itself
OVERFLOWED = 60  # passes where only gradients overflowed: a loss scale that searches does that
NEAR = 0.25  # two doublings from overflow
TENSORS = 16  # of one module's inputs or outputs
REMEMBERED = 64  # outputs that may be the next modules' inputs
RECORDS = 50_000  # of one pass
WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def watch(model, optimizer=None, every=10, file="numerics.jsonl", scaler=None, keep=20, max_mb=64):
    """Start watching; call it after the model is wrapped (DDP, FSDP) and before the first step. Returns a Watcher.

    `every` counts forward passes in training mode; `keep` is how many scans are written again before trouble once the
    file has reached `max_mb` megabytes, after which scans are no longer written. `scaler` = torch.amp.GradScaler.
    """
    if every < 1 or keep < 1 or max_mb <= 0:
        raise ValueError(f"every, keep and max_mb must be positive, not {every}, {keep}, {max_mb}")
    return Watcher(model, optimizer, scaler, int(every), file, int(keep), max_mb * 10**6)


def rank_and_world():
    """(rank, world size) of the process group, else of torchrun's variables, else (0, 1)."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def file_of(file, rank):
    """`numerics.jsonl` -> `numerics.rank3.jsonl`."""
    path = pathlib.Path(file)
    return path.with_name(f"{path.stem}.rank{rank}{path.suffix or '.jsonl'}")


class Watcher:
    """Holds the hooks and the open file; `close()` removes and ends both (also done at the interpreter's exit)."""

    def __init__(self, model, optimizer, scaler, every, file, keep, max_bytes):
        self.model, self.scaler, self.every, self.max_bytes = model, scaler, every, max_bytes
        self.rank, self.world_size = rank_and_world()
        self.path = file_of(file, self.rank)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.out = self.path.open("a", buffering=1, encoding="utf-8")
        self.on = self.rooted = False
        self.passes = self.steps = self.troubled = self.overflowed = self.written = 0
        self.last_clean = self.scale = None
        self.pending, self.handles, self.unseen = [], [], []
        self.scans = collections.deque(maxlen=keep)
        self.known, self.near, self.harmless, self.failed = set(), set(), set(), set()
        self.outputs = collections.OrderedDict()
        self.sharded = any(word in type(module).__name__ for module in model.modules() for word in ("FullySharded", "FSDP"))
        self._attach(optimizer)
        self._hello(optimizer)
        if not self.hooked_root:
            self._begin(True)
        atexit.register(self.close)

    def close(self):
        """Write what is pending, remove every hook, close the file. Safe to call twice."""
        if self.out.closed:
            return
        self._flush()
        self._write({"type": "end", "passes": self.passes, "steps": self.steps})
        self._detach()
        self.out.close()
        atexit.unregister(self.close)

    def _attach(self, optimizer):
        closed, self.hooked_root = [], False
        for raw, module in self.model.named_modules():
            name = clean(raw)
            if any(raw == inside or raw.startswith(inside + ".") or inside == "" for inside in closed):
                continue
            if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
                closed.append(raw)
                self.unseen.append(f"inside torch.compile: {name or 'the whole model'}")
                if type(module).__name__ != "OptimizedModule":
                    continue  # compiled in place: its own hooks would be compiled too
            self.hooked_root |= module is self.model
            self.handles.append(module.register_forward_pre_hook(functools.partial(self._before, name), with_kwargs=True))
            self.handles.append(module.register_forward_hook(functools.partial(self._after, name)))
        for raw, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                self.handles.append(parameter.register_post_accumulate_grad_hook(functools.partial(self._accumulated, clean(raw))))
        if hasattr(optimizer, "register_step_post_hook"):
            self.handles.append(optimizer.register_step_pre_hook(self._before_step))
            self.handles.append(optimizer.register_step_post_hook(self._after_step))

    def _detach(self):
        for handle in self.handles:
            handle.remove()
        self.handles, self.on = [], False

    def _hello(self, optimizer):
        if self.every > 1:
            self.unseen.append(f"passes between every {self.every} (every=1 finds the exact one)")
        if self.sharded:
            self.unseen.append("parameters and gradients of other ranks' shards (FSDP)")
        if optimizer is None:
            self.unseen.append("optimizer steps and reduced gradients: no optimizer was given")
        dtypes = collections.Counter(short(parameter.dtype) for parameter in self.model.parameters())
        self._write({"type": "hello", "version": VERSION, "world_size": self.world_size, "torch": torch.__version__, "every": self.every,
                     "wrapper": type(self.model).__name__, "parameter_dtypes": dict(dtypes), "scaler": self.scaler is not None,
                     "time_s": round(time.time(), 1), "unseen": self.unseen})  # fmt: skip

    def _before(self, name, module, args, kwargs):
        if not quiet():
            if name == "" and module is self.model:
                self.rooted = True
                self._begin(module.training)
            if self.on:
                for number, tensor in enumerate(tensors((args, kwargs))):
                    self._record("forward", name, f"input {number}", module, tensor)

    def _after(self, name, module, args, output):
        if self.on and not quiet():
            for number, tensor in enumerate(tensors(output)):
                self._record("forward", name, f"output {number}", module, tensor)
                if tensor.requires_grad and tensor.grad_fn is not None:  # a hook on a leaf would stay for good
                    tensor.register_hook(functools.partial(self._backward, name, type(module).__name__, number))

    def _backward(self, name, kind, number, gradient):
        if self.on:
            self._measure("backward", name, f"gradient of output {number}", kind, gradient)

    def _accumulated(self, name, parameter):
        if self.on and parameter.grad is not None:
            what = "reduced" if self.sharded else "accumulated"  # FSDP's hook runs after its reduce-scatter
            self._measure("gradient", name, what, "", parameter.grad)

    def _before_step(self, optimizer, args, kwargs):
        if self.on:
            for raw, parameter in self.model.named_parameters():
                if parameter.grad is not None:
                    self._measure("gradient", clean(raw), "before the step", "", parameter.grad)

    def _after_step(self, optimizer, args, kwargs):
        self._flush()
        self.steps += 1
        if not self.rooted:  # the whole model is compiled in place: steps are all there is to count by
            self._begin(True)

    def _begin(self, training):
        self._flush()
        if not training or not self.handles:
            return
        self.on = self.passes % self.every == 0 or self.troubled > 0
        self.passes += 1
        if self.on:
            for raw, parameter in self.model.named_parameters():
                self._measure("parameter", clean(raw), "value", "", parameter)

    def _record(self, where, name, what, module, tensor):
        """Measure an input or output; an input that is an earlier output, unchanged, is not measured again."""
        seen, kind = self.outputs.get(id(tensor)), type(module).__name__
        if seen and seen[0]() is tensor and seen[1] == version(tensor):
            self.pending.append((where, name, what, kind, short(tensor.dtype), True, *seen[2:]))
            return
        bounds = self._measure(where, name, what, kind, tensor)
        if bounds:
            self.outputs[id(tensor)] = (weakref.ref(tensor), version(tensor), *bounds)
            while len(self.outputs) > REMEMBERED:
                self.outputs.popitem(last=False)

    def _measure(self, where, name, what, kind, tensor):
        """Smallest and largest value, left on the device. NaN wins in both. None when it could not be measured."""
        local = getattr(tensor, "_local_tensor", tensor).detach()  # DTensor: this rank's part
        if not local.is_floating_point() or not local.numel() or len(self.pending) >= RECORDS:
            return None
        try:
            low, high = torch.aminmax(local.float() if local.element_size() == 1 else local)
        except (RuntimeError, NotImplementedError, TypeError) as problem:
            if name not in self.failed and len(self.failed) < TROUBLED:
                self._write({"type": "unseen", "module": name, "why": str(problem)[:200]})
            self.failed.add(name)
            return None
        self.pending.append((where, name, what, kind, short(local.dtype), False, low, high))
        return low, high

    def _flush(self):
        """Fetch what the pass left on the devices, and write it."""
        pending, self.pending, self.on = self.pending, [], False
        self.outputs.clear()
        if not pending:
            return
        try:
            seen = fetched(pending)
        except RuntimeError as problem:  # the device is gone (a CUDA error): the training's own error says why
            self._write({"type": "unseen", "module": "", "why": str(problem)[:200]})
            return
        self.scale = number(float(self.scaler.get_scale())) if self.scaler is not None else None
        scan = self._scan(seen)
        bad = [place for place, one in enumerate(seen) if self._is_bad(one)]
        if bad:
            self._trouble(seen, bad)
        else:
            self.last_clean = self.passes - 1
        self._keep(scan, bad)

    def _is_bad(self, one):
        """Not finite; save -inf alone in what came in from outside (a mask), and what did no harm in an earlier pass."""
        is_input, known = one["what"].startswith("input"), (one["module"], one["what"]) in self.harmless
        if one["kind"] == "-inf" and one["where"] == "forward":
            return not known and (one["seen"] or not is_input)
        return bool(one["kind"]) and not (is_input and known)

    def _trouble(self, seen, bad):
        if all(did_no_harm(seen[place]) for place in bad):
            for place in bad:
                self.harmless.add((seen[place]["module"], seen[place]["what"]))
                self._write(self._line("harmless", seen, place))
            self.last_clean = self.passes - 1
            return
        gradients_only = all(seen[place]["where"] in ("backward", "gradient") for place in bad)
        if gradients_only and self.scaler is not None:
            self.overflowed += 1
        else:
            self.troubled += 1
        if self.troubled + self.overflowed == 1:
            first = seen[bad[0]]
            found = f"{first['kind']} in {first['where']} of {first['module'] or 'the model'} ({first['dtype']})"
            print(f"numerics: rank {self.rank}, pass {self.passes - 1}: {found}; see {self.path}", file=sys.stderr)
        if self.written > self.max_bytes:
            for scan in self.scans:
                self._write(dict(scan, again=True))
            self.scans.clear()
        for place in bad[:FIRST_BAD]:
            self._write(self._line("bad", seen, place))
        if self.troubled >= TROUBLED or self.overflowed >= OVERFLOWED:
            self._write({"type": "stopped", "why": "enough passes with trouble were written", "pass": self.passes - 1})
            self._detach()

    def _line(self, type_, seen, place):
        one = seen[place]
        inputs = [each for each in seen[:place] if each["module"] == one["module"] and each["what"].startswith("input")]
        before = next((each for each in reversed(seen[:place]) if each["where"] == one["where"] and not each["kind"]), None)
        return {"type": type_, "pass": self.passes - 1, "step": self.steps, "order": place, "where": one["where"], "module": one["module"],
                "what": one["what"], "class": one["class"], "dtype": one["dtype"], "kind": one["kind"], "last_clean_pass": self.last_clean,
                "inputs_absmax": [number(each["absmax"]) for each in inputs] if one["what"].startswith("output") else None,
                "after": f"{before['module'] or 'the model'} {before['what']}" if before else None, "scale": self.scale}  # fmt: skip

    def _scan(self, seen):
        """Largest output per module, with what is new or near its dtype's end written beside it."""
        outputs, grads, values = {}, [0.0, "", ""], [0.0, "", ""]
        for one in seen:
            size, name = one["absmax"], one["module"]
            if one["what"].startswith("output"):
                outputs[name] = worse(outputs.get(name, 0.0), size)
                self._about(name, one)
            elif one["where"] in ("backward", "gradient") and size < math.inf and fp16_first(grads) < fp16_first([size, name, one["dtype"]]):
                grads = [size, name, one["dtype"]]
            elif one["where"] == "parameter" and values[0] < size < math.inf:
                values = [size, name, one["dtype"]]
        return {"type": "scan", "pass": self.passes - 1, "step": self.steps, "scale": self.scale,
                "outputs": {name: number(size) for name, size in outputs.items()},
                "gradient": [number(grads[0]), *grads[1:]], "parameter": [number(values[0]), *values[1:]]}  # fmt: skip

    def _about(self, name, one):
        key, largest = (name, one["dtype"]), torch.finfo(getattr(torch, one["dtype"])).max
        if key not in self.known:
            self.known.add(key)
            self._write({"type": "module", "module": name, "class": one["class"], "dtype": one["dtype"], "largest": largest})
        if key not in self.near and NEAR * largest <= one["absmax"] < math.inf:
            self.near.add(key)
            self._write({"type": "range", "pass": self.passes - 1, "step": self.steps, "module": name, "dtype": one["dtype"],
                         "absmax": number(one["absmax"]), "largest": largest})  # fmt: skip

    def _keep(self, scan, bad):
        if self.written <= self.max_bytes:
            self._write(scan)
            if self.written > self.max_bytes:
                self._write({"type": "full", "pass": self.passes - 1, "why": "max_mb is reached: scans are kept in memory only"})
        elif not bad:
            self.scans.append(scan)

    def _write(self, line):
        text = json.dumps(dict(line, rank=self.rank), allow_nan=False)
        self.written += len(text) + 1
        try:
            self.out.write(text + "\n")
        except (OSError, ValueError):  # a full disk must not end the training
            self._detach()


def quiet():
    """True where nothing may be measured: traced by torch.compile, captured in a CUDA graph, recomputed in backward."""
    if torch.compiler.is_compiling() or torch._C._current_graph_task_id() != -1:  # activation checkpointing calls modules again
        return True
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def tensors(value, depth=3):
    """Floating-point tensors in nested tuples, lists and dicts, at most TENSORS."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    if depth == 0 or not isinstance(value, (tuple, list, dict)):
        return []
    found = []
    for item in list(value.values() if isinstance(value, dict) else value)[:TENSORS]:
        found += tensors(item, depth - 1)
    return found[:TENSORS]


def fetched(pending):
    """The pending records as dicts with host numbers: one copy a device and dtype."""
    groups = collections.defaultdict(list)
    for place, record in enumerate(pending):
        groups[(record[6].device, record[6].dtype)].append(place)
    bounds = {}
    for places in groups.values():
        stacked = torch.stack([bound for place in places for bound in pending[place][6:8]]).double().cpu().tolist()
        bounds.update({place: stacked[2 * row : 2 * row + 2] for row, place in enumerate(places)})
    return [judged(pending[place], *bounds[place]) for place in range(len(pending))]


def judged(record, low, high):
    """absmax and kind: "" for finite, else nan, inf (of either sign) or -inf (negative only)."""
    where, name, what, kind, dtype, seen = record[:6]
    if math.isnan(low) or math.isnan(high):
        found, size = "nan", math.nan
    else:
        size = max(abs(low), abs(high))
        found = "inf" if high == math.inf else "-inf" if low == -math.inf else ""
    return {"where": where, "module": name, "what": what, "class": kind, "dtype": dtype, "seen": seen, "absmax": size, "kind": found}


def fp16_first(gradient):
    """Gradients in fp16 come first: their range is what a loss scale is for."""
    return gradient[2] == "float16", gradient[0]


def did_no_harm(one):
    """Whether this is no trouble when all else in the pass is finite: -inf in forward, or an input that nothing came of."""
    return one["where"] == "forward" and (one["kind"] == "-inf" or one["what"].startswith("input"))


def worse(one, other):
    """The larger; NaN is worse than infinity."""
    return one if math.isnan(one) else other if math.isnan(other) else max(one, other)


def number(value):
    """Four figures; "nan" and "inf" as text, since JSON has no word for them."""
    return float(f"{value:.4g}") if math.isfinite(value) else str(value)


def version(tensor):
    """In-place changes so far; inference tensors do not count them."""
    return None if tensor.is_inference() else tensor._version


def short(dtype):
    """`float16` of torch.float16."""
    return str(dtype).replace("torch.", "")


def clean(name):
    """A module's path without what wrappers put in: `layers.0.fc` of `module._orig_mod.layers.0.fc`."""
    parts = [part for part in name.split(".") if part not in WRAPPERS]
    return ".".join(parts[1:] if parts[:1] == ["module"] else parts)
