/* tensor_file.h - writes safetensors files for tests: valid files and, with a raw header, invalid
 * files. Aborts when it cannot write. */
#pragma once

#include "engine/base/base.h"

/* An image under construction. Zero-initialise it and free it with tensor_file_free. */
typedef struct tensor_file {
    cn_buf header, data;
} tensor_file;

/* Adds a tensor; rows 0 makes a vector [cols]. dtype is the file's name for it ("BF16").
 * data[n_bytes] is not checked, so a test can make it disagree with the shape. */
void tensor_file_add(tensor_file *f, const char *name, const char *dtype, uint64_t rows,
                     uint64_t cols, const void *data, size_t n_bytes);
/* The same with a dimension before rows; 0: there is none. */
void tensor_file_add_stack(tensor_file *f, const char *name, const char *dtype, uint64_t n,
                           uint64_t rows, uint64_t cols, const void *data, size_t n_bytes);

/* Writes length, header and data as one image into *out (free it with cn_buf_free). */
void tensor_file_image(const tensor_file *f, cn_buf *out);
void tensor_file_write(const tensor_file *f, const char *path);
void tensor_file_free(tensor_file *f);

/* Makes an image with any header text. */
void tensor_file_raw(cn_buf *out, const char *header, size_t data_bytes);

/* Writes bytes to a path. */
void write_file(const char *path, const void *data, size_t n);

/* make_folder makes a new folder under /tmp. remove_folder removes it and its plain files.
 * make_model_folder: with this config.json alone, a model for --load-format dummy. */
void make_folder(char path[64]);
void make_model_folder(char path[64], const char *config);
void remove_folder(const char *path);
