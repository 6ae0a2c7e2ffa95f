# One Makefile, no configure step. `make help` lists what a newcomer types; docs/tour.md says where the code is.
#
#   make                 install what is missing (tools/install) and build build/mlx-bun and build/libmlxbun.{a,so}
#   make run             also fetch the starter model and serve it at 127.0.0.1:8080
#   make test            unit, kernels, golden, invariance, http, cli
#
# Variables: BUILD (output folder), CC, SAN=asan|tsan (sanitizers), FAULTS=1 (fault points, base/fault.h),
# MODULES="base format ..." (build only these folders of src/: for work on one part), CUDA=1.

BUILD   ?= build
CC      ?= cc
CLANG   ?= clang-14
JOBS    ?= $(shell nproc)
PREFIX  ?= /usr/local
VERSION := 0.1.0

MODULES ?= base format tokenizer chat grammar ops ops/cpu ops/cpu/portable ops/cpu/avx2 ops/cpu/avx512 ops/cpu/amx ops/cuda \
           model engine media hub convert train gen host api server cli chat/template chat/tools .
LIBS    := libmicrohttpd jansson libpcre2-8 libutf8proc libcrypto libxxhash sqlite3 libcurl zlib libzstd

# Packages may be installed by the first recipe, so pkg-config is asked when a rule runs, not when make starts.
PKG_CFLAGS = $(shell pkg-config --cflags $(LIBS))
PKG_LIBS   = $(shell pkg-config --libs $(LIBS)) -lpthread -lm -ldl

WARN    := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wno-unused-parameter $(if $(CI),$(if $(SAN),,-Werror))
OPT     ?= -O2
CFLAGS  += $(OPT) -g -fPIC -fvisibility=hidden -ffp-contract=off -fno-math-errno -fno-strict-aliasing $(WARN) -MMD -MP
CFLAGS  += -D_GNU_SOURCE -DMB_VERSION='"$(VERSION)"' -Iinclude -Isrc
LDFLAGS += -Wl,--as-needed

ifeq ($(SAN),asan)
CFLAGS  += -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
LDFLAGS += -fsanitize=address,undefined
endif
ifeq ($(SAN),tsan)
CFLAGS  += -fsanitize=thread
LDFLAGS += -fsanitize=thread
endif
ifeq ($(SAN),fuzz)
CFLAGS  += -fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=undefined
LDFLAGS += -fsanitize=address,undefined
endif
ifdef FAULTS
CFLAGS  += -DMB_FAULTS=1
endif

# --- sources: every .c of the folders named in MODULES ---
SRCS := $(foreach m,$(MODULES),$(wildcard src/$(m)/*.c))
SRCS := $(patsubst src/./%,src/%,$(SRCS))
OBJS := $(SRCS:src/%.c=$(BUILD)/obj/%.o)
LIB_OBJS := $(filter-out $(BUILD)/obj/cli/%,$(OBJS))
CLI_OBJS := $(filter $(BUILD)/obj/cli/%,$(OBJS))
# The portable level a second time, with hardware fma (same bits; tests/kernels compares both).
ifneq ($(filter ops/cpu/portable,$(MODULES)),)
LIB_OBJS += $(patsubst src/ops/cpu/portable/%.c,$(BUILD)/obj/ops/cpu/portable-fma/%.o,$(wildcard src/ops/cpu/portable/*.c))
endif

.DEFAULT_GOAL := all
.PHONY: all deps help
all: deps
	@$(MAKE) --no-print-directory -j$(JOBS) build
deps:
	@tools/install

.PHONY: build
build: $(BUILD)/mlx-bun $(BUILD)/libmlxbun.so

std = -std=c17
# Fuzzers drive parsers: there the kernels are built quickly and without instrumentation.
kernel_opt := $(if $(filter fuzz,$(SAN)),-O1 -fno-sanitize=all,-O3)
$(BUILD)/obj/base/%.o $(BUILD)/obj/ops/cpu/%.o: std = -std=gnu17
$(BUILD)/obj/ops/cpu/avx2/%.o: level = $(kernel_opt) -mavx2 -mfma -mf16c
$(BUILD)/obj/ops/cpu/avx512/%.o: level = $(kernel_opt) -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni
$(BUILD)/obj/ops/cpu/amx/%.o: level = $(kernel_opt) -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mamx-tile -mamx-int8
$(BUILD)/obj/ops/cpu/portable/%.o: level = $(kernel_opt)
# A search over thousands of states: loops that become vectors, with the same values.
$(BUILD)/obj/format/trellis_search.o: level = $(kernel_opt) -fno-trapping-math

# One short line a file; `make V=1` shows the commands.
Q := $(if $(V),,@)
say = $(if $(V),,@echo "  $(1) $(subst $(BUILD)/,,$@)")

$(BUILD)/obj/%.o: src/%.c
	@mkdir -p $(@D)
	$(call say,CC )
	$(Q)$(CC) $(std) $(CFLAGS) $(level) $(PKG_CFLAGS) -c $< -o $@
$(BUILD)/obj/ops/cpu/portable-fma/%.o: src/ops/cpu/portable/%.c
	@mkdir -p $(@D)
	$(call say,CC )
	$(Q)$(CC) -std=gnu17 $(CFLAGS) $(kernel_opt) -mfma -DMB_PORTABLE_FMA=1 -c $< -o $@

$(BUILD)/libmlxbun.a: $(LIB_OBJS)
	@rm -f $@
	$(call say,AR )
	$(Q)ar rcs $@ $^
$(BUILD)/libmlxbun.so: $(LIB_OBJS)
	$(call say,LD )
	$(Q)$(CC) -shared $(LDFLAGS) -Wl,-soname,libmlxbun.so.0 $^ -o $@ $(PKG_LIBS)
	$(Q)ln -sf libmlxbun.so $(BUILD)/libmlxbun.so.0
$(BUILD)/mlx-bun: $(CLI_OBJS) $(BUILD)/libmlxbun.a
	$(call say,LD )
	$(Q)$(CC) $(LDFLAGS) $^ -o $@ $(PKG_LIBS)

# --- C tests: each tests/{unit,kernels,golden,invariance}/test_*.c is one cmocka program ---
C_TESTS  := $(wildcard tests/unit/test_*.c tests/kernels/test_*.c tests/golden/test_*.c tests/invariance/test_*.c)
TEST_BINS := $(C_TESTS:tests/%.c=$(BUILD)/tests/%)
$(BUILD)/tests/%: tests/%.c $(BUILD)/libmlxbun.a
	@mkdir -p $(@D)
	$(call say,TEST)
	$(Q)$(CC) $(std) $(CFLAGS) $(PKG_CFLAGS) -Itests $< $(BUILD)/libmlxbun.a $(LDFLAGS) -o $@ -lcmocka $(PKG_LIBS)

# make one T=unit/test_json : build and run one C test
.PHONY: one
one: $(BUILD)/tests/$(T)
	$(BUILD)/tests/$(T)

# --- fuzzers: tests/fuzz/fuzz_*.c define LLVMFuzzerTestOneInput; replay_main.c turns one into a plain program ---
FUZZ_SRCS := $(wildcard tests/fuzz/fuzz_*.c)
REPLAY_BINS := $(FUZZ_SRCS:tests/fuzz/fuzz_%.c=$(BUILD)/tests/fuzz/replay_%)
$(BUILD)/tests/fuzz/replay_%: tests/fuzz/fuzz_%.c tests/fuzz/replay_main.c $(BUILD)/libmlxbun.a
	@mkdir -p $(@D)
	$(call say,FUZZ)
	$(Q)$(CC) $(std) $(CFLAGS) $(PKG_CFLAGS) -Itests $(filter %.c,$^) $(BUILD)/libmlxbun.a $(LDFLAGS) -o $@ $(PKG_LIBS)
$(BUILD)/fuzz/fuzz_%: tests/fuzz/fuzz_%.c $(BUILD)/libmlxbun.a
	@mkdir -p $(@D)
	$(call say,FUZZ)
	$(Q)$(CC) $(std) $(CFLAGS) -fsanitize=fuzzer $(PKG_CFLAGS) -Itests $< $(BUILD)/libmlxbun.a $(LDFLAGS) -o $@ $(PKG_LIBS)

-include $(LIB_OBJS:.o=.d) $(CLI_OBJS:.o=.d) $(TEST_BINS:=.d)
include $(wildcard tools/*.mk)
