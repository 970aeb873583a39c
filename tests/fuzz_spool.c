/* fuzz_spool.c - starts a server's batches on a spool in which one file is hostile: a record of a
 * file or of a batch, the input of a batch, or lines that it has written. The first byte of an
 * input chooses the file, the rest is its content. Must hold: no crash and no leak; the spool
 * opens; every list can be made; the batch beside it completes; the next start knows the same. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "tests/lib/fuzz.h"
#include "tests/lib/jobs_rig.h"

enum { MAX_FILES = 16, LINES = 3 };

typedef struct spool_file {
    char path[96];
    char *text;
    size_t n;
} spool_file;
/* The spool of two batches that a server left while both ran. */
static spool_file kept[MAX_FILES];
static size_t n_kept;
static cn_spool_id good; /* the batch whose files stay as they are */

/* ---- functions of the C library that are replaced, so that a seed gives the same inputs ---- */

time_t time(time_t *out)
{
    if (out) *out = 1800000000;
    return 1800000000;
}

ssize_t getrandom(void *out, size_t n, unsigned flags)
{
    static uint64_t count;
    uint8_t *bytes = out;
    (void)flags;
    count++;
    for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)(cn_hash64(count, &i, sizeof i) >> 56);
    return (ssize_t)n;
}

/* The fuzzer does not cut the power. */
int fsync(int fd)
{
    (void)fd;
    return 0;
}

/* ---- the spool ---- */

static void write_file(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "w");
    FUZZ_CHECK(f && fwrite(data, 1, n, f) == n && fclose(f) == 0);
}

static void keep_file(const char *path)
{
    FUZZ_CHECK(n_kept < MAX_FILES);
    char *text = calloc(1, 1 << 16);
    FILE *f = fopen(path, "r");
    FUZZ_CHECK(text && f);
    snprintf(kept[n_kept].path, sizeof kept->path, "%s", path);
    kept[n_kept].text = text;
    kept[n_kept].n = fread(text, 1, 1 << 16, f);
    n_kept++;
    fclose(f);
}

typedef struct walk {
    const char *place;
    bool remove;
} walk;

static cn_status visit(void *user, const char *name)
{
    const walk *w = user;
    char path[96];
    snprintf(path, sizeof path, "%s/spool/%s/%s", jobs.dir, w->place, name);
    if (w->remove)
        FUZZ_CHECK(unlink(path) == 0);
    else
        keep_file(path);
    return CN_OK;
}

static void each_file(bool remove)
{
    char dir[64];
    cn_spool *spool;
    snprintf(dir, sizeof dir, "%s/spool", jobs.dir);
    FUZZ_CHECK(cn_spool_open(&spool, dir) == CN_OK);
    walk files = {"files", remove}, batches = {"batches", remove};
    FUZZ_CHECK(cn_spool_each(spool, CN_SPOOL_FILES, visit, &files) == CN_OK);
    FUZZ_CHECK(cn_spool_each(spool, CN_SPOOL_BATCHES, visit, &batches) == CN_OK);
    cn_spool_close(spool);
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const spool_file *)a)->path, ((const spool_file *)b)->path);
}

/* Two batches in progress: one line of each is answered, one has failed. */
static void make_spool(void)
{
    static cn_buf text;
    FUZZ_CHECK(jobs_set_up(NULL) == 0);
    jobs.any_owner = true;
    cn_free(jobs.config->model); /* of a small directory, because each start reads it */
    jobs.config->model = cn_strdup("examples/deploy");
    for (int batch = 0; batch < 2; batch++) {
        cn_buf_clear(&text);
        for (int line = 0; line < LINES; line++) {
            char id[16];
            snprintf(id, sizeof id, "r%d", line);
            jobs_add_line(&text, id, line == 1 ? "long" : "hi");
        }
        const cn_spool_id input = jobs_upload(&text);
        good = jobs_create(&input);
    }
    cn_buf_free(&text);
    jobs_close();
    jobs_open(); /* with the record of this model */
    jobs.max = 2;
    jobs_pump(4);
    jobs_work(2);
    jobs_pump(1);
    jobs_work(0);
    jobs.max = JOBS_MAX_SUBMITTED;
    jobs_close();
    each_file(false);
    qsort(kept, n_kept, sizeof *kept, by_path);
}

/* False for the record of the good batch and for the files that it names. */
static bool is_hostile(size_t file)
{
    char id[CN_SPOOL_ID_BYTES];
    const char *name = strrchr(kept[file].path, '/') + 1, *record = "";
    snprintf(id, sizeof id, "%.*s", (int)strcspn(name, "."), name);
    for (size_t i = 0; i < n_kept; i++)
        if (strstr(kept[i].path, good.text)) record = kept[i].text;
    return !strstr(record, id);
}

/* ---- one input ---- */

static size_t list_all(void)
{
    json_t *list = NULL;
    FUZZ_CHECK(cn_batches_list(jobs.batches, &jobs_viewer, NULL, 100, &list) == CN_OK);
    const size_t n = json_array_size(json_object_get(list, "data"));
    json_decref(list);
    cn_files *files = cn_batches_files(jobs.batches);
    for (size_t i = 0; i < cn_files_count(files); i++) {
        json_t *file = cn_file_json(cn_files_at(files, i));
        FUZZ_CHECK(file);
        json_decref(file);
    }
    return n;
}

static void run(const uint8_t *data, size_t size)
{
    if (size == 0) return;
    each_file(true);
    for (size_t i = 0; i < n_kept; i++) write_file(kept[i].path, kept[i].text, kept[i].n);
    const size_t hostile = data[0] % n_kept;
    if (is_hostile(hostile)) write_file(kept[hostile].path, data + 1, size - 1);
    jobs_open();
    list_all();
    jobs_run_all();
    const size_t n = list_all();
    jobs_expect_status(&good, "completed");
    jobs_close();
    jobs_open();
    FUZZ_CHECK(list_all() == n);
    jobs_close();
}

int main(int argc, char **argv)
{
    static const char *const words[] = {
        "{}",
        "[]",
        "null",
        "\"order\": 9223372036854775806",
        "\"id\": ",
        "\"owner\":",
        "\\u0000",
        "\"cinch\": ",
        "\"output\": ",
        "[[[[[[[[",
        "\"total\":",
        "\"status\": \"finalizing\"",
        "\"status\": \"validating\"",
        "\"created_at\": -1",
        "\"metadata\": {\"a\": 1}",
    };
    fuzz_input corpus[MAX_FILES];
    make_spool();
    size_t n = 0;
    for (size_t i = 0; i < n_kept; i++) {
        if (!is_hostile(i)) continue;
        char *text = malloc(kept[i].n + 1);
        FUZZ_CHECK(text);
        text[0] = (char)i;
        memcpy(text + 1, kept[i].text, kept[i].n);
        corpus[n++] = (fuzz_input){text, kept[i].n + 1};
    }
    const fuzz_target target = {.name = "spool",
                                .run = run,
                                .corpus = corpus,
                                .n_corpus = n,
                                .words = words,
                                .n_words = sizeof words / sizeof *words};
    const int failed = fuzz_main(argc, argv, &target);
    for (size_t i = 0; i < n; i++) free((void *)(uintptr_t)corpus[i].data);
    for (size_t i = 0; i < n_kept; i++) free(kept[i].text);
    return jobs_tear_down(NULL) ? 1 : failed;
}
