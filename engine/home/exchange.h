/* exchange.h - an exchange: predicts the next query of each away sequence, or takes its newest
 * ones, ranks the tokens of its home, and brings those that entered the set of the best into the
 * exchange area of its table. The arrays of the sequences, the sizes of the scratch, and the ops of
 * some layers. HOMES.md.
 *
 * Owner: cn_home. Thread: engine. Stage: 6 of the path of a request. */
#pragma once

#include "compress/away.h"
#include "engine/checkpoint/model_config.h"
#include "engine/home/churn.h"
#include "engine/options/options.h"
#include "engine/select/select.h"

/* Consecutive layers whose exchange runs as one. */
typedef struct cn_packs {
    uint32_t first_layer, n_layers; /* all layers with an exchange: those that are not dense */
    uint32_t n;
} cn_packs;
cn_packs cn_packs_make(uint32_t dense_layers, uint32_t model_layers, uint32_t n);
/* Layers of the largest pack of these options. */
uint32_t cn_pack_most_layers(const cn_config *c, const cn_model_config *m);
/* First layer of pack p; of pack n: the layer behind the last. */
uint32_t cn_pack_start(const cn_packs *p, uint32_t pack);

typedef struct cn_exchange_sizes {
    uint32_t max_rows;  /* sequences of one exchange */
    uint32_t max_local, max_home; /* blocks of their tables */
    uint32_t room;      /* candidates of one launch of `score`, all its sequences */
    uint32_t move_stride; /* moves of a unit */
    uint32_t pack_layers, n_layers;
} cn_exchange_sizes;
/* All 0 if `home` is not declared, or is `device`, or no declared selector exchanges so. fill: of
 * the exchange that fills the area of one sequence; else of a step's exchange. ahead: of selectors
 * that rank before layer 0, with one list for all layers; else of the others. */
cn_exchange_sizes cn_exchange_sizes_of(const cn_config *c, const cn_model_config *m,
                                       cn_kv_home home, uint32_t block_tokens, bool fill,
                                       bool ahead);

/* Device memory, one item of the start list each. Arrays and counts have a half for each of two
 * successive exchanges, predicted queries and moves for each of two successive packs. Fills, whose
 * turn is 0, have the first half of arrays and counts only. */
typedef struct cn_exchange_scratch {
    void *arrays;    /* [2] cn_exchange_bytes */
    void *predicted; /* act [2, rows, pack layers, hq, d] */
    void *raw_predicted; /* act [2, rows, hq, query_dim], of latent attention only */
    void *score;     /* u16 [room, pack layers, hk] */
    void *logits;    /* [room, pack layers, hk, cn_logit_row] of backend->logit_bytes */
    void *moves;     /* cn_move [2, rows, pack layers, hk, move_stride] */
    void *counts;    /* u32 [2, 2, rows, layers, hk]: moved, then missed; ordered by pack */
} cn_exchange_scratch;
size_t cn_exchange_bytes(const cn_exchange_sizes *z);
/* How many units an exchange counts: that is the length of `moved`, and of `missed`. */
size_t cn_exchange_counts(const cn_exchange_sizes *z, uint32_t n_kv_heads);
/* Queries of each half of `predicted`, of one layer each. */
size_t cn_exchange_queries(const cn_exchange_sizes *z);
/* Elements of each half of `raw_predicted`. l: of the pool. */
size_t cn_exchange_raw_queries(const cn_exchange_sizes *z, const cn_kv_layout *l, uint32_t n_heads);
/* Elements of each half of `moves`. */
size_t cn_exchange_moves(const cn_exchange_sizes *z, uint32_t n_kv_heads);

/* One sequence of an exchange. */
typedef struct cn_exchange_row {
    const cn_kv_params *kv;
    uint32_t query_slot, home_slot, home_len;
    uint32_t newest;          /* position of its newest query */
    const uint32_t *local[2]; /* its block table in two parts, exchange area first */
    uint32_t n_local[2];
    const uint32_t *home;
    bool uncapped; /* replaces all entries that it wants to */
} cn_exchange_row;

/* What each sequence of an exchange has room for: the most that any of them needs. */
typedef struct cn_exchange_strides {
    uint32_t local; /* blocks of its table: the exchange area and what the policy holds */
    uint32_t home;  /* blocks of its home */
} cn_exchange_strides;
/* Raises `most` to what a sequence needs. */
void cn_exchange_strides_add(cn_exchange_strides *most, const cn_kv_params *kv, uint32_t home_len,
                             uint32_t block_tokens);

/* The arrays of an exchange, on the host. They must not change before the stream has run the
 * upload. */
typedef struct cn_exchange_rows {
    cn_exchange_sizes sizes;
    uint32_t block_tokens;
    char *host;           /* cn_exchange_bytes */
    cn_row_range *ranges; /* [max_rows] rows whose candidates fit the room */
    cn_exchange_strides strides;
    uint32_t n_rows, n_added, n_ranges;
    uint32_t turn; /* number of the exchange, among those with the same scratch */
    bool holds; /* some policy's area holds tokens that are no candidates */
    bool ahead; /* ranked before layer 0: `predicted` has a query of each row from the head, and
                 * one list serves all layers */
    cn_sel_forms forms; /* of the rows: stage 1 */
} cn_exchange_rows;
/* CN_ERR_MEMORY. Free also after an error. */
cn_status cn_exchange_rows_init(cn_exchange_rows *r, const cn_exchange_sizes *z,
                                uint32_t block_tokens);
void cn_exchange_rows_free(cn_exchange_rows *r);
/* Starts an exchange of n_rows rows, which the caller then adds. */
void cn_exchange_rows_begin(cn_exchange_rows *r, uint32_t n_rows, cn_exchange_strides strides);
void cn_exchange_rows_add(cn_exchange_rows *r, const cn_exchange_row *row);
/* Adds a row that exchanges nothing. */
void cn_exchange_rows_skip(cn_exchange_rows *r);

/* What all exchanges with a home share. */
typedef struct cn_exchange_env {
    cn_backend *be;
    cn_pools local, home;
    uint32_t *chosen; /* [L, n_slots, hk, chosen_stride] */
    uint32_t n_slots, chosen_stride;
    const float *cos, *sin; /* rope tables */
    cn_churn *churn; /* NULL: scores decide */
    const uint16_t *zeros; /* host, [room, hk]: scores of fills ahead, which thus take the newest
                            * candidates: an event has no query of the head */
} cn_exchange_env;

/* Enqueues the upload of the rows. The second exchange before it must have ended. */
cn_status cn_exchange_upload(const cn_exchange_env *x, cn_stream *s, const cn_exchange_rows *r,
                             const cn_exchange_scratch *m);
/* Enqueues the exchange of the layers of one pack, in three parts: predict computes the queries,
 * rank decides which entries move, and push moves them. Each reads what the part before it has
 * written. A pack and the second one before it, also of the exchange before, share memory. So the
 * rank of that one must have ended before the prediction begins, and its push before the rank. */
cn_status cn_exchange_predict(const cn_exchange_env *x, cn_stream *s, const cn_exchange_rows *r,
                              const cn_exchange_scratch *m, const cn_packs *packs, uint32_t pack);
cn_status cn_exchange_rank(const cn_exchange_env *x, cn_stream *s, const cn_exchange_rows *r,
                           const cn_exchange_scratch *m, const cn_packs *packs, uint32_t pack,
                           bool fill);
cn_status cn_exchange_push(const cn_exchange_env *x, cn_stream *s, const cn_exchange_rows *r,
                           const cn_exchange_scratch *m, const cn_packs *packs, uint32_t pack);
/* Enqueues the copies of the numbers moved, and of those missed, to `to`, in halves of
 * cn_exchange_counts. */
cn_status cn_exchange_read_counts(const cn_exchange_env *x, cn_stream *s,
                                  const cn_exchange_rows *r, const cn_exchange_scratch *m,
                                  uint32_t *to);
