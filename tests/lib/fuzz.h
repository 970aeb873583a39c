/* fuzz.h - a small seeded mutation fuzzer. `make fuzz` runs every tests/fuzz_*.c for a fixed number
 * of inputs, the same inputs each time, with any sanitizer that the build has.
 *
 * A fuzz file describes its target and calls fuzz_main:
 *     int main(int argc, char **argv) { return fuzz_main(argc, argv, &target); }
 * Arguments: [RUNS [SEED]], or --replay FILE for one input. A crash saves the input to
 * fuzz-NAME.crash and prints how to replay it.
 * Thread: main. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct fuzz_input {
    const void *data;
    size_t size;
} fuzz_input;
#define FUZZ_TEXT(s) {(s), sizeof(s) - 1}

typedef struct fuzz_target {
    const char *name;
    /* Feeds one input to the code under test and checks what must hold for every input. data is an
     * exact heap block, so a read past its end is caught. It is not NUL-terminated. */
    void (*run)(const uint8_t *data, size_t size);
    const fuzz_input *corpus; /* [n_corpus] valid inputs to start from, at least one */
    size_t n_corpus;
    const char *const *words; /* [n_words] texts to insert; may be NULL */
    size_t n_words;
    size_t max_size; /* largest mutated input in bytes; 0 = 4096 */
} fuzz_target;

int fuzz_main(int argc, char **argv, const fuzz_target *t);

/* When cond is false, saves the input and ends the process. */
#define FUZZ_CHECK(cond)                                                                           \
    do {                                                                                           \
        if (!(cond)) fuzz_failed(__FILE__, __LINE__, #cond);                                       \
    } while (0)
void fuzz_failed(const char *file, int line, const char *cond) __attribute__((noreturn));
