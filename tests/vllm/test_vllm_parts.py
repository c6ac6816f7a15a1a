"""The parts that need no vLLM: which tree, stand-ins, the cache write, the FlashAttention shim, what is declared."""

import sys

import pytest
import torch

from cases.schema import AttentionCase, Request
from harness.adapters.vllm import Emulations, adapter, caches, entries, standins, tree
from harness.adapters.vllm.flash_attn_shim import FlashAttnShim
from harness.adapters.vllm.report import vllm_report
from harness.adapters.vllm.runtime import store_with_index_put


def make_tree(root, version="0.22.0"):
    (root / tree.BACKENDS).mkdir(parents=True)
    (root / f"vllm-{version}.dist-info").mkdir()
    return root


@pytest.fixture
def use(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    return lambda root: monkeypatch.setenv(tree.VARIABLE, str(root))


def test_the_variable_names_the_tree(tmp_path, use):
    use(make_tree(tmp_path))
    found = tree.find_tree()
    assert (found.root, found.version) == (tmp_path, "0.22.0")
    assert sys.path[0] == str(tmp_path)


def test_a_folder_with_the_kernels_alone_is_refused(tmp_path, use):
    (tmp_path / "vllm" / "vllm_flash_attn").mkdir(parents=True)
    use(tmp_path)
    with pytest.raises(tree.VllmUnavailable, match="which holds no vllm/v1/attention/backends") as refused:
        tree.find_tree()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("version", ["0.21.3", "0.23.0", "0.2.2"])
def test_an_unknown_release_is_refused_by_name(tmp_path, use, version):
    use(make_tree(tmp_path, version))
    with pytest.raises(tree.VllmUnavailable, match=rf"vLLM {version} is not known here \(known: 0\.22\)"):
        tree.find_tree()


def test_doctor_says_why_not(monkeypatch):
    monkeypatch.setattr(entries, "find_tree", lambda: (_ for _ in ()).throw(tree.VllmUnavailable("no vLLM here.")))
    assert vllm_report(has_gpu=False) == ["no vLLM here."]


def test_doctor_names_what_stands_in(tmp_path, use, monkeypatch):
    use(make_tree(tmp_path))
    monkeypatch.setattr(standins, "STAND_INS", {"no_such_package_here": "nothing"})
    told = " ".join(vllm_report(has_gpu=False))
    assert "vLLM 0.22.0" in told
    assert "no_such_package_here (nothing)" in told
    assert "a plain indexed store" in told
    assert "emulated" in told


def test_only_the_real_names_need_a_gpu_and_a_kernel(tmp_path, use):
    use(make_tree(tmp_path))
    emulations = Emulations(lambda: None, lambda: None)

    def listed(has_gpu):
        return {e.name: e for e in entries.vllm_entries(has_gpu=has_gpu, emulations=emulations)}

    without = listed(False)
    for name in ("vllm-flash-attn", "vllm-flashinfer"):
        assert without[name].why_not == f"no CUDA GPU here (without one: {name}@emulated)"
        assert without[f"{name}@emulated"].why_not is None
    on_gpu = listed(True)
    assert on_gpu["vllm-flash-attn"].why_not == "the vLLM tree has no FlashAttention 3 extension"
    kernels = tmp_path / "vllm" / "vllm_flash_attn"
    kernels.mkdir()
    (kernels / "_vllm_fa3_C.abi3.so").touch()
    on_gpu = listed(True)
    assert on_gpu["vllm-flash-attn"].why_not is None
    assert on_gpu["vllm-flash-attn@fa2"].why_not == "the vLLM tree has no FlashAttention 2 extension"
    assert "real kernels" in on_gpu["vllm-flash-attn@emulated"].why_not


# -- the cache write -------------------------------------------------------------------------------
def write(slots, rows, kind="auto"):
    caches = torch.zeros(2, 3, 4, 1, 2)
    one = torch.ones(())
    key = torch.arange(1.0, 2 * rows + 1).view(rows, 1, 2)
    store_with_index_put(key, -key, caches[0], caches[1], torch.tensor(slots), kind, one, one)
    return key, caches


def test_rows_are_written_to_their_slots():
    key, (k_cache, v_cache) = write([9, 4], 3)  # the third row is padding: slot_mapping decides how many there are
    assert k_cache[2, 1].equal(key[0])
    assert k_cache[1, 0].equal(key[1])
    assert v_cache[1, 0].equal(-key[1])
    assert k_cache.count_nonzero() == 4


def test_a_padding_slot_touches_nobodys_page_alone():
    _, (k_cache, _) = write([-1, 9], 2)
    assert k_cache[1:].count_nonzero() == 2


def test_a_quantised_cache_is_refused():
    with pytest.raises(RuntimeError, match="fp8"):
        write([4], 1, "fp8")


# -- the shim --------------------------------------------------------------------------------------
class Library:
    def __init__(self):
        self.calls = []

    def varlen(self, call):
        self.calls.append(call)
        return call.out, None


def shim_call(library, **changed):
    arguments = {
        "q": torch.zeros(4, 4, 8),
        "k": torch.zeros(6, 16, 2, 8),
        "v": torch.zeros(6, 16, 2, 8),
        "out": torch.zeros(4, 4, 8),
        "cu_seqlens_q": torch.tensor([0, 2, 4]),
        "max_seqlen_q": 2,
        "seqused_k": torch.tensor([5, 7]),
        "max_seqlen_k": 7,
        "softmax_scale": 0.5,
        "causal": True,
        "window_size": [3, 0],
        "block_table": torch.zeros(2, 3, dtype=torch.int32),
        "softcap": 2.0,
        "num_splits": 0,
        "s_aux": None,
    }
    FlashAttnShim(library)(**{**arguments, **changed})


def test_the_shim_passes_everything_on():
    library = Library()
    shim_call(library, k_descale=torch.ones(2, 2))
    call = library.calls[0]
    assert (call.window_size, call.softcap, call.softmax_scale, call.causal) == ((3, 0), 2.0, 0.5, True)
    assert (call.max_seqlen_q, call.max_seqlen_k, call.num_splits) == (2, 7, None)


@pytest.mark.parametrize("dropped", ["alibi_slopes", "scheduler_metadata", "q_descale", "fa_version"])
def test_the_shim_refuses_what_it_would_drop(dropped):
    value = 2 if dropped == "fa_version" else torch.full((2,), 0.5)
    with pytest.raises(RuntimeError, match="emulated"):
        shim_call(Library(), **{dropped: value})


# -- what is declared ------------------------------------------------------------------------------
def case(*requests, **fields):
    return AttentionCase(requests=tuple(Request(*r) for r in requests), page_size=16, **fields)


def test_pages_are_those_of_vllm():
    assert adapter.FLASH_ATTENTION.unsupported(case((3, 2))) is None
    assert "16" in (adapter.FLASH_ATTENTION.unsupported(case((3, 2)).replace(page_size=8)) or "")


def test_the_cache_is_halved_along_its_first_dimension_alone():
    cache = caches.PairedCache(torch.zeros(1), torch.ones(1))
    assert cache.unbind(0)[1].equal(torch.ones(1))
    with pytest.raises(RuntimeError, match="dimension 0"):
        cache.unbind(1)
