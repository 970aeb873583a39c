/* fuzz.h - a small seeded mutation fuzzer: `make fuzz` runs every tests/fuzz_*.c for a fixed
 * number of inputs, the same ones each time, under whatever sanitizer the build has.
 *
 * A fuzz file describes its target and hands over:
 *     int main(int argc, char **argv) { return fuzz_main(argc, argv, &target); }
 * Its arguments: [RUNS [SEED]], or --replay FILE for one input. A crash leaves the input in
 * fuzz-NAME.crash and prints the command that replays it.
 * Thread: main. */
#ifndef CN_FUZZ_H
#define CN_FUZZ_H

#include <stddef.h>
#include <stdint.h>

typedef struct fuzz_input {
    const void *data;
    size_t size;
} fuzz_input;
#define FUZZ_TEXT(s) {(s), sizeof(s) - 1}

typedef struct fuzz_target {
    const char *name;
    /* Feeds one input to the code under test and checks what must hold whatever the input. data is
     * an exact heap block: a read past its end is caught; it is not NUL-terminated. */
    void (*run)(const uint8_t *data, size_t size);
    const fuzz_input *corpus; /* [n_corpus] valid inputs to start from, at least one */
    size_t n_corpus;
    const char *const *words; /* [n_words] texts worth inserting; may be NULL */
    size_t n_words;
    size_t max_size; /* of a mutated input, bytes; 0 = 4096 */
} fuzz_target;

int fuzz_main(int argc, char **argv, const fuzz_target *t);

/* Stops with the input saved when a property does not hold. */
#define FUZZ_CHECK(cond)                                                                           \
    do {                                                                                           \
        if (!(cond)) fuzz_failed(__FILE__, __LINE__, #cond);                                       \
    } while (0)
void fuzz_failed(const char *file, int line, const char *cond) __attribute__((noreturn));

#endif
