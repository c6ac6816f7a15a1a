"""Fault x evidence: which kind of evidence catches which fault, by the number of visible keys.

    python -m tests.certificates.table [--sizes 64 512 2048 8192 65536] [--markdown]

Each fault is put into the emulated kernel on a case that can show it, at each size, and judged by a flat
tolerance of 1e-2 and of 2e-2, by twice the error of low-precision PyTorch (FlashAttention's own rule), by the
row bound (all on unit-normal data), and by every certificate in its domain. Exit code 1 if some fault is
caught by no certificate.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from cases.batch import AttentionBatch
from cases.recipes import make_data, torch_dtype
from cases.schema import AttentionCase, Request
from references.certificates import RECIPES, CertificateData, applicable
from references.error_bounds import row_bounds
from references.golden import GoldenOutput, golden_attention
from references.traits import KernelTraits
from references.visibility import visible_mask
from tests.certificates.emulator import Kernel, emulate
from tests.certificates.faults import FAULTS
from tests.certificates.running import ready_batch, traits_of

SIZES = (64, 512, 2048, 8192, 65_536)
EVIDENCE = ("atol 1e-2", "atol 2e-2", "2 x low precision", "row bound", *RECIPES)
ROWS = 16


@dataclass
class Prepared:
    """One case with everything that does not depend on the fault."""

    case: AttentionCase
    batch: AttentionBatch
    golden: GoldenOutput
    twice_low_precision: float
    bounds: Tensor
    certificates: dict[str, tuple[CertificateData, AttentionBatch]]


def sized(size: int) -> dict[str, tuple[AttentionCase, Kernel]]:
    """Cases of about `size` visible keys, and the right kernel of each.

    The prefix is a power of two times the new rows, so that the contrast column balances on the last row.
    """
    rows = ROWS if size >= 8 * ROWS else ROWS // 2
    prefix = rows * 2 ** round(torch.tensor(size / rows).log2().item())
    full = AttentionCase(
        requests=(Request(prefix, rows), Request(77, 0)), num_qo_heads=4, num_kv_heads=2, page_size=min(16, size // 8)
    )
    window = full.replace(requests=(Request(prefix + size // 4, rows), Request(77, 0)), window_left=size - 1)
    one_pass = Kernel(tile=max(16, min(512, size // 8)))
    merge = one_pass.replace(legs=2, log2_lse=True, round_row_sum=True)
    return {
        "full": (full, one_pass),
        "window": (window, one_pass),
        "merge": (full, merge),
        "softcap": (full.replace(logits_soft_cap=30.0), one_pass),
        "sinks": (full.replace(sinks=True), one_pass),
        "merged sinks": (full.replace(sinks=True), merge),
    }


def home(fault: str) -> str:
    """The case of `sized` that a fault is tried on."""
    if fault == "sink in both legs":
        return "merged sinks"
    for word, where in (("softcap", "softcap"), ("sink", "sinks"), ("merge", "merge"), ("window", "window")):
        if word in fault:
            return where
    return "window" if "mask" in fault else "full"


def prepare(case: AttentionCase, kernel: Kernel) -> Prepared:
    data, traits = make_data(case, "cpu"), traits_of(kernel)
    golden = golden_attention(case, data, moments=True)
    batch = ready_batch(case, data)
    certificates = {}
    for name, recipe in RECIPES.items():
        if applicable(name, case, traits) is None:
            built = recipe.build(case, "cpu")
            certificates[name] = (built, ready_batch(case, built.data))
    return Prepared(
        case,
        batch,
        golden,
        2 * float((low_precision(batch).double() - golden.out).abs().max()),
        row_bounds(case, data, golden, traits),
        certificates,
    )


def low_precision(batch: AttentionBatch) -> Tensor:
    """PyTorch in the input dtype throughout: scores, softmax and output rounded to it."""
    case, data, outs = batch.case, batch.data, []
    dtype = torch_dtype(case.dtype)
    q_start = kv_start = 0
    for request in case.requests:
        rows = torch.arange(request.extend_len) + request.prefix_len
        first = torch.zeros_like(rows) if case.window_left is None else (rows - case.window_left).clamp(min=0)
        q = data.q[q_start : q_start + request.extend_len].transpose(0, 1)
        k, v = (
            x[kv_start : kv_start + request.kv_len].repeat_interleave(case.group_size, 1).transpose(0, 1).to(dtype)
            for x in (data.k, data.v)
        )
        s = torch.matmul(q, k.transpose(1, 2)) * case.scale
        if case.logits_soft_cap is not None:
            s = case.logits_soft_cap * torch.tanh(s / case.logits_soft_cap)
        s = s.masked_fill(~visible_mask(first, rows + 1, torch.arange(request.kv_len)), -torch.inf)
        if data.sinks is not None:
            s = torch.cat([s, data.sinks.to(dtype)[:, None, None].expand(-1, len(rows), 1)], -1)
        p = torch.softmax(s.float(), -1).to(dtype)[..., : request.kv_len]
        outs.append(torch.matmul(p, v).transpose(0, 1))
        q_start += request.extend_len
        kv_start += request.kv_len
    return torch.cat(outs)


def caught_by(prepared: Prepared, kernel: Kernel, traits: KernelTraits) -> dict[str, bool]:
    """Evidence that calls the (faulty) kernel wrong; certificates outside their domain are absent."""
    out, _ = emulate(prepared.batch, kernel)
    error = (out.double() - prepared.golden.out).abs().nan_to_num(nan=torch.inf)
    largest = float(error.max())
    found = {
        "atol 1e-2": largest > 1e-2,
        "atol 2e-2": largest > 2e-2,
        "2 x low precision": largest > prepared.twice_low_precision + 1e-5,
        "row bound": bool((error > prepared.bounds).any()),
    }
    for name, (built, batch) in prepared.certificates.items():
        result = RECIPES[name].judge(prepared.case, built, *emulate(batch, kernel), traits)
        found[name] = not result.passed
    return found


def study(sizes: tuple[int, ...]) -> dict[str, dict[int, dict[str, bool]]]:
    table: dict[str, dict[int, dict[str, bool]]] = {"none": {}, **{fault: {} for fault in FAULTS}}
    for size in sizes:
        cases = sized(size)
        for where, (case, right) in cases.items():
            prepared = prepare(case, right)
            traits = traits_of(right)
            alarms = caught_by(prepared, right, traits)
            for name, wrong in alarms.items():
                table["none"].setdefault(size, {}).setdefault(name, False)
                table["none"][size][name] |= wrong
            for fault, change in FAULTS.items():
                if home(fault) == where and change.shows(case, right):
                    table[fault][size] = caught_by(prepared, right.replace(**change.changes), traits)
    return table


def cell(results: dict[int, dict[str, bool]], sizes: tuple[int, ...], evidence: str) -> str:
    """One mark per size: + caught, - not, . outside the domain or not shown."""
    return "".join(
        "." if evidence not in results.get(size, {}) else "+" if results[size][evidence] else "-" for size in sizes
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    sizes = tuple(parser.parse_args().sizes)
    torch.set_num_threads(1)
    table = study(sizes)
    print(f"| fault (n near {', '.join(f'{s:,}' for s in sizes)}) | " + " | ".join(EVIDENCE) + " |")
    print("|---|" + "---|" * len(EVIDENCE))
    missed = []
    for fault, results in table.items():
        print(f"| {fault} | " + " | ".join(f"`{cell(results, sizes, e)}`" for e in EVIDENCE) + " |")
        for size, found in results.items():
            if fault != "none" and not any(found.get(name, False) for name in RECIPES):
                missed.append(f"{fault} at {size}")
    for line in missed:
        print(f"caught by no certificate: {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
