"""An attention path that the diagnosis knows nothing about: plain PyTorch, one mask, no LSE."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from harness.api import AttentionOutput, Capabilities, EmptyRow, LseBase, Poison


class BlackBox:
    """`visible(query, key, case)` bool is the mask; `scale` multiplies scores."""

    name = "black-box"
    protocol_version = 1
    capabilities = Capabilities(softcap=False)
    lse_base, lse_includes_sink = LseBase.NATURAL, False
    empty_row, poison = EmptyRow.ZERO_MINUS_INF, Poison.NAN
    devices = ("cpu",)
    scale = 1.0

    def plan(self, batch):
        return batch.qo_indptr.tolist(), batch.kv_lens.tolist()

    def visible(self, query, key, case):
        mask = key <= query
        return mask if case.window_left is None else mask & (key >= query - case.window_left)

    def run(self, plan, batch):
        batch.write_new_rows()
        case, out = batch.case, batch.empty_output()
        starts, kv_lens = plan
        for i, kv_len in enumerate(kv_lens):
            rows = slice(starts[i], starts[i + 1])
            k, v = (
                pool[batch.page_table[i].long()].flatten(0, 1)[:kv_len].repeat_interleave(case.group_size, 1)
                for pool in (batch.k_pool, batch.v_pool)
            )
            key = torch.arange(kv_len)
            query = key[kv_len - (rows.stop - rows.start) :, None]
            q, k, v = (x.transpose(0, 1) for x in (batch.q[rows], k, v))
            mask = self.visible(query, key, case)
            scale = case.scale * self.scale
            out[rows] = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale).transpose(0, 1)
        return AttentionOutput(out)


class WindowOneTooWide(BlackBox):
    def visible(self, query, key, case):
        return (key <= query) & (key >= query - case.window_left - 1)


class EverySeventhKeySkipped(BlackBox):
    def visible(self, query, key, case):
        return super().visible(query, key, case) & ~((key > 0) & (key % 7 == 0))


class LastPartialPageSkipped(BlackBox):
    """Reads whole pages only; its queries stand where they should."""

    def visible(self, query, key, case):
        return super().visible(query, key, case) & (key < len(key) // case.page_size * case.page_size)


class OddScale(BlackBox):
    scale = 1.3


class Forgetful(BlackBox):
    """Right once, then the window is lost: state kept between calls."""

    calls = 0

    def visible(self, query, key, case):
        self.calls += 1
        return super().visible(query, key, case) if self.calls % 2 else key <= query
