"""A seeded model of a GPU's matmul speed: tiles over compute units in waves, a prologue per tile, caches that spill, noise.

Not a measurement of any product; a landscape with the features that make the search hard.
"""

from __future__ import annotations

import math
import random

TILES = ((128, 256), (256, 128), (128, 128), (256, 64))
UNITS = 132


class ModelGpu:
    """`true(shape)` is the noiseless speed in TFLOPS; `sample(shape)` what a benchmark would read."""

    def __init__(self, seed: int, noise: float = 0.006) -> None:
        self.random = random.Random(seed)
        self.noise = noise
        self.unit_tflops = self.random.uniform(5.5, 7.0)
        self.efficiency = [self.random.uniform(0.86, 0.97) for _ in TILES]
        self.prologue_us = self.random.uniform(1.0, 4.0)
        self.spill_gib = self.random.uniform(0.3, 1.2)
        self.spill = self.random.uniform(0.03, 0.10)

    def true(self, shape: tuple[int, int, int]) -> float:
        m, n, k = shape
        best_us = min(self._tile_us(m, n, k, *tile, good) for tile, good in zip(TILES, self.efficiency, strict=True))
        operands_gib = 2 * k * (m + n) / 2**30
        slow = 1 + self.spill * max(0.0, math.log2(operands_gib / self.spill_gib))
        return 2 * m * n * k / (best_us * slow + 4.0) / 1e6

    def _tile_us(self, m: int, n: int, k: int, tile_m: int, tile_n: int, good: float) -> float:
        waves = math.ceil(math.ceil(m / tile_m) * math.ceil(n / tile_n) / UNITS)
        return waves * (self.prologue_us + 2 * tile_m * tile_n * k / (self.unit_tflops * good) / 1e6)

    def sample(self, shape: tuple[int, int, int]) -> float:
        return self.true(shape) * self.random.gauss(1.0, self.noise)
