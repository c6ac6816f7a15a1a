import torch
from torch.nn.functional import scaled_dot_product_attention

from harness.api import AttentionOutput, Capabilities, EmptyRow, LseBase, Poison


class MyKernel:
    name = "my-kernel"
    capabilities = Capabilities(softcap=False)  # everything else: see Capabilities
    lse_base, lse_includes_sink = LseBase.NATURAL, False  # of the LSE returned; none is, here
    empty_row, poison = EmptyRow.ZERO_MINUS_INF, Poison.NAN  # unused slots are never loaded
    devices = ("cpu", "cuda")

    def plan(self, batch):
        return batch.qo_indptr.tolist(), batch.kv_lens.tolist()

    def run(self, plan, batch):
        batch.write_new_rows()  # the new keys and values go into the paged cache first
        case, out = batch.case, batch.empty_output()
        qo_indptr, kv_lens = plan
        for i, kv_len in enumerate(kv_lens):
            rows = slice(qo_indptr[i], qo_indptr[i + 1])
            k, v = (
                pool[batch.page_table[i].long()].flatten(0, 1)[:kv_len].repeat_interleave(case.group_size, 1)
                for pool in (batch.k_pool, batch.v_pool)
            )
            key = torch.arange(kv_len, device=batch.device)
            query = key[kv_len - (rows.stop - rows.start) :, None]
            mask = key <= query
            if case.window_left is not None:
                mask &= key >= query - case.window_left
            q, k, v = (x.transpose(0, 1) for x in (batch.q[rows], k, v))
            out[rows] = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=case.scale).transpose(0, 1)
        return AttentionOutput(out)
