/* file_sum.c - see file_sum.h. */
#include "engine/checkpoint/file_sum.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/checkpoint/retrieval_file.h"
#include "engine/checkpoint/select_file.h"

enum { HEAD_BYTES = 64 << 10, SAMPLE_BYTES = 4 << 10, N_SAMPLES = 256 };

/* Adds the hash of n bytes at `offset`; fewer at the end of the file. */
static cn_status add_sum_range(uint64_t *h, int fd, const char *path, uint64_t offset, size_t n)
{
    char data[SAMPLE_BYTES];
    while (n > 0) {
        const size_t want = n < sizeof data ? n : sizeof data;
        ssize_t got = pread(fd, data, want, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return cn_fail(CN_ERR_IO, "%s: read: %s", path, strerror(errno));
        if (got == 0) return CN_OK;
        *h = cn_hash64(*h, data, (size_t)got);
        offset += (uint64_t)got;
        n -= (size_t)got;
    }
    return CN_OK;
}

static cn_status add_samples(uint64_t *h, int fd, const char *path, uint64_t size)
{
    CN_TRY(add_sum_range(h, fd, path, 0, HEAD_BYTES));
    if (size <= HEAD_BYTES) return CN_OK;
    const uint64_t stride = (size - HEAD_BYTES) / N_SAMPLES + 1;
    for (uint64_t at = HEAD_BYTES; at < size; at += stride)
        CN_TRY(add_sum_range(h, fd, path, at, stride < SAMPLE_BYTES ? stride : SAMPLE_BYTES));
    return CN_OK;
}

/* Adds name, size and content of dir/name: all of it, or samples. */
static cn_status add_sum_file(uint64_t *h, const char *dir, const char *name, bool whole)
{
    cn_buf path = {0};
    CN_TRY(cn_buf_addf(&path, "%s/%s", dir, name));
    int fd = open(path.data, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    cn_status status = CN_OK;
    if (fd < 0 || fstat(fd, &st) != 0) {
        status = cn_fail(CN_ERR_IO, "%s: %s", path.data, strerror(errno));
    } else if (S_ISREG(st.st_mode)) {
        const uint64_t size = (uint64_t)st.st_size;
        *h = cn_hash64(*h, name, strlen(name));
        *h = cn_hash64(*h, &size, sizeof size);
        status = whole ? add_sum_range(h, fd, path.data, 0, (size_t)size)
                       : add_samples(h, fd, path.data, size);
    }
    if (fd >= 0) close(fd);
    cn_buf_free(&path);
    return status;
}

bool cn_file_is_weights(const char *name)
{
    static const char end[] = ".safetensors";
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0 && strcmp(name, CN_SELECT_FILE) != 0 &&
           strcmp(name, CN_RETRIEVAL_FILE) != 0;
}

/* Byte order instead of the locale's: the same on every machine. */
static int by_sum_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

cn_status cn_file_sum_add(uint64_t *h, const char *dir, int (*keep)(const struct dirent *))
{
    struct dirent **entries = NULL;
    int n = scandir(dir, &entries, keep, by_sum_name);
    if (n < 0) return cn_fail(CN_ERR_IO, "%s: %s", dir, strerror(errno));
    cn_status status = CN_OK;
    for (int i = 0; i < n; i++) {
        if (status == CN_OK)
            status =
                add_sum_file(h, dir, entries[i]->d_name, !cn_file_is_weights(entries[i]->d_name));
        free(entries[i]);
    }
    free(entries);
    return status;
}

static int keep_weights(const struct dirent *e) { return cn_file_is_weights(e->d_name); }

cn_status cn_file_sum_weights(uint64_t *out, const char *dir)
{
    *out = 0;
    return cn_file_sum_add(out, dir, keep_weights);
}
