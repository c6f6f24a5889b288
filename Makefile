# Everything starts from a clean checkout: `make demo` installs what it needs first.
# ARGS is handed on, for example: make test ARGS='-k alerts -x', make demo ARGS='--seconds 300'.

SHELL := /bin/bash
BIN := .venv/bin
STAMP := .venv/.stamp
ASYNCAPI := .venv/asyncapi
CLIENTS := .venv/clients-stamp
DOCS := .venv/.docs
VERSION := $(shell sed -nE 's/^version = "(.+)"/\1/p' pyproject.toml)
ARGS ?=
# Test processes side by side, 2 to 4. Each has a broker, a Tango database and a system of its own.
PROCESSES ?= $(shell n=$$(nproc); echo $$((n > 3 ? 4 : n > 2 ? 3 : 2)))

# Tests start hundreds of our processes: our own code is compiled once, not by each of them.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test clients conformance bench prove simulate mutation parts ways walk containers chart lint \
	check-types check-style check-interface check-prose freeze pictures screenshots docs site clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/' | expand -t 14

demo: $(STAMP) ## Run the whole system on this machine, with a simulated SDP
	@case "$(ARGS)" in *--stay*) scripts/bootstrap web;; esac # the operator's page
	$(BIN)/sdp-facade demo $(ARGS)

test: $(STAMP) ## Run all tests, with a real Kafka and a real Tango database
	@BIN=$(BIN) PROCESSES=$(PROCESSES) scripts/test $(ARGS)

clients: $(STAMP) $(CLIENTS) ## Test with other people's Tango clients: TangoGQL (Taranta), JTango (Jive), C++, taurus, itango, dsconfig
	$(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder tests/interoperability $(ARGS)

conformance: $(STAMP) ## Compare a running system with the ICD (TANGO_HOST, KAFKA_BOOTSTRAP, SDP_TOPIC_PREFIX; ARGS=--active commands it)
	$(BIN)/sdp-facade conformance $(ARGS)

bench: $(STAMP) ## Measure throughput and latency beside the raw limits of this machine
	$(BIN)/pip install --quiet --editable '.[bench]'
	$(BIN)/sdp-facade bench $(ARGS)

prove: $(STAMP) ## Send records of a flow while parts are killed, and account for each (ARGS='commands', 'tables --quick', ...; see --help)
	$(BIN)/sdp-facade prove $(ARGS)

simulate: $(STAMP) ## Run the facade in one process for simulated hours, under faults drawn from a seed (ARGS='--hours 10 --seed 7')
	$(BIN)/python -m tests.simulation $(ARGS)

mutation: $(STAMP) ## Change the pure parts of the flows in one place at a time: do the tests notice? (ARGS='--sample 60 --seed 1')
	$(BIN)/pip install --quiet --editable '.[mutation]'
	$(BIN)/python -m tests.mutation $(ARGS)

walk: $(STAMP) ## Do what docs/how-to/deploy-a-secured-site.md says, in a network of its own (needs root)
	SDP_WALK=1 $(BIN)/pytest --numprocesses 0 tests/integration/test_deploy_walk.py $(ARGS)

containers: $(STAMP) ## Build the image, run docker/compose.yaml by podman, observe from outside, kill containers (ARGS=--keep-images)
	$(BIN)/pip install --quiet 'podman-compose>=1.2'
	$(BIN)/python -m sdp_facade_lab.containers $(ARGS)

parts: $(STAMP) ## Run the tests of the kernel, the SDK and the parts that changed, each where nothing else is installed (ARGS=tools: of that part)
	$(BIN)/python -m tests.parts $(ARGS)

ways: $(STAMP) ## Count the files that a heap, a command, an alert, a table and a mirrored value go through
	$(BIN)/python -m tests.ways

chart: $(STAMP) ## Check docker/helm by Helm, and compare it with what Kustomize renders (needs Go, which gets both)
	GOBIN=$(abspath $(BIN)) go install helm.sh/helm/v3/cmd/helm@v3.16.4
	GOBIN=$(abspath $(BIN)) go install sigs.k8s.io/kustomize/kustomize/v5@v5.5.0
	$(BIN)/pytest --numprocesses 0 tests/repository/test_docker_helm.py tests/repository/test_docker_kubernetes.py $(ARGS)

lint: ## Check style, types, layers, prose, and that the ICD and all that is derived from it agree
	@$(MAKE) --no-print-directory --jobs 2 --keep-going --output-sync=target check-types check-style check-interface check-prose

check-types: $(STAMP)
	$(BIN)/mypy

check-style: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

check-interface: $(STAMP) $(ASYNCAPI)/.stamp
	$(BIN)/sdp-facade icd check
	$(BIN)/sdp-facade icd export --check
	NODE_PATH=$(ASYNCAPI)/node_modules $(BIN)/node tests/asyncapi/check.cjs schemas/asyncapi.yaml
	NODE_PATH=$(ASYNCAPI)/node_modules $(BIN)/node $(ASYNCAPI)/node_modules/eslint/bin/eslint.js \
		--config tests/asyncapi/eslint.config.cjs --ignore-pattern '**/vendor/**' clients/sdp_facade_clients/web/static
	rm -rf build/released && mkdir -p build/released && tar -xzf packaging/interface-*.tar.gz -C build/released
	$(BIN)/sdp-facade icd diff build/released schemas

check-prose: $(STAMP)
	$(BIN)/python -m tests.prose $(ARGS)

# The same content gives the same bytes: the file changes only with the interface.
freeze: ## Keep the interface as that of this release, with which `make lint` compares from then on
	mkdir -p build
	set -o pipefail; tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
		-C schemas -c archive commands icd messages | gzip -9n > build/interface.tar.gz
	rm -f packaging/interface-*.tar.gz
	mv build/interface.tar.gz packaging/interface-$(VERSION).tar.gz

pictures: $(STAMP) ## Draw docs/images/*.svg from the descriptions beside them
	$(BIN)/python -m tests.pictures

screenshots: $(STAMP) $(CLIENTS) ## Start a demo, and take the pictures of what it shows for docs/images (ARGS: options of demo; page-overview.png: only this one)
	$(BIN)/python -m tests.pictures.screenshots $(ARGS)

docs: $(DOCS) ## Build the documentation site into build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo 'look at build/site/index.html'

# mike calls mkdocs by its name. Patches of a release replace its pages: the version is MAJOR.MINOR.
site: $(DOCS) ## Add the pages of this release to the branch site, beside those of older releases
	PATH="$(CURDIR)/$(BIN):$$PATH" NO_MKDOCS_2_WARNING=1 SITE_VERSIONS=mike mike deploy --branch site --update-aliases \
		"$(basename $(VERSION))" latest
	$(BIN)/mike set-default --branch site latest
	@echo 'publish the branch site; see it with: $(BIN)/mike serve --branch site'

clean: ## Stop what runs in .run and remove everything that was made here
	@if [ -x $(BIN)/sdp-facade ]; then $(BIN)/sdp-facade infra down --wipe; fi
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml scripts/bootstrap
	@scripts/bootstrap

$(ASYNCAPI)/.stamp: $(wildcard tests/asyncapi/package*.json) tests/asyncapi/requirements.txt scripts/bootstrap | $(STAMP)
	@scripts/bootstrap asyncapi

$(DOCS): $(STAMP)
	$(BIN)/pip install --quiet --editable '.[docs]'
	@touch $@

$(CLIENTS): $(wildcard tests/interoperability/requirements-*.txt tests/interoperability/debian-*.txt tests/interoperability/jtango/* tests/interoperability/cpp/*) scripts/bootstrap | $(STAMP)
	@scripts/bootstrap clients
