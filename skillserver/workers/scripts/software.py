"""Which libraries and switches a matmul of torch goes through: what two runs must share before their numbers compare.

TunableOp measures every library's kernels and keeps the fastest (AMD parts need it for their best), cuBLAS and cuBLASLt
choose differently, and fp32 may quietly become TF32. Reads torch's own state, not only the environment. Knows torch 2.4
to 2.13; holds no opinion. The CUDA and ROCm lines are untested: they were written without such a device.

>>> settings(devices.find("cpu"))["compile"]
'not used: torch.mm is called directly'
"""

import torch

REDUCED = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction", "allow_fp16_accumulation")


def settings(device):
    """{compile, float32_matmul_precision} and, on a GPU of CUDA or ROCm, {tf32, blas, tunableop, reduced_precision}."""
    told = {"compile": "not used: torch.mm is called directly", "float32_matmul_precision": torch.get_float32_matmul_precision()}
    if device.kind == "cpu":
        return dict(told, onednn=torch.backends.mkldnn.is_available(), mkl=torch.backends.mkl.is_available())
    return dict(told, **_of_cuda()) if device.kind == "cuda" else told


def _of_cuda():
    flags = torch.backends.cuda.matmul
    library = getattr(torch.backends.cuda, "preferred_blas_library", None)
    return {
        "tf32": torch.get_float32_matmul_precision() != "highest",
        "blas": str(library()).rpartition(".")[2] if library else "unknown",
        "tunableop": _tunableop(),
        "reduced_precision": [name for name in REDUCED if getattr(flags, name, False)],
    }


def _tunableop():
    """off, reading (kernels of a file) or tuning (also looks for better ones)."""
    tunable = getattr(torch.cuda, "tunable", None)
    if tunable is None or not tunable.is_enabled():
        return "off"
    return "tuning" if tunable.tuning_is_enabled() else "reading"
