"""False alarms and residuals of right kernels, measured.

    python -m tests.certificates.study alarms --cases 10000 [--start 0] [--state FILE]
    python -m tests.certificates.study residuals

`alarms` draws cases (draw.py), runs on each FLAT, one more certificate in turn, and random data against
the row and LSE bounds. With --state it goes on where it stopped. Exit code 1 if anything right was called
wrong. `residuals` runs every certificate on contexts up to 131,072 keys, windows, and page orders.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

from cases.recipes import make_data
from cases.schema import AttentionCase, PageOrder, Request
from references.certificates import RECIPES, applicable
from references.error_bounds import lse_bounds, row_bounds, worst
from references.golden import golden_attention
from references.traits import UNIT_ROUNDOFF
from tests.certificates.draw import drawn
from tests.certificates.emulator import Kernel, emulate
from tests.certificates.running import certify, ready_batch, traits_of

State = dict[str, object]


def bound_ratios(case: AttentionCase, kernel: Kernel) -> tuple[float, float]:
    """Largest error/bound of the output and of the LSE on the case's own data."""
    data = make_data(case, "cpu")
    golden = golden_attention(case, data, moments=True)
    out, lse = emulate(ready_batch(case, data), kernel)
    traits = traits_of(kernel)
    of_out, _ = worst(case, (out.double() - golden.out).abs(), row_bounds(case, data, golden, traits))
    bound = lse_bounds(case, data, golden, traits)
    seen = bound > 0
    of_lse = float(((lse - golden.lse).abs() / bound)[seen].max()) if bool(seen.any()) else 0.0
    return of_out, of_lse


def alarms(first: int, last: int, state: State, save: Path | None) -> State:
    names = list(RECIPES)
    for index in range(first, last):
        case, kernel = drawn(index)
        traits = traits_of(kernel)
        for name in ("flat", names[1 + index % (len(names) - 1)]):
            if applicable(name, case, traits) is not None:
                _count(state, f"{name}/outside")
                continue
            result = certify(name, case, kernel)
            _count(state, f"{name}/run")
            _raise(state, f"{name}/s_max", result.s_max)
            _lower(state, f"{name}/judged_min", result.judged)
            if not result.passed:
                _alarm(state, index, result.message)
        of_out, of_lse = bound_ratios(case, kernel)
        p_is_exact = traits.p_roundoff(case.dtype) < UNIT_ROUNDOFF[case.dtype]
        kind = "bound, P in fp32" if p_is_exact else f"bound, {case.recipe}"
        _count(state, f"{kind}/run")
        _raise(state, f"{kind}/out", of_out)
        _raise(state, f"{kind}/lse", of_lse)
        if of_out > 1 or of_lse > 1:
            _alarm(state, index, f"error/bound {of_out:.3f}, LSE {of_lse:.3f}")
        state["next"] = index + 1
        if save is not None and (index + 1) % 100 == 0:
            save.write_text(json.dumps(state, indent=1, sort_keys=True))
    if save is not None:
        save.write_text(json.dumps(state, indent=1, sort_keys=True))
    return state


def _count(state: State, key: str) -> None:
    state[key] = int(str(state.get(key, 0))) + 1


def _raise(state: State, key: str, value: float) -> None:
    state[key] = max(float(str(state.get(key, 0.0))), value)


def _lower(state: State, key: str, value: float) -> None:
    state[key] = min(float(str(state.get(key, 1.0))), value)


def _alarm(state: State, index: int, message: str) -> None:
    _count(state, "false alarms")
    case, kernel = drawn(index)
    print(f"false alarm, case {index}: {message}\n  {case.name}\n  {kernel}", flush=True)


LENGTHS = (1024, 8192, 65_536, 131_072)
WINDOWS = (None, 2, 127, 1024, 65_536)
KERNELS = {
    "one pass": Kernel(),
    "merge": Kernel(legs=2, log2_lse=True, round_row_sum=True),
    "splits": Kernel(splits=4),
}


def residuals() -> int:
    """Prints one line per kernel and length: the worst over windows, page orders and recipes."""
    failed = 0
    for length in LENGTHS:
        for kernel_name, kernel in KERNELS.items():
            s_max, n_max, judged = dict.fromkeys(RECIPES, 0.0), dict.fromkeys(RECIPES, 0.0), dict.fromkeys(RECIPES, 1.0)
            for i, window in enumerate(WINDOWS):
                if window is not None and window >= length:
                    continue
                for order in PageOrder if length <= 8192 else [list(PageOrder)[i % len(PageOrder)]]:
                    case = AttentionCase(
                        requests=(Request(length - 4, 4), Request(77, 2)),
                        num_qo_heads=4,
                        num_kv_heads=2,
                        window_left=window,
                        page_order=order,
                        pool_pages=length // 8 + 64 if order is PageOrder.FAR_END else None,
                        sinks=i % 2 == 1,
                        logits_soft_cap=30.0 if i == 2 else None,
                    )
                    for name in RECIPES:
                        if applicable(name, case, traits_of(kernel)) is not None:
                            continue
                        result = certify(name, case, kernel.replace(tile=64 if length < 60_000 else 512))
                        failed += not result.passed
                        s_max[name] = max(s_max[name], result.s_max)
                        n_max[name] = max(n_max[name], result.n_max or 0.0)
                        judged[name] = min(judged[name], result.judged)
            shown = "  ".join(f"{n} S {s_max[n]:.3f} N {n_max[n]:.2g} ({judged[n]:.0%})" for n in RECIPES)
            print(f"n {length:>7} {kernel_name:9} {shown}", flush=True)
    print(f"{failed} false alarms")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("alarms", "residuals"))
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--state", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "residuals":
        return residuals()
    state: State = {"next": options.start}
    if options.state is not None and options.state.exists():
        state = json.loads(options.state.read_text())
    state = alarms(int(str(state["next"])), options.start + options.cases, state, options.state)
    print(json.dumps(state, indent=1, sort_keys=True))
    return 1 if state.get("false alarms") else 0


if __name__ == "__main__":
    sys.exit(main())
