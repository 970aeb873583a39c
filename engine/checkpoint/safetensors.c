/* safetensors.c - maps shards and checks their headers. See safetensors.h. */
#include "engine/checkpoint/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/json.h"
#include "engine/checkpoint/checkpoint_dir.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "views use the byte order of the file");

enum {
    LENGTH_BYTES = 8,
    HEADER_MAX_BYTES = 16 << 20, /* a header of 100,000 tensors has about 12 MB */
    HEADER_MAX_DEPTH = 3,        /* header, tensor, shape */
    INDEX_MAX_BYTES = 32 << 20,
    MAX_SHARDS = 4096,
    NAME_MAX_BYTES = 512,
};

typedef struct shard {
    char *path;
    const unsigned char *image;
    size_t n_bytes;
    bool mapped;
} shard;

struct cn_safetensors {
    shard *shards;
    size_t n_shards;
    json_t *metadata;      /* of the first shard that has some, or NULL */
    cn_st_tensor *tensors; /* sorted by name once opened */
    size_t n_tensors;
};

static const struct {
    const char *name;
    uint32_t n_bytes;
} dtypes[] = {
    [CN_ST_BOOL] = {"BOOL", 1},       [CN_ST_U8] = {"U8", 1},
    [CN_ST_I8] = {"I8", 1},           [CN_ST_F8_E5M2] = {"F8_E5M2", 1},
    [CN_ST_F8_E4M3] = {"F8_E4M3", 1}, [CN_ST_F8_E8M0] = {"F8_E8M0", 1},
    [CN_ST_I16] = {"I16", 2},         [CN_ST_U16] = {"U16", 2},
    [CN_ST_F16] = {"F16", 2},         [CN_ST_BF16] = {"BF16", 2},
    [CN_ST_I32] = {"I32", 4},         [CN_ST_U32] = {"U32", 4},
    [CN_ST_F32] = {"F32", 4},         [CN_ST_F64] = {"F64", 8},
    [CN_ST_I64] = {"I64", 8},         [CN_ST_U64] = {"U64", 8},
    [CN_ST_C64] = {"C64", 8},
};

const char *cn_st_dtype_name(cn_st_dtype t) { return dtypes[t].name; }

const char *cn_st_shape_text(const cn_st_tensor *t, char *buf, size_t size)
{
    size_t n = (size_t)snprintf(buf, size, "[");
    for (uint32_t i = 0; i < t->n_dims && n < size; i++)
        n += (size_t)snprintf(buf + n, size - n, "%s%llu", i ? ", " : "",
                              (unsigned long long)t->shape[i]);
    if (n < size) snprintf(buf + n, size - n, "]");
    return buf;
}

/* ---- one tensor of a header ---- */

static cn_status fail_tensor(const cn_st_tensor *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static cn_status fail_tensor(const cn_st_tensor *t, const char *fmt, ...)
{
    char name[96], text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return cn_fail(CN_ERR_MODEL, "%s: tensor %s: %s", t->file,
                   cn_json_printable(t->name, name, sizeof name), text);
}

static cn_status check_name(const cn_st_tensor *t)
{
    size_t n = strlen(t->name);
    if (n == 0 || n > NAME_MAX_BYTES)
        return fail_tensor(t, "a name of %zu bytes: expected 1 to %d", n, NAME_MAX_BYTES);
    for (const unsigned char *p = (const unsigned char *)t->name; *p; p++)
        if (*p < 0x20 || *p == 0x7f) return fail_tensor(t, "control character in the name");
    return CN_OK;
}

static cn_status read_safetensors_dtype(const cn_json_at *a, cn_st_tensor *t)
{
    const char *name = "";
    char shown[64];
    CN_TRY(cn_json_str(a, "dtype", CN_JSON_REQUIRED, &name));
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        t->dtype = (cn_st_dtype)i;
        if (strcmp(name, dtypes[i].name) == 0) return CN_OK;
    }
    return fail_tensor(t, "dtype \"%s\" is not supported",
                       cn_json_printable(name, shown, sizeof shown));
}

/* Reads the shape; the size in bytes follows from shape and dtype. */
static cn_status read_shape(const cn_json_at *a, cn_st_tensor *t)
{
    json_t *list = NULL;
    CN_TRY(cn_json_arr(a, "shape", CN_JSON_REQUIRED, &list));
    size_t n = json_array_size(list);
    if (n > CN_ST_MAX_DIMS)
        return fail_tensor(t, "%zu dimensions: expected at most %d", n, CN_ST_MAX_DIMS);
    t->n_bytes = dtypes[t->dtype].n_bytes;
    for (size_t i = 0; i < n; i++) {
        char shown[64];
        const json_t *item = json_array_get(list, i);
        int64_t size;
        if (!cn_json_as_i64(item, 0, INT64_MAX, &size))
            return fail_tensor(t, "shape[%zu]: expected a size, got %s", i,
                               cn_json_describe(item, shown, sizeof shown));
        t->shape[i] = (uint64_t)size;
        t->n_dims++;
        if (__builtin_mul_overflow(t->n_bytes, t->shape[i], &t->n_bytes))
            return fail_tensor(t, "shape %s of %s overflows 64 bits",
                               cn_st_shape_text(t, shown, sizeof shown), dtypes[t->dtype].name);
    }
    return CN_OK;
}

static cn_status read_safetensors_span(const cn_json_at *a, cn_st_tensor *t,
                                       const unsigned char *data, uint64_t data_bytes)
{
    json_t *list = NULL;
    int64_t begin, end;
    char shown[64];
    CN_TRY(cn_json_arr(a, "data_offsets", CN_JSON_REQUIRED, &list));
    if (json_array_size(list) != 2 ||
        !cn_json_as_i64(json_array_get(list, 0), 0, INT64_MAX, &begin) ||
        !cn_json_as_i64(json_array_get(list, 1), 0, INT64_MAX, &end))
        return fail_tensor(t, "data_offsets: expected two whole numbers, at least 0");
    if (begin > end || (uint64_t)end > data_bytes)
        return fail_tensor(t, "data_offsets [%lld, %lld] are outside the %llu bytes of data",
                           (long long)begin, (long long)end, (unsigned long long)data_bytes);
    if ((uint64_t)(end - begin) != t->n_bytes)
        return fail_tensor(t,
                           "data_offsets [%lld, %lld] span %lld bytes, but shape %s of %s has %llu",
                           (long long)begin, (long long)end, (long long)(end - begin),
                           cn_st_shape_text(t, shown, sizeof shown), dtypes[t->dtype].name,
                           (unsigned long long)t->n_bytes);
    t->data = data + begin;
    return CN_OK;
}

static cn_status add_tensor(cn_safetensors *s, const cn_st_tensor *t)
{
    CN_TRY(CN_ROOM(&s->tensors, s->n_tensors, "the list of tensors"));
    cn_st_tensor copy = *t;
    copy.name = cn_strdup(t->name);
    if (!copy.name) return cn_fail(CN_ERR_MEMORY, "%s: out of memory for a name", t->file);
    s->tensors[s->n_tensors++] = copy;
    return CN_OK;
}

/* ---- one shard ---- */

static int by_span(const void *a, const void *b)
{
    const cn_st_tensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return (x->n_bytes > y->n_bytes) - (x->n_bytes < y->n_bytes);
}

static int by_safetensors_name(const void *a, const void *b)
{
    return strcmp(((const cn_st_tensor *)a)->name, ((const cn_st_tensor *)b)->name);
}

/* The spans, sorted by offset, must cover the data without overlap or gap. */
static cn_status check_tiling(const shard *f, cn_st_tensor *tensors, size_t n,
                              const unsigned char *data, uint64_t data_bytes)
{
    uint64_t end = 0;
    if (n) qsort(tensors, n, sizeof *tensors, by_span);
    for (size_t i = 0; i < n; i++) {
        uint64_t begin = (uint64_t)((const unsigned char *)tensors[i].data - data);
        if (begin < end)
            return fail_tensor(&tensors[i],
                               "data from byte %llu overlaps tensor %s, which ends at byte %llu",
                               (unsigned long long)begin, tensors[i - 1].name,
                               (unsigned long long)end);
        if (begin > end)
            return fail_tensor(&tensors[i], "bytes %llu to %llu before it belong to no tensor",
                               (unsigned long long)end, (unsigned long long)begin);
        end = begin + tensors[i].n_bytes;
    }
    if (end != data_bytes)
        return cn_fail(CN_ERR_MODEL, "%s: tensors cover %llu bytes of data, but the file has %llu",
                       f->path, (unsigned long long)end, (unsigned long long)data_bytes);
    return CN_OK;
}

static cn_status read_safetensors_tensors(cn_safetensors *s, const shard *f, json_t *header,
                                          const unsigned char *data, uint64_t data_bytes)
{
    size_t first = s->n_tensors;
    const char *name;
    json_t *entry;
    json_object_foreach(header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0) {
            if (!s->metadata) s->metadata = json_incref(entry);
            continue;
        }
        cn_st_tensor t = {.name = name, .file = f->path};
        char place[NAME_MAX_BYTES], shown[96];
        CN_TRY(check_name(&t));
        if (!json_is_object(entry))
            return fail_tensor(&t, "expected an object, got %s",
                               cn_json_describe(entry, shown, sizeof shown));
        snprintf(place, sizeof place, "%s: tensor %s", f->path,
                 cn_json_printable(name, shown, sizeof shown));
        cn_json_at a = {entry, place, CN_ERR_MODEL};
        CN_TRY(read_safetensors_dtype(&a, &t));
        CN_TRY(read_shape(&a, &t));
        CN_TRY(read_safetensors_span(&a, &t, data, data_bytes));
        CN_TRY(add_tensor(s, &t));
    }
    return check_tiling(f, s->tensors + first, s->n_tensors - first, data, data_bytes);
}

static cn_status read_shard(cn_safetensors *s, const shard *f)
{
    uint64_t length;
    if (f->n_bytes < LENGTH_BYTES)
        return cn_fail(CN_ERR_MODEL, "%s: %zu bytes are too few for a safetensors file: download "
                       "it again", f->path, f->n_bytes);
    memcpy(&length, f->image, LENGTH_BYTES);
    uint64_t rest = f->n_bytes - LENGTH_BYTES;
    if (length > rest || length > HEADER_MAX_BYTES)
        return cn_fail(CN_ERR_MODEL,
                       "%s: header of %llu bytes exceeds the %llu bytes that follow, or the limit "
                       "of %d",
                       f->path, (unsigned long long)length, (unsigned long long)rest,
                       HEADER_MAX_BYTES);
    json_t *header;
    const char *text = (const char *)f->image + LENGTH_BYTES;
    CN_TRY(cn_json_parse(&header, text, (size_t)length, f->path, HEADER_MAX_BYTES, HEADER_MAX_DEPTH,
                         CN_ERR_MODEL));
    cn_status status = json_is_object(header)
                           ? read_safetensors_tensors(
                                 s, f, header, f->image + LENGTH_BYTES + length, rest - length)
                           : cn_fail(CN_ERR_MODEL, "%s: the header is not a JSON object", f->path);
    json_decref(header);
    return status;
}

static cn_status map_file(shard *f)
{
    int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return cn_fail(CN_ERR_IO, "%s: %s", f->path, strerror(errno));
    struct stat st;
    cn_status status = CN_OK;
    if (fstat(fd, &st) != 0)
        status = cn_fail(CN_ERR_IO, "%s: %s", f->path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        status = cn_fail(CN_ERR_IO, "%s: not a regular file", f->path);
    else if (st.st_size > 0) { /* an empty mapping is an error; read_shard refuses empty files */
        f->n_bytes = (size_t)st.st_size;
        void *map = mmap(NULL, f->n_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        f->mapped = map != MAP_FAILED;
        if (f->mapped)
            f->image = map;
        else
            status = cn_fail(CN_ERR_IO, "%s: cannot map %zu bytes: %s", f->path, f->n_bytes,
                             strerror(errno));
    }
    close(fd);
    return status;
}

/* Whether name is a file in the folder of the index: no path, no hidden file, no control character.
 */
static bool plain_file_name(const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f || name[i] == '/') return false;
    return n > 0 && n < 256 && name[0] != '.';
}

/* Maps and reads dir/name as the next shard. */
static cn_status open_shard(cn_safetensors *s, const char *dir, const char *name)
{
    cn_buf path = {0};
    CN_TRY(cn_buf_addf(&path, "%s/%s", dir, name));
    shard *f = &s->shards[s->n_shards++];
    f->path = path.data;
    CN_TRY(map_file(f));
    if (f->mapped) CN_TRY(cn_refuse_lfs_pointer(f->path, f->image, f->n_bytes));
    return read_shard(s, f);
}

/* ---- a whole checkpoint ---- */

/* Sorts the tensors by name for find. A name may occur only once. */
static cn_status index_names(cn_safetensors *s)
{
    if (s->n_tensors) qsort(s->tensors, s->n_tensors, sizeof *s->tensors, by_safetensors_name);
    for (size_t i = 1; i < s->n_tensors; i++)
        if (by_safetensors_name(&s->tensors[i - 1], &s->tensors[i]) == 0)
            return fail_tensor(&s->tensors[i], "is also in %s", s->tensors[i - 1].file);
    return CN_OK;
}

static cn_status create(cn_safetensors **out, size_t n_shards)
{
    cn_safetensors *s = cn_calloc(1, sizeof *s);
    shard *shards = cn_calloc(n_shards, sizeof *shards);
    *out = NULL;
    if (!s || !shards) {
        cn_free(s);
        cn_free(shards);
        return cn_fail(CN_ERR_MEMORY, "out of memory for %zu shards", n_shards);
    }
    s->shards = shards;
    *out = s;
    return CN_OK;
}

/* Collects the shards of an index as the keys of *out, each once. weight_map maps tensors to file
 * names. */
static cn_status list_shards(const cn_json_at *index, json_t *weight_map, json_t **out)
{
    const char *name;
    json_t *file;
    char tensor[96], shown[96];
    *out = json_object();
    if (!*out) return cn_fail(CN_ERR_MEMORY, "%s: out of memory for its shards", index->where);
    json_object_foreach(weight_map, name, file)
    {
        if (!json_is_string(file) || !plain_file_name(json_string_value(file)))
            return cn_fail(CN_ERR_MODEL, "%s: tensor %s: expected a file name, got %s",
                           index->where, cn_json_printable(name, tensor, sizeof tensor),
                           cn_json_describe(file, shown, sizeof shown));
        if (json_object_set_new(*out, json_string_value(file), json_true()) != 0)
            return cn_fail(CN_ERR_MEMORY, "%s: out of memory for its shards", index->where);
    }
    size_t n = json_object_size(*out);
    if (n == 0 || n > MAX_SHARDS)
        return cn_fail(CN_ERR_MODEL, "%s: weight_map names %zu files: expected 1 to %d",
                       index->where, n, MAX_SHARDS);
    return CN_OK;
}

/* Every tensor of the index must be in the file that the index names. */
static cn_status check_index(const cn_safetensors *s, const cn_json_at *index, json_t *weight_map)
{
    const char *name;
    json_t *file;
    char shown[96];
    json_object_foreach(weight_map, name, file)
    {
        const cn_st_tensor *t = cn_safetensors_find(s, name);
        const char *slash = t ? strrchr(t->file, '/') : NULL;
        if (!slash || strcmp(slash + 1, json_string_value(file)) != 0)
            return cn_fail(CN_ERR_MODEL, "%s: tensor %s is not in %s", index->where,
                           cn_json_printable(name, shown, sizeof shown), json_string_value(file));
    }
    return CN_OK;
}

static cn_status open_shards(cn_safetensors **out, const char *dir, const cn_json_at *index,
                             json_t *weight_map, json_t *files)
{
    const char *name;
    json_t *unused;
    CN_TRY(create(out, json_object_size(files)));
    json_object_foreach(files, name, unused) CN_TRY(open_shard(*out, dir, name));
    CN_TRY(index_names(*out));
    return check_index(*out, index, weight_map);
}

static cn_status open_index(cn_safetensors **out, const char *dir, const char *path)
{
    json_t *tree, *weight_map = NULL, *files = NULL;
    CN_TRY(cn_json_load_file(&tree, path, INDEX_MAX_BYTES, HEADER_MAX_DEPTH));
    cn_json_at index = {tree, path, CN_ERR_MODEL};
    cn_status status = json_is_object(tree)
                           ? cn_json_obj(&index, "weight_map", CN_JSON_REQUIRED, &weight_map)
                           : cn_fail(CN_ERR_MODEL, "%s: not a JSON object", path);
    if (status == CN_OK) status = list_shards(&index, weight_map, &files);
    if (status == CN_OK) status = open_shards(out, dir, &index, weight_map, files);
    json_decref(files);
    json_decref(tree);
    return status;
}

/* Frees everything after a failed open. */
static cn_status open_one(cn_safetensors *s, const char *dir, const char *name)
{
    CN_TRY(open_shard(s, dir, name));
    return index_names(s);
}

static cn_status finish_open(cn_safetensors **out, cn_status status)
{
    if (status == CN_OK) return CN_OK;
    cn_safetensors_close(*out);
    *out = NULL;
    return status;
}

static cn_status open_dir(cn_safetensors **out, const char *dir, const char *index)
{
    cn_buf whole = {0};
    CN_TRY(cn_buf_addf(&whole, "%s/model.safetensors", dir));
    bool is_whole = access(whole.data, F_OK) == 0;
    cn_buf_free(&whole);
    if (is_whole) {
        CN_TRY(create(out, 1));
        return open_one(*out, dir, "model.safetensors");
    }
    if (access(index, F_OK) == 0) return open_index(out, dir, index);
    CN_TRY(cn_checkpoint_dir_refuse_gguf(dir));
    return cn_fail(CN_ERR_IO,
                   "%s: expected model.safetensors or model.safetensors.index.json; other weight "
                   "files are not supported",
                   dir);
}

cn_status cn_safetensors_open(cn_safetensors **out, const char *dir)
{
    cn_buf index = {0};
    *out = NULL;
    CN_TRY(cn_buf_addf(&index, "%s/model.safetensors.index.json", dir));
    cn_status status = open_dir(out, dir, index.data);
    cn_buf_free(&index);
    return finish_open(out, status);
}

cn_status cn_safetensors_open_file(cn_safetensors **out, const char *dir, const char *name)
{
    CN_TRY(create(out, 1));
    return finish_open(out, open_one(*out, dir, name));
}

static cn_status open_image(cn_safetensors *s, const void *image, size_t n, const char *what)
{
    shard *f = &s->shards[s->n_shards++];
    *f = (shard){.path = cn_strdup(what), .image = image, .n_bytes = n};
    if (!f->path) return cn_fail(CN_ERR_MEMORY, "%s: out of memory for its name", what);
    CN_TRY(read_shard(s, f));
    return index_names(s);
}

cn_status cn_safetensors_open_image(cn_safetensors **out, const void *image, size_t n,
                                    const char *what)
{
    CN_TRY(create(out, 1));
    return finish_open(out, open_image(*out, image, n, what));
}

void cn_safetensors_close(cn_safetensors *s)
{
    if (!s) return;
    for (size_t i = 0; i < s->n_tensors; i++) cn_free((void *)s->tensors[i].name);
    for (size_t i = 0; i < s->n_shards; i++) {
        if (s->shards[i].mapped) munmap((void *)s->shards[i].image, s->shards[i].n_bytes);
        cn_free(s->shards[i].path);
    }
    json_decref(s->metadata);
    cn_free(s->tensors);
    cn_free(s->shards);
    cn_free(s);
}

const char *cn_safetensors_metadata(const cn_safetensors *s, const char *key)
{
    return json_string_value(json_object_get(s->metadata, key));
}

const cn_st_tensor *cn_safetensors_find(const cn_safetensors *s, const char *name)
{
    cn_st_tensor key = {.name = name};
    return s->n_tensors ? bsearch(&key, s->tensors, s->n_tensors, sizeof key, by_safetensors_name)
                        : NULL;
}

size_t cn_safetensors_count(const cn_safetensors *s) { return s->n_tensors; }

const cn_st_tensor *cn_safetensors_at(const cn_safetensors *s, size_t i)
{
    CN_ASSERT(i < s->n_tensors);
    return &s->tensors[i];
}
