## cinch: an inference engine for large language models.
##
##   make demo      install what is missing, build, answer examples/prompts.jsonl; uses a GPU if
##                  the machine has one
##   make check     install what is missing, build, run every test and the style check
##   make           build build/cinch and build/libcinch.a
##   make cuda      build build/cinch-cuda.so, the GPU backend, with the nvcc of CUDA 13 that is
##                  installed, or with one from PyPI; needs no GPU
##   make install   PREFIX=/usr/local DESTDIR=
##   make deb       build/cinch_VERSION_amd64.deb, for x86-64-v3
##   make wheel     build/cinch-VERSION-....whl, for x86-64-v3
##
## Tests:  test [T=name]  sim [SEED=n STEPS=n]  fuzz [T=name FUZZ_RUNS=n SEED=n]  scripts
##         asan  ubsan  tsan  golden  tidy  nightly (long tests, about an hour)
## Other:  docs (docs/CONFIG.md, docs/cinch.1)  bench  clean
##         plot-env (the Python of bench/plot.py)  plots (docs/plots/*.svg)
##
## V=1 prints whole commands.
## JOBS=4 runs four test programs at a time; the default is 2.
## ARCH=x86-64-v3 builds for other machines; the default, native, builds for this machine.
## SANITIZER=address,undefined or SANITIZER=thread builds into a separate directory.
## docs/HACKING.md describes every target.

comma := ,
# Prints one short line per command; V=1 prints the commands themselves.
ifeq ($(V),)
Q := @
say = @printf '%-6s %s\n' $(1) '$(2)'
else
say = @:
endif
# Each sanitizer build has its own directory: build-address, build-undefined or build-thread.
ifdef SANITIZER
BUILD ?= build-$(firstword $(subst $(comma), ,$(SANITIZER)))
endif
BUILD ?= build
CC ?= cc
ARCH ?= native
OPT ?= -O3
PREFIX ?= /usr/local
PYTHON ?= python3
JOBS ?= 2
FUZZ_RUNS ?= 20000
STEPS ?= 100000
SEED ?= 1
WARN := -Wall -Wextra -Wshadow -Wconversion -Werror
CFLAGS ?=
# Protection against memory errors in host code. The options of the processor are x86-64's. FORTIFY
# needs an optimised build, and would hide accesses from a sanitizer.
HARDEN := -fstack-protector-strong
ifneq ($(findstring x86_64,$(shell $(CC) -dumpmachine 2>/dev/null)),)
HARDEN += -fstack-clash-protection -fcf-protection
endif
ifeq ($(SANITIZER)$(filter -O0,$(OPT)),)
HARDEN += -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3
endif
HARDEN_LINK := -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack
PKGS := jansson libpcre2-8 libutf8proc libevent_core libmd
# Errors are hidden here when a library is missing: `make deps` installs it or says how.
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
PKG_LIBS := $(shell pkg-config --libs $(PKGS) 2>/dev/null)
override CPPFLAGS += -D_GNU_SOURCE
override CFLAGS += -std=c11 -g $(OPT) -march=$(ARCH) -fno-math-errno -fopenmp-simd -pthread \
  -fPIE $(HARDEN) $(WARN) $(PKG_CFLAGS)
override LDFLAGS += $(HARDEN_LINK)
LIBS := $(PKG_LIBS) -lopenblas -lm -ldl -pthread
ifdef SANITIZER
override CFLAGS += -fsanitize=$(SANITIZER) -fno-omit-frame-pointer -fno-sanitize-recover=all
override LDFLAGS += -fsanitize=$(SANITIZER)
endif

LIB_SRC := $(filter-out engine/cmd/main.c,$(wildcard engine/*.c engine/*/*.c engine/*/*/*.c)) \
  $(wildcard scheduler/*.c paged/*.c compress/*.c)
LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/%.o)
LIB := $(BUILD)/libcinch.a
# Tests share the code in tests/lib/ and tests/sim/. Every other C file in tests/ is a program.
TEST_LIB_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/lib/*.c tests/sim/*.c))
TEST_LIB := $(BUILD)/tests/libtest.a
TEST_BIN := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/test_*.c))
SIM_BIN := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/sim_*.c))
FUZZ_BIN := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/fuzz_*.c))
EXAMPLE_BIN := $(patsubst %.c,$(BUILD)/%,$(wildcard examples/*.c))
BENCH_BIN := $(patsubst %.c,$(BUILD)/%,$(wildcard bench/*.c))
TOOL_BIN := $(BUILD)/tests/diff_dumps $(BUILD)/tests/cinch_true_query $(BUILD)/tests/print_docs
# Tests that can run on the late device (tests/lib/late_device.h) instead of the CPU backend.
LATE_TESTS := $(addprefix $(BUILD)/tests/test_, soak engine_async engine_auto engine_away \
  engine_away_timing)
PROGRAM_OBJ := $(BUILD)/engine/cmd/main.o $(addsuffix .o,$(TEST_BIN) $(SIM_BIN) $(FUZZ_BIN) \
  $(TOOL_BIN) $(EXAMPLE_BIN) $(BENCH_BIN))
# Machine code for compute capability 9.0a (Hopper) and 8.0, and PTX that the driver compiles for
# newer GPUs.
# Without an installed CUDA 13, `make cuda` takes the compiler from PyPI into CUDA_ENV.
CUDA_ENV := build/cuda-env
ifndef CUDA_HOME
CUDA_HOME := $(shell .ci/cuda find $(CUDA_ENV))
endif
NVCC ?= $(CUDA_HOME)/bin/nvcc
CUDA_ARCHS ?= -gencode arch=compute_90a,code=sm_90a -gencode arch=compute_80,code=sm_80 \
  -gencode arch=compute_80,code=compute_80
CUDA_DEFS := $(if $(findstring sm_90a,$(CUDA_ARCHS)),-DCN_CUDA_HAS_SM90A)
NVCC_FLAGS := -std=c++17 -O3 -lineinfo $(CUDA_ARCHS) --threads 2 -Werror all-warnings \
  $(addprefix -Xcompiler ,$(HARDEN)) \
  -Xcompiler -fPIC,-fvisibility=hidden,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics \
  -Xcompiler -Wall,-Wextra,-Werror
# Host code that is linked into both the program and the GPU backend.
CUDA_SHARED_SRC := compress/policy.c compress/rule.c compress/compress_check.c
CUDA_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard cuda/*.c cuda/*/*.c)) \
  $(CUDA_SHARED_SRC:%.c=$(BUILD)/cuda-shared/%.o) \
  $(patsubst %.cu,$(BUILD)/%.cu.o,$(wildcard cuda/*.cu cuda/*/*.cu))
FAKE_CUDA := $(BUILD)/tests/fake_cuda
CUDA_LIBS := -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 -lcublasLt -lcudart_static \
  -lrt -ldl -lpthread
# A checksum of the headers that the program and the GPU backend share: ops.h and what it includes.
# The program refuses a backend with another sum.
HEADERS := $(filter %.h,$(shell $(CC) -I. -MM engine/ops.h 2>/dev/null))
HEADER_SUM := $(firstword $(shell cat /dev/null $(HEADERS) | cksum))
HEADER_SUM_OBJ := $(BUILD)/engine/start/device_choice.o $(BUILD)/cuda/cuda_backend.o
# Runs on Python 3.10 and newer.
MATPLOTLIB := 3.10.9
PLOT_ENV := $(BUILD)/plot-env
# Tests that start threads, for the thread sanitizer. Run others with TSAN_TESTS="a b".
TSAN_TESTS ?= turns ops_cpu ranks_cpu attn_cpu select_cpu predict_cpu exchange_cpu backend_pair away_pair engine_zip engine_async engine_ranks engine_away engine_away_timing engine_auto serve_batches mailbox lanes serve serve_health serve_lanes serve_limits serve_stop serve_attacks serve_bounds serve_intake serve_status

# The parts of `make nightly`, without the sanitizers.
NIGHTLY := nightly-sim nightly-fuzz nightly-async nightly-soak nightly-chaos \
  nightly-shards nightly-structured nightly-tokenizer nightly-clients nightly-recipes \
  nightly-checkpoint

.PHONY: all cpu cuda help deps demo check test sim fuzz scripts asan ubsan tsan golden tidy docs \
  docs-check cuda-deps install deb wheel package-check examples programs test-programs sanitized \
  bench plot-env plots clean nightly \
  $(NIGHTLY)
all: $(BUILD)/cinch $(LIB)
cpu: all

help:
	@sed -n 's/^## \{0,1\}//p' Makefile

# ---- building ----

# Objects depend on their compiler flags. The archive depends on the list of its members.
define stamp
$(shell mkdir -p $(BUILD); printf '%s\n' '$(2)' | cmp -s - $(BUILD)/$(1) || \
  printf '%s\n' '$(2)' >$(BUILD)/$(1))
endef
ifeq ($(filter clean help deps plot-env plots,$(MAKECMDGOALS)),)
$(call stamp,flags,$(CC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS))
$(call stamp,members,$(LIB_OBJ))
$(call stamp,cuda-flags,$(NVCC) $(NVCC_FLAGS))
$(call stamp,cuda-members,$(CUDA_OBJ))
$(call stamp,header-sum,$(HEADER_SUM))
$(call stamp,test-members,$(TEST_LIB_OBJ))
endif

$(BUILD)/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) -I. $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

$(HEADER_SUM_OBJ): $(BUILD)/header-sum
$(HEADER_SUM_OBJ): override CPPFLAGS += -DCN_HEADER_SUM=$(HEADER_SUM)

# These run on any x86-64 processor, to refuse one that the rest cannot run on.
ifneq ($(filter x86_64%,$(shell $(CC) -dumpmachine 2>/dev/null)),)
$(BUILD)/engine/cmd/main.o $(BUILD)/engine/base/cpu_check.o: override CFLAGS += -march=x86-64
endif

# The assembler includes these files, so the compiler's dependency list does not name them.
$(BUILD)/engine/serve/routes/assets.o: engine/serve/routes/page.html engine/serve/routes/openapi.json

# Examples can include only the public header, under its installed name.
$(BUILD)/examples/%.o: examples/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) -Iengine $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

$(LIB): $(LIB_OBJ) $(BUILD)/members
	@rm -f $@
	$(call say,AR,$@)
	$(Q)$(AR) rcs $@ $(LIB_OBJ)

$(TEST_LIB): $(TEST_LIB_OBJ) $(BUILD)/test-members
	@rm -f $@
	$(call say,AR,$@)
	$(Q)$(AR) rcs $@ $(TEST_LIB_OBJ)

$(BUILD)/cinch: $(BUILD)/engine/cmd/main.o $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) -pie $(LDFLAGS) -o $@ $^ $(LIBS)

$(EXAMPLE_BIN) $(BENCH_BIN) $(BUILD)/tests/print_docs: %: %.o $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) -pie $(LDFLAGS) -o $@ $^ $(LIBS)

$(BUILD)/tests/cinch_true_query: %: %.o $(BUILD)/engine/cmd/main.o $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) -pie $(LDFLAGS) -Wl,--wrap=cn_home_create -o $@ $^ $(LIBS)

$(LATE_TESTS): override LDFLAGS += -Wl,--wrap=cn_backend_cpu_open
$(BUILD)/tests/%: $(BUILD)/tests/%.o $(TEST_LIB) $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) -pie $(LDFLAGS) -o $@ $^ $(LIBS) -lcmocka

$(BUILD)/flags $(BUILD)/members $(BUILD)/test-members $(BUILD)/header-sum:

# ---- the GPU backend ----

ifneq ($(CUDA_HOME),)
cuda: $(BUILD)/cinch-cuda.so $(FAKE_CUDA)/cinch-cuda.so
else
cuda:
	@.ci/cuda get $(CUDA_ENV)
	+@home=$$(.ci/cuda find $(CUDA_ENV)); [ -n "$$home" ] || { echo 'make cuda: no nvcc'; exit 1; }; \
	  $(MAKE) --no-print-directory cuda CUDA_HOME="$$home"
endif

# nvcc needs g++.
cuda-deps:
	@.ci/deps g++
$(BUILD)/cuda-flags: cuda-deps

$(BUILD)/cuda/%.o: cuda/%.c $(BUILD)/flags $(BUILD)/cuda-flags
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) -I. -isystem $(CUDA_HOME)/include $(CPPFLAGS) $(CUDA_DEFS) $(CFLAGS) -fPIC \
	  -fvisibility=hidden -MMD -MP -c -o $@ $<

$(BUILD)/cuda-shared/%.o: %.c $(BUILD)/flags $(BUILD)/cuda-flags
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) -I. $(CPPFLAGS) $(CFLAGS) -fPIC -fvisibility=hidden -MMD -MP -c -o $@ $<

$(BUILD)/cuda/%.cu.o: cuda/%.cu $(BUILD)/cuda-flags
	@mkdir -p $(@D)
	$(call say,NVCC,$<)
	$(Q)$(NVCC) -I. $(NVCC_FLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/cinch-cuda.so: $(CUDA_OBJ) $(BUILD)/cuda-members
	$(call say,LD,$@)
	$(Q)$(CC) -shared -Wl,-z,defs $(LDFLAGS) -o $@ $(CUDA_OBJ) $(CUDA_LIBS) -lm

# The same objects with a CUDA runtime that needs no GPU, for tests/pair_check.sh.
$(FAKE_CUDA)/fake_cuda.o: tests/fake_cuda/fake_cuda.c $(BUILD)/flags $(BUILD)/cuda-flags
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) -I. -isystem $(CUDA_HOME)/include $(CPPFLAGS) $(CFLAGS) -fPIC -MMD -MP -c -o $@ $<

$(FAKE_CUDA)/cinch-cuda.so: $(CUDA_OBJ) $(FAKE_CUDA)/fake_cuda.o $(BUILD)/cuda-members
	$(call say,LD,$@)
	$(Q)$(CC) -shared -Wl,-z,defs $(LDFLAGS) -o $@ $(CUDA_OBJ) $(FAKE_CUDA)/fake_cuda.o \
	  -ldl -lpthread -lm

$(BUILD)/cuda-flags $(BUILD)/cuda-members:

examples: $(EXAMPLE_BIN)
programs: all $(TEST_BIN) $(SIM_BIN) $(FUZZ_BIN) $(TOOL_BIN) $(EXAMPLE_BIN) $(BENCH_BIN)

# ---- from a clean clone ----

deps:
	@.ci/deps

# Runs the rest of a target after deps, in a new make that finds the installed libraries. The new
# make uses all cores unless -j was given.
REST = +@$(MAKE) --no-print-directory $(if $(findstring -j,$(MAKEFLAGS)),,-j$(shell nproc))

# Runs targets one after another: tests/run.sh decides which programs run at a time. Runs all of them
# even when one fails.
define in-turn
+@bad=0; for t in $(1); do $(MAKE) --no-print-directory $(2) $$t || bad=1; done; exit $$bad
endef

# Not empty on a machine with an NVIDIA driver.
GPU ?= $(wildcard /dev/nvidiactl)
demo: deps
	$(REST) all $(if $(GPU),cuda)
	@rm -f $(BUILD)/demo.jsonl
	$(BUILD)/cinch run-batch --model examples/tiny-reasoner -i examples/prompts.jsonl \
	  -o $(BUILD)/demo.jsonl --prompt-field prompt --id-field id --answer-field answer \
	  --grade exact --reasoning-parser qwen3 --temperature 0

check: deps
	$(REST) programs
	$(call in-turn,test sim fuzz scripts docs-check tidy)

# ---- tests ----

# Runs each program, prints the log of each that fails, and prints the counts.
RUN = BUILD=$(BUILD) JOBS=$(JOBS) MAKE="$(MAKE)" CC="$(CC)" tests/run.sh

# T="a b" names the tests that run, EXCEPT="a b" those that do not.
TESTS := $(filter-out $(EXCEPT:%=$(BUILD)/tests/test_%),$(if $(T),$(T:%=$(BUILD)/tests/test_%),$(TEST_BIN)))
test-programs: all $(EXAMPLE_BIN) $(TESTS)
test: test-programs
	@$(RUN) $(TESTS)

sim: $(SIM_BIN)
	@$(RUN) --args "$(SEED) $(STEPS)" $^

fuzz: $(if $(T),$(T:%=$(BUILD)/tests/fuzz_%),$(FUZZ_BIN))
	@$(RUN) --args "$(FUZZ_RUNS) $(SEED)" $^

# The test scripts. They test the program, the installed files and the style check.
scripts: programs $(BUILD)/tests/tidy
	@$(RUN) $(wildcard tests/*_check.sh)

# Tests that take too long to run for every change: ten simulations of a million steps, longer
# fuzzing, more seeds of asynchronous runs, long random traffic, fifty rounds of kill -9, every test
# under the sanitizers. Together they take about an hour.
NIGHTLY_SEEDS ?= 1 2 3 4 5 6 7 8 9 10
nightly: deps
	$(REST) programs
	$(call in-turn,$(NIGHTLY) asan tsan,)
nightly-sim: $(SIM_BIN)
	@bad=0; for seed in $(NIGHTLY_SEEDS); do \
	  $(RUN) --args "$$seed 1000000" $^ || bad=1; done; exit $$bad
nightly-fuzz: $(FUZZ_BIN)
	@$(RUN) --args "400000 $(SEED)" $^
nightly-async: $(BUILD)/tests/test_engine_async
	@$(RUN) --args "300 1000" $^
nightly-soak: $(BUILD)/tests/test_soak
	@$(RUN) --args "240 cpu $(SEED)" $^
	@$(RUN) --args "240 late $(SEED)" $^
nightly-chaos: programs
	@CHAOS_ROUNDS=50 CHAOS_SEED=$(SEED) $(RUN) tests/chaos_check.sh
nightly-shards: programs
	@SHARD_ROUNDS=30 SHARD_SEED=$(SEED) LANES_ROUNDS=30 LANES_SEED=$(SEED) $(RUN) \
	  tests/shard_kill_check.sh tests/lanes_check.sh
nightly-structured: programs
	@STRUCTURED_N=10000 SEED=$(SEED) $(RUN) tests/serve_structured_check.sh
nightly-tokenizer: programs
	@TOKENIZER_TEXTS=40000 $(RUN) tests/tokenizer_check.sh
nightly-clients: programs
	@SEED=$(SEED) $(RUN) tests/nightly_clients.sh
nightly-recipes: programs
	@$(RUN) tests/nightly_routers.sh tests/nightly_ray.sh
nightly-checkpoint: programs
	@$(RUN) tests/nightly_checkpoint.sh

ASAN := SANITIZER=address,undefined OPT=-O1
UBSAN := SANITIZER=undefined OPT=-O1
TSAN := SANITIZER=thread OPT=-O1

# What asan and ubsan run.
sanitized: test-programs $(SIM_BIN) $(FUZZ_BIN)

asan:
	$(REST) $(ASAN) sanitized
	$(call in-turn,test sim fuzz,$(ASAN))

ubsan:
	$(REST) $(UBSAN) sanitized
	$(call in-turn,test sim fuzz,$(UBSAN))

tsan:
	$(REST) $(TSAN) T="$(TSAN_TESTS)" test-programs
	$(call in-turn,test,$(TSAN) T="$(TSAN_TESTS)")

# Writes the golden files from independent references. Each folder's README names the Python
# packages.
golden:
	@set -e; for s in tests/golden/make_*.py; do echo "== $$s"; $(PYTHON) $$s; done

tidy: $(BUILD)/tests/tidy
	@$(BUILD)/tests/tidy .

$(BUILD)/tests/tidy: tests/tidy.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -pie $(LDFLAGS) -o $@ $<

# ---- documents printed from the option table ----

docs: $(BUILD)/tests/print_docs
	@mkdir -p docs
	$< config >docs/CONFIG.md
	$< man >docs/cinch.1

docs-check: $(BUILD)/tests/print_docs
	@$< config | diff -u docs/CONFIG.md - && $< man | diff -u docs/cinch.1 - || \
	  { echo "docs/ does not match the option table: run make docs"; exit 1; }

# ---- installing ----

VERSION = $(shell sed -n 's/.*define CINCH_VERSION "\(.*\)"/\1/p' engine/cinch.h)

install: all $(BUILD)/tests/print_docs
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/include \
	  $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/share/man/man1 \
	  $(DESTDIR)$(PREFIX)/share/bash-completion/completions
	install -m 755 $(BUILD)/cinch $(DESTDIR)$(PREFIX)/bin/cinch
	install -m 644 $(LIB) $(DESTDIR)$(PREFIX)/lib/libcinch.a
	install -m 644 engine/cinch.h $(DESTDIR)$(PREFIX)/include/cinch.h
	if [ -e $(BUILD)/cinch-cuda.so ]; then \
	  install -D -m 755 $(BUILD)/cinch-cuda.so $(DESTDIR)$(PREFIX)/lib/cinch/cinch-cuda.so; fi
	install -m 644 docs/cinch.1 $(DESTDIR)$(PREFIX)/share/man/man1/cinch.1
	$(BUILD)/tests/print_docs bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/cinch
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' -e 's|@REQUIRES@|$(PKGS)|' \
	  engine/cinch.pc.in >$(DESTDIR)$(PREFIX)/lib/pkgconfig/cinch.pc

# Packages are built in a directory of their own, for any processor with x86-64-v3. A wheel cannot
# declare libraries of the system, so its program is linked with the static ones.
PACKAGE_ARCH := x86-64-v3
PACKAGES := build
STATIC_LIBS := -Wl,-Bstatic $(patsubst %,-l%,jansson pcre2-8 utf8proc event_core md openblas) \
  -Wl,-Bdynamic -lm -ldl -pthread

# Installs the packages into a fresh chroot and a fresh virtual environment. Needs root and debootstrap.
package-check:
	$(call in-turn,deb wheel)
	@$(RUN) tests/package_try.sh

deb: deps
	$(REST) BUILD=build-deb ARCH=$(PACKAGE_ARCH) all
	@MAKE="$(MAKE)" BUILD=build-deb ARCH=$(PACKAGE_ARCH) VERSION=$(VERSION) OUT=$(PACKAGES) \
	  sh examples/deploy/make_deb.sh

wheel: deps
	$(REST) BUILD=build-deb ARCH=$(PACKAGE_ARCH) build-deb/cinch-static
	@$(PYTHON) examples/deploy/make_wheel.py build-deb/cinch-static $(VERSION) $(PACKAGES)

$(BUILD)/cinch-static: $(BUILD)/engine/cmd/main.o $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) -pie $(LDFLAGS) -o $@ $^ $(STATIC_LIBS)

# ---- speed ----

bench: all $(BENCH_BIN)
	@ls bench/*.sh bench/*.py 2>/dev/null || true
	@for b in $(BENCH_BIN); do echo "== $$b"; $$b || exit 1; done

# ---- plots ----

plot-env: $(PLOT_ENV)/matplotlib-$(MATPLOTLIB)
	@echo 'ready: $(PLOT_ENV)/bin/python bench/plot.py --help'

$(PLOT_ENV)/matplotlib-$(MATPLOTLIB):
	$(call say,VENV,$(PLOT_ENV))
	$(Q)$(PYTHON) -m venv --clear $(PLOT_ENV)
	$(Q)$(PLOT_ENV)/bin/python -m pip install -q --disable-pip-version-check \
	  matplotlib==$(MATPLOTLIB)
	@touch $@

# Draws the plots of docs/BENCH.md and docs/QUALITY.md from docs/plots/data.
PLOTS ?= docs/plots
PLOT := $(PLOT_ENV)/bin/python bench/plot.py
DATA := docs/plots/data
plots: plot-env
	$(PLOT) compare $(DATA)/quality.json -o $(PLOTS)/quality.svg
	$(PLOT) timeline full=$(DATA)/capacity-full.csv zip=$(DATA)/capacity-zip.csv \
	  -o $(PLOTS)/capacity.svg
	$(PLOT) timeline 'full KV=$(DATA)/w-full.csv' zip=$(DATA)/w-zip.csv -o $(PLOTS)/w.svg
	$(PLOT) timeline full=$(DATA)/amc23-full.csv zip=$(DATA)/amc23-zip.csv -o $(PLOTS)/amc23.svg
	$(PLOT) timeline full=$(DATA)/mixture-full.csv zip=$(DATA)/mixture-zip.csv \
	  -o $(PLOTS)/mixture.svg
	$(PLOT) bench $(DATA)/throughput.json -o $(PLOTS)/throughput.svg
	$(PLOT) bench $(DATA)/budgets.json --title 'AMC 23' \
	  --xlabel 'budget of the paper, tokens' -o $(PLOTS)/budgets.svg

clean:
	rm -rf $(BUILD) build-address build-undefined build-thread build-deb

-include $(CUDA_OBJ:.o=.d)
-include $(LIB_OBJ:.o=.d) $(TEST_LIB_OBJ:.o=.d) $(PROGRAM_OBJ:.o=.d)
.SECONDARY:
.DELETE_ON_ERROR:
