"""Matrix products whose every correct answer is the same to the last bit, so that a different bit is a fault.

The operands hold small whole numbers. Their products and sums stay below 2^24, where fp32 holds every whole number, so
no addition rounds and its order does not matter: any kernel, library or device must give the same matrix. What a CPU
computes once in float64 is therefore the truth for all of them. bf16 and fp16 hold the operands exactly and round the
exact sum once. Knows torch; not what a fault means for a node.

>>> truth = Truth(512, "fp32"); Repeats(devices.find("cpu"), truth).once()
0
"""

import devices
import torch

LARGEST = 8  # of an operand: 8 x 8 x 4096 terms = 2^18, far below 2^24
SIZES = {"cpu": 1024, "other": 4096}


class Truth:
    """Operands of one size on the CPU, and their product as it must be in a dtype."""

    def __init__(self, size, dtype):
        self.size, self.dtype = size, dtype
        generator = torch.Generator().manual_seed(size)
        self.a, self.b = (torch.randint(-LARGEST, LARGEST + 1, (size, size), generator=generator).to(torch.float32) for _ in "ab")
        self.product = (self.a.double() @ self.b.double()).to(devices.TORCH[dtype])


class Repeats:
    """The same product again and again on one device."""

    def __init__(self, device, truth):
        self.device, self.size = device, truth.size
        dtype = devices.TORCH[truth.dtype]
        exactly()
        self.a, self.b = (matrix.to(dtype).to(device.place) for matrix in (truth.a, truth.b))
        self.expected = truth.product.to(device.place)
        self.found = torch.empty_like(self.expected)

    def once(self):
        """Multiply into a cleared destination; how many elements differ from the truth in any bit."""
        self.found.fill_(-1.0)
        torch.mm(self.a, self.b, out=self.found)
        if torch.equal(self.found, self.expected):
            return 0
        return int((self.found != self.expected).sum())

    def worst(self):
        """The first element that differs in the last product, in words for the record; "" when none does."""
        places = (self.found != self.expected).nonzero()
        if not len(places):
            return ""
        row, column = places[0].tolist()
        found, expected = self.found[row, column].item(), self.expected[row, column].item()
        return "element ({0}, {1}) is {2} and must be {3}".format(row, column, found, expected)


def exactly():
    """No TF32, no sums in less than fp32: both are a choice of speed over bits, not a fault."""
    torch.set_float32_matmul_precision("highest")
    for name in ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction"):
        if hasattr(torch.backends.cuda.matmul, name):
            setattr(torch.backends.cuda.matmul, name, False)


def dtypes(device):
    """fp32 everywhere; bf16 or fp16 too where an accelerator has units for it, because those do the training."""
    if device.kind == "cpu":
        return ["fp32"]
    return ["fp32", devices.default_dtype(device)] if devices.default_dtype(device) != "fp32" else ["fp32"]
