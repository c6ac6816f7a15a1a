"""A kernel in plain PyTorch that is right, and one for each relation that only this relation finds wrong.

Two ways of rounding are both within the row bound, so a kernel that chooses between them by something that must not
matter is seen by comparing bits alone. The others are plainly wrong, on runs that the case itself does not ask for.
"""

import torch

from harness.api import AttentionOutput, Capabilities, EmptyRow, LseBase, Poison


class Kernel:
    """Right. `precise`: P is not rounded for this request; `kv_of`: its pages; `first_key`, `last_key`: of each row."""

    name = "kernel"
    capabilities = Capabilities(softcap=False)
    lse_base, lse_includes_sink = LseBase.NATURAL, False
    empty_row, poison = EmptyRow.ZERO_MINUS_INF, Poison.FINITE
    batch_invariant = True
    devices = ("cpu",)
    runs = 0

    def plan(self, batch):
        return batch.qo_indptr.tolist(), batch.kv_lens.tolist()

    def precise(self, batch, i):
        return False

    def pages_of(self, batch, i):
        return batch.page_table[i].long()

    def hidden(self, batch, i, query, key):
        left = batch.case.window_left
        return (key > query) if left is None else (key > query) | (key < query - left)

    def run(self, plan, batch):
        batch.write_new_rows()
        self.runs += 1
        case, out = batch.case, batch.empty_output()
        lse = out.new_empty(out.shape[:2], dtype=torch.float32)
        for i, (start, end) in enumerate(zip(plan[0][:-1], plan[0][1:], strict=True)):
            out[start:end], lse[start:end] = self.request(batch, i, batch.q[start:end], plan[1][i], case)
        return AttentionOutput(out, lse)

    def request(self, batch, i, q, kv_len, case):
        whole = [pool[self.pages_of(batch, i)].flatten(0, 1).float() for pool in (batch.k_pool, batch.v_pool)]
        k, v = (x.repeat_interleave(case.group_size, 1).transpose(0, 1) for x in whole)
        key = torch.arange(kv_len)
        hidden = self.hidden(batch, i, key[kv_len - q.shape[0] :, None], key)
        k, v = k[:, :kv_len], v[:, :kv_len]
        scores = (q.float().transpose(0, 1) @ k.transpose(1, 2) * case.scale).masked_fill(hidden, -torch.inf)
        top = scores.amax(-1, keepdim=True)
        p = torch.exp(scores - top)
        total = p.sum(-1, keepdim=True)
        p = p if self.precise(batch, i) else p.to(q.dtype).float()
        out = (p @ v / total).to(q.dtype)
        return out.transpose(0, 1), (top + total.log())[..., 0].t()


class EveryFifthRunDiffers(Kernel):
    name = "every-fifth-run-differs"

    def precise(self, batch, i):
        return self.runs % 5 == 4


class LooksAtPageNumbers(Kernel):
    """A gap between the first two pages changes how it rounds."""

    name = "looks-at-page-numbers"

    def precise(self, batch, i):
        first, second = batch.page_table[i, :2].tolist()
        return second == first + 1


class TakesPagesForContiguous(Kernel):
    """Right as long as they are."""

    name = "takes-pages-for-contiguous"

    def pages_of(self, batch, i):
        return (batch.page_table[i, 0].long() + torch.arange(batch.paging.owned[i])) % batch.paging.num_pages


class LooksAtAStaleKey(Kernel):
    """The score of the slot after the last key is masked, and yet changes how it rounds."""

    name = "looks-at-a-stale-key"
    batch_invariant = False  # another place in the batch has other stale keys

    def precise(self, batch, i):
        slot = int(batch.kv_lens[i])
        page = batch.page_table[i, slot // batch.case.page_size]
        return bool(batch.k_pool[page, slot % batch.case.page_size, 0, 0] > 0)


class RoundsByNeighbour(Kernel):
    """The length of the next request changes how it rounds."""

    name = "rounds-by-neighbour"

    def precise(self, batch, i):
        return i + 1 < len(batch.kv_lens) and bool(batch.kv_lens[i + 1] > batch.kv_lens[i])


class LongestFirst(Kernel):
    """Sorts the requests by length and looks their pages up in the order they came in: right if they are sorted."""

    name = "longest-first"
    batch_invariant = False

    def pages_of(self, batch, i):
        order = torch.argsort(batch.kv_lens, descending=True, stable=True)
        return batch.page_table[order[i]].long()


class NoWindowForOne(Kernel):
    """A batch of one takes another path, which forgets the window."""

    name = "no-window-for-one"
    batch_invariant = False

    def hidden(self, batch, i, query, key):
        return key > query if batch.case.num_requests == 1 else super().hidden(batch, i, query, key)


class LosesLastPrefixKey(Kernel):
    """One key is lost between prefix and extend: right while there is no prefix."""

    name = "loses-last-prefix-key"

    def hidden(self, batch, i, query, key):
        lost = batch.case.requests[i].prefix_len - 1
        return super().hidden(batch, i, query, key) | (key == lost)


class KeepsOutputs(Kernel):
    """Right, but every output is written to the same memory."""

    name = "keeps-outputs"
    buffer = None

    def run(self, plan, batch):
        made = super().run(plan, batch)
        if self.buffer is None or self.buffer.shape != made.out.shape:
            self.buffer = torch.empty_like(made.out)
        return AttentionOutput(self.buffer.copy_(made.out), made.lse)
