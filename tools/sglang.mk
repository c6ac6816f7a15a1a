# SGLang releases side by side, for `attn-harness run --adapter 'sglang-*'` and the tests in tests/sglang.
#   make sglang SGLANG='0.5.12 0.5.13'   lay them out in .sglang/ (once)
#   make test-sglang                     run SGLang's own backends on this machine's CPU
#   make vllm, make test-vllm            the same for vLLM, in .vllm/ (its wheel is some 260 MB)
SGLANG ?= 0.5.12 0.5.13
VLLM ?= 0.22.0

.PHONY: sglang test-sglang vllm test-vllm

sglang: $(SETUP)
	$(BIN) tools/unpack_sglang.py $(SGLANG)

test-sglang: sglang
	$(BIN) -m pytest tests/sglang -m 'nightly or not nightly' $(ARGS)

vllm: $(SETUP)
	$(BIN) tools/unpack_vllm.py $(VLLM)

test-vllm: vllm
	$(BIN) -m pytest tests/vllm -m 'nightly or not nightly' $(ARGS)
