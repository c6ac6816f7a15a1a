"""Which public bug reports the catalogue stands for, and why the others cannot be expressed.

One row for each report that the catalogue was written from: an id, the report, and either the faults
(or controls) that behave like it or one sentence saying why none can.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """`faults` are names of the catalogue; `why_not` is given where there are none."""

    id: str
    report: str
    faults: tuple[str, ...] = ()
    why_not: str = ""


def _row(id: str, report: str, *faults: str) -> Row:
    return Row(id, report, faults)


def _not(id: str, report: str, why_not: str) -> Row:
    return Row(id, report, why_not=why_not)


CAUSE_NOT_PUBLIC = "what went wrong inside the kernel is not public; its shape is covered by cases"
REFUSAL_ASKED = "the fix is a refusal of bad input, and a case cannot describe bad input"

ROWS: tuple[Row, ...] = (
    # window
    _row("A01", "sglang PR #26513", "swa-merge-window-missing", "ragged-leg-window-missing", "prefix-leg-mask-missing"),
    _row("A02", "sglang PR #26513, second fault", "swa-merge-window-missing"),
    _row("A03", "sglang PR #31501", "window-of-first-row", "window-at-run-only"),
    _row("A07", "sglang PR #26516", "window-ignored"),
    _row("A08", "sglang #22679, PR #27469", "window-crashes-verify"),
    _row("A10", "sglang PR #24617", "window-pages-untranslated"),
    _row("A11", "sglang PR #16267", "window-page-taken-for-token"),
    _row("A12", "sglang PR #26531, PR #38756", "window-ignored"),
    _row("A14", "flashinfer #4972, PR #4992", "bidirectional-window-span-short", "bidirectional-window-chunks-short"),
    _row("A15", "flashinfer #3578, PR #3682", "window-hangs-fp8-past-tile"),
    _row("A17", "flashinfer PR #2062", "decode-window-edge-tile-unmasked"),
    _row("A19", "flashinfer PR #673", "window-below-tile-hangs"),
    _row("A20", "flashinfer PR #714, PR #563", "control-window-iterates-too-far"),
    _row("A21", "vllm PR #30887", "window-skipped-keys-multiplied"),
    _row("A23", "vllm PR #47574", "window-skipped-keys-multiplied"),
    _row("A24", "vllm PR #53628", "window-skipped-keys-multiplied"),
    _row(
        "A25",
        "transformers #39408, PR #40163",
        "window-one-too-wide",
        "window-twice-too-wide",
        "window-bounds-the-right-too",
    ),
    _row("A27", "TransformerEngine #3528, PR #3532", "no-window-is-an-empty-band"),
    # extent
    _row("B01", "sglang PR #26512, #26628, #26651", "draft-extend-prefix-only", "draft-extend-double-count"),
    _row("B02", "sglang PR #26651, Triton half", "extend-keys-counted-twice"),
    _row("B04", "sglang PR #12295", "queries-padded-keys-not"),
    _row("B06", "sglang PR #15469, #7725, #25077", "last-partial-page-missing", "pages-taken-for-contiguous"),
    _row("B08", "sglang PR #32269, #36038", "causal-ignored"),
    _row("B09", "sglang PR #32149, #32178", "bidirectional-run-causal"),
    _row("B11", "flashinfer PR #4382, #4059, #3929", "rows-at-padded-stride"),
    _row("B12", "flashinfer PR #4199", "bidirectional-run-causal"),
    _row("B13", "flashinfer PR #4199, the PDL part", "graph-row-offsets-of-capture"),
    _row("B15", "vllm PR #32312", "max-seqlen-k-of-step-before"),
    _row("B17", "vllm PR #5412", "page-indptr-not-advanced", "page-table-rows-shifted"),
    _row("B19", "sglang KNOWN_FAILURES C.1", "page-list-sorted", "append-in-slot-order"),
    # plan and graph staleness
    _row("C01", "flashinfer #4002, PR #5176", "last-request-of-plan-before"),
    _row("C05", "vllm PR #25490, #35082", "split-metadata-of-other-count"),
    _row("C06", "sglang PR #30439", "graph-lengths-of-capture", "lengths-of-neighbour"),
    _row("C08", "sglang PR #26655", "graph-lengths-of-capture"),
    _row("C09", "vllm PR #23737", "lengths-of-next-step"),
    _row("C10", "vllm PR #28739", "graph-pages-of-capture"),
    _row("C12", "flashinfer PR #641, #728", "split-chunks-rounded-down"),
    _row("C13", "flash-attn 1a58058a", "scheduler-counter-not-reset"),
    _row("C15", "flashinfer PR #1028", "mask-of-plan-before"),
    _row("C16", "flashinfer PR #4014", "scale-of-first-call"),
    _row("C17", "flashinfer #4647", "control-split-count-from-host-bound"),
    _row("C18", "vllm PR #56922", "max-seqlen-q-of-step-before"),
    _row("C19", "vllm PR #38436", "empty-row-nan"),
    # empty rows, LSE
    _row("D04", "flashinfer PR #353, #363, #440", "empty-row-holds-previous-tile"),
    _row("D05", "flashinfer PR #1198, #868", "empty-kv-hangs"),
    _row("D06", "flashinfer #3047, PR #3251", "empty-row-keeps-neighbours-lse"),
    _row("D07", "sglang PR #10526", "empty-row-keeps-neighbours-lse"),
    _row("D08", "flashinfer PR #3779", "empty-row-unwritten"),
    _row("D09", "flashinfer PR #4975", "empty-row-nan"),
    _row("D10", "flashinfer PR #1533", "empty-row-unwritten"),
    _row("D14", "flash-attn a3a257c7", "idle-request-overwrites-next-row"),
    _row("D16", "flash-attn PR #2515", "idle-request-crashes-one-row-batch"),
    _row("D17", "flash-attn #2562, PR #2568", "empty-row-nan"),
    _row("D18", "flash-attn #1537, #1619", "idle-request-crashes-one-row-batch"),
    _row("D20", "flash-attn 10ee063e, PR #2167", "length-rounded-to-pages"),
    # garbage slots
    _row("E01", "flashinfer #941, PR #942, #945", "page-tail-times-zero"),
    _row("E05", "flash-attn #1745, #1974, #2374", "page-tail-times-zero", "page-tail-attended"),
    _row("E06", "vllm PR #35219, #35138", "page-tail-times-zero"),
    _row("E07", "flashinfer #3716, PR #3717", "padding-lanes-in-softmax"),
    _row("E08", "vllm #42494", "page-table-tail-dereferenced"),
    _row("E09", "pegainfer PR #350", "surplus-page-on-page-edge"),
    _row("E10", "vllm #39146", "page-tail-times-zero"),
    # split-kv
    _row("F01", "flash-attn #1217, PR #2550, #2812", "combine-lands-on-request-0"),
    _row("F02", "vllm-flash-attention PR #87", "split-lse-heads-swapped"),
    _row("F03", "flash-attn PR #2573", "lse-rows-at-padded-offset"),
    _row("F04", "flash-attn PR #1455, #1192", "graph-keys-past-capture-dropped"),
    _row("F05", "flash-attn PR #2388", "split-weights-transposed"),
    _row("F06", "flashinfer PR #58, #50", "lse-of-last-split", "lse-of-prefix-leg"),
    _row("F08", "flashinfer PR #3890", "control-hook-before-chunk-mask"),
    _row("F09", "flashinfer PR #1055, #1109", "last-split-dropped"),
    _row("F10", "flashinfer #4749", "split-loses-its-first-key"),
    _row("F12", "FlagGems #5235", "combine-rows-at-head-size"),
    # LSE base
    _row("G06", "flashinfer PR #787", "scale-lacks-log2e"),
    # int32
    _row("H01", "flashinfer #3130, PR #3136", "page-offset-int32", "page-offset-wraps-early"),
    _row("H02", "flashinfer PR #1290, #1271", "mask-offset-int32", "mask-offset-wraps-early"),
    _row("H03", "flashinfer PR #2134, sglang #13775", "long-ragged-kv-crashes"),
    _row("H04", "vllm PR #47671", "page-offset-int32", "page-offset-wraps-early"),
    _row("H06", "flash-attn PR #2662", "long-context-crashes"),
    _not("H07", "flash-attn PR #1500, #2260, #2611", "it is the backward pass that is corrupt; only forward is run"),
    _row("H08", "sglang #20389", "query-offset-int32-crashes"),
    _row("H09", "flash-attn #772", "page-offset-int32", "page-offset-wraps-early"),
    # layout
    _row("I04", "flashinfer PR #527", "append-stride-halved"),
    _row("I05", "FlagAttention #45, PR #46", "v-read-with-k-stride"),
    _row("I06", "flashinfer #3219", "pages-taken-for-contiguous"),
    _row("I07", "flashinfer PR #2414", "queries-read-heads-first"),
    _row("I09", "flashinfer #3856", "page-stride-halved"),
    _row("I10", "aiter PR #3498", "page-stride-halved"),
    # shape corners
    _row("J01", "flashinfer #4347", "page-offset-wraps-at-128"),
    _row("J03", "flashinfer PR #810", "page-offset-dropped"),
    _row("J04", "flashinfer #4299", "head-dim-truncated-to-64s"),
    _row("J05", "flashinfer PR #1148", "group-rounded-to-power-of-two"),
    _row("J06", "flashinfer #2896", "odd-group-decode-crashes"),
    _row("J07", "flashinfer PR #4095, #2380", "heads-past-8-of-a-group-skipped"),
    _not("J08", "flashinfer PR #2137, #1993", CAUSE_NOT_PUBLIC),
    _not("J09", "flashinfer #1663", CAUSE_NOT_PUBLIC),
    _row("J10", "flash-attn e3b2400a, 9e07d6d3, 6d199aa2", "v-read-with-k-stride"),
    _row("J14", "flashinfer PR #1912, #1898", "single-request-with-larger-maximum-crashes"),
    _row("J15", "flashinfer PR #4525", "sink-of-next-head"),
    _not("J16", "flashinfer PR #448", "the order of matrix fragments of one GPU generation; " + CAUSE_NOT_PUBLIC),
    _row("J17", "flashinfer PR #3838", "row-sum-includes-neighbour"),
    _row("J19", "sglang PR #23993", "merge-of-many-heads-crashes"),
    _row("J20", "flash-attn PR #2745", "last-page-pointers-stale"),
    _not("J21", "flash-attn PR #2711, #2709", REFUSAL_ASKED),
    _not("J22", "flashinfer PR #2801", REFUSAL_ASKED),
    # masks
    _row("K01", "flashinfer PR #2201", "mask-offset-in-elements", "mask-of-first-request-for-all"),
    _not("K02", "flashinfer #3176, PR #5271", REFUSAL_ASKED),
    _row("K03", "flashinfer PR #441, #460", "prefix-leg-mask-missing"),
    _not("K04", "flashinfer PR #1008, #1005", "an illegal access only, past a buffer; " + CAUSE_NOT_PUBLIC),
    _row("K05", "text-generation-inference PR #3324", "mask-rows-padded"),
    _not("K07", "flash-attn PR #2276, #2091", CAUSE_NOT_PUBLIC),
    # scale, sinks, softcap
    _row("L01", "flashinfer PR #350", "softcap-after-mask"),
    _row("L02", "flash-attn e81c237e, 2f78d484, 5844fa69", "sink-added-raw"),
    _row("L03", "vllm PR #52148", "sinks-ignored"),
    _not("L05", "flashinfer PR #1758", CAUSE_NOT_PUBLIC),
    _row("L07", "vllm PR #48016", "kv-scale-applied-twice"),
    _row("L08", "vllm PR #42580, #42080", "kv-scales-dropped"),
    _row("L09", "vllm PR #34863", "kv-scales-dropped"),
    _row("L10", "flash-attn PR #2717", "probabilities-saturate"),
    _not("L12", "flashinfer PR #847, #793", "rotary offsets: a case's q and k are given as they are after RoPE"),
    # invariance, races, others
    _row("M03", "sglang PR #26412", "control-split-from-heuristic"),
    _row("N01", "flashinfer PR #1559, #1661", "warp-reads-old-rows"),
    _not("N02", "flashinfer #5252", CAUSE_NOT_PUBLIC),
    _row("O01", "vllm PR #48003", "length-of-the-longest-request"),
    _not("O02", "vllm PR #26130", "cascade over a shared prefix was disabled before its fault was found"),
    _not(
        "O03", "sglang #13044", "not settled what was wrong; inputs of large magnitude are covered by the spiky recipe"
    ),
)
