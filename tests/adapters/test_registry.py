"""Listing is honest and cheap; loading fails in one sentence."""

import subprocess
import sys

import pytest

from harness.adapter_check import protocol_problems
from harness.adapters.registry import AdapterError, available, load_adapter, match
from harness.emulation.hooks import Hooks
from harness.errors import UsageError

REAL = ("flashinfer-swa-merge", "flashinfer-paged-fa2", "flashinfer-paged-fa3", "flash-attn-4", "flash-attn-3")


def test_every_real_path_has_an_emulation_that_says_so():
    entries = {entry.name: entry for entry in available()}
    for name in REAL:
        assert not entries[name].emulated
        assert entries[f"{name}@emulated"].emulated
        emulated = load_adapter(f"{name}@emulated")
        assert emulated.name == f"{name}@emulated"
        assert emulated.devices == ("cpu",)
        assert protocol_problems(emulated) == []


def test_listing_imports_no_kernel_library():
    code = (
        "import sys; from harness.adapters.registry import available; available();"
        "bad = {'flashinfer', 'flash_attn', 'vllm', 'sgl_kernel', 'sglang', 'triton'} & set(sys.modules);"
        "import torch; assert not torch.cuda.is_initialized(); sys.exit(f'imported {bad}' if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_globs():
    assert [entry.name for entry in match(["flash-attn-?@emulated"])] == [
        "flash-attn-4@emulated",
        "flash-attn-3@emulated",
        "flash-attn-2@emulated",
    ]
    assert match(["nothing*"]) == []


def test_what_cannot_be_had_is_told_in_one_sentence(tmp_path):
    with pytest.raises(AdapterError, match="no adapter 'flash-attn-9'"):
        load_adapter("flash-attn-9")
    unavailable = next(entry for entry in available() if entry.why_not is not None)
    with pytest.raises(AdapterError, match="cannot run here"):
        load_adapter(unavailable.name)
    broken = tmp_path / "broken.py"
    broken.write_text("raise RuntimeError('boom')\n")
    with pytest.raises(UsageError, match="boom"):
        load_adapter(f"{broken}:Kernel")
    value = tmp_path / "value.py"
    value.write_text("Kernel = 3\nclass Needs:\n    def __init__(self, x): ...\n")
    with pytest.raises(AdapterError, match="not a class"):
        load_adapter(f"{value}:Kernel")
    with pytest.raises(AdapterError, match="when built without arguments"):
        load_adapter(f"{value}:Needs")


def test_hooks_reach_an_emulated_adapter():
    hooks = Hooks()
    assert load_adapter("flash-attn-3@emulated", hooks).library.hooks is hooks
