/* gemm_cache.c - stores the timings of gemm_tune.c on disk, one file for each GPU, set of shapes
 * and set of versions. The file name is a hash of all that the timings depend on; the first line of
 * the file is the same as text. Then follows a line per plan, "n k f32 bias gated bucket own rows
 * splits sharers stages" or "... library HEX", and a last line "end". A damaged file is ignored and
 * replaced. */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda/gemm/gemm.h"

enum { KEY_BYTES = 768, PATH_BYTES = 4096, FORMAT = 6 };

/* Writes everything that the choice of plans depends on to key. */
static void make_key(const cn_cuda *c, char key[KEY_BYTES])
{
    const cn_cuda_backend_opts *o = &c->opts;
    int driver = 0;
    cudaDriverGetVersion(&driver);
    snprintf(key, KEY_BYTES,
             "cinch %s gemm %d, %s, %u SMs, driver %d, cuBLASLt %zu, heads %u/%u x %u, hidden %u, "
             "intermediate %u, experts %u, vocabulary %u, tokens %u, sequences %u, kind %d, "
             "fp8 %u",
             CINCH_VERSION, FORMAT, c->device.name, c->device.n_sms, driver,
             cublasLtGetVersion(), o->n_heads, o->n_kv_heads, o->head_dim, o->hidden,
             o->intermediate, o->n_experts, o->vocab, o->max_tokens, o->max_seqs,
             (int)c->switches.gemm, o->fp8_products);
}

static bool make_path(const cn_cuda *c, const char *key, const char *suffix, char path[PATH_BYTES])
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (const char *p = key; *p; p++) hash = (hash ^ (unsigned char)*p) * UINT64_C(0x100000001b3);
    const int n = snprintf(path, PATH_BYTES, "%s/gemm-%016llx%s", c->opts.cache_dir,
                           (unsigned long long)hash, suffix);
    return n > 0 && n < PATH_BYTES;
}

/* ---- reading ---- */

static bool parse_hex(const char *text, void *out, size_t n)
{
    unsigned char *bytes = out;
    if (strlen(text) != 2 * n) return false;
    for (size_t i = 0; i < n; i++) {
        unsigned value;
        if (sscanf(text + 2 * i, "%2x", &value) != 1) return false;
        bytes[i] = (unsigned char)value;
    }
    return true;
}

static bool parse_line(cn_cuda *c, const char *line)
{
    cn_gemm_shape shape = {0};
    unsigned f32, bias, gated, bucket;
    char kind[16], rest[256];
    cn_gemm_plan plan = {.kind = CN_GEMM_UNPLANNED};
    if (sscanf(line, "%u %u %u %u %u %u %15s %255[^\n]", &shape.n, &shape.k, &f32, &bias, &gated,
               &bucket, kind, rest) != 8)
        return false;
    if (bucket >= CN_GEMM_BUCKETS || f32 > 1 || bias > 1 || gated > 1) return false;
    shape.out_f32 = f32 == 1;
    shape.has_bias = bias == 1;
    shape.gated = gated == 1;
    const uint32_t rows = cn_gemm_buckets[bucket];
    if (strcmp(kind, "own") == 0) {
        plan.kind = CN_GEMM_SKINNY;
        if (sscanf(rest, "%u %u %u %u", &plan.skinny.rows, &plan.skinny.splits,
                   &plan.skinny.sharers, &plan.skinny.stages) != 4)
            return false;
        if (!cn_gemm_skinny_fits(c, shape, rows, plan.skinny)) return false;
    } else {
        plan.kind = CN_GEMM_LIBRARY;
        if (strcmp(kind, "library") != 0) return false;
        if (!parse_hex(rest, &plan.algorithm, sizeof plan.algorithm)) return false;
        if (!cn_gemm_library_accepts(c, shape, rows, &plan)) return false;
    }
    cn_gemm_entry *e = cn_gemm_find(c->gemm, shape);
    if (e) e->plans[bucket] = plan;
    return e != NULL;
}

static bool read_plans(cn_cuda *c, FILE *f, const char *key)
{
    char line[1024];
    size_t n = strlen(key);
    if (!fgets(line, sizeof line, f) || strncmp(line, key, n) != 0 || strcmp(line + n, "\n") != 0)
        return false;
    while (fgets(line, sizeof line, f)) {
        if (strcmp(line, "end\n") == 0) return true;
        if (!parse_line(c, line)) return false;
    }
    return false; /* the last line is missing */
}

bool cn_gemm_cache_load(cn_cuda *c)
{
    char key[KEY_BYTES], path[PATH_BYTES];
    make_key(c, key);
    if (!c->opts.cache_dir || !make_path(c, key, "", path)) return false;
    FILE *f = fopen(path, "r");
    if (!f) return false;
    const bool whole = read_plans(c, f, key);
    fclose(f);
    if (whole) return true;
    cn_log(CN_LOG_WARN, "%s is damaged: matrix products are timed again", path);
    memset(c->gemm->entries, 0, sizeof c->gemm->entries);
    c->gemm->n_entries = 0;
    return false;
}

/* ---- writing ---- */

static void write_plan(FILE *f, const cn_gemm_shape *shape, uint32_t bucket,
                       const cn_gemm_plan *plan)
{
    if (plan->kind == CN_GEMM_UNPLANNED || plan->kind == CN_GEMM_NONE) return;
    fprintf(f, "%u %u %d %d %d %u ", shape->n, shape->k, shape->out_f32, shape->has_bias,
            shape->gated, bucket);
    if (plan->kind == CN_GEMM_SKINNY) {
        fprintf(f, "own %u %u %u %u\n", plan->skinny.rows, plan->skinny.splits,
                plan->skinny.sharers, plan->skinny.stages);
        return;
    }
    const unsigned char *bytes = (const unsigned char *)&plan->algorithm;
    fprintf(f, "library ");
    for (size_t i = 0; i < sizeof plan->algorithm; i++) fprintf(f, "%02x", bytes[i]);
    fprintf(f, "\n");
}

static bool write_plans(const cn_cuda *c, const char *path, const char *key)
{
    FILE *f = fopen(path, "w");
    if (!f) return false;
    fprintf(f, "%s\n", key);
    for (uint32_t i = 0; i < c->gemm->n_entries; i++)
        for (uint32_t b = 0; b < CN_GEMM_BUCKETS; b++)
            write_plan(f, &c->gemm->entries[i].shape, b, &c->gemm->entries[i].plans[b]);
    fprintf(f, "end\n");
    const bool written = !ferror(f);
    return fclose(f) == 0 && written;
}

/* Makes every folder of the path, like mkdir -p. */
static bool make_folders(const char *path)
{
    char part[PATH_BYTES];
    snprintf(part, sizeof part, "%s", path);
    for (char *p = part + 1; *p; p++) {
        if (*p != '/') continue;
        *p = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST) return false;
        *p = '/';
    }
    return mkdir(part, 0777) == 0 || errno == EEXIST;
}

void cn_gemm_cache_save(const cn_cuda *c)
{
    char key[KEY_BYTES], path[PATH_BYTES], draft[PATH_BYTES], suffix[32];
    make_key(c, key);
    if (!c->opts.cache_dir) return;
    snprintf(suffix, sizeof suffix, ".%ld", (long)getpid());
    if (!make_path(c, key, "", path) || !make_path(c, key, suffix, draft)) return;
    if (make_folders(c->opts.cache_dir) && write_plans(c, draft, key) && rename(draft, path) == 0)
        return;
    cn_log(CN_LOG_WARN, "%s cannot be written (%s): matrix products are timed at every start", path,
           strerror(errno));
    unlink(draft);
}
