# The fuzzer measured on emulated kernels; every study goes on where it was stopped.
#   STUDY='faults'   faults, several, clean, target or table
STUDY     ?= table
STUDY_OUT ?= reports/fuzz/study.jsonl
# What docs/fuzzing.md shows is in reports/studies/fuzz.jsonl: `make fuzz-study STUDY_OUT=reports/studies/fuzz.jsonl`

.PHONY: fuzz fuzz-study fuzz-studies

# `make fuzz ARGS='--adapter flash-attn-4 --minutes 10'`
fuzz: $(SETUP)
	$(BIN) -m harness.cli.main fuzz $(ARGS)

fuzz-study: $(SETUP)
	$(BIN) -m harness.fuzzing.study $(STUDY) --out $(STUDY_OUT) $(ARGS)

fuzz-studies: $(SETUP)
	for study in faults several clean target; do $(BIN) -m harness.fuzzing.study $$study --out $(STUDY_OUT) || exit 1; done
