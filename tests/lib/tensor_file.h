/* tensor_file.h - writes safetensors files for tests: good ones and, by a raw header, bad ones. A
 * failure to write is a broken test: it aborts. */
#ifndef CN_TENSOR_FILE_H
#define CN_TENSOR_FILE_H

#include "engine/base.h"

/* An image under construction. Zero-initialise; tensor_file_free when done. */
typedef struct tensor_file {
    cn_buf header, data;
} tensor_file;

/* Adds a tensor; rows 0 makes a vector [cols]. dtype as in files ("BF16"). data[n_bytes] is taken
 * as it is, so that a test can make it disagree with the shape. */
void tensor_file_add(tensor_file *f, const char *name, const char *dtype, uint64_t rows,
                     uint64_t cols, const void *data, size_t n_bytes);

/* Length, header and data as one image into *out (freed with cn_buf_free). */
void tensor_file_image(const tensor_file *f, cn_buf *out);
void tensor_file_write(const tensor_file *f, const char *path);
void tensor_file_free(tensor_file *f);

/* An image with any header text. */
void tensor_file_raw(cn_buf *out, const char *header, size_t data_bytes);

/* Writes text or bytes to a path. */
void write_file(const char *path, const void *data, size_t n);

/* Makes a new folder under /tmp, and removes one with the plain files in it. */
void make_folder(char path[64]);
void remove_folder(const char *path);

#endif
