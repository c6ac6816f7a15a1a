"""One case on every edge where attention kernels have been seen to break, as small as shows it.

FlashInfer compiles a module for each (dtype, head_dim, window or not, softcap or not), so the table
keeps to few of those: bf16 with head_dim 64 nearly everywhere, one line or two of each other kind.
"""

from __future__ import annotations

from cases.schema import Mode, PageOrder
from cases.suites.table import Row, row

DECODE, DRAFT, VERIFY = Mode.DECODE, Mode.DRAFT_EXTEND_V2, Mode.TARGET_VERIFY


def _windows() -> tuple[Row, ...]:
    return (
        row("extend = window + 1 keys: nothing is cut off", (0, 32), window_left=31),
        row("extend = window + 2: one row loses one key", (0, 33), window_left=31),
        row("extend shorter than the window, prefix longer", (40, 5), window_left=31),
        row("extend and prefix both longer than the window", (40, 50), window_left=31),
        row("extend longer than two windows", (10, 70), window_left=31),
        row("prefix one below, at, one above the window", (30, 3), (31, 3), (32, 3), window_left=31),
        row("prefix + extend = window, + 1, + 2", (20, 11), (20, 12), (20, 13), window_left=31),
        row("window 0: each query sees itself alone", (5, 7), (0, 3), (16, 1), window_left=0),
        row("window 1: two keys", (5, 7), (0, 3), (16, 1), window_left=1),
        row("window 2 across page edges, page size 4", (3, 6), (4, 6), (5, 6), window_left=2, page_size=4),
        row("window one short of a tile: 64 keys", (130, 20), (60, 10), window_left=63),
        row("window of 128 keys, extends over a tile edge", (120, 20), (250, 9), window_left=127),
        row("window one more than a tile", (200, 5), (70, 70), window_left=64),
        row("window longer than every sequence", (40, 5), (100, 3), window_left=4096),
        row("window just covers the longest sequence", (20, 12), (3, 9), window_left=31, page_size=1),
        row("window and no prefix, several tiles", (0, 150), (0, 65), window_left=40),
    )


def _lengths() -> tuple[Row, ...]:
    return (
        row("lengths 15, 16, 17: the page edge, from the prefix", (15, 2), (16, 2), (17, 2)),
        row("kv lengths 15, 16, 17, in the extend", (12, 3), (12, 4), (12, 5)),
        row("prefix ends one below, at, one above tile 64", (63, 4), (64, 4), (65, 4)),
        row("prefix ends around tile 128", (127, 2), (128, 2), (129, 2), page_size=64),
        row("extends of 15, 16, 17 rows, the smallest tile", (30, 15), (0, 16), (5, 17)),
        row("extends of 63, 64, 65 rows", (0, 63), (0, 64), (0, 65)),
        row("extends of 127, 128, 129 rows after a prefix", (7, 127), (9, 128), (11, 129), heads=(4, 1)),
        row("extends of 255, 256, 257 rows, two heads", (0, 255), (3, 256), (0, 257), heads=(2, 1)),
        row("kv lengths 255, 256, 257", (250, 5), (251, 5), (252, 5), page_size=1),
        row("a single key", (0, 1)),
        row("single-row requests beside long ones", (0, 1), (1, 1), (500, 1), (0, 90)),
        row("one long, many short", (700, 3), (0, 1), (2, 2), (1, 1), (5, 4), (0, 2), (3, 1), window_left=31),
        row("many requests: more than a warp's worth", *((3 * i % 50, 1 + i % 5) for i in range(35))),
    )


def _empty() -> tuple[Row, ...]:
    return (
        row("a request without new rows in the middle", (20, 4), (33, 0), (5, 3)),
        row("requests without new rows first and last, window", (64, 0), (20, 40), (10, 0), window_left=31),
        row("a padding request with no key at all", (20, 4), (0, 0), (5, 3), mode=DRAFT),
        row("requests without prefix first and last", (0, 5), (40, 5), (0, 3), window_left=31),
    )


def _pages() -> tuple[Row, ...]:
    return (
        row("page size 1", (17, 5), (64, 3), page_size=1),
        row("page size 1, window", (40, 50), (100, 7), page_size=1, window_left=31),
        row("page size 64, prefix on the page edge", (64, 64), (128, 1), page_size=64),
        row("page size 128, one slot of the last page used", (128, 1), (127, 2), page_size=128),
        row("page size 128, window", (130, 40), (20, 5), page_size=128, window_left=31),
        row("page size 256", (255, 2), (256, 2), (5, 40), page_size=256),
        row("page size 256, window", (300, 5), (3, 60), page_size=256, window_left=31),
        row("page size 3, no power of two", (10, 5), (3, 3), page_size=3),
        row("pages in order", (40, 5), (20, 9), page_order=PageOrder.CONTIGUOUS),
        row("pages reversed", (40, 5), (20, 9), page_order=PageOrder.REVERSED, window_left=31),
        row("pages dealt out in turn", (40, 5), (90, 9), page_order=PageOrder.INTERLEAVED),
        row("pages dealt out in turn, window", (40, 40), (90, 9), page_order=PageOrder.INTERLEAVED, window_left=31),
        row("pages at the far end of a large pool", (40, 5), (20, 9), page_order=PageOrder.FAR_END, pool_pages=8192),
        row(
            "far end, page size 1, window", (40, 5), page_order="far_end", pool_pages=50_000, page_size=1, window_left=9
        ),
        row("heads outside the page's tokens (HND)", (40, 5), (20, 9), kv_layout="HND"),
        row("HND, window", (40, 50), (20, 9), kv_layout="HND", window_left=31),
    )


def _slots() -> tuple[Row, ...]:
    return (
        row("NaN in every unused slot", (13, 4), (40, 5), poison="nan"),
        row("NaN in unused slots, window", (13, 40), (40, 5), poison="nan", window_left=31),
        row("NaN in the tail of a page as large as a tile", (107, 5), (3, 1), poison="nan", page_size=128),
        row("zeros in unused slots: extra zero keys dilute", (12, 4), (1, 3), poison="zero"),
    )


def _scores() -> tuple[Row, ...]:
    return (
        row("softcap small enough to bend every score", (20, 9), (5, 3), logits_soft_cap=2.0),
        row("softcap before the mask: a cap of 1 leaks masked keys", (0, 40), (3, 5), logits_soft_cap=1.0),
        row("softcap and window", (40, 40), (9, 3), logits_soft_cap=2.0, window_left=31),
        row("softcap and window, spiky", (40, 9), logits_soft_cap=5.0, window_left=31, recipe="spiky"),
        row("sinks", (20, 9), (0, 3), sinks=True),
        row("sinks and window", (40, 40), (0, 5), sinks=True, window_left=31),
        row("sinks where few keys are seen: they weigh most", (2, 3), (0, 4), sinks=True, window_left=1, heads=(8, 1)),
        row("sinks, a group of 7", (20, 5), (0, 9), sinks=True, heads=(7, 1)),
        row("sm_scale twice the usual", (40, 5), (20, 9), sm_scale=0.25),
        row("sm_scale far below the usual, window", (40, 40), sm_scale=0.03, window_left=31),
        row("spiky: a few keys dominate", (100, 9), (37, 40), recipe="spiky"),
        row("spiky, window", (100, 40), (37, 3), recipe="spiky", window_left=31),
        row("small inputs: a flat tolerance sees little", (40, 5), (20, 9), recipe="small"),
    )


def _heads_and_types() -> tuple[Row, ...]:
    return (
        row("group 1 (no GQA)", (40, 5), (20, 9), heads=(4, 4), window_left=31),
        row("group 7, no power of two", (40, 5), (20, 9), heads=(14, 2)),
        row("group 7, window, more rows than a tile", (40, 40), heads=(7, 1), window_left=31),
        row("group 8", (40, 5), (20, 9), heads=(16, 2)),
        row("group 16, one kv head (MQA)", (40, 5), (20, 9), heads=(16, 1), window_left=31),
        row("one head", (40, 5), (20, 9), heads=(1, 1)),
        row("head_dim 128", (40, 5), (20, 30), head_dim=128),
        row("head_dim 128, window", (40, 50), (100, 3), head_dim=128, window_left=31),
        row("head_dim 256, window", (40, 40), (9, 3), head_dim=256, heads=(4, 2), window_left=31),
        row("fp16, window", (40, 40), (100, 3), dtype="float16", window_left=31),
        row("fp32, window", (40, 40), (9, 3), dtype="float32", window_left=31),
        row("head_dim_vo differs", (40, 5), (20, 9), head_dim_qk=128, head_dim_vo=64),
        row("fp8 kv, scales of 1", (40, 5), (20, 9), kv_dtype="float8_e4m3fn"),
        row("fp8 kv, scales that matter", (40, 5), (20, 9), kv_dtype="float8_e4m3fn", k_scale=1.5, v_scale=0.5),
        row("not causal", (20, 9), (0, 5), causal=False),
        row("not causal, left window", (40, 20), (9, 3), causal=False, window_left=15),
    )


def _modes() -> tuple[Row, ...]:
    return (
        row("decode: kv 1, a page, a page and one", (0, 1), (15, 1), (16, 1), (300, 1), mode=DECODE),
        row("decode, window, below and beyond it", (10, 1), (31, 1), (32, 1), (300, 1), mode=DECODE, window_left=31),
        row("decode, window, page size 1", (100, 1), (5, 1), mode=DECODE, window_left=31, page_size=1),
        row("decode, a slot outside the run", (40, 1), (33, 0), (7, 1), mode=DECODE),
        row("verify: a chain of 4 after the prefix", (20, 4), (3, 4), (64, 4), mode=VERIFY),
        row("verify, window shorter than the chain", (20, 8), (3, 8), mode=VERIFY, window_left=4),
        row("draft extend, accepted 1 to 4", (20, 1), (3, 4), (64, 2), (0, 3), mode=DRAFT),
        row("draft extend, window", (290, 4), (6, 4), (60, 5), (17, 1), mode=DRAFT, window_left=31),
    )


def _execution() -> tuple[Row, ...]:
    return (
        row("2 kv splits, long and short kv", (500, 1), (3, 1), mode=DECODE, splits=2),
        row("3 kv splits, more than some requests have tiles", (700, 2), (20, 2), (64, 2), splits=3),
        row("4 kv splits, window: some splits are empty", (600, 5), (90, 5), splits=4, window_left=31),
        row("dirty workspace", (300, 5), (20, 9), workspace="dirty"),
        row("dirty workspace, window", (300, 5), (20, 40), workspace="dirty", window_left=31),
        row("draft graph, captured shorter", (300, 2), (5, 3), mode=DRAFT, capture=[(1, 3), (2, 3)]),
        row("draft graph, window", (50, 2), (5, 3), mode=DRAFT, capture=[(900, 4), (2, 4)], window_left=31),
        row("decode graph", (300, 1), (5, 1), (31, 1), mode=DECODE, capture=[(4, 1), (900, 1), (64, 1)]),
    )


def rows() -> tuple[Row, ...]:
    groups = (_windows, _lengths, _empty, _pages, _slots, _scores, _heads_and_types, _modes, _execution)
    return tuple(line for group in groups for line in group())


_QUICK = (
    "extend = window + 2: one row loses one key",
    "extend and prefix both longer than the window",
    "lengths 15, 16, 17: the page edge, from the prefix",
    "one long, many short",
    "page size 1, window",
    "pages reversed",
    "zeros in unused slots: extra zero keys dilute",
    "group 7, no power of two",
    "spiky, window",
    "decode, window, below and beyond it",
    "draft extend, accepted 1 to 4",
    "draft graph, captured shorter",
)


def quick_rows() -> tuple[Row, ...]:
    by_edge = {line.edge: line for line in rows()}
    return tuple(by_edge[edge] for edge in _QUICK)
