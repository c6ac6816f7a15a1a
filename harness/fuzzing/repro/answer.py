"""The last part of a repro: plain attention in fp64, and expected against got."""

from __future__ import annotations

from cases.schema import AttentionCase

UNIT = {"bfloat16": "2**-8", "float16": "2**-11", "float32": "2**-22"}


def answer_text(case: AttentionCase, *, flat: bool, lse: str | None) -> str:
    """Needs `out` [rows, HQ, DV] and, unless `lse` is None, `lse` natural [rows, HQ].

    lse: None, "with sink" or "without sink": whether the library's includes the sink.
    """
    lines = ["", "want, want_lse, tol = [], [], []", "for (p, e), q_, k, v in zip(REQUESTS, Q, K, V):"]
    lines += [
        "    k, v = (x.double().repeat_interleave(HQ // HK, 1) for x in (k, v))",
        '    s = torch.einsum("qhd,khd->hqk", q_.double(), k) * SCALE',
    ]
    if case.logits_soft_cap is not None:
        lines.append("    s = CAP * torch.tanh(s / CAP)")
    lines += [
        "    at, key = torch.arange(p, p + e, device=DEV)[:, None], torch.arange(p + e, device=DEV)[None]",
        f"    seen = {'key <= at' if case.causal else 'key >= 0 * at'}",
    ]
    if case.window_left is not None:
        lines.append("    seen = seen & (key >= at - WINDOW)  # WINDOW + 1 keys: q - WINDOW .. q")
    lines.append('    s = s.masked_fill(~seen, -float("inf"))')
    if case.sinks and lse == "without sink":
        lines.append("    bare = s.logsumexp(-1)")
    if case.sinks:
        lines.append("    s = torch.cat([s, SINKS.double()[:, None, None].expand(HQ, e, 1)], -1)")
    lines.append("    weight = s.softmax(-1)" + ("[..., :-1]" if case.sinks else ""))
    lines.append('    want.append(torch.einsum("hqk,khd->qhd", weight, v))')
    if lse is not None:
        total = "bare" if case.sinks and lse == "without sink" else "s.logsumexp(-1)"
        lines.append(f"    want_lse.append({total}.T)")
    unit = UNIT[case.dtype]
    if flat:  # equal weights: out * n is an integer
        lines.append(f"    tol.append((0.4 / seen.sum(-1) + {unit}).double()[:, None, None].expand(e, HQ, DV))")
    else:  # rounding of the weights and of the output
        lines.append(f'    tol.append(2 * {unit} * torch.einsum("hqk,khd->qhd", weight, v.abs()) + 1e-6)')
    lines += [
        "want, tol = torch.cat(want), torch.cat(tol)",
        "error = (out.double() - want).abs()",
        "bad = ~(error <= tol).all(-1)",
    ]
    if lse is not None:
        lines.append("bad |= ~((lse.double() - (want_lse := torch.cat(want_lse))).abs() <= 1e-2)")
    lines += [
        "row, head = bad.nonzero()[0].tolist() if bad.any() else (0, 0)",
        'print(f"{int(bad.any(1).sum())} of {len(want)} rows are wrong, largest error {float(error.max()):.4g}")',
        'print(f"row {row}, head {head}: expected", [round(x, 4) for x in want[row, head, :6].tolist()])',
        'print(f"row {row}, head {head}: got     ", [round(x, 4) for x in out[row, head, :6].tolist()])',
    ]
    if lse is not None:
        lines.append('print(f"lse: expected {float(want_lse[row, head]):.4f}, got {float(lse[row, head]):.4f}")')
    lines.append("raise SystemExit(int(bad.any()))")
    return "\n".join(lines)
