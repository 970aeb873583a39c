# cinch: `make help` lists the targets.
BUILD ?= build
CC ?= cc
ARCH ?= native
OPT ?= -O3
WARN := -Wall -Wextra -Wshadow -Wconversion -Werror
CFLAGS ?=
PKGS := jansson libpcre2-8 libutf8proc
override CPPFLAGS += -I. -D_GNU_SOURCE
override CFLAGS += -std=c11 -g $(OPT) -march=$(ARCH) -fno-math-errno -fopenmp-simd -pthread $(WARN) \
  $(shell pkg-config --cflags $(PKGS))
LIBS := $(shell pkg-config --libs $(PKGS)) -lopenblas -lm -ldl -pthread

# SANITIZER=address,undefined or thread: give BUILD another directory.
ifdef SANITIZER
override CFLAGS += -fsanitize=$(SANITIZER) -fno-omit-frame-pointer -fno-sanitize-recover=all
override LDFLAGS += -fsanitize=$(SANITIZER)
endif

LIB_SRC := $(filter-out engine/main.c,$(wildcard engine/*.c)) \
  $(wildcard engine/cpu/*.c scheduler/*.c paged/*.c compress/*.c)
LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/%.o)
LIB := $(BUILD)/libcinch.a
TEST_SRC := $(wildcard tests/test_*.c)
TEST_BIN := $(TEST_SRC:tests/%.c=$(BUILD)/tests/%)
# Helpers shared by tests: every other C file of tests/ that has no main of its own.
TEST_LIB_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/lib/*.c))

.PHONY: all test clean
all: $(BUILD)/cinch $(LIB)

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

$(LIB): $(LIB_OBJ)
	@rm -f $@
	$(AR) rcs $@ $^

$(BUILD)/cinch: $(BUILD)/engine/main.o $(LIB)
	$(CC) $(LDFLAGS) -o $@ $^ $(LIBS)

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(TEST_LIB_OBJ) $(LIB)
	$(CC) $(LDFLAGS) -o $@ $^ $(LIBS) -lcmocka

# make test [T=name]: tests/test_name.c alone, or all.
test: $(if $(T),$(BUILD)/tests/test_$(T),$(TEST_BIN))
	@set -e; for t in $^; do echo "== $$t"; $$t; done

clean:
	rm -rf $(BUILD)

-include $(LIB_OBJ:.o=.d) $(TEST_BIN:=.d)
.SECONDARY:
