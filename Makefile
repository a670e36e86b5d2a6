# `make` alone prints the targets. Each one makes what it needs first and says what it is doing.

SHELL := bash
VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.coopstreams
LIGHT := $(VENV)/.coopstreams-demo
SITE  := $(VENV)/.coopstreams-site
RELEASE := $(VENV)/.coopstreams-release
NATIVE := $(VENV)/.coopstreams-native
ARGS  ?=
# Tests wait as often as they work, so there are four processes (six are no faster on two cores): one has the tests that need Spark,
# and all share one broker. ARGS='-n 0 …' is one process. tests/dealing.py says which process gets which test.
PYTEST := $(BIN)/python -m pytest -n 4 --dist loadscope --no-loadscope-reorder

# Tests and demonstrations start processes by the hundred: each module is compiled once, also where the environment says otherwise.
export PYTHONDONTWRITEBYTECODE :=

# The crates that native/ needs are compiled once for all checkouts.
export CARGO_TARGET_DIR ?= $(or $(COOPSTREAMS_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/coopstreams)/cargo

.DEFAULT_GOAL := help
.PHONY: help setup setup-demo pin check check-mypy check-pyright check-simulation check-native format test test-ci test-slow test-oldest test-newest release demo pictures demo-backfill bench docs site

help: ## print this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# Install $(1). With uv, `make setup` takes less than half the time (2:27, not 5:14), but uv does not read pip's settings: a mirror, a proxy.
get = $(BIN)/python -m pip install --disable-pip-version-check --quiet uv && $(BIN)/uv pip install --python $(BIN)/python --system-certs $(1) || \
{ echo "setup: uv could not install it, see above; pip tries, with its own settings"; $(BIN)/python -m pip install --disable-pip-version-check $(1); }

# Make the virtual environment and install coopstreams with the extra $(1); $(2) is for people.
define install
set -euo pipefail; \
if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	for candidate in "$${PYTHON:-}" python3.11 python3.12 python3.13 python3.14 python3 python; do \
		[ -n "$$candidate" ] || continue; \
		if "$$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$candidate; break; fi; \
	done; \
	if [ -z "$${found:-}" ]; then \
		echo "setup: no Python 3.11 or newer with the venv module was found (looked for python3.11 … python3.14, python3, python)." >&2; \
		echo "       Install one (Debian, Ubuntu: apt install python3 python3-venv; macOS: brew install python), or name it: make setup PYTHON=/path/to/python3" >&2; \
		exit 1; \
	fi; \
	echo "setup: making $(VENV) with $$found ($$("$$found" -c 'import platform; print(platform.python_version())'))"; \
	"$$found" -m venv $(VENV); \
fi; \
echo "setup: installing coopstreams with $(2) into $(VENV)"; \
$(call get,--editable '.[$(1)]'); \
touch $@; \
echo "setup: done"
endef

setup: $(STAMP) $(NATIVE) ## make .venv with coopstreams (editable), PySpark, all tools and, where cargo is, native/; again only after a change

setup-demo: $(LIGHT) ## the same with only what the demo needs: no PySpark, no tools

$(STAMP): pyproject.toml
	@$(call install,check,PySpark and its tools (the first time this downloads about 600 MB))
	@echo "setup: compiling the tests once, for all processes that run them"
	@$(BIN)/python -m pytest --collect-only --quiet >/dev/null || true # make test says what cannot be imported

# Pure Python does the same, so nothing stops where the extension cannot be built.
$(NATIVE): $(wildcard native/src/*.rs) native/Cargo.toml native/Cargo.lock native/pyproject.toml | $(STAMP)
	@if ! command -v cargo >/dev/null; then \
		echo "setup: no cargo was found, so native/ is not built: pure Python runs"; \
	else \
		echo "setup: building native/ (Rust, about half a minute)"; \
		$(call get,--quiet ./native) || \
			echo "setup: native/ was not built, see above: pure Python runs; 'pip install ./native' tries again"; \
		touch $@; \
	fi

$(LIGHT): pyproject.toml
	@if [ $(STAMP) -nt $< ]; then touch $@; else $(call install,dev,what the demo needs (the first time this downloads about 20 MB)); fi

$(SITE): pyproject.toml
	@$(call install,site,what builds the documentation site (the first time this downloads about 140 MB))

$(RELEASE): pyproject.toml
	@$(call install,release,what builds a release (the first time this downloads about 150 MB))

check: setup ## format, lint, types, import rules, a simulated group of each program
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target check-mypy check-pyright check-simulation check-native

check-mypy:
	$(BIN)/mypy

check-pyright:
	$(BIN)/pyright

check-simulation:
	$(BIN)/python -m tests.simulation --seeds 0..24

check-native:
	@if cargo clippy --version >/dev/null 2>&1 && $(BIN)/python -c 'import coopstreams_native' 2>/dev/null; then \
		cd native && cargo fmt --check && cargo clippy --quiet --locked -- -D warnings; \
	else \
		echo "check: cargo with clippy was not found, or native/ could not be built: it is not checked"; \
	fi

format: setup ## format, and fix what ruff can fix
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

test: setup ## the quick tests, about 8 minutes on two cores; starts a real Kafka for itself (ARGS='-k word' picks some)
	$(PYTEST) -m "not slow and not ci" $(ARGS)

test-ci: setup ## these and the longer ones, all that CI runs: about 15 minutes on two cores
	$(PYTEST) -m "not slow" $(ARGS)

# Each slow test has brokers, workers or executors of its own: four at once take longer, and wait too long.
test-slow: setup ## the slow tests: processes and brokers that are killed and stopped, long runs; about an hour on two cores
	$(PYTEST) -n 2 -m slow $(ARGS)

# What a program that embeds coopstreams has pinned may be years old.
test-oldest: setup ## the quick tests with the oldest versions of other packages that pyproject.toml takes, in .venv-oldest
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(VENV)-oldest
	$(BIN)/uv pip install --quiet --python $(VENV)-oldest/bin/python --system-certs --resolution lowest-direct --editable '.[test]'
	$(subst $(VENV)/,$(VENV)-oldest/,$(PYTEST)) -m "not slow and not ci" $(ARGS)

# The versions that come next, also those that pyproject.toml shuts out, and pre-releases of the one whose private names are used.
test-newest: setup ## the quick tests with the newest versions of other packages, in .venv-newest; says first what the next kafka-python lacks
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(VENV)-newest
	$(BIN)/uv pip install --quiet --python $(VENV)-newest/bin/python --system-certs --upgrade --override <(echo 'kafka-python>=3.0.12.dev0') --editable '.[test]'
	$(VENV)-newest/bin/python -m pytest --noconftest tests/group/test_kafka_python.py
	$(subst $(VENV)/,$(VENV)-newest/,$(PYTEST)) -m "not slow and not ci" $(ARGS)

release: $(RELEASE) ## build dist/ from the last commit: wheels, sdists, bills of materials, checksums; and try the wheels with each Python that is here
	$(BIN)/python .ci/release.py build
	$(BIN)/python .ci/release.py try

demo: setup-demo ## three processes share one partition of real flights, one is killed (ARGS=--once ends by itself)
	$(BIN)/python -m examples.demo.scenes $(ARGS)

pictures: setup-demo ## the pictures in the README, made by a demo; needs Chromium
	$(BIN)/python -m examples.demo.scenes --once --screenshots docs/images $(ARGS)

demo-backfill: setup ## half of the flights by Spark, the other half live: the same answers? (ARGS=--once ends by itself)
	$(BIN)/python -m examples.demo.backfill $(ARGS)

bench: setup ## records per second on this machine, beside other frameworks if benchmarks.peers has installed them
	$(BIN)/python -m benchmarks $(ARGS)
	$(BIN)/python -m benchmarks.nexmark
	$(BIN)/python -m benchmarks.async_calls

pin: setup-demo ## write the list of the files of a Kafka version, with their SHA-256 (KAFKA=4.2.2)
	$(BIN)/python -m coopstreams.dev.pins $(KAFKA)

site: $(SITE) ## the documentation as a site in build/site: search, reference, diagrams; links are checked, it needs no network
	$(BIN)/python -m tests.docs.site
	$(BIN)/zensical build --strict

docs: setup ## check the documentation: its code runs, its commands, tables and links are right
	$(BIN)/python -m pytest tests/docs $(ARGS)
