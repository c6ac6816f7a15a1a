"""A batch's two pools as the kv_cache of vLLM's backends."""

from __future__ import annotations

import torch
from torch import Tensor

from cases.batch import AttentionBatch
from cases.schema import KvLayout


class PairedCache:
    """FlashAttention's kv_cache [2, pages, page_size, heads, dim], of which the backend takes `unbind(0)` alone.

    The two halves are the batch's own pools, so nothing is copied.
    """

    def __init__(self, key_cache: Tensor, value_cache: Tensor) -> None:
        self._halves = (key_cache, value_cache)

    def unbind(self, dim: int) -> tuple[Tensor, Tensor]:
        if dim != 0:
            raise RuntimeError(f"kv_cache.unbind({dim}): the halves are along dimension 0")
        return self._halves


def paired(batch: AttentionBatch) -> PairedCache:
    """The pools by token; an HND cache is a strided view (FlashAttentionBackend.get_kv_cache_stride_order)."""
    by_token = (pool if _is_nhd(batch) else pool.transpose(1, 2) for pool in (batch.k_pool, batch.v_pool))
    return PairedCache(*by_token)


def interleaved(batch: AttentionBatch) -> Tensor:
    """FlashInfer's kv_cache [pages, 2, page_size, heads, dim] (FlashInferBackend.get_kv_cache_shape).

    A page's keys and values lie beside each other, an HND cache is a view of [pages, 2, heads, page_size, dim]
    (get_kv_cache_stride_order). The pools are copied there, once, and the batch's become views of the copy, so that
    both see what either writes.
    """
    whole = batch.k_pool._base
    if whole is None or whole is not batch.v_pool._base or whole.dim() != 5:
        whole = torch.stack((batch.k_pool, batch.v_pool), dim=1)
        batch.k_pool, batch.v_pool = whole[:, 0], whole[:, 1]
    return whole if _is_nhd(batch) else whole.transpose(2, 3)


def _is_nhd(batch: AttentionBatch) -> bool:
    return batch.case.kv_layout is KvLayout.NHD
