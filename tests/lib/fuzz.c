/* fuzz.c - see fuzz.h. Each input is a corpus entry after a few random edits: flipped bits, extreme
 * numbers, inserted words, repeated, moved or dropped pieces, parts of another entry, a cut. */
#include "tests/lib/fuzz.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEFAULT_MAX_BYTES = 4096, DEFAULT_RUNS = 20000, MAX_EDITS = 8 };

/* Not NULL when a sanitizer is linked in. A sanitizer ends the process without a signal. */
extern void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static struct {
    char path[128];
    const uint8_t *data;
    size_t size;
} current; /* the running input, for the crash handlers, which must not allocate */

static uint64_t rng_state;

static uint64_t next_random(void)
{
    rng_state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = rng_state;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static size_t below(size_t n) { return n ? (size_t)(next_random() % n) : 0; }

/* ---- crashes ---- */

static void say(const char *text)
{
    if (write(STDERR_FILENO, text, strlen(text)) < 0) return;
}

static void save_current(void)
{
    if (!current.data) return;
    int fd = open(current.path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    bool saved = fd >= 0 && write(fd, current.data, current.size) == (ssize_t)current.size;
    if (fd >= 0) close(fd);
    say(saved ? "fuzz: input saved: run this program with --replay " : "fuzz: cannot save ");
    say(current.path);
    say("\n");
    current.data = NULL;
}

static void on_signal(int sig)
{
    save_current();
    signal(sig, SIG_DFL);
    raise(sig);
}

static void catch_crashes(void)
{
    if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(save_current);
    static const int sigs[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGALRM};
    for (size_t i = 0; i < sizeof sigs / sizeof *sigs; i++) signal(sigs[i], on_signal);
}

void fuzz_failed(const char *file, int line, const char *cond)
{
    fprintf(stderr, "fuzz: %s:%d: check failed: %s\n", file, line, cond);
    abort();
}

/* ---- one input ---- */

static void run_one(const fuzz_target *t, const uint8_t *data, size_t size)
{
    enum { SECONDS_PER_INPUT = 120 }; /* a longer run is a failure */
    uint8_t *exact = malloc(size ? size : 1);
    if (!exact) abort();
    memcpy(exact, data, size);
    current.data = exact;
    current.size = size;
    alarm(SECONDS_PER_INPUT);
    t->run(exact, size);
    alarm(0);
    current.data = NULL;
    free(exact);
}

/* ---- edits: buf holds *size bytes and has room for max ---- */

static void insert_bytes(uint8_t *buf, size_t *size, size_t max, const void *data, size_t n)
{
    if (*size >= max) return;
    if (n > max - *size) n = max - *size;
    size_t at = below(*size + 1);
    memmove(buf + at + n, buf + at, *size - at);
    memcpy(buf + at, data, n);
    *size += n;
}

static void insert_number(uint8_t *buf, size_t *size, size_t max)
{
    static const char *const numbers[] = {"0",
                                          "-1",
                                          "1",
                                          "18446744073709551615",
                                          "18446744073709551616",
                                          "9223372036854775807",
                                          "4294967295",
                                          "4294967296",
                                          "2147483648",
                                          "1e999",
                                          "-0.0",
                                          "0.1",
                                          "nan",
                                          "1e-400"};
    const char *text = numbers[below(sizeof numbers / sizeof *numbers)];
    insert_bytes(buf, size, max, text, strlen(text));
}

static void overwrite_binary(uint8_t *buf, size_t size)
{
    static const uint64_t values[] = {
        0,          1,          0x7f,       0x80,           0xffff,
        0x7fffffff, 0xffffffff, UINT64_MAX, UINT64_MAX / 2, UINT64_MAX - 7};
    uint64_t v = values[below(sizeof values / sizeof *values)];
    size_t n = (size_t)1 << below(4);
    if (n <= size) memcpy(buf + below(size - n + 1), &v, n);
}

static void drop_piece(uint8_t *buf, size_t *size)
{
    size_t at = below(*size), n = 1 + below(*size - at);
    memmove(buf + at, buf + at + n, *size - at - n);
    *size -= n;
}

static void double_piece(uint8_t *buf, size_t *size, size_t max)
{
    uint8_t piece[256];
    size_t at = below(*size), n = 1 + below(*size - at);
    if (n > sizeof piece) n = sizeof piece;
    memcpy(piece, buf + at, n);
    for (size_t times = 1 + below(16); times--;) insert_bytes(buf, size, max, piece, n);
}

static void insert_other(const fuzz_target *t, uint8_t *buf, size_t *size, size_t max)
{
    const fuzz_input *other = &t->corpus[below(t->n_corpus)];
    size_t at = below(other->size + 1);
    insert_bytes(buf, size, max, (const char *)other->data + at, below(other->size - at + 1));
}

static void edit(const fuzz_target *t, uint8_t *buf, size_t *size, size_t max)
{
    static const uint8_t zeros[16];
    switch (below(t->n_words ? 10 : 9)) {
    case 0:
        if (*size) buf[below(*size)] ^= (uint8_t)(1U << below(8));
        break;
    case 1:
        if (*size) buf[below(*size)] = (uint8_t)next_random();
        break;
    case 2:
        overwrite_binary(buf, *size);
        break;
    case 3:
        insert_number(buf, size, max);
        break;
    case 4:
        if (*size) drop_piece(buf, size);
        break;
    case 5:
        if (*size) double_piece(buf, size, max);
        break;
    case 6:
        insert_other(t, buf, size, max);
        break;
    case 7:
        *size = below(*size + 1);
        break;
    case 8:
        insert_bytes(buf, size, max, zeros, 1 + below(sizeof zeros));
        break;
    default: {
        const char *word = t->words[below(t->n_words)];
        insert_bytes(buf, size, max, word, strlen(word));
    }
    }
}

static void run_mutated(const fuzz_target *t, uint8_t *buf, size_t max)
{
    const fuzz_input *from = &t->corpus[below(t->n_corpus)];
    size_t size = from->size < max ? from->size : max;
    memcpy(buf, from->data, size);
    for (size_t n = 1 + below(MAX_EDITS); n--;) edit(t, buf, &size, max);
    run_one(t, buf, size);
}

static int replay(const fuzz_target *t, const char *path)
{
    enum { MAX_REPLAY_BYTES = 1 << 24 };
    FILE *f = fopen(path, "rb");
    if (!f) {
        perror(path);
        return 1;
    }
    uint8_t *data = malloc(MAX_REPLAY_BYTES);
    if (!data) abort();
    size_t size = fread(data, 1, MAX_REPLAY_BYTES, f);
    fclose(f);
    run_one(t, data, size);
    free(data);
    return 0;
}

int fuzz_main(int argc, char **argv, const fuzz_target *t)
{
    snprintf(current.path, sizeof current.path, "fuzz-%s.crash", t->name);
    catch_crashes();
    if (argc == 3 && strcmp(argv[1], "--replay") == 0) return replay(t, argv[2]);
    unsigned long runs = argc > 1 ? strtoul(argv[1], NULL, 10) : DEFAULT_RUNS;
    unsigned long seed = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
    size_t max = t->max_size ? t->max_size : DEFAULT_MAX_BYTES;
    uint8_t *buf = malloc(max);
    if (!buf) abort();
    for (size_t i = 0; i < t->n_corpus; i++) run_one(t, t->corpus[i].data, t->corpus[i].size);
    for (unsigned long i = 0; i < runs; i++) {
        rng_state = seed * UINT64_C(1000003) + i; /* the same number gives the same input */
        run_mutated(t, buf, max);
    }
    free(buf);
    printf("fuzz %s: %lu inputs of seed %lu\n", t->name, runs + t->n_corpus, seed);
    return 0;
}
