# Each target makes the virtual environment that it needs from a bare Python (3.11 or newer) and
# re-uses it until pyproject.toml changes. `make PYTHON=python3.12 test` picks another Python.

PYTHON ?= python3
VENV   := .venv
BENCH  := .venv-bench
DOCS   := .venv-docs
FLOWER := .venv-flower
ARGS   ?=
FLOWER_TESTS ?= flower

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-slow test-flower lint messages bench bench-federation docs study clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(VENV)/.stamp ## only set up the environment of demo, test and lint

demo: $(VENV)/.stamp ## fit a made-up air-quality federation and write ./pfedhgp-demo/report.html
	$(VENV)/bin/pfedhgp demo $(ARGS)

test: $(VENV)/.stamp ## the tests, without the slow ones (ARGS="-k name" picks some)
	$(VENV)/bin/python -m pytest -m "not slow and not flower" -n 2 --dist loadfile $(ARGS) tests

test-slow: $(VENV)/.stamp ## the tests marked slow
	$(VENV)/bin/python -m pytest -m "slow and not flower" -n 2 --dist worksteal $(ARGS) tests

test-flower: $(FLOWER)/.stamp ## federations of real processes over Flower, on loopback, and masks
	PFEDHGP_REQUIRE_FLOWER=1 JAX_COMPILATION_CACHE_DIR=$(CURDIR)/$(FLOWER)/compiled \
	  JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 \
	  $(FLOWER)/bin/python -m pytest -m '$(FLOWER_TESTS)' -n 2 --dist worksteal $(ARGS) tests/federation tests/page

lint: $(VENV)/.stamp ## formatting, lint rules, the order of imports and types
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	PYTHONPATH=src $(VENV)/bin/lint-imports --no-cache
	$(VENV)/bin/mypy

messages: $(VENV)/.stamp ## docs/messages.md, from the schema of the messages
	$(VENV)/bin/python docs/make_messages.py

bench: $(BENCH)/.stamp ## timings: whole fits, and against LAPACK, scikit-learn and GPyTorch
	$(BENCH)/bin/python -m bench $(ARGS)

bench-federation: $(FLOWER)/.stamp ## what a round over Flower costs, beside an app that does nothing
	$(FLOWER)/bin/python -m bench.federation $(ARGS)

docs: $(DOCS)/.stamp ## the site: pages, and the reference from docstrings, in build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs build --quiet --strict --site-dir build/site
	@echo "build/site/index.html"

# On two cores, by reckoning: 40 minutes, 11 more for algorithm1 and some 20 for stability; resumed where it was
# left. Minutes on a GPU: ARGS="--device gpu".
study: $(VENV)/.stamp ## the paper's numerical study in full, into build/study and docs/study.md
	$(VENV)/bin/pfedhgp reproduce synthetic --out build/study/synthetic $(ARGS)
	$(VENV)/bin/pfedhgp reproduce stability --out build/study/stability $(ARGS)
	$(VENV)/bin/python -m pfedhgp.studies.common.document docs/study.md synthetic=build/study/synthetic stability=build/study/stability

clean: ## remove environments, caches and build outputs
	rm -rf $(VENV) $(BENCH) $(DOCS) $(FLOWER) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.stamp: EXTRAS := test
$(BENCH)/.stamp: EXTRAS := bench
$(DOCS)/.stamp: EXTRAS := docs,flower
$(FLOWER)/.stamp: EXTRAS := test,flower
$(VENV)/.stamp $(BENCH)/.stamp $(DOCS)/.stamp $(FLOWER)/.stamp: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@echo "installing pfedhgp[$(EXTRAS)] into $(@D)"
	@$(@D)/bin/python -m pip install -qq --disable-pip-version-check --editable '.[$(EXTRAS)]'
	@touch $@
