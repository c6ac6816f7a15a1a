"""The schema: exact round trips, ids that never move, and one sentence for everything refused."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import AttentionCase, CaseError, Execution, Mode, PageOrder, Poison, Request
from cases.schema import RECIPES, KvLayout, pages_owned

ONE = (Request(3, 2),)


def case(**changes: object) -> AttentionCase:
    return AttentionCase(**{"requests": ONE, **changes})


lengths = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 500)), min_size=1, max_size=5)
positive_floats = st.floats(min_value=1e-300, max_value=1e300, allow_nan=False)


@st.composite
def any_cases(draw: st.DrawFn) -> AttentionCase:
    """Anything the schema takes, with no regard to what a kernel could run."""
    kv_heads = draw(st.integers(1, 9))
    dtype = draw(st.sampled_from(["bfloat16", "float16", "float32"]))
    fp8 = draw(st.booleans())
    requests = draw(lengths)
    captured = [[p, max(e for _, e in requests)] for p, _ in draw(st.permutations(requests))]
    return AttentionCase(
        requests=requests,
        mode=draw(st.sampled_from([mode for mode in Mode if mode is not Mode.DECODE])),
        num_qo_heads=kv_heads * draw(st.integers(1, 9)),
        num_kv_heads=kv_heads,
        head_dim_qk=draw(st.integers(1, 300)),
        head_dim_vo=draw(st.integers(1, 300)),
        dtype=dtype,
        kv_dtype="float8_e5m2" if fp8 else dtype,
        k_scale=draw(positive_floats) if fp8 else 1.0,
        causal=draw(st.booleans()),
        window_left=draw(st.none() | st.integers(0, (1 << 31) - 1)),
        logits_soft_cap=draw(st.none() | positive_floats),
        sinks=draw(st.booleans()),
        sm_scale=draw(st.none() | positive_floats),
        page_size=draw(st.integers(1, 300)),
        page_order=draw(st.sampled_from(PageOrder)),
        kv_layout=draw(st.sampled_from(KvLayout)),
        poison=draw(st.sampled_from(Poison)),
        execution=Execution(
            capture_requests=draw(st.sampled_from([None, captured])),
            num_splits=draw(st.none() | st.integers(1, 99)),
            workspace=draw(st.sampled_from(["clean", "dirty"])),
        ),
        recipe=draw(st.sampled_from(RECIPES)),
        seed=draw(st.integers(0, (1 << 63) - 1)),
    )


@given(any_cases())
@settings(max_examples=200, deadline=None)
def test_json_round_trip_is_exact(original: AttentionCase) -> None:
    read = AttentionCase.from_json(json.loads(original.canonical()))
    assert read == original
    assert read.canonical() == original.canonical()
    assert read.id == original.id
    assert hash(read) == hash(original)


@given(any_cases())
@settings(max_examples=50, deadline=None)
def test_reading_does_not_depend_on_key_order(original: AttentionCase) -> None:
    backwards = dict(reversed(original.to_json().items()))
    assert AttentionCase.from_json(backwards).id == original.id


@pytest.mark.parametrize("numbers", [(1,), (1, 2, 3)])
def test_a_request_of_another_length_is_refused(numbers: tuple[int, ...]) -> None:
    with pytest.raises(CaseError, match=r"requests\[1\] is .*; give two integers"):
        AttentionCase(requests=(Request(3, 2), tuple.__new__(Request, numbers)))


# Pinned: an id that moves orphans every record, baseline and corpus file ever written.
PINNED_IDS = {
    "default": (case(), "092c6cc24f07"),
    "target": (
        AttentionCase(requests=((40, 50), (100, 70)), window_left=31, page_size=1, dtype="float16", kv_dtype="float16"),
        "90f03518cc11",
    ),
    "everything": (
        AttentionCase(
            requests=((300, 1), (5, 4)),
            mode=Mode.DRAFT_EXTEND_V2,
            num_qo_heads=7,
            num_kv_heads=1,
            head_dim_qk=128,
            head_dim_vo=64,
            kv_dtype="float8_e4m3fn",
            k_scale=1.5,
            v_scale=0.1,
            causal=False,
            window_left=0,
            logits_soft_cap=50.0,
            sinks=True,
            sm_scale=0.3,
            page_size=64,
            page_order=PageOrder.FAR_END,
            pool_pages=999,
            kv_layout=KvLayout.HND,
            poison=Poison.NAN,
            execution=Execution(((9, 4), (9, 4)), 3, "dirty"),
            recipe="spiky",
            seed=123456789012345,
        ),
        "ad3d881e3e04",
    ),
}


@pytest.mark.parametrize("name", PINNED_IDS)
def test_id_is_pinned(name: str) -> None:
    built, expected = PINNED_IDS[name]
    assert built.id == expected


# One change of each field, from a case that allows them all.
FP8 = case(kv_dtype="float8_e4m3fn")
ONE_CHANGE: dict[str, object] = {
    "requests": ((3, 3),),
    "mode": "target_verify",
    "num_qo_heads": 4,
    "num_kv_heads": 4,
    "head_dim_qk": 128,
    "head_dim_vo": 128,
    "dtype": "float16",
    "kv_dtype": "float8_e5m2",
    "k_scale": 1.5,
    "v_scale": 1.5,
    "causal": False,
    "window_left": 0,
    "logits_soft_cap": 50.0,
    "sinks": True,
    "sm_scale": 0.125,
    "page_size": 64,
    "page_order": "reversed",
    "pool_pages": 99,
    "kv_layout": "HND",
    "poison": "nan",
    "execution": Execution(workspace="dirty"),
    "recipe": "small",
    "seed": 1,
}


def test_every_field_is_part_of_the_id() -> None:
    assert set(ONE_CHANGE) == {field.name for field in dataclasses.fields(AttentionCase)}
    ids = {FP8.replace(**{name: value}).id for name, value in ONE_CHANGE.items()}
    assert len(ids | {FP8.id}) == len(ONE_CHANGE) + 1


def test_lists_and_strings_equal_tuples_and_enums() -> None:
    loose = AttentionCase(
        requests=[[3, 2], (4, 1)],  # type: ignore[arg-type]
        mode="draft_extend_v2",  # type: ignore[arg-type]
        page_order="reversed",  # type: ignore[arg-type]
        poison="nan",  # type: ignore[arg-type]
        sm_scale=1,
        execution=Execution(capture_requests=[[3, 2], [9, 2]]),  # type: ignore[arg-type]
    )
    strict = AttentionCase(
        requests=(Request(3, 2), Request(4, 1)),
        mode=Mode.DRAFT_EXTEND_V2,
        page_order=PageOrder.REVERSED,
        poison=Poison.NAN,
        sm_scale=1.0,
        execution=Execution(capture_requests=(Request(3, 2), Request(9, 2))),
    )
    assert loose == strict
    assert loose.id == strict.id
    assert isinstance(loose.requests[0], Request)
    assert loose.mode is Mode.DRAFT_EXTEND_V2


def test_sizes() -> None:
    built = AttentionCase(requests=((3, 2), (0, 7), (10, 0)), num_qo_heads=12, num_kv_heads=4, head_dim_qk=64)
    assert (built.num_requests, built.total_q, built.total_kv) == (3, 9, 22)
    assert (built.max_extend_len, built.max_kv_len, built.group_size, built.scale) == (7, 10, 3, 0.125)
    assert built.replace(sm_scale=0.3).scale == 0.3


@pytest.mark.parametrize(
    ("request_", "page_size", "pages"),
    [((0, 0), 16, 0), ((0, 1), 1, 2), ((15, 1), 16, 2), ((14, 1), 16, 1), ((16, 0), 16, 1), ((17, 0), 16, 2)],
)
def test_a_request_owns_pages_for_one_extend_more(request_: tuple[int, int], page_size: int, pages: int) -> None:
    assert pages_owned(Request(*request_), page_size) == pages


REFUSED = [
    ({"requests": ()}, "requests is empty or no list; give at least one [prefix_len, extend_len]."),
    ({"requests": "3+2"}, "requests is empty or no list; give at least one [prefix_len, extend_len]."),
    ({"requests": [[1, 2], [3]]}, "requests[1] is [3]; give two integers [prefix_len, extend_len]."),
    ({"requests": [[1, 2.0]]}, "requests[0] is [1, 2.0]; give two integers [prefix_len, extend_len]."),
    ({"requests": [[1, True]]}, "requests[0] is [1, True]; give two integers [prefix_len, extend_len]."),
    ({"requests": [[-1, 2]]}, "requests[0] is [-1, 2]; lengths must not be negative."),
    ({"requests": [[1 << 31, 2]]}, "requests[0] is [2147483648, 2]; a request must stay below 2**31 keys."),
    ({"requests": [[5, 0]]}, "no request has a new row; give at least one extend_len above 0."),
    (
        {"mode": "prefill"},
        "mode is 'prefill'; use one of 'extend', 'draft_extend_v2', 'decode', 'target_verify'.",
    ),
    ({"mode": "decode"}, "mode is decode but a request extends by 2; use 1 (or mode extend)."),
    (
        {"page_order": None},
        "page_order is None; use one of 'contiguous', 'reversed', 'shuffled', 'interleaved', 'far_end'.",
    ),
    ({"kv_layout": "nhd"}, "kv_layout is 'nhd'; use one of 'NHD', 'HND'."),
    ({"poison": "inf"}, "poison is 'inf'; use one of 'zero', 'finite', 'nan'."),
    ({"num_qo_heads": 0}, "num_qo_heads is 0; give a positive integer."),
    ({"num_kv_heads": 1.0}, "num_kv_heads is 1.0; give a positive integer."),
    ({"head_dim_qk": "64"}, "head_dim_qk is '64'; give a positive integer."),
    ({"head_dim_vo": True}, "head_dim_vo is True; give a positive integer."),
    ({"page_size": -16}, "page_size is -16; give a positive integer."),
    ({"page_size": 1 << 31}, "page_size is 2147483648; it must be below 2**31."),
    (
        {"num_qo_heads": 8, "num_kv_heads": 3},
        "num_qo_heads 8 is no multiple of num_kv_heads 3; change one so that it divides.",
    ),
    ({"dtype": "bf16"}, "dtype is 'bf16'; use one of bfloat16, float16, float32."),
    (
        {"kv_dtype": "int8"},
        "kv_dtype is 'int8'; use one of bfloat16, float16, float32, float8_e4m3fn, float8_e5m2.",
    ),
    (
        {"dtype": "float16"},
        "kv_dtype bfloat16 differs from dtype float16; make them equal or use an fp8 kv_dtype.",
    ),
    ({"causal": 1}, "causal is 1; give true or false."),
    ({"sinks": None}, "sinks is None; give true or false."),
    ({"k_scale": "1"}, "k_scale is '1'; give a number."),
    ({"v_scale": None, "kv_dtype": "float8_e5m2"}, "v_scale is null; give a number."),
    ({"v_scale": 1e-30, "kv_dtype": "float8_e5m2"}, "v_scale is 1e-30; give 1e-9 to 1e9."),
    ({"v_scale": 0, "kv_dtype": "float8_e5m2"}, "v_scale is 0.0; give a positive finite number."),
    (
        {"k_scale": 2},
        "k_scale and v_scale apply to an fp8 cache only; set them to 1 or kv_dtype bfloat16 to an fp8 type.",
    ),
    ({"logits_soft_cap": -1}, "logits_soft_cap is -1.0; give a positive finite number or null."),
    ({"logits_soft_cap": True}, "logits_soft_cap is True; give a number."),
    ({"sm_scale": float("nan")}, "sm_scale is nan; give a positive finite number or null."),
    ({"sm_scale": 10**400}, "sm_scale is inf; give a positive finite number or null."),
    ({"window_left": -1}, "window_left is -1; give an integer of 0 or more or null."),
    ({"window_left": 4.0}, "window_left is 4.0; give an integer of 0 or more or null."),
    (
        {"window_left": 1 << 31},
        "window_left is 2147483648; it must be below 2**31 (libraries keep it in an int32).",
    ),
    ({"seed": None}, "seed is None; give an integer of 0 or more."),
    ({"seed": 1 << 63}, "seed is 9223372036854775808; it must be below 2**63."),
    ({"recipe": ""}, "recipe is ''; use one of normal, small, spiky, sunken."),
    (
        {"pool_pages": 2},
        "pool_pages is 2 but the requests own 1 pages and 2 must stay spare; give 3 or more, or null.",
    ),
    (
        {"pool_pages": 1 << 31},
        "pool_pages is 2147483648; it must be below 2**31 (libraries keep it in an int32).",
    ),
    ({"execution": None}, "execution is None; give an Execution."),
    ({"execution": Execution(num_splits=0)}, "execution.num_splits is 0; give a positive integer or null."),
    ({"execution": Execution(workspace="used")}, "execution.workspace is 'used'; use one of clean, dirty."),
    (
        {"execution": Execution(capture_requests=())},
        "execution.capture_requests is empty or no list; give at least one [prefix_len, extend_len].",
    ),
    (
        {"execution": Execution(capture_requests=((1, 2), (1, 2)))},  # type: ignore[arg-type]
        "execution.capture_requests has 2 requests, the case 1; a graph is replayed on as many as it was captured for.",
    ),
    (
        {"execution": Execution(capture_requests=((9, 1),))},  # type: ignore[arg-type]
        "execution.capture_requests has fewer new rows than the case; a graph's query buffers are "
        "sized at capture, so capture at least as many.",
    ),
]


@pytest.mark.parametrize(("changes", "sentence"), REFUSED, ids=[sentence[:40] for _, sentence in REFUSED])
def test_refused_in_one_sentence(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(CaseError) as refusal:
        case(**changes)
    assert str(refusal.value) == sentence


def _body(**changes: object) -> dict[str, object]:
    body: dict[str, object] = {"schema_version": 1, "requests": [[3, 2]]}
    return body | changes


REFUSED_JSON = [
    ([], "a case is a JSON object, not list; see `attn-harness list schema`."),
    ({"requests": [[3, 2]]}, 'the case has no schema_version; add "schema_version": 1.'),
    (_body(schema_version="1"), "schema_version is '1'; this release reads version 1."),
    (_body(schema_version=True), "schema_version is True; this release reads version 1."),
    (_body(schema_version=2), "schema_version is 2, this release reads up to 1; update attn-harness."),
    (_body(window=31, layout="NHD"), "the case has unknown fields layout, window; remove them."),
    (_body(execution={"splits": 2}), "execution has unknown fields splits; remove them."),
    (_body(execution="eager"), "execution is 'eager'; give an object."),
    ({"schema_version": 1}, 'the case has no requests; add "requests": [[prefix_len, extend_len], ...].'),
    (_body(requests={"0": [3, 2]}), "requests is empty or no list; give at least one [prefix_len, extend_len]."),
    (
        _body(execution={"capture_requests": 3}),
        "execution.capture_requests is empty or no list; give at least one [prefix_len, extend_len].",
    ),
]


@pytest.mark.parametrize(("body", "sentence"), REFUSED_JSON, ids=[sentence[:40] for _, sentence in REFUSED_JSON])
def test_json_refused_in_one_sentence(body: object, sentence: str) -> None:
    with pytest.raises(CaseError) as refusal:
        AttentionCase.from_json(body)
    assert str(refusal.value) == sentence


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
field_names = st.sampled_from([field.name for field in dataclasses.fields(AttentionCase)])


@given(st.dictionaries(field_names, json_values, min_size=1, max_size=3))
@settings(max_examples=300, deadline=None)
def test_no_json_ends_in_anything_but_a_case_or_a_case_error(values: dict[str, object]) -> None:
    built, sentence = _read(_body(**values))
    if built is None:
        assert sentence.endswith(".")
        assert "\n" not in sentence
    else:
        assert AttentionCase.from_json(built.to_json()) == built


def _read(body: object) -> tuple[AttentionCase | None, str]:
    try:
        return AttentionCase.from_json(body), ""
    except CaseError as refusal:
        return None, str(refusal)


def test_missing_fields_take_their_defaults() -> None:
    assert AttentionCase.from_json({"schema_version": 1, "requests": [[3, 2]]}) == case()


@pytest.mark.parametrize(
    ("built", "name"),
    [
        (case(), "extend-3+2-full-8x2h64-bf16-p16"),
        (case(window_left=4, seed=7), "extend-3+2-L4-8x2h64-bf16-p16-s7"),
        (
            AttentionCase(requests=((1, 1),) * 6, mode="decode", page_size=1, sinks=True, logits_soft_cap=2.5),
            "decode-1+1_1+1_1+1_1+1_and2more-full-8x2h64-bf16-p1-cap2.5-sinks",
        ),
        (
            PINNED_IDS["everything"][0],
            "draft_extend_v2-300+1_5+4-L0-7x1h128v64-bf16-kv-e4m3-p64-bidirectional-cap50-sinks-graph-split3-dirty"
            "-far_end-HND-nan-spiky-s123456789012345",
        ),
    ],
)
def test_names_say_what_is_unusual(built: AttentionCase, name: str) -> None:
    assert built.name == name


def test_the_words_of_a_case_are_still_imported_from_the_schema() -> None:
    """Outside adapters and case files were written against cases.schema before it was split."""
    from cases import schema, vocabulary

    for name in schema.__all__:
        assert getattr(schema, name) is not None
    assert all(getattr(schema, n) is getattr(vocabulary, n) for n in schema.__all__ if hasattr(vocabulary, n))
    assert {"Mode", "Poison", "pages_owned", "MIN_SPARE_PAGES", "DTYPES"} <= set(schema.__all__)
