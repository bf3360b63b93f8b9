# Targets with a text after '##' are listed by `make help`.
GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
COMMIT  ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)

BUILDINFO := github.com/cognitora/dataplane/internal/buildinfo
LDFLAGS   := -s -w -X $(BUILDINFO).version=$(VERSION) -X $(BUILDINFO).commit=$(COMMIT)
BINARIES  := cgn-router cgn-agent cgn-ctl

FUZZTIME   ?= 60s
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

.DEFAULT_GOAL := help
.PHONY: help build up test check check-race check-fuzz check-sdk check-llama check-vllm \
	bench perf perf-full perf-index perf-peers gate generate lint clean $(BINARIES)

help: ## list the targets
	@printf 'Usage: make TARGET\n\n'
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  \1 \2/p' Makefile | \
		while read -r target text; do printf '  %-14s %s\n' "$$target" "$$text"; done

## Build and run

build: $(BINARIES) ## build bin/cgn-router, bin/cgn-agent and bin/cgn-ctl (static, version stamped)

$(BINARIES):
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/$@ ./cmd/$@

up: build ## run a fleet on this machine: etcd, 3 simulated engines with agents, a router (UP=flags of cgn-ctl up)
	@bin/cgn-ctl up $(UP)

## Tests

test: ## vet and test everything in pure Go (no C compiler needed)
	@echo '== go vet'
	@CGO_ENABLED=0 $(GO) vet ./...
	@echo '== go test'
	@CGO_ENABLED=0 $(GO) test ./...
	@perf/tools.sh

check: check-race check-fuzz check-sdk check-llama ## everything slow: race detector, fuzzing, SDK suites, real llama.cpp engines

check-race: ## tests under the race detector (needs a C compiler)
	@perf/tools.sh cc
	CGO_ENABLED=1 $(GO) test -race -timeout 20m ./...

check-fuzz: ## every fuzz target for FUZZTIME (60s) each
	@GO='$(GO)' FUZZTIME=$(FUZZTIME) perf/fuzz.sh

check-sdk: build ## OpenAI and Anthropic SDK suites against `cgn-ctl up` (needs python3 with venv, node, npm)
	@perf/tools.sh python node
	@perf/sdk/run.sh

check-llama: build ## two real llama.cpp servers behind the router (needs python3 with venv)
	@perf/tools.sh python
	@perf/realengine/run.sh llama

check-vllm: build ## two real vLLM servers on the CPU behind the router (not in check: 2 GiB of downloads)
	@perf/tools.sh python
	@perf/realengine/run.sh vllm

## Speed

bench: ## Go benchmarks of the hot path
	CGO_ENABLED=0 $(GO) test -run '^$$' -bench . -benchmem ./...

gate: build ## fail if a request or a token has become more expensive, or routing worse (GATE=flags of cgn-ctl bench gate)
	@perf/compare/install.sh
	@bin/cgn-ctl bench gate $(GATE)

perf: build ## our router beside haproxy and nginx in 2 minutes, and one more for each installed peer; writes perf/RESULTS.md (PERF=full: perf-full)
ifeq ($(PERF),full)
	@$(MAKE) perf-full
else
	@perf/compare/install.sh
	@bin/cgn-ctl bench compare --write
endif

perf-full: build ## the same with everything, and routing quality (TRACE=FILE), in less than an hour
	@perf/compare/install.sh
	@bin/cgn-ctl bench compare --full --write
	@TRACE="$(TRACE)" perf/perf.sh

perf-peers: ## install the KV-aware routers that make perf compares with (needs python3 with venv)
	@perf/tools.sh python
	@perf/compare/install.sh smg vllm-router sglang-router

perf-index: ## the index of KV events beside the crate dynamo-kv-router's (needs cargo; TRACE=FILE)
	@TRACE="$(TRACE)" perf/compare/dynamo/run.sh

## Upkeep

generate: build ## write the generated references in deploy/reference
	@mkdir -p deploy/reference
	bin/cgn-ctl reference config > deploy/reference/config.md
	bin/cgn-ctl reference metrics > deploy/reference/metrics.md

lint: ## gofmt, vet, staticcheck; golangci-lint if installed
	@files=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$files" || { echo "gofmt these: $$files"; exit 1; }
	CGO_ENABLED=0 $(GO) vet ./...
	CGO_ENABLED=0 $(GO) run $(STATICCHECK) ./...
	@if command -v golangci-lint >/dev/null; then golangci-lint run ./...; \
		else echo 'golangci-lint is not installed: its checks did not run'; fi

clean: ## remove what was built
	rm -rf bin
