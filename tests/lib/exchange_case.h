/* exchange_case.h - random exchanges for the tests of every backend: sequences with home tables,
 * exchange areas, held positions and scores. Thread: the test's. */
#pragma once

#include "tests/lib/paged_batch.h"

enum { EXCHANGE_MAX_SEQS = 6 };

/* What changes from one exchange to the next. */
typedef enum exchange_change {
    SCORES_SAME,
    SCORES_INVERTED,
    SCORES_RANDOM,
    SCORES_FEW_CHANGE,
    SCORES_OF_FOUR, /* many ties */
    SCORES_EQUAL,
    N_SCORE_CHANGES
} exchange_change;

typedef struct exchange_case {
    cn_kv_layout local, home; /* f32 */
    uint32_t n_seqs, first_layer, n_layers;
    uint32_t n_slots, chosen_stride, move_stride;
    uint32_t local_stride, home_stride;
    bool holds; /* policy `zip` */
    uint32_t k[EXCHANGE_MAX_SEQS], cap[EXCHANGE_MAX_SEQS], slots[EXCHANGE_MAX_SEQS];
    uint32_t n[EXCHANGE_MAX_SEQS], most_n[EXCHANGE_MAX_SEQS];
    uint32_t first[EXCHANGE_MAX_SEQS + 1], base[EXCHANGE_MAX_SEQS];
    uint32_t held_from[EXCHANGE_MAX_SEQS], n_held[EXCHANGE_MAX_SEQS];
    uint8_t entry_log2[EXCHANGE_MAX_SEQS];
    uint32_t *local_tables, *home_tables;
    uint32_t *origin; /* P of the local pool */
    uint32_t *chosen; /* poisoned */
    uint16_t *score;  /* room for n = most_n */
} exchange_case;

/* Draws a case; `longest` bounds the candidates of a unit beyond those that it needs. */
exchange_case *exchange_case_draw(test_rng *r, uint32_t longest);
void exchange_case_free(exchange_case *c);

/* Draws the next scores, and may let sequences grow. With held positions, draws new ones that are
 * not in `chosen` (NULL: there is no area yet). */
void exchange_case_next(exchange_case *c, test_rng *r, exchange_change change,
                        const uint32_t *chosen);

size_t exchange_case_units(const exchange_case *c);
size_t exchange_case_scores(const exchange_case *c);      /* elements with n = most_n */
size_t exchange_case_chosen(const exchange_case *c);      /* elements */

/* A unit of the call, by its number. */
typedef struct exchange_case_unit {
    uint32_t seq, layer, head; /* layer: of the pools */
    size_t score, chosen;      /* first element */
} exchange_case_unit;
exchange_case_unit exchange_case_unit_at(const exchange_case *c, size_t unit);

/* Element of P of a slot of the sequence. */
size_t exchange_case_side(const exchange_case *c, const exchange_case_unit *u, uint32_t slot);

/* Returns whether the policy's area of the unit holds this position. */
bool exchange_case_holds(const exchange_case *c, const exchange_case_unit *u, uint32_t position);
