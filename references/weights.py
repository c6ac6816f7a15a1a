"""From scores to softmax weights, a chunk of keys at a time: p = exp(s - shift), its sums, and p^2.

On a GPU every step is a pass over scores in memory, and these are half of golden attention's passes: one Triton
kernel makes them one, where there is Triton. `plain_weights` is what it computes.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Weights(NamedTuple):
    """p: fp64 [B, Hkv, splits, rows, keys]; sums over the keys [B, Hkv, splits, rows, 1]: of p before and from the cut
    between two legs, and of p^2. None: not computed (p_squared, p2) or left to a product (leg, rest)."""

    p: Tensor
    p_squared: Tensor | None = None
    leg: Tensor | None = None
    rest: Tensor | None = None
    p2: Tensor | None = None


def weights(s: Tensor, shift: Tensor, cut: int, *, squares: bool) -> Weights:
    """Weights of scores s fp64 [B, Hkv, splits, rows, keys], which are overwritten.

    shift: finite, [B, Hkv, 1, rows, 1]; cut: keys of the first leg; squares: p^2 and its sum, too.
    """
    if s.device.type == "cpu" and not squares:
        return Weights(s.sub_(shift).exp_())  # a product adds them up faster
    kernels = _kernels() if s.device.type == "cuda" and s.is_contiguous() else None
    return plain_weights(s, shift, cut, squares) if kernels is None else fused_weights(kernels, s, shift, cut, squares)


def plain_weights(s: Tensor, shift: Tensor, cut: int, squares: bool) -> Weights:
    """The definition, in torch."""
    p = s.sub_(shift).exp_()
    p_squared = p * p if squares else None
    leg, rest = p[..., :cut].sum(-1, keepdim=True), p[..., cut:].sum(-1, keepdim=True)
    return Weights(p, p_squared, leg, rest, None if p_squared is None else p_squared.sum(-1, keepdim=True))


def fused_weights(kernels: Any, s: Tensor, shift: Tensor, cut: int, squares: bool) -> Weights:
    """The same by the kernel of references/weights_triton.py; s is contiguous."""
    *_, splits, rows, keys = s.shape
    sums = torch.empty((3, *s.shape[:-1], 1), dtype=s.dtype, device=s.device)
    p_squared = torch.empty_like(s) if squares else s  # not written to
    if s.numel():
        kernels.weigh[(s.numel() // keys,)](
            s, shift.contiguous(), p_squared, sums, sums[0].numel(), keys, splits * rows, rows, cut, squares
        )
    return Weights(s, p_squared if squares else None, sums[0], sums[1], sums[2] if squares else None)


@functools.cache
def _kernels() -> Any:
    """The module of kernels if it computes what is defined here, else None: no Triton, or no compiler for it."""
    try:
        from references import weights_triton
    except ImportError:
        return None
    s = torch.linspace(-700, 3, 5 * 1031, dtype=torch.float64, device="cuda").view(1, 1, 1, 5, 1031)
    s[..., ::7] = -torch.inf
    shift = s.amax((2, 4), keepdim=True)
    try:
        made = fused_weights(weights_triton, s.clone(), shift, 100, True)
    except Exception as problem:  # whatever Triton's toolchain raises; torch computes the same
        warnings.warn(f"golden attention without fused kernels: {type(problem).__name__}: {problem}", stacklevel=2)
        return None
    for got, expected in zip(made, plain_weights(s, shift, 100, True), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-300)
    return weights_triton
