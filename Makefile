# `make run` runs the main job on what is here; `make test` passes the tests. Both set everything up.
#   TORCH_SPEC='torch==2.11.0'   which torch to have in .venv (default: see below); another one is installed over it
#   NO_INSTALL=1                 use the python that is there, install nothing (no network needed)
#   ARGS='...'                   more arguments for attn-harness run / pytest

VENV   ?= .venv
PYTHON ?= python3
ARGS   ?=

ifdef NO_INSTALL
BIN      := $(PYTHON)
SETUP    := needs
else
BIN      := $(VENV)/bin/python
SETUP    := $(VENV)/.installed
endif

export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))

.PHONY: run test lint setup needs clean help

help:
	@sed -n 's/^# //p' $(MAKEFILE_LIST) | head -n 4

setup: $(SETUP)

# Where $(PYTHON) has a torch that sees a GPU, that torch and the libraries beside it are what there is to test: .venv
# sees them, and only what is missing is installed. Elsewhere a pinned release that runs on a CPU is taken.
SEES_GPU ?= $(if $(wildcard /dev/nvidia0),$(shell $(PYTHON) -c 'import torch; print("yes" * torch.cuda.is_available())' 2>/dev/null))
ifeq ($(origin TORCH_SPEC),undefined)
TORCH_SPEC := $(if $(filter yes,$(SEES_GPU)),,torch==2.13.0)
endif

# The stamp holds what was asked for: another torch than that is installed over it.
ifneq ($(strip $(TORCH_SPEC)),$(strip $(shell cat $(VENV)/.installed 2>/dev/null)))
.PHONY: $(VENV)/.installed
endif

$(VENV)/.installed: pyproject.toml
	@echo "setting up $(VENV) ($(TORCH_SPEC)); this happens once for each torch"
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
ifeq ($(SEES_GPU),yes)
	@$(VENV)/bin/python tools/see_packages_of.py $(PYTHON)
endif
ifneq ($(strip $(TORCH_SPEC)),)
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH_SPEC)
	@echo "torch is there, now the rest"
endif
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@printf '%s\n' '$(TORCH_SPEC)' > $@

# What the python that is there must have.
NEEDS := torch numpy typer rich jinja2 matplotlib hypothesis pytest xdist transformers
needs:
	@$(PYTHON) -c "import importlib.util, sys; missing = [n for n in sys.argv[1:] if importlib.util.find_spec(n) is None]; missing and sys.exit('NO_INSTALL=1 uses $(PYTHON), which lacks ' + ', '.join(missing) + '; install them, or leave NO_INSTALL out.')" $(NEEDS)

run: $(SETUP)
	$(BIN) -m harness.cli.main run $(ARGS)

test: $(SETUP)
	$(BIN) -m pytest -n auto $(ARGS)

lint: $(SETUP)
	$(BIN) -m ruff check .
	$(BIN) -m ruff format --check .
	$(BIN) -m mypy

include tools/sglang.mk
include tools/fuzz.mk

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
