"""Feed a recorded model in chunks and turn each attention call into a case of ours.

A sliding layer hands its attention only the tokens that its cache kept. The case is given *every* key
of the sequence instead, collected from the new rows of each call, so that the comparison also proves
that the dropped keys are exactly those that no query may see.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cases.recipes import LogicalData
from cases.schema import AttentionCase, Request
from references.oracle.internals import OracleError
from references.oracle.recorder import AttentionCall, RecordedModel


@dataclass(frozen=True, slots=True)
class Recording:
    """One attention call as a case: what the model computed, and all that a reference needs.

    out, q: [total_q, num_qo_heads, head_dim] in packed order, all requests of one length;
    mask: bool [E, n], True where the model's additive mask let a key through; its first column is the
    key at position `kv_offset`. `layer_kind` is "sliding" or "full".
    """

    case: AttentionCase
    data: LogicalData
    out: Tensor
    mask: Tensor
    kv_offset: int
    layer: int
    layer_kind: str


class Session:
    """A sequence being fed to a model, with its cache and every key and value so far."""

    def __init__(self, recorded: RecordedModel) -> None:
        self._recorded = recorded
        self._cache: Any = recorded.new_cache()
        self._keys: list[list[Tensor]] = [[] for _ in range(recorded.model.config.num_hidden_layers)]
        self._values: list[list[Tensor]] = [[] for _ in range(recorded.model.config.num_hidden_layers)]
        self.length = 0

    def fork(self) -> Session:
        """An independent copy, so that many extends can follow one prefill."""
        twin = copy.copy(self)
        twin._cache = copy.deepcopy(self._cache)
        twin._keys = [list(layer) for layer in self._keys]
        twin._values = [list(layer) for layer in self._values]
        return twin

    def feed(self, ids: Tensor) -> list[Recording]:
        """Run `ids` [batch, E] and record every layer's attention call."""
        calls = self._recorded.feed(ids, self._cache)
        recordings = [self._recording(call, ids.shape[1]) for call in calls]
        self.length += ids.shape[1]
        return recordings

    def _recording(self, call: AttentionCall, extend: int) -> Recording:
        start = self.length
        kv_offset = start + extend - call.k.shape[2]
        full = []
        for history, states in ((self._keys[call.layer], call.k), (self._values[call.layer], call.v)):
            cached = states[:, :, : states.shape[2] - extend]
            past = torch.cat(history, dim=2) if history else cached[:, :, :0]
            if kv_offset < 0 or not torch.equal(past[:, :, kv_offset:], cached):
                raise OracleError(
                    f"layer {call.layer} was handed {call.k.shape[2]} keys for {extend} new rows after {start} tokens, "
                    "and the cached ones are not the last of the sequence; DynamicCache no longer keeps a tail, so "
                    "teach references/oracle/session.py what it keeps."
                )
            history.append(states[:, :, states.shape[2] - extend :])
            full.append(_packed(torch.cat(history, dim=2)))
        case = case_of(call, start, extend)
        data = LogicalData(q=_packed(call.q), k=full[0], v=full[1], sinks=call.sinks)
        return Recording(
            case=case,
            data=data,
            out=call.out.reshape(case.total_q, case.num_qo_heads, case.head_dim_vo),
            mask=_visible(call.mask),
            kv_offset=kv_offset,
            layer=call.layer,
            layer_kind="full" if call.sliding_window is None else "sliding",
        )


def case_of(call: AttentionCall, start: int, extend: int) -> AttentionCase:
    """The case that one recorded call is: `batch` requests of (start, extend), no paging to speak of."""
    batch, num_qo_heads, _, head_dim = call.q.shape
    dtype = str(call.q.dtype).removeprefix("torch.")
    return AttentionCase(
        requests=(Request(start, extend),) * batch,
        num_qo_heads=num_qo_heads,
        num_kv_heads=call.k.shape[1],
        head_dim_qk=head_dim,
        head_dim_vo=call.v.shape[-1],
        dtype=dtype,
        kv_dtype=dtype,
        window_left=None if call.sliding_window is None else call.sliding_window - 1,
        logits_soft_cap=call.softcap,
        sinks=call.sinks is not None,
        sm_scale=call.scaling,
    )


def _packed(states: Tensor) -> Tensor:
    """[batch, heads, length, dim] to [batch * length, heads, dim]."""
    return states.transpose(1, 2).flatten(0, 1)


def _visible(mask: Tensor) -> Tensor:
    """bool [E, n] of an additive mask [batch, 1, E, n] that is alike for the whole batch."""
    lowest = torch.finfo(mask.dtype).min
    if not bool(((mask == 0) | (mask == lowest)).all()) or not bool((mask == mask[:1]).all()):
        raise OracleError(
            "an eager mask of transformers holds values other than 0 and finfo.min, or differs between sequences of "
            "one length; teach references/oracle/session.py to read it."
        )
    return mask[0, 0] == 0
