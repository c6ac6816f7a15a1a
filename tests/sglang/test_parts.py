"""The parts that need no SGLang: which tree, stand-ins, what production passes, the FlashAttention shim."""

import importlib
import sys

import pytest
import torch

from cases.batch import build_batch
from cases.schema import AttentionCase, Execution, Mode, Request
from harness.adapters.flash_attention import VarlenCall
from harness.adapters.sglang import adapter, entries, forward, pretend, standins, tree
from harness.adapters.sglang.compat import RANGES, compat_for
from harness.adapters.sglang.flash_attn_shim import NOT_PASSED_ON, PARAMETERS, FlashAttnShim
from harness.adapters.sglang.setup import setup_for


def make_tree(root, version="0.5.13"):
    (root / "sglang" / "srt").mkdir(parents=True)
    (root / f"sglang-{version}.dist-info").mkdir()
    return root


@pytest.fixture
def clean_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_the_variable_names_the_tree(tmp_path, monkeypatch, clean_path):
    monkeypatch.setenv(tree.VARIABLE, str(make_tree(tmp_path)))
    found = tree.find_tree()
    assert (found.root, found.version, found.text) == (tmp_path, (0, 5, 13), "0.5.13")
    assert sys.path[0] == str(tmp_path)


def test_a_folder_without_sglang_is_refused_in_one_sentence(tmp_path, monkeypatch, clean_path):
    monkeypatch.setenv(tree.VARIABLE, str(tmp_path))
    with pytest.raises(tree.SglangUnavailable, match="holds no sglang/srt") as refused:
        tree.find_tree()
    assert "\n" not in str(refused.value)


def test_version_from_the_tree_itself(tmp_path, monkeypatch, clean_path):
    root = make_tree(tmp_path)
    (root / "sglang-0.5.13.dist-info").rmdir()
    (root / "sglang" / "_version.py").write_text("__version__ = version = '0.5.12.post1'\n")
    monkeypatch.setenv(tree.VARIABLE, str(root))
    assert tree.find_tree().version == (0, 5, 12)


def test_an_unknown_release_is_refused_by_name(tmp_path):
    with pytest.raises(tree.SglangUnavailable, match=r"SGLang 0\.4\.9 is not known here .*0\.5\.12"):
        compat_for(tree.Tree(tmp_path, (0, 4, 9), "0.4.9"))


@pytest.mark.parametrize(
    ("version", "module"),
    [
        ((0, 5, 12), "v0_5_12"),
        ((0, 5, 13), "v0_5_13"),
        ((0, 5, 15), "v0_5_14"),
        ((0, 5, 16), "v0_5_16"),
        ((0, 5, 18), "v0_5_16"),
        ((0, 5, 21), "v0_5_19"),
        ((0, 5, 22), "v0_5_22"),
        ((0, 5, 23), "v0_5_22"),
    ],
)
def test_a_release_gets_the_file_of_its_range(tmp_path, version, module):
    found = compat_for(tree.Tree(tmp_path, version, ".".join(map(str, version))))
    assert type(found).__module__.rpartition(".")[2] == module


@pytest.mark.parametrize("version", [(0, 5, 11), (0, 5, 24), (0, 6, 0)])
def test_a_release_beside_the_ranges_is_refused(tmp_path, version):
    with pytest.raises(tree.SglangUnavailable, match="is not known here"):
        compat_for(tree.Tree(tmp_path, version, ".".join(map(str, version))))


def test_every_range_has_its_own_file():
    modules = [type(load()).__module__ for _, _, load in RANGES]
    assert len(set(modules)) == len(modules)
    firsts = [first for first, _, _ in RANGES]
    assert firsts == sorted(firsts)


# -- stand-ins -------------------------------------------------------------------------------------
def test_a_stand_in_can_be_imported_from_and_not_called():
    module = standins.StandIn("sgl_kernel")
    with pytest.raises(RuntimeError, match=r"sgl_kernel\.fast_topk is a stand-in and was called"):
        module.fast_topk(1)
    with pytest.raises(RuntimeError, match="stand-in"):
        module.ScalarType()
    assert issubclass(type("Mine", (module.Base,), {}), module.Base.__mro__[-1])


def test_a_pydantic_model_may_name_a_stand_in():
    pydantic = pytest.importorskip("pydantic")
    kind = standins.StandIn("xgrammar").StructuralTag
    model = pydantic.create_model("Message", tag=(kind | None, None))
    assert model(tag=None).tag is None


def test_stand_ins_take_the_place_of_missing_packages_only(monkeypatch):
    monkeypatch.setattr(standins, "STAND_INS", {"json": "there", "no_such_package_here": "missing"})
    assert standins.missing() == ("no_such_package_here",)


def test_the_finder_makes_submodules(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, standins.Finder(frozenset({"no_such_package_here"}))])
    module = importlib.import_module("no_such_package_here.deep.inside")
    assert isinstance(module, standins.StandIn)
    for name in [n for n in sys.modules if n.startswith("no_such_package_here")]:
        monkeypatch.delitem(sys.modules, name)


def test_pretended_cuda_ends_with_the_block():
    before = (torch.cuda.is_available, torch.version.cuda, torch.cuda.get_device_capability)
    with pretend.pretend_cuda():
        assert torch.cuda.is_available()
        assert torch.cuda.get_device_capability() == (9, 0)
        assert torch.zeros(2, device="cuda").device.type == "cpu"
        assert torch.zeros(2).to("cuda").device.type == "cpu"
        assert torch.zeros(2).cuda().device.type == "cpu"
    assert (torch.cuda.is_available, torch.version.cuda, torch.cuda.get_device_capability) == before


# -- what production passes ------------------------------------------------------------------------
REQUESTS = (Request(3, 2), Request(5, 2))


@pytest.mark.parametrize(
    ("mode", "prefix_only", "seq_lens"),
    [
        (Mode.EXTEND, False, [5, 7]),
        (Mode.DRAFT_EXTEND_V2, False, [5, 7]),
        (Mode.DRAFT_EXTEND_V2, True, [3, 5]),
        (Mode.TARGET_VERIFY, False, [3, 5]),
        (Mode.EXTEND, True, [5, 7]),  # the other reading exists for DRAFT_EXTEND_V2 alone
    ],
)
def test_seq_lens_by_mode(mode, prefix_only, seq_lens):
    assert forward.lengths(REQUESTS, mode, prefix_only=prefix_only).seq_lens == seq_lens


def test_a_chain_sees_the_cache_its_ancestors_and_itself():
    mask = forward.chain_mask(forward.Lengths([1, 2], [2, 1], [1, 2]), torch.device("cpu"))
    assert mask.tolist() == [True, True, False, True, True, True, True, True, True]


def test_the_request_pool_holds_every_owned_slot():
    case = AttentionCase(requests=REQUESTS, page_size=4)
    batch = build_batch(case)
    pool = torch.full((5, 64), 7, dtype=torch.int32)
    forward.fill_request_pool(pool, batch)
    rows = forward.request_rows(2)
    assert 0 not in rows
    start = 0
    for row, request in zip(rows, REQUESTS, strict=True):
        new = batch.new_slots[start : start + request.extend_len]
        assert pool[row, request.prefix_len : request.kv_len].tolist() == new.tolist()
        start += request.extend_len
    assert pool[0].eq(0).all()
    assert pool[rows[0], batch.paging.owned[0] * 4 :].eq(0).all()


def test_cases_of_one_kind_share_a_backend():
    def setup(*requests, **fields):
        case = AttentionCase(requests=tuple(Request(*r) for r in requests), pool_pages=40, **fields)
        return setup_for(case, "fa3", torch.device("cpu"), 40, 8)

    assert setup((3, 2), (5, 2)) == setup((9, 4), (1, 1))
    assert setup((3, 2), (5, 2)) != setup((3, 2), (5, 2), window_left=4)
    assert setup((3, 2), mode=Mode.DRAFT_EXTEND_V2).draft_tokens == 2


# -- the shim --------------------------------------------------------------------------------------
class Library:
    """Records its call; gives back ones."""

    def __init__(self):
        self.calls: list[VarlenCall] = []

    def varlen(self, call):
        self.calls.append(call)
        return torch.ones_like(call.q), torch.zeros(call.q.shape[1], call.q.shape[0])


def shim_call(shim, **more):
    pool = torch.zeros(6, 4, 2, 8)
    given = {
        "cache_seqlens": torch.tensor([5, 7], dtype=torch.int32),
        "page_table": torch.zeros(2, 3, dtype=torch.int32),
        "cu_seqlens_q": torch.tensor([0, 2, 4], dtype=torch.int32),
        "max_seqlen_q": 2,
        "softmax_scale": 0.5,
        "causal": True,
        "window_size": (4, 0),
        "softcap": 3.0,
    }
    return shim.flash_attn_with_kvcache(torch.zeros(4, 4, 8), pool, pool, **given | more)


def test_the_shim_passes_on_what_sglang_gives():
    library = Library()
    out = shim_call(FlashAttnShim(library), num_splits=0)
    [call] = library.calls
    assert out.shape == (4, 4, 8)
    assert (call.causal, call.window_size, call.softcap, call.softmax_scale) == (True, (4, 0), 3.0, 0.5)
    assert (call.max_seqlen_q, call.max_seqlen_k, call.num_splits) == (2, 12, None)
    assert call.seqused_k.tolist() == [5, 7]


def test_the_shim_takes_positional_arguments_in_sgl_kernels_order():
    library = Library()
    values = dict.fromkeys(PARAMETERS[:-1])
    values |= {
        "q": torch.zeros(4, 4, 8),
        "k_cache": torch.zeros(6, 4, 2, 8),
        "v_cache": torch.zeros(6, 4, 2, 8),
        "cache_seqlens": torch.tensor([5, 7]),
        "page_table": torch.zeros(2, 3, dtype=torch.int32),
        "max_seqlen_q": 2,
        "window_size": (-1, -1),
        "softcap": 0.0,
        "return_softmax_lse": True,
    }
    out, lse = FlashAttnShim(library).flash_attn_with_kvcache(*values.values())
    assert (out.shape, lse.shape) == ((4, 4, 8), (4, 4))
    assert library.calls[0].window_size == (-1, -1)


@pytest.mark.parametrize("name", sorted({"qv", "k_descale", "cache_leftpad"} & set(NOT_PASSED_ON)))
def test_the_shim_refuses_what_it_would_drop(name):
    with pytest.raises(RuntimeError, match=name):
        shim_call(FlashAttnShim(Library()), **{name: torch.zeros(1)})


def test_a_recorded_call_runs_again_on_the_tensors_as_they_are_then():
    shim = FlashAttnShim(Library())
    shim.record = calls = []
    out = shim_call(shim)
    out.zero_()
    for call in calls:
        call()
    assert out.eq(1).all()
    assert len(shim.library.calls) == 2


# -- what is declared ------------------------------------------------------------------------------
def spec(name):
    return next(s for s in entries.SPECS if s.name == name)


def case(*requests, **fields):
    return AttentionCase(requests=tuple(Request(*r) for r in requests), **fields)


def test_no_sglang_scheduler_sends_uneven_verify_batches():
    fa3 = spec("sglang-fa3").capabilities
    assert fa3.unsupported(case((3, 4), (9, 4), mode=Mode.TARGET_VERIFY)) is None
    assert "same number of draft tokens" in (fa3.unsupported(case((3, 4), (9, 2), mode=Mode.TARGET_VERIFY)) or "")


def test_graphs_are_captured_as_production_does():
    graph = Execution(capture_requests=(Request(9, 4), Request(1, 4)))
    uneven = {"mode": Mode.DRAFT_EXTEND_V2, "execution": graph}
    assert spec("sglang-fa3").capabilities.unsupported(case((3, 4), (9, 2), **uneven)) is None
    assert "row counts" in (spec("sglang-triton").capabilities.unsupported(case((3, 4), (9, 2), **uneven)) or "")
    assert "no graph" in (spec("sglang-flashinfer").capabilities.unsupported(case((3, 4), (9, 4), **uneven)) or "")


def test_the_other_reading_is_driven_for_draft_extends_alone():
    other = spec("sglang-fa3@prefix-seq-lens")
    assert other.prefix_seq_lens
    assert other.capabilities.unsupported(case((3, 2))) == "mode extend is not driven"
    assert other.capabilities.unsupported(case((3, 2), mode=Mode.DRAFT_EXTEND_V2)) is None


def test_only_the_real_names_need_a_gpu(monkeypatch):
    monkeypatch.setattr(entries, "found_tree", lambda: (None, None))
    libraries = entries.Libraries(False, None, lambda: None, lambda: None, lambda: None)
    listed = {e.name: e for e in entries.sglang_entries(libraries)}
    assert listed["sglang-fa3"].why_not == "no CUDA GPU here (without one: sglang-fa3@emulated)"
    assert listed["sglang-triton"].why_not == "no CUDA GPU here"
    assert listed["sglang-fa3@emulated"].why_not is None
    assert listed["sglang-fa3@emulated"].emulated
    assert listed["sglang-torch-native"].why_not is None
    assert not listed["sglang-torch-native"].emulated


def test_an_idle_request_is_refused_everywhere():
    for each in entries.SPECS:
        assert each.capabilities.unsupported(case((3, 2), (4, 0), mode=Mode.DRAFT_EXTEND_V2)) is not None
    assert adapter.SPECULATIVE == (Mode.DRAFT_EXTEND_V2, Mode.TARGET_VERIFY)
