# targets.mk: what one types besides `make`. Included by the Makefile. A line "name: ... ## text" is shown by `make help`.
# Test targets collect outcomes in $(BUILD)/test-results.txt and end with "N passed, N failed, N skipped".

RUN      := tools/run-tests
PY_TESTS := tests/http tests/cli tests/golden tests/invariance
FUZZ_BINS = $(FUZZ_SRCS:tests/fuzz/%.c=$(BUILD)/fuzz/%)
# What a list of suites needs: the program only where Python tests or cli sources are there to use it.
PROGRAM   = $(if $(wildcard src/cli/main.c),$(BUILD)/mlx-bun)

.PHONY: help layers report docs test test-c test-py kernels invariance fuzz asan-ubsan tsan alloc-fail run clean

help: ## this list
	@echo "make                 install what is missing, build $(BUILD)/mlx-bun and $(BUILD)/libmlxbun.so"
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | sort | awk -F '\t' '{ printf "%-20s %s\n", $$1, $$2 }'
	@echo "make one T=unit/test_json   build and run one C test"

layers: ## compare the include edges of src/ with tools/layers.txt
	@tools/layers
report: ## the longest files and functions
	@tools/report
docs: $(BUILD)/mlx-bun ## write the generated pages of docs/
	@tools/coverage
	@$< help --docs > docs/flags.md
	@$< help --docs-errors > docs/errors.md
	@$< help --docs-routes > docs/routes.md
	@$< help --docs-families | tools/families_page.py > $(BUILD)/families.md && mv $(BUILD)/families.md docs/families.md
clean: ## remove every build folder
	rm -rf build build-*

# --- tests ---

.PHONY: test-programs test-run
# Not run by tests, but built with them, so that they follow the code.
BENCH_BINS := $(patsubst %,$(BUILD)/bench_%,cpu text machine attention logits steps order)
test-programs: $(PROGRAM) $(TEST_BINS) $(REPLAY_BINS) $(BENCH_BINS)

test: deps ## everything that must pass: layers, C tests, fuzz replays, pytest suites, coverage
	@tools/timed build $(MAKE) --no-print-directory -s -j$(JOBS) test-programs
	@tools/timed starter sh -c '$(BUILD)/mlx-bun get --starter --quiet >/dev/null || echo "the starter cannot be had: its tests are skipped"'
	@tools/timed test $(MAKE) --no-print-directory test-run
	@$(RUN) total $(BUILD)
test-run:
	@mkdir -p $(BUILD) && rm -f $(BUILD)/test-results.txt
	@$(RUN) command $(BUILD) layers tools/layers
	@tools/timed "C tests" $(RUN) c $(BUILD) $(TEST_BINS)
	@tools/timed "fuzz replays" $(RUN) replay $(BUILD) $(REPLAY_BINS)
	@tools/timed "pytest" $(RUN) py $(BUILD) $(PY_TESTS)
	@$(RUN) command $(BUILD) coverage tools/coverage --check $(BUILD)/test-results.txt

# Some suites only: $(call suites,C programs,pytest folders)
define suites
	@$(MAKE) --no-print-directory -s -j$(JOBS) $(PROGRAM) $(1)
	@mkdir -p $(BUILD) && rm -f $(BUILD)/test-results.txt
	@$(if $(strip $(1)),$(RUN) c $(BUILD) $(1),true)
	@$(if $(strip $(2)),$(RUN) py $(BUILD) $(2),true)
	@$(RUN) total $(BUILD)
endef
test-c: ## the C tests
	$(call suites,$(TEST_BINS),)
test-py: ## the Python tests
	$(call suites,,$(PY_TESTS))
kernels: ## the kernel tests
	$(call suites,$(filter $(BUILD)/tests/kernels/%,$(TEST_BINS)),)
invariance: ## the same bits on every path
	$(call suites,$(filter $(BUILD)/tests/invariance/%,$(TEST_BINS)),tests/invariance)

# --- the same suites under sanitizers, with fuzzers, with failing allocations; each in a build folder of its own ---

SUB = $(MAKE) --no-print-directory

asan-ubsan: ## C tests, fuzz replays and http tests with address and undefined-behaviour sanitizers
	@tools/timed asan-ubsan $(SUB) BUILD=build-asan SAN=asan OPT=-O1 sanitized
	@$(RUN) total build-asan
tsan: ## server, scheduler and thread pool with the thread sanitizer
	@tools/timed tsan $(SUB) BUILD=build-tsan SAN=tsan OPT=-O1 sanitized
	@$(RUN) total build-tsan
fuzz: ## libFuzzer, FUZZ_S=30 seconds a target, two at a time; finds join tests/fuzz/corpus
	@tools/timed fuzz $(SUB) BUILD=build-fuzz SAN=fuzz OPT=-O1 CC=$(CLANG) fuzzed
	@$(RUN) total build-fuzz
alloc-fail: ## a build with fault points: tests of faults, then replays and marked C tests with failing allocations
	@tools/timed alloc-fail $(SUB) BUILD=build-faults SAN=asan FAULTS=1 OPT=-O1 allocs-failed
	@$(RUN) total build-faults

.PHONY: sanitized fuzzed allocs-failed
# What threads touch: the pool, the scheduler, the waist, the server.
THREADED = unit/test_threads unit/test_engine unit/test_engine_cache unit/test_engine_draws unit/test_engine_memory unit/test_engine_soak \
           unit/test_deliver unit/test_server unit/test_server_http unit/test_server_load \
           invariance/test_engine_model
SANITIZED_BINS = $(if $(filter tsan,$(SAN)),$(filter $(THREADED:%=$(BUILD)/tests/%),$(TEST_BINS)),$(TEST_BINS))
sanitized: export ASAN_OPTIONS = detect_leaks=1:allocator_may_return_null=1
sanitized: export UBSAN_OPTIONS = print_stacktrace=1
sanitized: export TSAN_OPTIONS = halt_on_error=0:exitcode=66:allocator_may_return_null=1
sanitized:
	@$(MAKE) --no-print-directory -s -j$(JOBS) $(PROGRAM) $(SANITIZED_BINS) $(if $(filter asan,$(SAN)),$(REPLAY_BINS))
	@mkdir -p $(BUILD) && rm -f $(BUILD)/test-results.txt
	@$(RUN) c $(BUILD) $(SANITIZED_BINS)
	@$(if $(filter asan,$(SAN)),$(RUN) replay $(BUILD) $(REPLAY_BINS),true)
	@$(RUN) py $(BUILD) $(if $(filter tsan,$(SAN)),tests/http/test_openai_sdk.py tests/http/test_hostile.py,tests/http)
fuzzed:
	@$(MAKE) --no-print-directory -s -j$(JOBS) $(FUZZ_BINS)
	@mkdir -p $(BUILD) && rm -f $(BUILD)/test-results.txt
	@tools/fuzz $(BUILD) $(FUZZ_BINS)
# A C test says in its opening comment "alloc-fail: yes" (it must survive failing allocations) or "faults: yes" (it
# sets fault points itself and skips in a build without them).
marked     = $(patsubst tests/%.c,$(BUILD)/tests/%,$(shell grep -l '$(1): yes' $(C_TESTS)))
ALLOC_BINS = $(REPLAY_BINS) $(call marked,alloc-fail)
FAULT_BINS = $(call marked,faults)
allocs-failed:
	@$(MAKE) --no-print-directory -s -j$(JOBS) $(PROGRAM) $(ALLOC_BINS) $(FAULT_BINS)
	@mkdir -p $(BUILD) && rm -f $(BUILD)/test-results.txt
	@$(RUN) c $(BUILD) $(FAULT_BINS)
	@$(RUN) py $(BUILD) tests/cli/test_prove_fault.py tests/cli/test_get_faults.py tests/http/test_faults.py tests/http/test_isolate.py tests/http/test_offload.py tests/http/test_tools.py
	@$(RUN) alloc-fail $(BUILD) $(ALLOC_BINS)

# --- use ---

run: all ## fetch the starter model and serve it at 127.0.0.1:8080
	@dir=$$($(BUILD)/mlx-bun get --starter | tail -n 1) && exec $(BUILD)/mlx-bun serve "$$dir"

.PHONY: bench bench-order fidelity
$(BUILD)/cuda_ranks: bench/cuda_ranks.c $(BUILD)/libmlxbun.a
	@mkdir -p $(@D)
	$(call say,LD )
	$(Q)$(CC) $(std) $(CFLAGS) $(PKG_CFLAGS) $< $(BUILD)/libmlxbun.a $(LDFLAGS) -o $@ $(PKG_LIBS)
$(filter-out %/bench_order,$(BENCH_BINS)): $(BUILD)/bench_%: bench/bench_%.c $(BUILD)/libmlxbun.a
	$(Q)$(CC) $(std) $(CFLAGS) $(PKG_CFLAGS) $< $(BUILD)/libmlxbun.a $(LDFLAGS) -o $@ $(PKG_LIBS)
$(BUILD)/bench_order: bench/bench_order.c bench/free_avx2.c bench/free_avx512.c bench/free.h $(BUILD)/libmlxbun.a
	$(Q)$(CC) $(std) $(CFLAGS) $(PKG_CFLAGS) $(filter %.c %.a,$^) $(LDFLAGS) -o $@ $(PKG_LIBS)
bench-order: $(BUILD)/bench_order ## what the order rule costs in each matmul, and its share of peak or bandwidth
	@$<
$(BUILD)/grammar_tool: tests/oracle/grammar_tool.c $(BUILD)/libmlxbun.a
	$(Q)$(CC) $(std) $(CFLAGS) $(PKG_CFLAGS) $< $(BUILD)/libmlxbun.a $(LDFLAGS) -o $@ $(PKG_LIBS)
bench: all $(BUILD)/bench_cpu $(BUILD)/bench_text $(BUILD)/bench_machine $(BUILD)/bench_order $(BUILD)/grammar_tool ## this program against llama.cpp on this machine, in alternation; QUICK=1: the first rows
	@QUICK=$(QUICK) ROUNDS=$(ROUNDS) tools/bench $(BUILD)
fidelity: all $(BUILD)/bench_cpu $(BUILD)/bench_logits ## measure the tiers and the peers against float32, write docs/fidelity.md; MODELS="DIR ..." (default: the starter)
	@tools/fidelity $(BUILD) $(MODELS)

.PHONY: examples
examples: $(BUILD)/libmlxbun.a ## build the programs of examples/ into $(BUILD)/examples
	@mkdir -p $(BUILD)/examples
	@for f in examples/*.c; do \
	    $(CC) -std=c17 $(WARN) -Iinclude $$f $< -o $(BUILD)/examples/$$(basename $$f .c) $(LDFLAGS) $(PKG_LIBS) || exit 1; done

.PHONY: clients
clients: all ## real SDKs and agents (npm, PyPI) against the server: a tool round trip and a second turn from the prefix cache each
	@MLX_BUN=$(CURDIR)/$(BUILD)/mlx-bun tools/clients $(if $(RESULTS),--results $(RESULTS)) $(ARGS)
