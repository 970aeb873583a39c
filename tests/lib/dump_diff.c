/* dump_diff.c - see dump_diff.h. */
#include "tests/lib/dump_diff.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/base.h"
#include "engine/model/dump.h"

typedef struct entry {
    unsigned long long step;
    int32_t layer; /* CN_DUMP_NO_LAYER outside the layers */
    cn_dump_name name;
} entry;

typedef struct tensor {
    uint32_t rows, cols;
    float *data;
} tensor;

/* ---- folders ---- */

static bool parse_file_name(const char *file, entry *e)
{
    char want[CN_DUMP_FILE_BYTES];
    const char *where = strchr(file, '.');
    if (sscanf(file, "step-%llu.", &e->step) != 1 || !where) return false;
    if (sscanf(where, ".layer-%d.", &e->layer) != 1) e->layer = CN_DUMP_NO_LAYER;
    for (int i = 0; i < CN_DUMP_COUNT; i++) {
        e->name = (cn_dump_name)i;
        cn_dump_file_name(want, e->name, e->layer, e->step);
        if (strcmp(want, file) == 0) return true;
    }
    return false;
}

/* Sorts tensors by the pass: before the first layer (-1), in a layer, or after the last. */
static int64_t place(const entry *e)
{
    if (e->layer != CN_DUMP_NO_LAYER) return e->layer;
    return e->name == CN_DUMP_EMBED ? -1 : INT32_MAX;
}

static int in_pass_order(const void *pa, const void *pb)
{
    const entry *a = pa, *b = pb;
    if (a->step != b->step) return a->step < b->step ? -1 : 1;
    if (place(a) != place(b)) return place(a) < place(b) ? -1 : 1;
    return (int)a->name - (int)b->name;
}

static entry *list_folder(const char *dir, size_t *n)
{
    DIR *d = opendir(dir);
    entry *list = NULL;
    size_t cap = 0;
    *n = 0;
    for (struct dirent *f = d ? readdir(d) : NULL; f; f = readdir(d)) {
        entry e;
        if (!parse_file_name(f->d_name, &e)) continue;
        if (*n == cap) {
            cap = cap ? 2 * cap : 64;
            list = cn_realloc(list, cap, sizeof *list);
            CN_ASSERT(list);
        }
        list[(*n)++] = e;
    }
    if (d) closedir(d);
    if (*n > 0) qsort(list, *n, sizeof *list, in_pass_order);
    return list;
}

static bool read_tensor(const char *dir, const char *file, tensor *t)
{
    char path[4096], header[128];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    *t = (tensor){0};
    FILE *f = fopen(path, "rb");
    if (!f) return false;
    bool ok = fread(header, 1, sizeof header, f) == sizeof header;
    header[sizeof header - 1] = '\0';
    const char *shape = ok ? strstr(header + 10, "'shape': (") : NULL;
    ok = shape && sscanf(shape, "'shape': (%u, %u)", &t->rows, &t->cols) == 2;
    size_t n = (size_t)t->rows * t->cols;
    if (ok) t->data = cn_calloc(n, sizeof *t->data);
    ok = ok && fread(t->data, sizeof *t->data, n, f) == n;
    fclose(f);
    return ok;
}

/* ---- comparison ---- */

static bool same_tensor(const tensor *a, const tensor *b, double tolerance, FILE *out)
{
    if (a->rows != b->rows || a->cols != b->cols) {
        fprintf(out, "shapes [%u, %u] and [%u, %u]\n", a->rows, a->cols, b->rows, b->cols);
        return false;
    }
    size_t n = (size_t)a->rows * a->cols, n_apart = 0, first = n;
    double largest = 0;
    for (size_t i = 0; i < n; i++) {
        double diff = fabs((double)a->data[i] - b->data[i]);
        if (diff <= tolerance) continue;
        if (n_apart++ == 0) first = i;
        largest = diff > largest ? diff : largest;
    }
    if (n_apart == 0) return true;
    fprintf(out, "row %zu, column %zu: %.9g and %.9g; %zu of %zu elements differ, by up to %.3g\n",
            first / a->cols, first % a->cols, (double)a->data[first], (double)b->data[first],
            n_apart, n, largest);
    return false;
}

bool dump_diff(const char *a, const char *b, double tolerance, FILE *out)
{
    size_t n = 0;
    entry *list = list_folder(a, &n);
    bool same = n > 0;
    if (n == 0) fprintf(out, "%s: no dumped tensors\n", a);
    for (size_t i = 0; same && i < n; i++) {
        char file[CN_DUMP_FILE_BYTES];
        tensor x, y;
        cn_dump_file_name(file, list[i].name, list[i].layer, list[i].step);
        bool have_x = read_tensor(a, file, &x), have_y = read_tensor(b, file, &y);
        same = have_x && have_y;
        if (!same) fprintf(out, "%s: cannot be read in %s\n", file, have_x ? b : a);
        if (same) {
            fprintf(out, "%s: ", file);
            same = same_tensor(&x, &y, tolerance, out);
            if (same) fputs("same\n", out);
        }
        cn_free(x.data);
        cn_free(y.data);
    }
    cn_free(list);
    return same;
}
