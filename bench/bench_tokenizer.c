/* bench_tokenizer.c - measures the speed of encoding and decoding on one core:
 *
 *     build/bench/bench_tokenizer [DIR [FILE...]]
 *
 * DIR is a checkpoint; the default is examples/tiny-reasoner. The text is that of the files. The
 * default is English prose: the licences and copyright notices that Debian installs. Each figure is
 * the best of several passes over the whole text. The first pass fills the word cache and is not
 * counted; "cold" is that pass. Times are processor times, so that load on the machine does not
 * make the tokenizer look slow. */
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/text/detok.h"
#include "engine/text/tokenizer.h"

enum { TEXT_BYTES = 16 << 20, PASSES = 5 };

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void die(const char *what)
{
    fprintf(stderr, "bench_tokenizer: %s: %s\n", what, cn_last_error());
    exit(1);
}

static void add_file(cn_buf *text, const char *path)
{
    FILE *in = fopen(path, "rb");
    if (!in) return;
    char chunk[1 << 14];
    for (size_t n; text->len < TEXT_BYTES && (n = fread(chunk, 1, sizeof chunk, in)) > 0;)
        if (cn_buf_add(text, chunk, n) != CN_OK) die(path);
    fclose(in);
}

static void add_default_text(cn_buf *text)
{
    static const char *const patterns[] = {"/usr/share/common-licenses/*",
                                           "/usr/share/doc/*/copyright"};
    for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++) {
        glob_t found;
        if (glob(patterns[p], 0, NULL, &found) != 0) continue;
        for (size_t i = 0; i < found.gl_pathc; i++) add_file(text, found.gl_pathv[i]);
        globfree(&found);
    }
}

static double encode_s(cn_tokenizer *t, const cn_buf *text, cn_tokens *ids)
{
    double start = cpu_s();
    ids->len = 0;
    if (cn_tokenizer_encode(t, text->data, text->len, false, ids) != CN_OK) die("encode");
    return cpu_s() - start;
}

static double decode_s(const cn_tokenizer *t, const cn_tokens *ids, cn_buf *out)
{
    double start = cpu_s();
    cn_detok d;
    cn_detok_init(&d, t, false);
    cn_buf_clear(out);
    for (size_t i = 0; i < ids->len; i++)
        if (cn_detok_push(&d, ids->ids[i], out) != CN_OK) die("decode");
    if (cn_detok_flush(&d, out) != CN_OK) die("decode");
    return cpu_s() - start;
}

int main(int argc, char **argv)
{
    const char *dir = argc > 1 ? argv[1] : "examples/tiny-reasoner";
    cn_buf text = {0}, back = {0};
    cn_tokens ids = {0};
    for (int i = 2; i < argc; i++) add_file(&text, argv[i]);
    if (argc < 3) add_default_text(&text);
    if (text.len == 0) {
        fprintf(stderr, "bench_tokenizer: no text: name files after the checkpoint\n");
        return 1;
    }

    cn_tokenizer *t;
    double start = cpu_s();
    if (cn_tokenizer_load(&t, dir) != CN_OK) die(dir);
    double load = cpu_s() - start;
    double cold = encode_s(t, &text, &ids), warm = cold, decode = 1e9;
    for (int i = 0; i < PASSES; i++) {
        double e = encode_s(t, &text, &ids), d = decode_s(t, &ids, &back);
        if (e < warm) warm = e;
        if (d < decode) decode = d;
    }
    double mb = 1e-6 * (double)text.len;
    printf("%s: %u tokens in the vocabulary, loaded in %.2f s\n", dir, cn_tokenizer_vocab_size(t),
           load);
    printf("%.1f MB of text, %zu tokens, %.2f bytes per token\n", mb, ids.len,
           (double)text.len / (double)ids.len);
    printf("encode %.1f MB/s (cold %.1f), decode %.1f MB/s\n", mb / warm, mb / cold, mb / decode);
    cn_tokenizer_free(t);
    cn_tokens_free(&ids);
    cn_buf_free(&text);
    cn_buf_free(&back);
    return 0;
}
