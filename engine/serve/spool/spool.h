/* spool.h - the directory in which a server stores files and batches. A process that is killed at
 * any instant leaves each name in its old state or its new one.
 *
 *   DIR/lock       locked while a server uses the spool
 *   DIR/files/     <file id>: content; <file id>.json: its record
 *   DIR/batches/   <batch id>.json: the record of a batch
 *   DIR/tmp/       files being written; emptied at start
 *
 * Owner: cn_batches. Thread: one; another thread may write to the descriptor of a temporary file.
 *
 * Invariants:
 *   1. A new file or record appears by rename, after its bytes are on disk; a record is replaced
 *      whole. The directory is synced before the call returns. Exception: the files that a running
 *      batch writes (batch_jobs.h) grow in files/ without a record.
 *   2. No name comes from a client: ids are generated here, and checked before use as a name. */
#pragma once

#include <jansson.h>

#include "engine/base/base.h"

typedef struct cn_spool cn_spool;

typedef enum cn_spool_place {
    CN_SPOOL_TMP,
    CN_SPOOL_FILES,
    CN_SPOOL_BATCHES,
    CN_SPOOL_N_PLACES
} cn_spool_place;

/* Opens the directory and empties tmp/. Creates missing directories, accessible only to their
 * owner. CN_ERR_BUSY: another server uses the spool. */
cn_status cn_spool_open(cn_spool **out, const char *dir);
void cn_spool_close(cn_spool *s); /* NULL is fine */

/* ---- ids: a prefix and 24 random hex digits, which cannot be guessed ---- */

enum { CN_SPOOL_ID_BYTES = 32 };
typedef struct cn_spool_id {
    char text[CN_SPOOL_ID_BYTES]; /* "": none */
} cn_spool_id;
extern const char cn_file_prefix[], cn_batch_prefix[]; /* "file-", "batch_" */

cn_status cn_spool_id_make(cn_spool_id *out, const char *prefix);
/* Reads untrusted text; false when it is not such an id. */
bool cn_spool_id_read(cn_spool_id *out, const char *prefix, const char *text);

/* ---- names ---- */

/* Appends the path of a name. CN_ERR_IO: it exists and is not a regular file. */
cn_status cn_spool_path(const cn_spool *s, cn_spool_place place, const char *name, cn_buf *out);
/* Calls fn for each name of a place, in any order; fn may remove it. Stops at the first failure. */
typedef cn_status (*cn_spool_name_fn)(void *user, const char *name);
cn_status cn_spool_each(cn_spool *s, cn_spool_place place, cn_spool_name_fn fn, void *user);
/* Removes a name; a missing one is fine. */
cn_status cn_spool_remove(cn_spool *s, cn_spool_place place, const char *name);
/* Opens a regular file for reading. CN_ERR_IO: it is missing or not a regular file. */
cn_status cn_spool_open_name(cn_spool *s, cn_spool_place place, const char *name, int *fd,
                             uint64_t *bytes);

/* ---- records: JSON objects in <id>.json, whose member "id" is that id ---- */

/* Records have the order of their creation. It stays at the greatest one, if a record has that. */
#define CN_SPOOL_MAX_ORDER (INT64_MAX - 1)
/* The order of the next record after one with this order. */
uint64_t cn_spool_order_after(uint64_t order);

cn_status cn_spool_put_record(cn_spool *s, cn_spool_place place, const cn_spool_id *id,
                              const json_t *record);
/* CN_ERR_IO: it cannot be read. CN_ERR_MODEL: it is not a JSON object, or has another id. *record
 * is NULL then. */
cn_status cn_spool_get_record(cn_spool *s, cn_spool_place place, const cn_spool_id *id,
                              json_t **record);
cn_status cn_spool_remove_record(cn_spool *s, cn_spool_place place, const cn_spool_id *id);
/* True when the name exists, whatever it is. */
bool cn_spool_has_record(const cn_spool *s, cn_spool_place place, const cn_spool_id *id);
/* Returns true when name is "<id>.json" with this prefix. */
bool cn_spool_is_record(const char *name, const char *prefix, cn_spool_id *id);

/* ---- temporary files ---- */

/* Creates an empty one with a new file id as its name. */
cn_status cn_spool_temp_open(cn_spool *s, cn_spool_id *name, int *fd);
/* Syncs it and moves it to a place under the same name. The descriptor stays open. */
cn_status cn_spool_temp_keep(cn_spool *s, const cn_spool_id *name, int fd, cn_spool_place place);

/* ---- lists in OpenAI's format ---- */

/* {object: "list", data, first_id, last_id, has_more}; each object in data has an id. NULL: out of
 * memory. */
json_t *cn_spool_list_json(json_t *data, bool has_more);
