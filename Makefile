# Needs Python 3.11 or newer with its venv module, make and a network. Everything lands in .venv of this folder; nothing is written elsewhere
# but to temporary folders. `make PYTHON=/path/to/python3.12 …` names the interpreter.

ARGS ?=
WORKERS ?= 2
PY := .venv/bin/python
INSTALLED := .venv/.installed
FIND_PYTHON := python3 python3.13 python3.12 python3.11 python

.PHONY: help install run test check fmt explore bench mutants soak audit openapi lock clean moved
.DEFAULT_GOAL := help

help:                   ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1	/p' Makefile | while IFS='	' read -r name text; do printf '  make %-10s %s\n' "$$name" "$$text"; done

run: $(INSTALLED)       ## serve the demo agents on 127.0.0.1:8000 (other settings: ARGS="--port 9000", RUNWARD_…)
	@exec .venv/bin/runward serve $(ARGS)

test: $(INSTALLED)      ## the whole suite (a part of it: ARGS="tests/unit -k name"; processes: WORKERS=4)
	$(PY) -m pytest -n $(WORKERS) $(ARGS)

check: $(INSTALLED)     ## lint, format, types, layers, sizes
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	.venv/bin/lint-imports --no-logo
	$(PY) -m pytest -q tests/unit/test_sizes.py

fmt: $(INSTALLED)       ## format, and mend what can be mended
	$(PY) -m ruff check --fix-only --quiet .
	$(PY) -m ruff format .

explore: $(INSTALLED)   ## the tests of properties with cases that nobody has tried: each time others (a part of it: ARGS="tests/unit/core/test_machine.py")
	$(PY) -m pytest -n $(WORKERS) --hypothesis-profile=explore $(or $(ARGS),$$(grep -rl '^from hypothesis' --include='test_*.py' tests))

bench: $(INSTALLED)     ## how fast, against the least code that does the same: six minutes (a look: ARGS=--quick; a part: ARGS=sqlite)
	$(PY) -m tests.bench $(ARGS)

mutants: $(INSTALLED)   ## take out each guard in turn: a test has to go red, fifteen minutes (some of them: ARGS="fence"; at a time: ARGS="--jobs 4")
	$(PY) -m tests.mutants $(ARGS)

soak: $(INSTALLED)      ## break everything for four minutes, and audit what is left (ARGS="sqlite --minutes 3 --seed 7"; stores: sqlite, postgres, postgres+redis)
	$(PY) -m tests.soak $(ARGS)

audit: $(INSTALLED)     ## licences and known vulnerabilities of what is locked, and what could not be looked at (exit 1: found; 2: not all looked at)
	$(PY) -m tests.audit

openapi: $(INSTALLED)   ## write openapi/openapi.json from the code
	@mkdir -p openapi
	.venv/bin/runward openapi > openapi/.openapi.json
	@mv openapi/.openapi.json openapi/openapi.json

lock: $(INSTALLED)      ## pin the dependencies of pyproject.toml anew (ARGS="--upgrade" takes newer versions)
	.venv/bin/uv pip compile --quiet --no-cache --universal --generate-hashes --no-emit-index-url --no-emit-find-links \
		--custom-compile-command "make lock" --python-version 3.11 --group dev --output-file requirements.lock $(ARGS) pyproject.toml

clean:                  ## remove the environment and every cache
	rm -rf .venv .cache .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache .schemathesis build dist openapi/.openapi.json
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

install: $(INSTALLED)   ## the environment alone

# -- the environment ----------------------------------------------------------------------------------------------------
# The exact packages of requirements.lock, checked by hash, by uv when it can be had and by pip otherwise; then the project itself, editable,
# built by the hatchling that the lock has brought. A clone that was moved installs anew, because an environment knows its folder by name.

ifneq ($(shell cat $(INSTALLED) 2>/dev/null),$(CURDIR))
$(INSTALLED): moved
endif

$(INSTALLED): requirements.lock pyproject.toml
	@set -e; \
	if [ "$$(cat .venv/.created 2>/dev/null)" != "$(CURDIR)" ]; then \
		found=; for python in $(or $(PYTHON),$(FIND_PYTHON)); do \
			if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then found=$$python; break; fi; \
		done; \
		if [ -z "$$found" ]; then \
			echo "Runward needs Python 3.11 or newer with its venv module, and none of these is that: $(or $(PYTHON),$(FIND_PYTHON))." >&2; \
			for python in $(or $(PYTHON),$(FIND_PYTHON)); do \
				"$$python" -c 'import sys; print("  %s is Python %d.%d" % (sys.executable, *sys.version_info[:2]))' >&2 2>/dev/null || true; \
			done; \
			echo "If the version is right, the venv module is missing: on Debian and Ubuntu it is the package python3-venv." >&2; \
			echo "Another interpreter is named so: make PYTHON=/path/to/python3.12" >&2; \
			exit 1; \
		fi; \
		"$$found" -m venv --clear .venv; \
		echo "$(CURDIR)" > .venv/.created; \
	fi
	@sed -n '/^uv==/,/# via/p' requirements.lock > .venv/uv.txt
	@pip="$(PY) -m pip --disable-pip-version-check --no-input --quiet"; \
	if $$pip install --no-cache-dir --no-deps --require-hashes -r .venv/uv.txt && \
		.venv/bin/uv pip sync --quiet --no-cache --python $(PY) --require-hashes --compile-bytecode requirements.lock; then :; else \
		echo "uv did not do it; installing with pip, which takes longer."; \
		$$pip install --no-cache-dir --no-deps --require-hashes --compile -r requirements.lock; \
	fi; \
	$$pip install --no-cache-dir --no-deps --no-build-isolation --editable .
	@echo "$(CURDIR)" > $@
