"""The parts of a repro that shows an overwritten kv cache: the pools kept before the call, and compared after it."""

from __future__ import annotations

from cases.schema import AttentionCase, KvLayout

OVERWRITTEN = "slots of the kv cache were overwritten"  # what such a script prints
BITS = {"bfloat16": "int16", "float16": "int16", "float32": "int32"}


def kept_text() -> str:
    return "\n".join(["", "POOLS = (k_pool, v_pool)", "BEFORE = [pool.clone() for pool in POOLS]"])


def compared_text(case: AttentionCase) -> str:
    """Bit by bit, for unused slots hold NaN; the slots of new rows may be written."""
    heads = 2 if case.kv_layout is KvLayout.NHD else 1
    return f"""
changed = torch.zeros(NUM_PAGES, PAGE, dtype=torch.bool, device=DEV)
for pool, was in zip(POOLS, BEFORE):
    pool, was = (x.view(torch.{BITS[case.dtype]}) for x in (pool, was))
    changed |= (pool != was).any(3).any({heads})
changed.view(-1)[[slot for (p, e), slots in zip(REQUESTS, SLOTS) for slot in slots[p : p + e]]] = False  # new rows
at = changed.view(-1).nonzero().flatten().tolist()
print(f"{{len(at)}} {OVERWRITTEN}: {{[(slot // PAGE, slot % PAGE) for slot in at[:4]]}} (page, offset)")
raise SystemExit(int(changed.any()))"""
