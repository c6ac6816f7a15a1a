"""Faults of the emulated kernel, by the names that the certificates' `sees` and `blind_to` use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from cases.schema import AttentionCase
from tests.certificates.emulator import Kernel, Reads


def always(case: AttentionCase, kernel: Kernel) -> bool:
    del case, kernel
    return True


@dataclass(frozen=True)
class KernelFault:
    """`changes` of the kernel, and whether a case (run with that many legs) can show it at all."""

    changes: dict[str, object]
    shows: Callable[[AttentionCase, Kernel], bool] = always


def _windowed(case: AttentionCase, kernel: Kernel) -> bool:
    del kernel
    return case.window_left is not None and any(r.kv_len > case.window_left + 1 for r in case.requests if r.extend_len)


def _several_tiles(case: AttentionCase, kernel: Kernel) -> bool:
    """Some pass over the keys meets scores that rise from one tile to the next."""
    return any(min(r.prefix_len, (case.window_left or r.kv_len) + 1) > 3 * kernel.tile for r in case.requests)


def _one_sum(case: AttentionCase, kernel: Kernel) -> bool:
    """Parts are summed on their own otherwise, each with a smaller partial sum."""
    del case
    return kernel.legs == 1 and kernel.splits == 1


def _merged(case: AttentionCase, kernel: Kernel) -> bool:
    return kernel.legs == 2 and any(r.prefix_len and r.extend_len for r in case.requests)


def _capped(case: AttentionCase, kernel: Kernel) -> bool:
    del kernel
    return case.logits_soft_cap is not None


def _hiding(case: AttentionCase, kernel: Kernel) -> bool:
    """Some query has keys hidden from it among those that other queries see."""
    return _windowed(case, kernel) or (case.causal and case.max_extend_len > 1)


def _sunk(case: AttentionCase, kernel: Kernel) -> bool:
    del kernel
    return case.sinks


def _pages(case: AttentionCase, kernel: Kernel) -> bool:
    """The last row of some request sees three whole pages."""
    del kernel
    seen = [r.kv_len if case.window_left is None else min(r.kv_len, case.window_left + 1) for r in case.requests]
    return any(n >= 4 * case.page_size and r.extend_len for n, r in zip(seen, case.requests, strict=True))


def _whole_pages(reads: Reads) -> list[int]:
    page = reads.case.page_size
    return [p for p in range(len(reads.k_slots) // page) if p * page in reads.seen and (p + 1) * page in reads.seen]


def _page(number: int, page_size: int) -> slice:
    return slice(number * page_size, (number + 1) * page_size)


def _window(by: int) -> Callable[[Reads], None]:
    def change(reads: Reads) -> None:
        reads.begin = torch.where(reads.begin > 0, reads.begin + by, reads.begin)

    return change


def _window_ignored(reads: Reads) -> None:
    reads.begin = torch.zeros_like(reads.begin)


def _edge(by: int) -> Callable[[Reads], None]:
    def change(reads: Reads) -> None:
        reads.end = (reads.end + by).clamp(max=len(reads.k_slots))

    return change


def _prefix_only(reads: Reads) -> None:
    reads.end = reads.end.clamp(max=reads.prefix_len)


def _key_dropped(reads: Reads) -> None:
    reads.dropped[reads.seen[len(reads.seen) * 5 // 8]] = True


def _page_dropped(reads: Reads) -> None:
    for page in _whole_pages(reads)[1:2]:
        reads.dropped[_page(page, reads.case.page_size)] = True


def _page_replaced(key: bool, value: bool) -> Callable[[Reads], None]:
    """A page is read twice, in the place of another."""

    def change(reads: Reads) -> None:
        pages = _whole_pages(reads)
        if len(pages) < 2:
            return
        to, source = _page(pages[-1], reads.case.page_size), _page(pages[0], reads.case.page_size)
        if key:
            reads.k_slots[to] = reads.k_slots[source]
        if value:
            reads.v_slots[to] = reads.v_slots[source]

    return change


def _foreign_page(reads: Reads) -> None:
    page = reads.case.page_size
    pages = _whole_pages(reads)
    if pages and len(reads.foreign) >= page:
        at = _page(pages[len(pages) // 2], page)
        reads.k_slots[at] = reads.v_slots[at] = reads.foreign[:page]


def _stale_slot(reads: Reads) -> None:
    stale = reads.kv_len
    if stale < len(reads.k_slots):
        at = reads.seen[len(reads.seen) // 3]
        reads.k_slots[at], reads.v_slots[at] = reads.k_slots[stale].clone(), reads.v_slots[stale].clone()


FAULTS: dict[str, KernelFault] = {
    "window one key longer": KernelFault({"reads": _window(-1)}, _windowed),
    "window one key shorter": KernelFault({"reads": _window(1)}, _windowed),
    "window ignored": KernelFault({"reads": _window_ignored}, _windowed),
    "causal edge one later": KernelFault({"reads": _edge(1)}),
    "causal edge one earlier": KernelFault({"reads": _edge(-1)}),
    "prefix only": KernelFault({"reads": _prefix_only}),
    "one key dropped": KernelFault({"reads": _key_dropped}),
    "page dropped": KernelFault({"reads": _page_dropped}, _pages),
    "page duplicated": KernelFault({"reads": _page_replaced(True, True)}, _pages),
    "foreign page": KernelFault({"reads": _foreign_page}, _pages),
    "stale slot": KernelFault({"reads": _stale_slot}),
    "K page wrong": KernelFault({"reads": _page_replaced(True, False)}, _pages),
    "V page wrong": KernelFault({"reads": _page_replaced(False, True)}, _pages),
    "kv head rotated": KernelFault({"kv_head_shift": 1}, lambda case, _: case.num_kv_heads > 1),
    "q head rotated": KernelFault({"q_head_shift": 1}, lambda case, _: case.num_qo_heads > 1),
    "scale off by 1/16": KernelFault({"scale_factor": 17 / 16}),
    "half of head_dim": KernelFault({"used_dims": 0.5}),
    "softcap missing": KernelFault({"softcap": "missing"}, _capped),
    "softcap before scale": KernelFault({"softcap": "before scale"}, _capped),
    "mask before softcap": KernelFault(
        {"softcap": "after mask"}, lambda case, k: _capped(case, k) and _hiding(case, k)
    ),
    "mask added as -1e4": KernelFault({"mask_fill": "added -1e4"}, _hiding),
    "maximum over masked keys": KernelFault(
        {"mask_fill": "max over masked"}, lambda case, k: _hiding(case, k) and not _capped(case, k)
    ),
    "sink ignored": KernelFault({"sink": "ignored"}, _sunk),
    "sink in base 2": KernelFault({"sink": "base 2"}, _sunk),
    "sink scaled": KernelFault({"sink": "scaled"}, _sunk),
    "sink of the next head": KernelFault({"sink": "next head"}, _sunk),
    "sink in both legs": KernelFault({"sink": "both legs"}, lambda case, k: _sunk(case, k) and _merged(case, k)),
    "LSE base mixed in the merge": KernelFault({"merge_lse": "mixed bases"}, _merged),
    "bf16 LSE in the merge": KernelFault({"merge_lse": "bf16"}, _merged),
    "rescale omitted": KernelFault({"rescale": False}, _several_tiles),
    "bf16 accumulator": KernelFault({"accumulator": torch.bfloat16}, _one_sum),
}
