# Everything starts from a clean checkout: `make demo` installs what it needs first.
# ARGS is handed on, for example: make test ARGS='-k alerts -x', make demo ARGS='--seconds 300'.

SHELL := /bin/bash
BIN := .venv/bin
STAMP := .venv/.stamp
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test bench faults alert-faults table-faults lint clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/' | expand -t 14

demo: $(STAMP) ## Run the whole system on this machine, with a simulated SDP
	$(BIN)/sdp-facade demo $(ARGS)

test: $(STAMP) ## Run all tests, with a real Kafka and a real Tango database
	$(BIN)/pytest $(ARGS)

bench: $(STAMP) ## Measure throughput and latency beside the raw limits of this machine
	$(BIN)/pip install --quiet --editable '.[bench]'
	$(BIN)/sdp-facade bench $(ARGS)

faults: $(STAMP) ## Give 10,000 commands while parts are killed, and account for each
	$(BIN)/sdp-facade faults $(ARGS)

alert-faults: $(STAMP) ## Send 1,000,000 alerts while parts are killed and the client is slow, and account for each
	$(BIN)/sdp-facade alert-faults $(ARGS)

table-faults: $(STAMP) ## Send 50 tables while parts are killed, and account for each
	$(BIN)/sdp-facade table-faults $(ARGS)

lint: $(STAMP) ## Check style, types, layers, and that the ICD and all that is derived from it agree
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/sdp-facade icd check
	$(BIN)/sdp-facade icd export --check

clean: ## Stop what runs in .run and remove everything that was made here
	@if [ -x $(BIN)/sdp-facade ]; then $(BIN)/sdp-facade infra down --wipe; fi
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml scripts/bootstrap
	@scripts/bootstrap
