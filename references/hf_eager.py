"""HF-style eager attention: what people read to know what a kernel is meant to do.

Written the way the models of Hugging Face transformers (5.17 to 5.24) write it, in fp32 and for one
request after another:

    cache       a sliding layer keeps the last W - 1 tokens of the prefix, W = window_left + 1
                (`DynamicSlidingWindowLayer.update`); key 0 of the call then stands at position
                max(P - W + 1, 0) (`get_mask_sizes`)
    mask        0 where `kv <= q and kv > q - W`, else finfo.min, added to the scores
                (`sliding_window_overlay`, `causal_mask_function`, `eager_mask`)
    attention   repeat_kv, matmul * scaling, softcap, + mask, softmax, matmul
                (`eager_attention_forward` of Llama, Mistral, Gemma 2)
    sinks       one more column of logits, dropped after the softmax (the same function of gpt-oss, whose
                softmax runs in the input's dtype there and in fp32 here)

It shares no line with `references.golden` or `references.visibility`: two derivations that must agree.
All scores of a request are held at once, [num_qo_heads, extend_len, kv_len]; use it on small cases.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cases.recipes import LogicalData
from cases.schema import AttentionCase, Request


def hf_eager_attention(
    case: AttentionCase, data: LogicalData, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """out [total_q, num_qo_heads, head_dim_vo] and natural lse [total_q, num_qo_heads], both `dtype`.

    The lse includes the sink where there is one. `dtype` is what everything is computed in.
    """
    outs, lses = [], []
    q_start = kv_start = 0
    for request in case.requests:
        q = data.q[q_start : q_start + request.extend_len]
        k = data.k[kv_start : kv_start + request.kv_len]
        v = data.v[kv_start : kv_start + request.kv_len]
        out, lse = _extend(case, request, q.to(dtype), k.to(dtype), v.to(dtype), data.sinks)
        outs.append(out)
        lses.append(lse)
        q_start += request.extend_len
        kv_start += request.kv_len
    return torch.cat(outs), torch.cat(lses)


def repeat_kv(hidden_states: Tensor, n_rep: int) -> Tensor:
    """[batch, num_kv_heads, seqlen, head_dim] to [batch, num_kv_heads * n_rep, seqlen, head_dim]."""
    batch, num_key_value_heads, slen, head_dim = hidden_states.shape
    if n_rep == 1:
        return hidden_states
    hidden_states = hidden_states[:, :, None, :, :].expand(batch, num_key_value_heads, n_rep, slen, head_dim)
    return hidden_states.reshape(batch, num_key_value_heads * n_rep, slen, head_dim)


def _extend(
    case: AttentionCase, request: Request, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None
) -> tuple[Tensor, Tensor]:
    """One model call: the cached prefix, cut as a sliding cache cuts it, and the new rows after it."""
    past, new = request
    kv_offset = 0 if case.window_left is None else max(past - case.window_left, 0)

    query = q.transpose(0, 1)[None]
    key = torch.cat([k[kv_offset:past], k[past:]])[None].transpose(1, 2)
    value = torch.cat([v[kv_offset:past], v[past:]])[None].transpose(1, 2)
    key_states = repeat_kv(key * case.k_scale, case.num_qo_heads // case.num_kv_heads)
    value_states = repeat_kv(value * case.v_scale, case.num_qo_heads // case.num_kv_heads)

    attn_weights = torch.matmul(query, key_states.transpose(2, 3)) * case.scale
    if case.logits_soft_cap is not None:
        attn_weights = attn_weights / case.logits_soft_cap
        attn_weights = torch.tanh(attn_weights)
        attn_weights = attn_weights * case.logits_soft_cap
    attn_weights = attn_weights + _eager_mask(case, past, new, kv_offset, attn_weights)

    if sinks is not None:
        column = sinks.to(attn_weights.dtype).reshape(1, -1, 1, 1).expand(1, -1, new, 1)
        attn_weights = torch.cat([attn_weights, column], dim=-1)
    lse = torch.logsumexp(attn_weights, dim=-1)
    scores = torch.nn.functional.softmax(attn_weights, dim=-1)
    if sinks is not None:
        scores = scores[..., :-1]
    attn_output = torch.matmul(scores, value_states)
    return attn_output[0].transpose(0, 1), lse[0].transpose(0, 1)


def _eager_mask(case: AttentionCase, q_offset: int, q_length: int, kv_offset: int, like: Tensor) -> Tensor:
    """[1, 1, q_length, kv_length] of 0 and finfo.min, as transformers' `eager_mask` returns it."""
    q_idx = (torch.arange(q_length, device=like.device) + q_offset)[:, None]
    kv_idx = (torch.arange(like.shape[-1], device=like.device) + kv_offset)[None, :]
    allowed = torch.ones((q_length, like.shape[-1]), dtype=torch.bool, device=like.device)
    if case.causal:
        allowed = allowed & (kv_idx <= q_idx)
    if case.window_left is not None:
        sliding_window = case.window_left + 1
        allowed = allowed & (kv_idx > q_idx - sliding_window)
    minimum = torch.finfo(like.dtype).min
    return torch.where(allowed, torch.zeros((), dtype=like.dtype, device=like.device), minimum)[None, None]
