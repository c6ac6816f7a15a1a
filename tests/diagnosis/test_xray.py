"""X-ray: the matrix of attended keys comes out exact, for right and wrong kernels."""

import pytest
import torch
from black_box import BlackBox, EverySeventhKeySkipped, LastPartialPageSkipped

from cases.schema import AttentionCase, Mode, Request
from harness.diagnosis.rendering import fits_text, save_picture, text_picture, window_edge, worst_place
from harness.diagnosis.xray import LEVEL, attended_matrix, expected_matrix
from harness.diagnosis.xray_words import guess_class, row_differences, say_differences
from harness.faults.catalogue.building import kernel
from harness.faults.protocol import Fault, FaultClass
from harness.faults.registry import load_fault

FA3, FA4, MERGE = "flash-attn-3@emulated", "flash-attn-4@emulated", "flashinfer-swa-merge@emulated"
WINDOW = AttentionCase(requests=(Request(9, 3), Request(0, 4)), window_left=4, page_size=4)


def look(examiner):
    return attended_matrix(examiner.case, lambda data: examiner.run(data, LEVEL)[1].out, examiner.device)


@pytest.mark.parametrize(
    ("case", "adapter"),
    [
        (WINDOW, FA3),
        (WINDOW, MERGE),
        (WINDOW.replace(page_size=16, num_qo_heads=6, num_kv_heads=3), "flash-attn-2@emulated"),
        (AttentionCase(requests=(Request(150, 3), Request(7, 1))), FA4),  # more keys than columns
        (AttentionCase(requests=(Request(9, 3),), sinks=True, logits_soft_cap=2.0), FA4),
        (AttentionCase(requests=(Request(9, 5),), causal=False), "flashinfer-paged-fa2@emulated"),
        (
            AttentionCase(requests=(Request(20, 4), Request(3, 0)), poison="nan", dtype="float16", kv_dtype="float16"),
            FA3,
        ),
    ],
)
def test_a_right_kernel_attends_to_what_it_should(examiner_of, case, adapter):
    attended = look(examiner_of(case, adapter))
    assert torch.equal(attended.times, attended.expected[:, None].long().expand_as(attended.times))
    assert not attended.differs.any()
    assert row_differences(attended) == []


def test_expected_matrix_is_the_visibility_rule():
    expected = expected_matrix(AttentionCase(requests=(Request(2, 2), Request(0, 1)), window_left=1), "cpu")
    assert expected.tolist() == [
        [False, True, True, False, False],
        [False, False, True, True, False],
        [False, False, False, False, True],
    ]


def test_one_key_too_many(examiner_of):
    attended = look(examiner_of(WINDOW, FA3, load_fault("window-one-too-wide")))
    differences = row_differences(attended)
    assert {(d.request, d.position, d.extra, d.missing) for d in differences} == {
        (0, 9, (4,), ()),
        (0, 10, (5,), ()),
        (0, 11, (6,), ()),
    }
    assert guess_class(differences) == "too many keys"
    assert say_differences(WINDOW, differences) == [
        "the key 5 before each query of request 0 is seen and should not be, all left of the window (3 rows)"
    ]


def test_every_seventh_key(examiner_of):
    case = AttentionCase(requests=(Request(40, 2),))
    differences = row_differences(look(examiner_of(case, EverySeventhKeySkipped())))
    assert all(d.missing == (7, 14, 21, 28, 35) for d in differences)
    assert say_differences(case, differences)[0].startswith("keys 7, 14, 21 ... of request 0 (every 7th) are missing")


def test_another_requests_keys(examiner_of):
    case = AttentionCase(requests=(Request(3, 2), Request(4, 2)), page_size=16)
    differences = row_differences(look(examiner_of(case, FA3, load_fault("page-table-rows-shifted"))))
    assert guess_class(differences) == "wrong request"
    first = differences[0]
    assert {request for request, _ in first.foreign} == {1}
    assert "attends to keys 0..3 of request 1" in say_differences(case, differences)[0]


def test_a_missing_page_is_told_as_one(examiner_of):
    case = AttentionCase(requests=(Request(17, 1),), mode=Mode.DECODE)
    without = Fault("x", FaultClass.OTHER, "x", on_kernel=kernel(mask=lambda tile, seen: seen & (tile.positions >= 16)))
    differences = row_differences(look(examiner_of(case, FA3, without)))
    assert say_differences(case, differences) == ["keys 0..15 of request 0 are missing, page 0 of the request"]


@pytest.mark.parametrize(
    ("case", "says"),
    [
        (
            AttentionCase(requests=(Request(40, 5),)),
            "keys 32..44 of request 0 are missing, from the page edge at 32 to the end of the request (5 rows)",
        ),
        (
            AttentionCase(requests=(Request(30, 3),)),  # one row of three sees the key
            "key 32 of request 0 is missing, from the page edge at 32 to the end of the request",
        ),
        (
            AttentionCase(requests=(Request(28, 10),), window_left=3),  # the last rows see no key
            "keys 32..37 of request 0 are missing, from the page edge at 32 to the end of the request (3 rows)",
        ),
        (
            AttentionCase(requests=(Request(40, 5), Request(16, 0), Request(20, 2))),
            "keys from a page edge to the end of the request are missing: from 32 of request 0, 16 of request 2"
            " (7 rows)",
        ),
    ],
)
def test_what_is_missing_from_a_page_edge_on_is_told_so(examiner_of, case, says):
    differences = row_differences(look(examiner_of(case, LastPartialPageSkipped())))
    assert says in say_differences(case, differences)


def test_new_rows_that_begin_a_page_are_told_as_new_rows(examiner_of):
    """Which of the two it is, this case cannot tell."""
    case = AttentionCase(requests=(Request(32, 3),))
    (line,) = say_differences(case, row_differences(look(examiner_of(case, LastPartialPageSkipped()))))
    assert "missing, from the page edge at 32, where the new rows begin, to the end of the request (3 rows)" in line
    case = AttentionCase(requests=(Request(32, 3), Request(16, 2)))
    (line,) = say_differences(case, row_differences(look(examiner_of(case, LastPartialPageSkipped()))))
    assert line.endswith("all of them new rows (5 rows)")


def test_a_page_edge_is_not_named_that_is_not_the_rule(examiner_of):
    """Missing from 33 on, or not to the end of the request, or one after it was seen."""
    case = AttentionCase(requests=(Request(40, 5),))
    for mask in (
        lambda tile, seen: seen & (tile.positions < 33),
        lambda tile, seen: seen & ((tile.positions < 32) | (tile.positions == 44)),
        lambda tile, seen: seen & ((tile.positions < 32) | (tile.positions > 34)),
    ):
        fault = Fault("x", FaultClass.OTHER, "x", on_kernel=kernel(mask=mask))
        differences = row_differences(look(examiner_of(case, FA3, fault)))
        assert differences
        assert "page edge" not in "".join(say_differences(case, differences))


def test_stale_slots(examiner_of):
    case = AttentionCase(requests=(Request(3, 2),), mode=Mode.DRAFT_EXTEND_V2, page_size=16)
    attended = look(examiner_of(case, FA3, load_fault("draft-extend-double-count")))
    assert attended.unowned.amax(1).tolist() == [1, 2]  # queries stand 2 too late: they see 1 and 2 stale slots
    assert guess_class(row_differences(attended)) == "stale slots"


def test_keys_counted_twice(examiner_of):
    case = AttentionCase(requests=(Request(3, 2),), page_size=16)
    attended = look(examiner_of(case, FA3, load_fault("extend-keys-counted-twice")))
    assert attended.times[1, 0].tolist() == [1, 1, 1, 2, 2]
    assert guess_class(row_differences(attended)) == "keys counted twice"


def test_other_kv_head(examiner_of):
    case = AttentionCase(requests=(Request(3, 2),))
    attended = look(examiner_of(case, FA3, load_fault("kv-head-of-next-group")))
    assert attended.kv_head[0].tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    differences = row_differences(attended)
    assert guess_class(differences) == "wrong head"
    assert say_differences(case, differences) == ["another kv head is read (2 rows)"]


def test_rows_that_see_nothing(examiner_of):
    attended = look(
        examiner_of(AttentionCase(requests=(Request(3, 2),)), FA3, load_fault("no-window-is-an-empty-band"))
    )
    assert attended.broken.all()
    assert attended.differs.all()


def test_too_many_keys_for_an_xray_is_refused():
    case = AttentionCase(requests=(Request(5000, 1),))
    with pytest.raises(ValueError, match="shrink the case first"):
        attended_matrix(case, lambda data: pytest.fail("nothing should be run"), "cpu")


# -- drawing -------------------------------------------------------------------------------------
def test_text_picture(examiner_of):
    case = AttentionCase(requests=(Request(4, 3),), window_left=2, num_qo_heads=2, num_kv_heads=1)
    attended = look(examiner_of(case, FA3, load_fault("window-one-too-wide")))
    assert text_picture(attended, 0, 1)[1:] == [
        "     4 .+##|#..",
        "     5 ..+#|##.",
        "     6 ...+|###",
    ]


def test_the_window_s_edge_runs_between_keys():
    """Row by row: left of the first key that it may see, over the whole height of the row."""
    case = AttentionCase(requests=(Request(4, 3),), window_left=5)
    expected = expected_matrix(case, "cpu").tolist()
    keys, rows = window_edge(5, [4, 5, 6])
    for at, position in enumerate((4, 5, 6)):
        assert keys[2 * at : 2 * at + 2] == [expected[at].index(True) - 0.5] * 2
        assert rows[2 * at : 2 * at + 2] == [position - 0.5, position + 0.5]


def test_worst_place_is_the_request_that_is_wrong(examiner_of):
    case = AttentionCase(requests=(Request(2, 1), Request(9, 1)), window_left=4)
    assert worst_place(look(examiner_of(case, FA3, load_fault("window-ignored"))))[0] == 1
    assert fits_text(case, 1)
    assert not fits_text(AttentionCase(requests=(Request(500, 1),)), 0)


def test_picture_is_written(examiner_of, tmp_path):
    pytest.importorskip("matplotlib")
    case = AttentionCase(requests=(Request(130, 20),), window_left=63)
    path = tmp_path / "x.png"
    save_picture(look(examiner_of(case, BlackBox())), 0, 0, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 5000
