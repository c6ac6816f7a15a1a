"""The middle part of a repro: the library's own call, on the names that inputs.py defines."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from cases.schema import AttentionCase, KvLayout

_INDPTR = "indptr = lambda counts: torch.tensor([0, *counts]).cumsum(0, dtype=torch.int32)"


def _window(case: AttentionCase) -> str:
    return "-1" if case.window_left is None else "WINDOW"


def _workspace(case: AttentionCase) -> str:
    byte = 255 if case.execution.workspace == "dirty" else 0
    return f"torch.full((256 << 20,), {byte}, dtype=torch.uint8, device=DEV)"


def _flashinfer_options(case: AttentionCase, causal: str, window: str) -> str:
    split = ", disable_split_kv=True" if case.execution.num_splits == 1 else ""
    return (
        f"causal={causal}, window_left={window}, logits_soft_cap=CAP, sm_scale=SCALE,\n"
        f"    q_data_type=DTYPE, kv_data_type=DTYPE{split}"
    )


def flashinfer_paged(case: AttentionCase, backend: str) -> str:
    """One causal, windowed paged pass over all keys (the new rows are in the cache)."""
    return f"""
{_INDPTR}
lens = [p + e for p, e in REQUESTS]
counts = [-(-n // PAGE) for n in lens]
indices = torch.tensor([x for pages, n in zip(PAGES, counts) for x in pages[:n]], dtype=torch.int32, device=DEV)
last = torch.tensor([(n - 1) % PAGE + 1 if n else 0 for n in lens], dtype=torch.int32)
workspace = {_workspace(case)}
wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "{case.kv_layout}", backend="{backend}")
wrapper.plan(
    indptr([e for _, e in REQUESTS]), indptr(counts), indices, last, HQ, HK, D, PAGE, head_dim_vo=DV,
    {_flashinfer_options(case, "CAUSAL", _window(case))},
)
out = torch.full((len(q), HQ, DV), torch.nan, dtype=DTYPE, device=DEV)
lse = torch.full((len(q), HQ), torch.nan, device=DEV)
wrapper.run(q, (k_pool, v_pool), out=out, lse=lse, return_lse=True)
lse = lse * math.log(2)  # the library's is in base 2"""


def flashinfer_swa_merge(case: AttentionCase) -> str:
    """Ragged over the new rows, paged with page size 1 over the reachable prefix, merge_state."""
    reach = "p" if case.window_left is None else "min(WINDOW, p)"
    low = "0" if case.window_left is None else "max(p - WINDOW, 0)"
    mask = ""
    argument = ""
    if case.window_left is not None:
        mask = (
            "mask = torch.cat([(torch.arange(p - r, p)[None] >= torch.arange(p, p + e)[:, None] - WINDOW).flatten()\n"
            "                  for (p, e), r in zip([REQUESTS[i] for i in PART], reach)]).to(DEV)\n"
        )
        argument = "custom_mask=None if bool(mask.all()) else mask, "
    return f"""
{_INDPTR}
new = indptr([e for _, e in REQUESTS])
k_new, v_new = (torch.cat([x[p:] for (p, _), x in zip(REQUESTS, xs)]) for xs in (K, V))
workspace = {_workspace(case)}
ragged = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD", backend="fa2")
ragged.plan(
    new, new, HQ, HK, D, head_dim_vo=DV,
    {_flashinfer_options(case, "CAUSAL", _window(case))},
)
out, lse = ragged.run(q, k_new, v_new, return_lse=True)
PART = [i for i, (p, e) in enumerate(REQUESTS) if e and {reach} > 0]
if PART:  # the requests with a prefix in reach
    reach = [{reach} for p, e in (REQUESTS[i] for i in PART)]
    slots = [SLOTS[i][{low} : p] for i in PART for p, e in [REQUESTS[i]]]
    rows = torch.cat([torch.arange(new[i], new[i + 1]) for i in PART]).to(DEV)
{_indented(mask)}    paged = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend="fa2")
    paged.plan(
        indptr([REQUESTS[i][1] for i in PART]), indptr(reach),
        torch.tensor(sum(slots, []), dtype=torch.int32, device=DEV), torch.ones(len(PART), dtype=torch.int32),
        HQ, HK, D, 1, head_dim_vo=DV, {argument}
    {_flashinfer_options(case, "False", "-1").replace(chr(10), chr(10) + "    ")},
    )
    pools = (k_pool.view(-1, 1, HK, D), v_pool.view(-1, 1, HK, DV))
    part_out, part_lse = paged.run(q[rows], pools, return_lse=True)
    out[rows], lse[rows] = flashinfer.merge_state(out[rows], lse[rows], part_out, part_lse)
lse = lse * math.log(2)  # the library's is in base 2"""


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def is_here(module: str) -> bool:
    """True if a top-level module can be found; nothing is imported."""
    return importlib.util.find_spec(module) is not None


# -- FlashAttention ------------------------------------------------------------------------------
_FLASH_ATTENTION_IMPORTS = {
    "flash-attn-4": "from flash_attn.cute.interface import _flash_attn_fwd",
    "flash-attn-3": """try:
    from flash_attn_interface import flash_attn_with_kvcache
except ImportError:
    from sgl_kernel.flash_attn import flash_attn_with_kvcache""",
    "flash-attn-2": "from flash_attn import flash_attn_varlen_func",
}
# Where only vLLM's build is installed, its function under the arguments of the other.
_VLLM_IMPORTS = {
    "flash-attn-3": """from vllm.vllm_flash_attn.flash_attn_interface import flash_attn_varlen_func


def flash_attn_with_kvcache(q, k, v, cache_seqlens, page_table, window_size, **more):
    more |= dict(seqused_k=cache_seqlens, block_table=page_table, window_size=list(window_size))
    return flash_attn_varlen_func(q, k, v, max_seqlen_k=MAX_K, fa_version=3, **more)
""",
    "flash-attn-2": """from vllm.vllm_flash_attn.flash_attn_interface import flash_attn_varlen_func as of_vllm


def flash_attn_varlen_func(q, k, v, cu_q, cu_k, max_q, max_k, return_attn_probs, window_size, **more):
    more |= dict(window_size=list(window_size), return_softmax_lse=return_attn_probs, fa_version=2)
    return *of_vllm(q, k, v, max_q, cu_q, max_k, seqused_k=cu_k.diff(), **more), None
""",
}
_OTHER_BUILDS = {"flash-attn-3": ("flash_attn_interface", "sgl_kernel"), "flash-attn-2": ("flash_attn_2_cuda",)}


def flash_attention_imports(name: str, here: Callable[[str], bool] = is_here) -> str:
    """The imports of the build that the adapter takes here; of the library's own where none is here."""
    others = _OTHER_BUILDS.get(name)
    if others is None or any(map(here, others)) or not here("vllm"):
        return _FLASH_ATTENTION_IMPORTS[name]
    return _VLLM_IMPORTS[name]


def flash_attention(case: AttentionCase, name: str) -> str:
    """One paged varlen call; under a CUDA graph captured for other lengths where the case asks for one."""
    hnd = case.kv_layout is KvLayout.HND
    by_token = "k_pool, v_pool = k_pool.transpose(1, 2), v_pool.transpose(1, 2)  # strided views\n" if hnd else ""
    columns = "max(-(-(p + e) // PAGE) for p, e in REQUESTS)"
    captured = case.execution.capture_requests
    longest_q, longest_k = "max(e for _, e in REQUESTS)", "max(p + e for p, e in REQUESTS)"
    head = f"""
wide = max(1, {columns})
table = torch.zeros((len(REQUESTS), wide), dtype=torch.int32, device=DEV)
for row, (p, e), pages in zip(table, REQUESTS, PAGES):
    row[: -(-(p + e) // PAGE)] = torch.tensor(pages[: -(-(p + e) // PAGE)], dtype=torch.int32)
cu_q = torch.tensor([0, *(e for _, e in REQUESTS)]).cumsum(0, dtype=torch.int32).to(DEV)
used = torch.tensor([p + e for p, e in REQUESTS], dtype=torch.int32, device=DEV)
{by_token}"""
    if captured is None:
        return f"{head}MAX_Q, MAX_K = {longest_q}, {longest_k}\n{_call(case, name)}\nlse = lse.T"
    return f"""{head}CAPTURED = {[tuple(r) for r in captured]}  # what the graph is captured for, then replayed
MAX_Q, columns = max(e for _, e in CAPTURED), max(wide, *(-(-(p + 2 * e) // PAGE) for p, e in CAPTURED))
MAX_K = columns * PAGE
live = q, cu_q.clone(), used.clone(), torch.nn.functional.pad(table, (0, columns - wide))
rows = sum(e for _, e in CAPTURED)
q = torch.zeros((rows, HQ, D), dtype=DTYPE, device=DEV)
cu_q.copy_(torch.tensor([0, *(e for _, e in CAPTURED)]).cumsum(0, dtype=torch.int32))
used.copy_(torch.tensor([p + e for p, e in CAPTURED], dtype=torch.int32))
table = (torch.arange(len(CAPTURED) * columns, dtype=torch.int32, device=DEV) % NUM_PAGES).view(-1, columns)


def call():
{_indented(_call(case, name))}    return out, lse

call()  # compiled before it is captured
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out, lse = call()
q[: len(live[0])] = live[0]
for static, now in zip((cu_q, used, table), live[1:]):
    static.copy_(now)
graph.replay()
out, lse, q = out[: len(live[0])], lse[:, : len(live[0])].T, live[0]"""


def _call(case: AttentionCase, name: str) -> str:
    left = "None" if case.window_left is None else "WINDOW"
    window = f"({_window(case)}, {'0' if case.causal and case.window_left is not None else '-1'})"
    sinks = "SINKS" if case.sinks else "None"
    splits = case.execution.num_splits or 0
    if name == "flash-attn-4":
        right = "0" if case.causal and case.window_left is not None else "None"
        text = f"""out, lse, *_ = _flash_attn_fwd(
    q, k_pool, v_pool, cu_seqlens_q=cu_q, seqused_k=used, max_seqlen_q=MAX_Q, max_seqlen_k=MAX_K,
    page_table=table, softmax_scale=SCALE, causal=CAUSAL, softcap=CAP, window_size_left={left},
    window_size_right={right}, learnable_sink={sinks}, num_splits=1, return_lse=True,
)"""
    elif name == "flash-attn-3":
        text = f"""out, lse, *_ = flash_attn_with_kvcache(
    q, k_pool, v_pool, cache_seqlens=used, page_table=table, cu_seqlens_q=cu_q, max_seqlen_q=MAX_Q,
    softmax_scale=SCALE, causal=CAUSAL, window_size={window}, softcap=CAP, num_splits={splits},
    return_softmax_lse=True,{" s_aux=SINKS.bfloat16()," if case.sinks else ""}
)"""
    else:
        text = f"""cu_k = torch.nn.functional.pad(used.cumsum(0, dtype=torch.int32), (1, 0))
out, lse, _ = flash_attn_varlen_func(
    q, k_pool, v_pool, cu_q, cu_k, MAX_Q, MAX_K, softmax_scale=SCALE, causal=CAUSAL, window_size={window},
    softcap=CAP, return_attn_probs=True, block_table=table,
)"""
    return text


# -- torch ---------------------------------------------------------------------------------------
def torch_sdpa(case: AttentionCase) -> str:
    """Request by request, with an explicit bool mask."""
    window = "" if case.window_left is None else "\n    mask &= at - key <= WINDOW"
    return f"""
parts = []
for (p, e), q_, k, v in zip(REQUESTS, Q, K, V):
    at, key = torch.arange(p, p + e, device=DEV)[:, None], torch.arange(p + e, device=DEV)[None]
    mask = {"key <= at" if case.causal else "key >= 0 * at"}{window}
    q_, k, v = (x.transpose(0, 1)[None] for x in (q_, k, v))
    part = torch.nn.functional.scaled_dot_product_attention(q_, k, v, mask, scale=SCALE, enable_gqa=HQ > HK)
    parts.append(part[0].transpose(0, 1))
out = torch.cat(parts)"""


def torch_varlen(case: AttentionCase) -> str:
    """torch.nn.attention.varlen on packed keys."""
    return f"""
from torch.nn.attention.varlen import AuxRequest, varlen_attn

cu_q = torch.tensor([0, *(e for _, e in REQUESTS)]).cumsum(0, dtype=torch.int32).to(DEV)
cu_k = torch.tensor([0, *(p + e for p, e in REQUESTS)]).cumsum(0, dtype=torch.int32).to(DEV)
k, v = (torch.cat(x).repeat_interleave(HQ // HK, 1) for x in (K, V))
out, lse = varlen_attn(
    q, k, v, cu_q, cu_k, max(e for _, e in REQUESTS), max(p + e for p, e in REQUESTS),
    return_aux=AuxRequest(lse=True), scale=SCALE, window_size=({_window(case)}, {0 if case.causal else -1}),
)
lse = lse.T if lse.shape[0] == HQ else lse"""


def torch_flex(case: AttentionCase, compiled: bool) -> str:
    """flex_attention over all requests at once, packed."""
    cap = "score = lambda s, b, h, i, j: CAP * torch.tanh(s / CAP)\n" if case.logits_soft_cap else ""
    score = ", score_mod=score" if case.logits_soft_cap else ""
    last = "base + at + 1" if case.causal else "end"
    first = "base" if case.window_left is None else "base + (at - WINDOW).clamp(min=0)"
    call = "torch.compile(flex_attention, dynamic=True, fullgraph=True)" if compiled else "flex_attention"
    return f"""
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

total = sum(p + e for p, e in REQUESTS)
starts = [sum(p + e for p, e in REQUESTS[:i]) for i in range(len(REQUESTS))]
at = torch.cat([torch.arange(p, p + e) for p, e in REQUESTS]).to(DEV)
base = torch.cat([torch.full((e,), s) for s, (_, e) in zip(starts, REQUESTS)]).to(DEV)
end = torch.cat([torch.full((e,), s + p + e) for s, (p, e) in zip(starts, REQUESTS)]).to(DEV)
first, last = {first}, {last}
mask = create_block_mask(lambda b, h, i, j: (j >= first[i]) & (j < last[i]), None, None, len(q), total, device=DEV)
q_, k, v = (x.transpose(0, 1)[None] for x in (q, torch.cat(K), torch.cat(V)))
{cap}flex = {call}
out = flex(q_, k, v, block_mask=mask, scale=SCALE, enable_gqa=HQ > HK{score})
out = out[0].transpose(0, 1)"""
