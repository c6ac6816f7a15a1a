"""Outside adapters that are wrong in one way each: what a session is to find. One file, torch and the public API."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from harness.api import AttentionOutput, Capabilities, EmptyRow, LseBase, Poison


class Kernel:
    """Right, but for what the others override."""

    name = "kernel"
    capabilities = Capabilities(softcap=False)
    lse_base, lse_includes_sink = LseBase.NATURAL, False
    empty_row, poison = EmptyRow.ZERO_MINUS_INF, Poison.NAN
    devices = ("cpu",)

    def plan(self, batch):
        return batch.qo_indptr.tolist(), batch.kv_lens.tolist()

    def first_key(self, case, query):
        return query - case.window_left

    def head_of(self, case, x):
        return x.repeat_interleave(case.group_size, 1)

    def keys(self, batch, i, kv_len):
        pools = (batch.k_pool, batch.v_pool)
        return [pool[batch.page_table[i].long()].flatten(0, 1)[:kv_len] for pool in pools]

    def run(self, plan, batch):
        batch.write_new_rows()
        case, out = batch.case, batch.empty_output()
        qo_indptr, kv_lens = plan
        for i, kv_len in enumerate(kv_lens):
            rows = slice(qo_indptr[i], qo_indptr[i + 1])
            k, v = (self.head_of(case, x) for x in self.keys(batch, i, kv_len))
            key = torch.arange(k.shape[0], device=batch.device)
            query = torch.arange(kv_len, device=batch.device)[kv_len - (rows.stop - rows.start) :, None]
            mask = key <= query
            if case.window_left is not None:
                mask &= key >= self.first_key(case, query)
            q, k, v = (x.transpose(0, 1) for x in (batch.q[rows], k, v))
            out[rows] = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=case.scale).transpose(0, 1)
        return AttentionOutput(out)


class WindowOneTooLong(Kernel):
    name = "window-one-too-long"

    def first_key(self, case, query):
        return query - case.window_left - 1


class HeadsInterleaved(Kernel):
    name = "heads-interleaved"

    def head_of(self, case, x):
        return x.repeat(1, case.group_size, 1)


class LastPartialPageDropped(Kernel):
    """Keys of the last page are taken from the page before it once a request owns more than two pages."""

    name = "last-partial-page-dropped"

    def keys(self, batch, i, kv_len):
        k, v = super().keys(batch, i, kv_len)
        size = batch.case.page_size
        start = kv_len // size * size
        if kv_len > 2 * size and start < kv_len:
            k, v = k.clone(), v.clone()
            k[start:], v[start:] = k[start - size : kv_len - size], v[start - size : kv_len - size]
        return k, v


class OverwritesAKey(Kernel):
    """Right, and leaves another value at the oldest cached key of the first request."""

    name = "overwrites-a-key"

    def run(self, plan, batch):
        output = super().run(plan, batch)
        if int(batch.prefix_lens[0]):
            page = int(batch.page_table[0, 0])
            batch.k_pool[page, 0] += 1
        return output


class ThreeBugs(LastPartialPageDropped, HeadsInterleaved, WindowOneTooLong):
    """All of the above at once."""

    name = "three-bugs"
