"""The recorder: each kind of batch once, at a limited rate, and never in the way of the server."""

import json
import logging
from types import SimpleNamespace

from cases.schema import AttentionCase, Mode, Request
from harness.recording.recorder import MAX_ERRORS, Recorder, kind_of
from harness.recording.sglang import Layer, case_of, install, layer_of

LAYER = Layer(8, 2, 64, 64, 31, None, 0.125)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now


def case(*requests, **fields):
    return AttentionCase(requests=tuple(Request(*r) for r in requests), **fields)


def recorder(folder, **options):
    return Recorder(folder, clock=Clock(), **options)


def test_a_kind_is_written_once_and_reads_back(tmp_path):
    seen = recorder(tmp_path)
    for prefix in (40, 41, 42):
        seen.see(lambda prefix=prefix: [case((prefix, 5), window_left=31)])
    files = list(tmp_path.glob("*.json"))
    assert len(files) == 1
    assert AttentionCase.from_json(json.loads(files[0].read_text())) == case((40, 5), window_left=31)


def test_a_length_on_another_side_of_an_edge_is_another_kind():
    base = kind_of(case((40, 5), window_left=47))
    assert kind_of(case((41, 5), window_left=47)) == base
    assert kind_of(case((48, 5), window_left=47)) != base  # past the window, and on a page edge
    assert kind_of(case((40, 5), window_left=47, page_size=8)) != base
    assert kind_of(case((40, 5), (40, 5), (40, 5), window_left=47)) != base


def test_the_rate_is_limited_per_minute(tmp_path):
    seen = recorder(tmp_path, per_minute=2)
    for power in range(10):  # one a second
        seen.see(lambda power=power: [case((1 << power, 3))])
    assert seen.written == 2
    seen._clock.now += 120.0
    seen.see(lambda: [case((1 << 12, 3))])
    assert seen.written == 3


def test_between_two_looks_nothing_is_built(tmp_path):
    seen = Recorder(tmp_path, interval=10.0, clock=lambda: 5.0)
    calls = []
    for _ in range(3):
        seen.see(lambda: calls.append(1) or [])
    assert calls == [1]


def test_the_limit_turns_it_off(tmp_path):
    seen = recorder(tmp_path, limit=1)
    seen.see(lambda: [case((4, 3)), case((100, 3))])
    assert seen.written == 1
    assert not seen.is_on


def test_errors_are_logged_and_end_the_recording(tmp_path, caplog):
    seen = recorder(tmp_path)

    def broken():
        raise AttributeError("no field")

    with caplog.at_level(logging.WARNING):
        for _ in range(MAX_ERRORS + 2):
            seen.see(broken)
    assert len(caplog.records) == MAX_ERRORS
    assert "recording is off" in caplog.records[-1].getMessage()
    seen.see(lambda: [case((4, 3))])
    assert not list(tmp_path.iterdir())


def batch(mode, **fields):
    return SimpleNamespace(forward_mode=SimpleNamespace(name=mode), **fields)


def test_extend_takes_the_host_lists():
    got = case_of(LAYER, batch("EXTEND", extend_prefix_lens_cpu=[3, 0], extend_seq_lens_cpu=[2, 5]), 16, "bfloat16")
    assert got is not None
    assert (got.mode, got.requests, got.window_left) == (Mode.EXTEND, ((3, 2), (0, 5)), 31)


def test_decode_counts_the_new_token_into_seq_lens():
    import torch

    got = case_of(LAYER, batch("DECODE", seq_lens_cpu=torch.tensor([7, 1, 99]), batch_size=2), 16, "bfloat16")
    assert got is not None
    assert got.requests == ((6, 1), (0, 1))


def test_verify_does_not_count_the_draft_into_seq_lens():
    spec = SimpleNamespace(draft_token_num=4)
    got = case_of(LAYER, batch("TARGET_VERIFY", seq_lens_cpu=[7, 20], batch_size=2, spec_info=spec), 1, "float16")
    assert got is not None
    assert (got.requests, got.dtype, got.page_size) == (((7, 4), (20, 4)), "float16", 1)


def test_a_draft_extend_graph_gives_prefix_by_difference():
    fields = {"seq_lens_cpu": [11, 24], "extend_prefix_lens_cpu": None, "extend_seq_lens_cpu": [4, 4], "batch_size": 2}
    got = case_of(LAYER, batch("DRAFT_EXTEND_V2", **fields), 16, "bfloat16")
    assert got is not None
    assert got.requests == ((7, 4), (20, 4))


def test_lengths_on_the_device_and_other_modes_are_passed_over():
    on_device = SimpleNamespace(is_cuda=True)
    assert case_of(LAYER, batch("DECODE", seq_lens_cpu=None, batch_size=2), 16, "bfloat16") is None
    assert case_of(LAYER, batch("DECODE", seq_lens_cpu=on_device, batch_size=2), 16, "bfloat16") is None
    assert case_of(LAYER, batch("IDLE", seq_lens_cpu=[3], batch_size=1), 16, "bfloat16") is None


def test_a_layer_without_window_or_cap():
    made = SimpleNamespace(
        tp_q_head_num=8,
        tp_k_head_num=2,
        qk_head_dim=64,
        v_head_dim=64,
        sliding_window_size=-1,
        logit_cap=0.0,
        scaling=0.125,
    )
    assert layer_of(made) == Layer(8, 2, 64, 64, None, None, 0.125)


def test_install_watches_layers_and_planning(tmp_path, monkeypatch):
    class AttentionBackend:
        def init_forward_metadata_out_graph(self, forward_batch, in_capture=False):
            return in_capture

    class RadixAttention:
        def __init__(self):
            self.tp_q_head_num, self.tp_k_head_num, self.qk_head_dim, self.v_head_dim = 8, 2, 64, 64
            self.sliding_window_size, self.logit_cap, self.scaling = 31, 0.0, 0.125

    for name, content in (
        ("sglang.srt.layers.attention.base_attn_backend", {"AttentionBackend": AttentionBackend}),
        ("sglang.srt.layers.radix_attention", {"RadixAttention": RadixAttention}),
    ):
        monkeypatch.setitem(__import__("sys").modules, name, SimpleNamespace(**content))
    for package in ("sglang", "sglang.srt", "sglang.srt.layers", "sglang.srt.layers.attention"):
        monkeypatch.setitem(__import__("sys").modules, package, SimpleNamespace(__path__=[]))
    seen = recorder(tmp_path)
    install(seen)

    class Later(AttentionBackend):
        token_to_kv_pool = SimpleNamespace(page_size=16, dtype="torch.float16")

        def init_forward_metadata(self, forward_batch):
            return "planned"

    RadixAttention()
    extend = batch("EXTEND", extend_prefix_lens_cpu=[3], extend_seq_lens_cpu=[2])
    assert Later().init_forward_metadata(extend) == "planned"
    assert Later().init_forward_metadata_out_graph(extend, in_capture=True) is True  # a capture is no batch
    [file] = tmp_path.glob("*.json")
    body = json.loads(file.read_text())
    assert (body["requests"], body["dtype"], body["page_size"], body["window_left"]) == ([[3, 2]], "float16", 16, 31)
    decode = batch("DECODE", seq_lens_cpu=[8], batch_size=1)
    Later().init_forward_metadata_out_graph(decode)
    assert len(list(tmp_path.glob("*.json"))) == 2
