/* json.c - limits, duplicate check and typed getters over jansson. See json.h. */
#include "engine/base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/replace_file.h"
#include "engine/base/utf8.h"

enum { DESCRIBE_BYTES = 96 };

json_t *cn_json_textn(const char *text, size_t n)
{
    cn_buf valid = {0};
    json_t *string = NULL;
    if (cn_buf_add(&valid, "", 0) == CN_OK && cn_utf8_add_lossy(&valid, text, n) == CN_OK)
        string = json_stringn(valid.data, valid.len);
    cn_buf_free(&valid);
    return string;
}

json_t *cn_json_text(const char *text) { return cn_json_textn(text, strlen(text)); }

const char *cn_json_printable(const char *text, char *buf, size_t size)
{
    size_t n = 0;
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        bool plain = *p >= 0x20 && *p < 0x7f;
        if (n + (plain ? 1 : 4) + 4 > size) {
            n += (size_t)snprintf(buf + n, size - n, "...");
            return buf;
        }
        n += (size_t)snprintf(buf + n, size - n, plain ? "%c" : "\\x%02x", *p);
    }
    buf[n] = '\0';
    return buf;
}

const char *cn_json_describe(const json_t *value, char *buf, size_t size)
{
    if (!value) {
        snprintf(buf, size, "nothing");
    } else if (json_is_object(value)) {
        snprintf(buf, size, "an object of %zu keys", json_object_size(value));
    } else if (json_is_array(value)) {
        snprintf(buf, size, "an array of %zu", json_array_size(value));
    } else if (json_is_string(value)) {
        char text[DESCRIBE_BYTES];
        snprintf(buf, size, "\"%s\"",
                 cn_json_printable(json_string_value(value), text, sizeof text));
    } else {
        size_t n = json_dumpb(value, buf, size - 1, JSON_ENCODE_ANY);
        buf[n < size ? n : 0] = '\0';
    }
    return buf;
}

/* Nesting depth of a tree. jansson accepts at most 2048 levels, which bounds this recursion. */
static uint32_t depth_of(json_t *value)
{
    uint32_t deepest = 0;
    size_t i;
    const char *key;
    json_t *child;
    if (json_is_array(value)) {
        json_array_foreach(value, i, child) deepest = cn_max_u32(deepest, depth_of(child));
        return deepest + 1;
    }
    if (json_is_object(value)) {
        json_object_foreach(value, key, child) deepest = cn_max_u32(deepest, depth_of(child));
        return deepest + 1;
    }
    return 0;
}

/* What is wrong, in words of our own: those of the parser are for its programmers. */
static const char *fault_text(const json_error_t *e, const char *rest, size_t n_rest)
{
    switch (json_error_code(e)) {
    case json_error_premature_end_of_input: return "the text ends too early";
    case json_error_end_of_input_expected: return "more text after the value";
    case json_error_duplicate_key: return "a duplicate key";
    case json_error_numeric_overflow: return "a number is too large";
    case json_error_null_character:
    case json_error_null_byte_in_key: return "a NUL character (\\u0000)";
    case json_error_stack_overflow: return "nested too deep";
    case json_error_out_of_memory: return "out of memory";
    default: break;
    }
    if (strstr(e->text, "invalid Unicode")) return "half of a surrogate pair (\\uD800 to \\uDFFF)";
    static const char infinity[] = "Infinity"; /* after a minus, which was read */
    const bool minus = n_rest >= sizeof infinity - 1 &&
                       memcmp(rest, infinity, sizeof infinity - 1) == 0;
    if (minus || strstr(e->text, "near 'NaN'") || strstr(e->text, "near 'Infinity'"))
        return "NaN or Infinity, which JSON does not have";
    return "unexpected text";
}

/* Fails with the fault and the text before it. */
static cn_status fail_syntax(cn_status error, const char *what, const char *text, size_t n,
                             const json_error_t *e)
{
    enum { NEAR_BYTES = 24 };
    if (json_error_code(e) == json_error_invalid_utf8) /* jansson does not say where */
        return cn_fail(error, "%s: not JSON: byte %zu is not UTF-8", what,
                       cn_utf8_valid_prefix(text, n) + 1);
    char near[NEAR_BYTES + 1], shown[4 * NEAR_BYTES], line[24] = "";
    const size_t end = e->position < 0 ? 0 : (size_t)e->position < n ? (size_t)e->position : n;
    const size_t begin = end > NEAR_BYTES ? end - NEAR_BYTES : 0;
    snprintf(near, sizeof near, "%.*s", (int)(end - begin), text + begin);
    /* The line is given only for a text of several lines. */
    if (memchr(text, '\n', n)) snprintf(line, sizeof line, "line %d, ", e->line);
    return cn_fail(error, "%s: %scolumn %d: not JSON: %s%s%s%s", what, line, e->column,
                   fault_text(e, text + end, n - end), *near ? " near '" : "",
                   cn_json_printable(near, shown, sizeof shown), *near ? "'" : "");
}

/* Whether text[*i] belongs to a string. *inside: whether the string goes on after it. Moves *i
 * over the backslash of an escaped character. */
static bool skip_string(const char *text, size_t *i, bool *inside)
{
    const char c = text[*i];
    if (!*inside) {
        *inside = c == '"';
        return *inside;
    }
    *i += c == '\\';
    *inside = c != '"';
    return true;
}

static bool is_json_digit(char c) { return c >= '0' && c <= '9'; }

/* True if digits[n], perhaps with a sign, are an integer that does not fit in 64 bits. */
static bool is_large_integer(const char *digits, size_t n)
{
    char text[32]; /* more digits are too many, whatever they are */
    if (n >= sizeof text) return true;
    memcpy(text, digits, n);
    text[n] = '\0';
    errno = 0;
    (void)strtoll(text, NULL, 10);
    return errno == ERANGE;
}

/* Writes the text with ".0" after each integer that does not fit in 64 bits, so that it is read as
 * a real number. All other integers stay exact. */
static cn_status mark_large_integers(cn_buf *out, const char *text, size_t n)
{
    bool inside = false; /* a string */
    size_t done = 0;
    for (size_t i = 0; i < n; i++) {
        if (skip_string(text, &i, &inside)) continue;
        if (!is_json_digit(text[i]) && text[i] != '-') continue;
        const size_t start = i;
        while (i + 1 < n && is_json_digit(text[i + 1])) i++;
        const char next = i + 1 < n ? text[i + 1] : '\0';
        if (next == '.' || next == 'e' || next == 'E') {
            while (i + 1 < n && text[i + 1] && strchr("+-.0123456789eE", text[i + 1])) i++;
            continue;
        }
        if (!is_large_integer(text + start, i + 1 - start)) continue;
        CN_TRY(cn_buf_add(out, text + done, i + 1 - done));
        CN_TRY(cn_buf_add(out, ".0", 2));
        done = i + 1;
    }
    return cn_buf_add(out, text + done, n - done);
}

static cn_status parse(json_t **out, const char *text, size_t n, const char *what,
                       size_t max_bytes, uint32_t max_depth, cn_status error, size_t flags)
{
    *out = NULL;
    if (n > max_bytes)
        return cn_fail(error, "%s: %zu bytes of JSON exceed the limit of %zu", what, n, max_bytes);
    flags |= JSON_REJECT_DUPLICATES | JSON_DECODE_ANY;
    json_error_t e;
    errno = 0;
    json_t *tree = json_loadb(text, n, flags, &e);
    cn_buf marked = {0};
    cn_status status = CN_OK;
    if (!tree && json_error_code(&e) == json_error_numeric_overflow) {
        status = mark_large_integers(&marked, text, n);
        text = marked.data;
        n = marked.len;
        if (!status) tree = json_loadb(text, n, flags, &e);
    }
    /* The library takes some failures for faults of the text. */
    if (!status && !tree && errno == ENOMEM)
        status = cn_fail(CN_ERR_MEMORY, "%s: out of memory for its JSON", what);
    if (!status && !tree) status = fail_syntax(error, what, text, n, &e);
    cn_buf_free(&marked);
    if (status) return status;
    uint32_t depth = depth_of(tree);
    if (depth > max_depth) {
        json_decref(tree);
        return cn_fail(error, "%s: JSON nested %u deep exceeds the limit of %u", what, depth,
                       max_depth);
    }
    *out = tree;
    return CN_OK;
}

cn_status cn_json_parse(json_t **out, const char *text, size_t n, const char *what,
                        size_t max_bytes, uint32_t max_depth, cn_status error)
{
    return parse(out, text, n, what, max_bytes, max_depth, error, 0);
}

cn_status cn_json_read_object(const char *text, size_t n, const char *what, size_t max_bytes,
                              uint32_t max_depth, cn_status error, cn_json_read_fn read, void *out)
{
    char shown[DESCRIBE_BYTES];
    json_t *tree;
    CN_TRY(cn_json_parse(&tree, text, n, what, max_bytes, max_depth, error));
    const cn_json_at at = {tree, what, error};
    cn_status status = json_is_object(tree)
                           ? read(&at, out)
                           : cn_fail(error, "%s: expected an object, got %s", what,
                                     cn_json_describe(tree, shown, sizeof shown));
    json_decref(tree);
    return status;
}

cn_status cn_json_write_file(json_t *tree, const char *path)
{
    char *text = tree ? json_dumps(tree, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(tree);
    if (!text) return cn_fail(CN_ERR_MEMORY, "%s: out of memory for its text", path);
    cn_status status = cn_replace_file(path, text, strlen(text));
    free(text);
    return status;
}

cn_status cn_json_parse_request(json_t **out, const char *text, size_t n, const char *what,
                                const cn_json_limits *limits)
{
    *out = NULL;
    if (n <= limits->max_bytes && cn_json_measure(text, n).values > limits->max_values)
        return cn_fail(CN_ERR_ARG, "%s: %zu JSON values exceed the limit of %zu", what,
                       cn_json_measure(text, n).values, limits->max_values);
    return parse(out, text, n, what, limits->max_bytes, limits->max_depth, CN_ERR_ARG,
                 JSON_ALLOW_NUL);
}

/* ---- memory ---- */

/* What jansson allocates for a value, for the table of an array or an object, and for a member, on
 * a 64-bit machine; tests/test_json.c compares them with the heap. Tables grow by doubling. */
enum {
    VALUE_BYTES = 96,
    ARRAY_BYTES = 160,
    OBJECT_BYTES = 288,
    ENTRY_BYTES = 16,
    PAIR_BYTES = 128
};

/* True if the next character from i on, but for one space, closes a bracket. */
static bool closes_at(const char *text, size_t i, size_t n)
{
    i += i < n && text[i] == ' ';
    return i < n && (text[i] == ']' || text[i] == '}');
}

cn_json_size cn_json_measure(const char *text, size_t n)
{
    cn_json_size size = {.values = 1, .bytes = VALUE_BYTES};
    bool inside = false;
    for (size_t i = 0; i < n; i++) {
        const char c = text[i];
        if (skip_string(text, &i, &inside)) continue;
        /* A value follows each comma and each bracket that is not closed at once. */
        const bool follows = c == ',' || ((c == '[' || c == '{') && !closes_at(text, i + 1, n));
        size.values += follows;
        size.bytes += c == '{' ? OBJECT_BYTES : c == '[' ? ARRAY_BYTES : 0;
        size.bytes += c == ':' ? PAIR_BYTES : 0;
        size.bytes += follows ? VALUE_BYTES + ENTRY_BYTES : 0;
    }
    return size;
}

static void measure_json(json_t *value, cn_json_size *size)
{
    size_t i;
    const char *key;
    json_t *child;
    size->values++;
    size->bytes += VALUE_BYTES + ENTRY_BYTES;
    if (json_is_array(value)) {
        size->bytes += ARRAY_BYTES;
        json_array_foreach(value, i, child) measure_json(child, size);
    } else if (json_is_object(value)) {
        size->bytes += OBJECT_BYTES + PAIR_BYTES * json_object_size(value);
        json_object_foreach(value, key, child) measure_json(child, size);
    }
}

cn_json_size cn_json_measure_tree(json_t *tree)
{
    cn_json_size size = {0};
    measure_json(tree, &size);
    return size;
}

/* ---- NUL ---- */

static bool holds_nul(json_t *value)
{
    size_t i;
    const char *key;
    json_t *child;
    if (json_is_string(value))
        return strlen(json_string_value(value)) != json_string_length(value);
    if (json_is_array(value)) {
        json_array_foreach(value, i, child) if (holds_nul(child)) return true;
    } else if (json_is_object(value)) {
        json_object_foreach(value, key, child) if (holds_nul(child)) return true;
    }
    return false;
}

bool cn_json_is_named(const char *const *names, const char *key)
{
    while (names && *names && strcmp(*names, key) != 0) names++;
    return names && *names;
}

cn_status cn_json_refuse_nul_except(json_t *value, const char *where, const char *const *exempt,
                                    cn_status error)
{
    enum { PATH_BYTES = 256 };
    char path[PATH_BYTES], shown[DESCRIBE_BYTES];
    size_t i;
    const char *key;
    json_t *child;
    if (!holds_nul(value)) return CN_OK;
    json_array_foreach(value, i, child)
    {
        snprintf(path, sizeof path, "%s[%zu]", where, i);
        CN_TRY(cn_json_refuse_nul_except(child, path, exempt, error));
    }
    json_object_foreach(value, key, child)
    {
        if (json_is_string(child) && cn_json_is_named(exempt, key)) continue;
        snprintf(path, sizeof path, "%s.%s", where, cn_json_printable(key, shown, sizeof shown));
        CN_TRY(cn_json_refuse_nul_except(child, path, exempt, error));
    }
    if (!json_is_string(value)) return CN_OK;
    return cn_fail(error, "%s: a text with a NUL character (\\u0000) is not supported", where);
}

cn_status cn_json_refuse_nul(json_t *value, const char *where, cn_status error)
{
    return cn_json_refuse_nul_except(value, where, NULL, error);
}

/* ---- files ---- */

static cn_status read_whole(int fd, const char *path, size_t max_bytes, cn_buf *out)
{
    struct stat st;
    CN_TRY(cn_buf_add(out, "", 0)); /* out->data must not be NULL after an empty file */
    if (fstat(fd, &st) != 0) return cn_fail(CN_ERR_IO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode)) return cn_fail(CN_ERR_IO, "%s: not a regular file", path);
    if (st.st_size < 0 || (uint64_t)st.st_size > max_bytes)
        return cn_fail(CN_ERR_MODEL, "%s: %lld bytes of JSON exceed the limit of %zu", path,
                       (long long)st.st_size, max_bytes);
    char piece[1 << 16];
    for (size_t left = (size_t)st.st_size; left > 0;) {
        ssize_t got = read(fd, piece, left < sizeof piece ? left : sizeof piece);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return cn_fail(CN_ERR_IO, "%s: %s", path, strerror(errno));
        if (got == 0) break;
        if (cn_buf_add(out, piece, (size_t)got) != CN_OK)
            return cn_fail_within(CN_ERR_MEMORY, "%s", path);
        left -= (size_t)got;
    }
    return CN_OK;
}

cn_status cn_refuse_lfs_pointer(const char *path, const void *data, size_t n)
{
    static const char begin[] = "version https://git-lfs";
    if (n < sizeof begin - 1 || memcmp(data, begin, sizeof begin - 1) != 0) return CN_OK;
    return cn_fail(CN_ERR_MODEL,
                   "%s is a git-lfs pointer, not the file: run git lfs pull in its directory",
                   path);
}

cn_status cn_json_read_file(cn_buf *out, const char *path, size_t max_bytes)
{
    /* Non-blocking, so that a named pipe in a checkpoint gives an error instead of a hang. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return cn_fail(CN_ERR_IO, "%s: %s", path, strerror(errno));
    cn_status status = read_whole(fd, path, max_bytes, out);
    close(fd);
    return status == CN_OK ? cn_refuse_lfs_pointer(path, out->data, out->len) : status;
}

cn_status cn_json_read_optional_file(const char *dir, const char *name, size_t max_bytes,
                                     uint32_t max_depth, cn_json_read_fn read, void *out)
{
    cn_buf path = {0}, text = {0};
    cn_status status = cn_buf_addf(&path, "%s/%s", dir, name);
    if (status == CN_OK && access(path.data, F_OK) == 0) {
        status = cn_json_read_file(&text, path.data, max_bytes);
        if (status == CN_OK)
            status = cn_json_read_object(text.data ? text.data : "", text.len, path.data, max_bytes,
                                         max_depth, CN_ERR_MODEL, read, out);
    }
    cn_buf_free(&text);
    cn_buf_free(&path);
    return status;
}

static cn_status parse_file(json_t **out, const cn_buf *text, const char *path, size_t max_bytes,
                            uint32_t max_depth)
{
    return cn_json_parse(out, text->data, text->len, path, max_bytes, max_depth, CN_ERR_MODEL);
}

cn_status cn_json_load_file(json_t **out, const char *path, size_t max_bytes, uint32_t max_depth)
{
    cn_buf text = {0};
    *out = NULL;
    cn_status status = cn_json_read_file(&text, path, max_bytes);
    if (status == CN_OK) status = parse_file(out, &text, path, max_bytes, max_depth);
    cn_buf_free(&text);
    return status;
}

cn_status cn_json_load_fd(json_t **out, int fd, const char *path, size_t max_bytes,
                          uint32_t max_depth)
{
    cn_buf text = {0};
    *out = NULL;
    cn_status status = read_whole(fd, path, max_bytes, &text);
    if (status == CN_OK) status = parse_file(out, &text, path, max_bytes, max_depth);
    cn_buf_free(&text);
    return status;
}

/* ---- getters ---- */

json_t *cn_json_find(const cn_json_at *a, const char *key)
{
    json_t *v = json_object_get(a->object, key);
    return json_is_null(v) ? NULL : v;
}

static cn_status refuse_json(const cn_json_at *a, const char *key, const char *want,
                             const json_t *found)
{
    char shown[DESCRIBE_BYTES];
    return cn_fail(a->error, "%s: %s: expected %s, got %s", a->where, key, want,
                   cn_json_describe(found, shown, sizeof shown));
}

/* Finds a key. *v is NULL when it is absent and optional. */
static cn_status find_member(const cn_json_at *a, const char *key, cn_json_presence p, json_t **v)
{
    CN_ASSERT(json_is_object(a->object));
    *v = cn_json_find(a, key);
    if (!*v && p == CN_JSON_REQUIRED) return cn_fail(a->error, "%s: %s: missing", a->where, key);
    return CN_OK;
}

bool cn_json_as_i64(const json_t *value, int64_t min, int64_t max, int64_t *out)
{
    int64_t n;
    if (json_is_integer(value)) {
        n = json_integer_value(value);
    } else if (json_is_real(value)) {
        double x = json_real_value(value);
        /* Whole numbers are exact in a double up to 2^53. */
        if (x != floor(x) || fabs(x) > 9007199254740992.0) return false;
        n = (int64_t)x;
    } else {
        return false;
    }
    if (n < min || n > max) return false;
    *out = n;
    return true;
}

cn_status cn_json_i64(const cn_json_at *a, const char *key, cn_json_presence p, int64_t min,
                      int64_t max, int64_t *out)
{
    json_t *v;
    CN_TRY(find_member(a, key, p, &v));
    if (!v || cn_json_as_i64(v, min, max, out)) return CN_OK;
    char want[DESCRIBE_BYTES];
    snprintf(want, sizeof want, "a whole number from %lld to %lld", (long long)min, (long long)max);
    return refuse_json(a, key, want, v);
}

cn_status cn_json_u32(const cn_json_at *a, const char *key, cn_json_presence p, uint32_t min,
                      uint32_t max, uint32_t *out)
{
    int64_t n = *out;
    CN_TRY(cn_json_i64(a, key, p, min, max, &n));
    *out = (uint32_t)n;
    return CN_OK;
}

cn_status cn_json_f64(const cn_json_at *a, const char *key, cn_json_presence p, double min,
                      double max, double *out)
{
    json_t *v;
    CN_TRY(find_member(a, key, p, &v));
    if (!v) return CN_OK;
    double x = json_number_value(v);
    if (json_is_number(v) && x >= min && x <= max) {
        *out = x;
        return CN_OK;
    }
    char want[DESCRIBE_BYTES];
    snprintf(want, sizeof want, "a number from %g to %g", min, max);
    return refuse_json(a, key, want, v);
}

cn_status cn_json_bool(const cn_json_at *a, const char *key, cn_json_presence p, bool *out)
{
    json_t *v;
    CN_TRY(find_member(a, key, p, &v));
    if (!v) return CN_OK;
    if (!json_is_boolean(v)) return refuse_json(a, key, "true or false", v);
    *out = json_is_true(v);
    return CN_OK;
}

cn_status cn_json_str(const cn_json_at *a, const char *key, cn_json_presence p, const char **out)
{
    json_t *v;
    CN_TRY(find_member(a, key, p, &v));
    if (!v) return CN_OK;
    if (!json_is_string(v)) return refuse_json(a, key, "a string", v);
    if (cn_json_refuse_nul(v, key, a->error) != CN_OK)
        return cn_fail_within(a->error, "%s", a->where);
    *out = json_string_value(v);
    return CN_OK;
}

cn_status cn_json_obj(const cn_json_at *a, const char *key, cn_json_presence p, json_t **out)
{
    json_t *v;
    CN_TRY(find_member(a, key, p, &v));
    if (!v) return CN_OK;
    if (!json_is_object(v)) return refuse_json(a, key, "an object", v);
    *out = v;
    return CN_OK;
}

cn_status cn_json_arr(const cn_json_at *a, const char *key, cn_json_presence p, json_t **out)
{
    json_t *v;
    CN_TRY(find_member(a, key, p, &v));
    if (!v) return CN_OK;
    if (!json_is_array(v)) return refuse_json(a, key, "an array", v);
    *out = v;
    return CN_OK;
}

cn_status cn_json_token_ids(const cn_json_at *a, const char *key, uint32_t vocab, uint32_t max,
                            uint32_t *out, uint32_t *n_out)
{
    json_t *v = cn_json_find(a, key);
    bool list = json_is_array(v);
    size_t n = list ? json_array_size(v) : v ? 1 : 0;
    char shown[DESCRIBE_BYTES];
    *n_out = 0;
    if (n > max)
        return cn_fail(a->error, "%s: %s: %zu token ids: expected at most %u", a->where, key, n,
                       max);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = list ? json_array_get(v, i) : v;
        int64_t id;
        if (!cn_json_as_i64(item, 0, (int64_t)vocab - 1, &id))
            return cn_fail(a->error, "%s: %s: expected token ids below %u, got %s", a->where, key,
                           vocab, cn_json_describe(item, shown, sizeof shown));
        out[(*n_out)++] = (uint32_t)id;
    }
    return CN_OK;
}
