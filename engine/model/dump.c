/* dump.c - see dump.h. */
#include "engine/model/dump.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { ANY = -2, SPEC_BYTES = 128, NPY_HEADER_BYTES = 128 };

struct cn_dump {
    cn_backend *be;
    int64_t name, layer, step; /* of the spec, or ANY */
    uint64_t now;
    char *dir;
    void *raw;    /* in the device's dtype */
    float *f32;   /* widened */
    size_t elems; /* capacity of raw and f32 */
};

static const char *const names[CN_DUMP_COUNT] = {
    [CN_DUMP_EMBED] = "embed",
    [CN_DUMP_ATTN_NORM] = "attn_norm",
    [CN_DUMP_QKV] = "qkv",
    [CN_DUMP_Q] = "q",
    [CN_DUMP_ATTN] = "attn",
    [CN_DUMP_O] = "o",
    [CN_DUMP_MLP_NORM] = "mlp_norm",
    [CN_DUMP_GATE_UP] = "gate_up",
    [CN_DUMP_SILU_MUL] = "silu_mul",
    [CN_DUMP_DOWN] = "down",
    [CN_DUMP_EXPERTS] = "experts",
    [CN_DUMP_FINAL_NORM] = "final_norm",
    [CN_DUMP_LOGITS] = "logits",
};

static const char *name_text(cn_dump_name name)
{
    return (size_t)name < CN_DUMP_COUNT ? names[name] : "?";
}

/* ---- the spec ---- */

static cn_status parse_dump_name(const char *text, int64_t *out)
{
    *out = ANY;
    if (strcmp(text, "*") == 0) return CN_OK;
    char known[SPEC_BYTES] = "";
    for (int i = 0; i < CN_DUMP_COUNT; i++) {
        *out = i;
        if (strcmp(text, names[i]) == 0) return CN_OK;
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, " %s", names[i]);
    }
    return cn_fail(CN_ERR_ARG, "--dump: unknown tensor \"%s\": expected * or one of%s", text,
                   known);
}

static cn_status parse_dump_number(const char *what, const char *text, int64_t *out)
{
    *out = ANY;
    if (strcmp(text, "*") == 0) return CN_OK;
    char *end = NULL;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < 0)
        return cn_fail(CN_ERR_ARG, "--dump: %s \"%s\": expected a number or *", what, text);
    *out = value;
    return CN_OK;
}

static cn_status parse_spec(cn_dump *d, const char *spec)
{
    char text[SPEC_BYTES];
    char *parts[3] = {text};
    int n = 1;
    snprintf(text, sizeof text, "%s", spec);
    for (char *p = text; *p && n <= 3; p++) {
        if (*p != ':') continue;
        *p = '\0';
        if (n < 3) parts[n] = p + 1;
        n++;
    }
    if (n != 3 || strlen(spec) >= sizeof text)
        return cn_fail(CN_ERR_ARG, "--dump \"%s\": expected name:layer:step", spec);
    CN_TRY(parse_dump_name(parts[0], &d->name));
    CN_TRY(parse_dump_number("layer", parts[1], &d->layer));
    return parse_dump_number("step", parts[2], &d->step);
}

cn_status cn_dump_open(cn_dump **out, cn_backend *be, const char *spec, const char *dir)
{
    *out = NULL;
    cn_dump *d = cn_calloc(1, sizeof *d);
    if (!d) return cn_fail(CN_ERR_MEMORY, "--dump: out of memory");
    d->be = be;
    d->dir = cn_strdup(dir);
    cn_status status =
        d->dir ? parse_spec(d, spec) : cn_fail(CN_ERR_MEMORY, "--dump: out of memory");
    if (status == CN_OK && mkdir(dir, 0777) != 0 && errno != EEXIST)
        status = cn_fail(CN_ERR_IO, "--dump: cannot create %s: %s", dir, strerror(errno));
    if (status != CN_OK) {
        cn_dump_close(d);
        return status;
    }
    *out = d;
    return CN_OK;
}

void cn_dump_close(cn_dump *d)
{
    if (!d) return;
    cn_free(d->raw);
    cn_free(d->f32);
    cn_free(d->dir);
    cn_free(d);
}

void cn_dump_begin_step(cn_dump *d, uint64_t step) { d->now = step; }

/* ---- files ---- */

void cn_dump_file_name(char out[CN_DUMP_FILE_BYTES], cn_dump_name name, int32_t layer,
                       uint64_t step)
{
    char where[16] = "outside";
    if (layer != CN_DUMP_NO_LAYER) snprintf(where, sizeof where, "layer-%02d", layer);
    snprintf(out, CN_DUMP_FILE_BYTES, "step-%06llu.%s.%s.npy", (unsigned long long)step, where,
             name_text(name));
}

/* NumPy's format 1.0: magic, version, header length, a Python dict padded with spaces. */
static size_t npy_header(char out[NPY_HEADER_BYTES], uint32_t rows, uint32_t cols)
{
    memset(out, ' ', NPY_HEADER_BYTES);
    memcpy(out, "\x93NUMPY\x01\x00", 8);
    out[8] = NPY_HEADER_BYTES - 10;
    out[9] = 0;
    char dict[NPY_HEADER_BYTES - 10];
    int n = snprintf(dict, sizeof dict,
                     "{'descr': '<f4', 'fortran_order': False, 'shape': (%u, %u), }", rows, cols);
    memcpy(out + 10, dict, (size_t)n);
    out[NPY_HEADER_BYTES - 1] = '\n';
    return NPY_HEADER_BYTES;
}

static cn_status write_file(const cn_dump *d, const char *name, uint32_t rows, uint32_t cols)
{
    cn_buf path = {0};
    CN_TRY(cn_buf_addf(&path, "%s/%s", d->dir, name));
    char header[NPY_HEADER_BYTES];
    size_t n = npy_header(header, rows, cols), elems = (size_t)rows * cols;
    FILE *f = fopen(path.data, "wb");
    bool ok = f && fwrite(header, 1, n, f) == n;
    ok = ok && fwrite(d->f32, sizeof *d->f32, elems, f) == elems;
    if (f && fclose(f) != 0) ok = false;
    cn_status status = CN_OK;
    if (!ok)
        status = cn_fail(CN_ERR_IO, "--dump: cannot write %s: %s", path.data, strerror(errno));
    cn_buf_free(&path);
    return status;
}

static cn_status reserve_dump(cn_dump *d, size_t elems)
{
    if (elems <= d->elems) return CN_OK;
    cn_free(d->raw);
    cn_free(d->f32);
    d->raw = cn_calloc(elems, sizeof(float));
    d->f32 = cn_calloc(elems, sizeof(float));
    d->elems = d->raw && d->f32 ? elems : 0;
    return d->elems ? CN_OK
                    : cn_fail(CN_ERR_MEMORY, "--dump: out of memory for %zu elements", elems);
}

static void widen(cn_dump *d, cn_dtype dtype, size_t elems)
{
    if (dtype == CN_F32) {
        memcpy(d->f32, d->raw, elems * sizeof *d->f32);
        return;
    }
    const uint16_t *bf16 = d->raw;
    for (size_t i = 0; i < elems; i++) {
        uint32_t bits = (uint32_t)bf16[i] << 16;
        memcpy(&d->f32[i], &bits, sizeof bits);
    }
}

static bool wanted(int64_t want, int64_t value) { return want == ANY || want == value; }

cn_status cn_dump_tensor(cn_dump *d, cn_stream *s, cn_dump_name name, int32_t layer,
                         const void *data, cn_dtype dtype, uint32_t rows, uint32_t cols)
{
    if (!wanted(d->name, name) || !wanted(d->layer, layer) || !wanted(d->step, (int64_t)d->now))
        return CN_OK;
    CN_ASSERT(dtype == CN_F32 || dtype == CN_BF16);
    size_t elems = (size_t)rows * cols;
    CN_TRY(reserve_dump(d, elems));
    CN_TRY(d->be->mem_read(s, d->raw, data, elems * cn_dtype_bytes(dtype)));
    CN_TRY(d->be->stream_sync(s));
    widen(d, dtype, elems);
    char file[CN_DUMP_FILE_BYTES];
    cn_dump_file_name(file, name, layer, d->now);
    return write_file(d, file, rows, cols);
}
