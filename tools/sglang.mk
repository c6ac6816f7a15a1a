# SGLang releases side by side, for `attn-harness run --adapter 'sglang-*'` and the tests in tests/sglang.
#   make sglang SGLANG='0.5.12 0.5.13'   lay them out in .sglang/ (once)
#   make test-sglang                     run SGLang's own backends on this machine's CPU
SGLANG ?= 0.5.12 0.5.13

.PHONY: sglang test-sglang

sglang: $(SETUP)
	$(BIN) tools/unpack_sglang.py $(SGLANG)

test-sglang: sglang
	$(BIN) -m pytest tests/sglang -m 'nightly or not nightly' $(ARGS)
