# Short targets. `make test` is all that CI runs; it sets itself up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.runs
READY := $(VENV)/.ready
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: run demo test check soak bench clean lock audit generated docs

run: $(RUNS)             ## set up and serve an embedded store on port 6632
	$(BIN)/qo serve

demo: $(RUNS)            ## set up and run a few thousand jobs with failures and retries
	$(BIN)/qo demo

test: check              ## set up, check, and run every suite, with seconds for each
	$(BIN)/python -m tests.run

check: $(READY)          ## format, lint, types, layers
	$(BIN)/ruff format --check src tests tools benchmarks examples
	$(BIN)/ruff check src tests tools benchmarks examples
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.prose --check

soak: $(READY)           ## everything at full length: mutants, 500 kills, long model runs
	$(BIN)/python -m tests.run --soak

bench: $(READY)          ## ratios against peers and limits, from one run
	$(BIN)/python -m benchmarks.embedded
	$(BIN)/python -m benchmarks.postgres
	$(BIN)/python -m benchmarks.http
	$(BIN)/python -m benchmarks.queen
	$(BIN)/python -m benchmarks.worker
	$(BIN)/python -m benchmarks.keyed
	$(BIN)/python -m benchmarks.schedules

generated: $(READY)      ## write the sync client, what is declared in code into docs/reference, and wrap prose
	$(BIN)/python -m tools.sync_shell
	$(BIN)/python -m tools.reference
	$(BIN)/python -m tools.prose

docs: $(READY)           ## build the documentation's site into build/site, strictly
	$(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) build dist .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis

LOCK := uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-header --no-annotate

lock:                    ## write the locks anew (needs uv): all of it, and what a server needs
	$(LOCK) --all-extras --group dev -o requirements.lock
	$(LOCK) --extra server --extra http --extra postgres --extra cli --group build -c requirements.lock -o deploy/requirements.lock

audit: $(READY)          ## look the locked versions up among known vulnerabilities (needs the network)
	$(PYTHON) -m venv build/audit
	build/audit/bin/pip install --quiet --disable-pip-version-check pip-audit
	build/audit/bin/pip-audit --require-hashes --disable-pip -r requirements.lock

$(RUNS): pyproject.toml deploy/requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --require-hashes -r deploy/requirements.lock
	$(INSTALL) --no-deps --no-build-isolation -e .
	touch $(RUNS)

$(READY): $(RUNS) requirements.lock
	$(INSTALL) --require-hashes -r requirements.lock
	touch $(READY)
