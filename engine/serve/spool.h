/* spool.h - the directory in which a server keeps files and batches, written so that a process
 * killed at any instant leaves either the old state of a name or the new one.
 *
 *   DIR/lock       locked while a server uses the spool
 *   DIR/files/     <file id>: content; <file id>.json: what is known of it
 *   DIR/batches/   <batch id>.json: a batch
 *   DIR/tmp/       what is being written; emptied at start
 *
 * Owner: cn_batches. Thread: one, but for the descriptor of a temporary file, which may be written
 * by another.
 *
 * Invariants:
 *   1. A name in files/ or batches/ appears by rename, after its bytes are on the disk; a record is
 *      replaced whole. The directory is synced before the call returns.
 *   2. No name comes from a client: ids are made here, and checked before they name anything. */
#ifndef CN_SPOOL_H
#define CN_SPOOL_H

#include <jansson.h>

#include "engine/base.h"

typedef struct cn_spool cn_spool;

typedef enum cn_spool_place {
    CN_SPOOL_TMP,
    CN_SPOOL_FILES,
    CN_SPOOL_BATCHES,
    CN_SPOOL_N_PLACES
} cn_spool_place;

/* Opens or creates the directory, for its owner alone, and empties tmp/. CN_ERR_BUSY when another
 * server has it. */
cn_status cn_spool_open(cn_spool **out, const char *dir);
void cn_spool_close(cn_spool *s); /* NULL is fine */

/* ---- ids: a prefix and 24 hex digits that nobody can guess ---- */

enum { CN_SPOOL_ID_BYTES = 32 };
typedef struct cn_spool_id {
    char text[CN_SPOOL_ID_BYTES]; /* "" is none */
} cn_spool_id;
extern const char cn_file_prefix[], cn_batch_prefix[]; /* "file-", "batch_" */

cn_status cn_spool_id_make(cn_spool_id *out, const char *prefix);
/* Reads text that may be anything; false when it is not such an id. */
bool cn_spool_id_read(cn_spool_id *out, const char *prefix, const char *text);

/* ---- names ---- */

/* The path of a name. */
cn_status cn_spool_path(const cn_spool *s, cn_spool_place place, const char *name, cn_buf *out);
/* Calls fn for each name of a place, in any order; fn may remove it. Stops at the first failure. */
typedef cn_status (*cn_spool_name_fn)(void *user, const char *name);
cn_status cn_spool_each(cn_spool *s, cn_spool_place place, cn_spool_name_fn fn, void *user);
/* Nothing to remove is fine. */
cn_status cn_spool_remove(cn_spool *s, cn_spool_place place, const char *name);
/* Opens for reading; CN_ERR_IO when it is not there. */
cn_status cn_spool_open_name(cn_spool *s, cn_spool_place place, const char *name, int *fd,
                             uint64_t *bytes);

/* ---- records: JSON objects in <id>.json ---- */

cn_status cn_spool_put_record(cn_spool *s, cn_spool_place place, const cn_spool_id *id,
                              const json_t *record);
/* CN_ERR_IO when it cannot be read, CN_ERR_MODEL when it is no JSON object. */
cn_status cn_spool_get_record(cn_spool *s, cn_spool_place place, const cn_spool_id *id,
                              json_t **record);
cn_status cn_spool_remove_record(cn_spool *s, cn_spool_place place, const cn_spool_id *id);
bool cn_spool_has_record(const cn_spool *s, cn_spool_place place, const cn_spool_id *id);
/* Whether name is "<id>.json". */
bool cn_spool_is_record(const char *name, const char *prefix, cn_spool_id *id);

/* ---- temporary files ---- */

/* A new empty one, named by an id. */
cn_status cn_spool_temp_open(cn_spool *s, cn_spool_id *name, int *fd);
/* Brings its bytes to the disk and gives it its place under its own name; the descriptor stays. */
cn_status cn_spool_temp_keep(cn_spool *s, const cn_spool_id *name, int fd, cn_spool_place place);

/* ---- lists, as OpenAI writes them ---- */

/* {object: "list", data, first_id, last_id, has_more} of objects with an id. NULL: no memory. */
json_t *cn_spool_list_json(json_t *data, bool has_more);

#endif
