/* spool_files.h - the files of /v1/files: uploads and the outputs of batches.
 *
 *   upload: begin -> write, on any one thread -> keep | drop
 *   batch:  cn_batch_output writes files/<id>, not listed -> publish
 *
 * Owner: cn_batches. Thread: the batch thread; cn_upload_write on any one thread.
 *
 * A file exists when its record exists. Content without a record belongs to an unfinished batch, or
 * is removed at start. */
#pragma once

#include <stdatomic.h>

#include "engine/base/list.h"
#include "engine/serve/spool/spool.h"

/* Quotas. Exceeding one is CN_ERR_BUSY with its name; max_file_bytes is CN_ERR_ARG. */
typedef struct cn_file_limits {
    uint32_t max_files;
    uint64_t max_file_bytes; /* of one upload */
    uint64_t max_bytes;      /* of all files and of what unfinished batches have written */
    /* After this time an upload loses the reservation of what it has not sent, when another one
     * needs the space; 0: never. */
    double upload_expires_s;
    double (*now_s)(void); /* seconds from any instant on; NULL: cn_now_s */
} cn_file_limits;

typedef struct cn_file {
    cn_spool_id id;
    char *filename;
    char *owner; /* name of the API key that made it; "": none */
    char purpose[16]; /* "batch", "batch_output" */
    int64_t created_at; /* seconds since the epoch */
    uint64_t bytes, order; /* later files have the greater order */
} cn_file;

typedef struct cn_files cn_files;

/* Reads the files of the spool. Removes content without a record, except where in_use() is true. */
typedef bool (*cn_file_in_use_fn)(void *user, const cn_spool_id *id);
cn_status cn_files_open(cn_files **out, cn_spool *s, const cn_file_limits *limits,
                        cn_file_in_use_fn in_use, void *user);
void cn_files_close(cn_files *f); /* NULL is fine */

size_t cn_files_count(const cn_files *f);
/* In the order of their creation; valid until the next change. */
const cn_file *cn_files_at(const cn_files *f, size_t i);
const cn_file *cn_files_find(const cn_files *f, const cn_spool_id *id); /* NULL: no such file */
/* Who asks: an API key sees its own files and batches, an admin key and a server without keys see
 * all. */
typedef struct cn_viewer {
    const char *name; /* "": no key */
    bool sees_all;
} cn_viewer;
bool cn_viewer_sees(const cn_viewer *v, const char *owner);

/* {id, object: "file", bytes, created_at, filename, purpose, status}. */
json_t *cn_file_json(const cn_file *file);

/* Opens a file's content for reading. */
cn_status cn_files_open_content(cn_files *f, const cn_spool_id *id, int *fd, uint64_t *bytes);

/* ---- uploads ---- */

enum { CN_FILE_NAME_BYTES = 256 };

typedef struct cn_upload {
    cn_spool_id temp;
    int fd;
    atomic_uint_fast64_t bytes;       /* written */
    atomic_uint_fast64_t limit_bytes; /* lowered when the reservation expires */
    atomic_bool expired;
    uint64_t reserved_bytes; /* of the quota */
    double began_s;
    cn_list_node node; /* of the files' uploads */
} cn_upload;

/* Begins an upload and reserves its bytes. announced_bytes: the size of the request body; 0 when
 * unknown. CN_ERR_ARG: a quota is full, and the text names it. CN_ERR_BUSY: unfinished uploads have
 * reserved the space. */
cn_status cn_upload_begin(cn_files *f, uint64_t announced_bytes, cn_upload *u);
/* CN_ERR_ARG: the file exceeds its limit. CN_ERR_BUSY: its reservation has expired. CN_ERR_IO: the
 * write failed, for example because the disk is full. */
cn_status cn_upload_write(cn_upload *u, const void *data, size_t n);
/* Turns the upload into a file. On failure it removes everything. Ends the upload in both cases. */
cn_status cn_upload_keep(cn_files *f, cn_upload *u, const char *owner, const char *filename,
                         const char *purpose, const cn_file **out);
void cn_upload_drop(cn_files *f, cn_upload *u);

/* ---- of batches ---- */

/* Lists the content that a batch wrote under this id. Its bytes must be synced already. Publishing
 * an id twice is fine. */
cn_status cn_files_publish(cn_files *f, const cn_spool_id *id, const char *owner,
                           const char *filename, uint64_t bytes);
cn_status cn_files_remove(cn_files *f, const cn_spool_id *id);
/* Sets the bytes that unfinished batches have written. They count against max_bytes. */
void cn_files_set_unlisted_bytes(cn_files *f, uint64_t bytes);
/* Returns true when `bytes` more are within max_bytes. */
bool cn_files_have_room(const cn_files *f, uint64_t bytes);

/* The time on the clock of the limits. */
double cn_files_now_s(const cn_file_limits *l);
