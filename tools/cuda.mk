# cuda.mk: libmlxbun-cuda.so, the kernels for NVIDIA GPUs. Included by the Makefile; needs nvcc 13 (docs/cuda.md), the rest of the
# program does not. Machine code for sm_80 and sm_90a, PTX for what comes after.

NVCC      ?= $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc /usr/local/cuda-13.0/bin/nvcc) $(shell command -v nvcc 2>/dev/null))
CUDA_ARCH ?= -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90a,code=sm_90a -gencode=arch=compute_90,code=compute_90
# No contraction, no approximations but those that the source asks for by name.
NVCCFLAGS += -std=c++17 -O3 --fmad=false -Isrc -Iinclude -Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra $(if $(CI),-Werror all-warnings)
CU_OBJS   := $(patsubst src/ops/cuda/%.cu,$(BUILD)/cuda/%.o,$(wildcard src/ops/cuda/*.cu))

ifdef CUDA
build: $(BUILD)/libmlxbun-cuda.so
endif

$(BUILD)/cuda/%.o: src/ops/cuda/%.cu $(wildcard src/ops/cuda/*.h src/ops/cuda/*.cuh)
	@test -n "$(NVCC)" || { echo "nvcc is not on this machine: docs/cuda.md says where to get it" >&2; exit 1; }
	@mkdir -p $(@D)
	$(call say,NVCC)
	$(Q)$(NVCC) $(NVCCFLAGS) $(CUDA_ARCH) -c $< -o $@
$(BUILD)/libmlxbun-cuda.so: $(CU_OBJS)
	$(call say,LD )
	$(Q)$(NVCC) -shared -cudart static $(CUDA_ARCH) $^ -o $@

.PHONY: cuda cuda-compile
cuda: ## libmlxbun-cuda.so, the kernels for NVIDIA GPUs (needs nvcc; make CUDA=1 builds it with the rest)
	@$(MAKE) --no-print-directory -j$(JOBS) $(BUILD)/libmlxbun-cuda.so
cuda-compile: ## every .cu for sm_90a with -Werror where nvcc is there; skipped elsewhere
	@mkdir -p build-cuda && rm -f build-cuda/test-results.txt
	@if [ -n "$(NVCC)" ]; then tools/run-tests command build-cuda cuda-compile $(SUB) -s CI=1 BUILD=build-cuda JOBS=2 CUDA_ARCH=-gencode=arch=compute_90a,code=sm_90a cuda; \
	else echo "SKIP cuda-compile (no nvcc on this machine)" | tee build-cuda/test-results.txt; fi
