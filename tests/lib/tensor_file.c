/* tensor_file.c - see tensor_file.h. */
#include "tests/lib/tensor_file.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void must(bool ok, const char *what)
{
    if (ok) return;
    perror(what);
    abort();
}

void tensor_file_add(tensor_file *f, const char *name, const char *dtype, uint64_t rows,
                     uint64_t cols, const void *data, size_t n_bytes)
{
    tensor_file_add_stack(f, name, dtype, 0, rows, cols, data, n_bytes);
}

void tensor_file_add_stack(tensor_file *f, const char *name, const char *dtype, uint64_t n,
                           uint64_t rows, uint64_t cols, const void *data, size_t n_bytes)
{
    const uint64_t sizes[] = {n, rows, cols};
    char shape[80];
    int at = 0;
    for (int i = 0; i < 3; i++)
        if (sizes[i] || i == 2)
            at += snprintf(shape + at, sizeof shape - (size_t)at, "%s%llu", at ? "," : "",
                           (unsigned long long)sizes[i]);
    must(cn_buf_addf(&f->header,
                     "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                     f->header.len ? "," : "", name, dtype, shape, f->data.len,
                     f->data.len + n_bytes) == CN_OK,
         name);
    must(cn_buf_add(&f->data, data, n_bytes) == CN_OK, name);
}

static void assemble(cn_buf *out, const char *header, const void *data, size_t n)
{
    uint64_t length = strlen(header);
    must(cn_buf_add(out, &length, sizeof length) == CN_OK, "length");
    must(cn_buf_add(out, header, (size_t)length) == CN_OK, "header");
    must(cn_buf_add(out, data, n) == CN_OK, "data");
}

void tensor_file_image(const tensor_file *f, cn_buf *out)
{
    cn_buf header = {0};
    must(cn_buf_addf(&header, "{%s}", f->header.len ? f->header.data : "") == CN_OK, "header");
    assemble(out, header.data, f->data.data, f->data.len);
    cn_buf_free(&header);
}

void tensor_file_raw(cn_buf *out, const char *header, size_t data_bytes)
{
    void *data = cn_calloc(data_bytes, 1);
    must(data != NULL, "data");
    assemble(out, header, data, data_bytes);
    cn_free(data);
}

void tensor_file_write(const tensor_file *f, const char *path)
{
    cn_buf image = {0};
    tensor_file_image(f, &image);
    write_file(path, image.data, image.len);
    cn_buf_free(&image);
}

void tensor_file_free(tensor_file *f)
{
    cn_buf_free(&f->header);
    cn_buf_free(&f->data);
}

void write_file(const char *path, const void *data, size_t n)
{
    /* Removes the old file first: a file system may flush a file that is truncated and reused. */
    unlink(path);
    FILE *f = fopen(path, "wb");
    must(f != NULL, path);
    must(fwrite(data, 1, n, f) == n, path);
    must(fclose(f) == 0, path);
}

void make_folder(char path[64])
{
    snprintf(path, 64, "/tmp/cn_test_XXXXXX");
    must(mkdtemp(path) != NULL, path);
}

void make_model_folder(char path[64], const char *config)
{
    char file[96];
    make_folder(path);
    snprintf(file, sizeof file, "%s/config.json", path);
    write_file(file, config, strlen(config));
}

void remove_folder(const char *path)
{
    DIR *d = opendir(path);
    must(d != NULL, path);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        char file[512];
        snprintf(file, sizeof file, "%s/%s", path, e->d_name);
        if (e->d_name[0] != '.') must(unlink(file) == 0, file);
    }
    closedir(d);
    must(rmdir(path) == 0, path);
}
