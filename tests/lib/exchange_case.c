/* exchange_case.c - see exchange_case.h. */
#include "tests/lib/exchange_case.h"

#include <string.h>

enum {
    POISON = 0xa5,
    DIM = 16,               /* of long cases */
    LONG = 10000,           /* candidates; then there is one sequence */
    CHUNK = 16384,          /* candidates that the GPU takes at once; it marks a multiple of this */
    EDGE = 16,              /* candidates around a multiple of CHUNK */
    NO_CANDIDATE = 1 << 28, /* positions from here on, which are held */
};

size_t exchange_case_units(const exchange_case *c)
{
    return (size_t)c->n_seqs * c->n_layers * c->local.n_kv_heads;
}

size_t exchange_case_scores(const exchange_case *c)
{
    size_t n = c->first[0];
    for (uint32_t s = 0; s < c->n_seqs; s++) n += c->most_n[s];
    return n * c->n_layers * c->local.n_kv_heads;
}

size_t exchange_case_chosen(const exchange_case *c)
{
    return (size_t)c->local.n_layers * c->n_slots * c->local.n_kv_heads * c->chosen_stride;
}

exchange_case_unit exchange_case_unit_at(const exchange_case *c, size_t unit)
{
    const uint32_t hk = c->local.n_kv_heads, layer = (uint32_t)(unit / hk % c->n_layers);
    exchange_case_unit u = {.seq = (uint32_t)(unit / hk / c->n_layers),
                            .layer = c->first_layer + layer,
                            .head = (uint32_t)(unit % hk)};
    u.score = ((size_t)c->first[u.seq] * c->n_layers + (size_t)layer * c->n[u.seq]) * hk +
              (size_t)u.head * c->n[u.seq];
    u.chosen = (((size_t)u.layer * c->n_slots + c->slots[u.seq]) * hk + u.head) * c->chosen_stride;
    return u;
}

size_t exchange_case_side(const exchange_case *c, const exchange_case_unit *u, uint32_t slot)
{
    const uint32_t b = c->local.block_tokens;
    const uint32_t block = c->local_tables[u->seq * c->local_stride + slot / b];
    return cn_kv_side(&c->local, u->layer, block, u->head, slot % b);
}

bool exchange_case_holds(const exchange_case *c, const exchange_case_unit *u, uint32_t position)
{
    for (uint32_t i = 0; c->holds && i < c->n_held[u->seq]; i++)
        if (c->origin[exchange_case_side(c, u, c->held_from[u->seq] + i)] == position) return true;
    return false;
}

/* ---- drawing ---- */

/* numbers[i] = i for i < n, in random order. */
static void shuffle(test_rng *r, uint32_t *numbers, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t j = test_rng_below(r, i + 1);
        numbers[i] = numbers[j];
        numbers[j] = i;
    }
}

static void draw_seq(exchange_case *c, test_rng *r, uint32_t s, uint32_t longest)
{
    const uint32_t b = c->local.block_tokens;
    const bool tiles = !c->holds && b <= 64 && test_rng_below(r, 4) == 0;
    c->entry_log2[s] = tiles ? 6 : 0;
    const uint32_t blocks = longest > LONG ? 10 : 3;
    uint32_t k = tiles ? 1 + test_rng_below(r, 5) : (1 + test_rng_below(r, blocks)) * b;
    if (test_rng_below(r, 4) == 0) k = 1;
    if (test_rng_below(r, 8) == 0) k = 0;
    const uint32_t area = (uint32_t)cn_ceil_div((uint64_t)k << c->entry_log2[s], b) * b;
    c->k[s] = k;
    c->cap[s] = 1 + (test_rng_below(r, 2) ? test_rng_below(r, k + 1) : k);
    c->held_from[s] = area;
    c->n_held[s] = c->holds ? test_rng_below(r, 2 * b) : 0;
    c->base[s] = test_rng_below(r, 9) << c->entry_log2[s];
    const uint32_t extra = tiles ? longest / 64 : longest;
    const uint32_t drawn[] = {0, extra, test_rng_below(r, extra + 1), test_rng_below(r, extra + 1)};
    c->n[s] = k + c->n_held[s] + drawn[test_rng_below(r, 4)];
    if (!tiles && longest > LONG && test_rng_below(r, 3) == 0)
        c->n[s] = (c->n[s] / CHUNK + 1) * CHUNK - EDGE / 2 + test_rng_below(r, EDGE + 1);
    if (k == 0 && test_rng_below(r, 2)) c->n[s] = 0;
    c->most_n[s] = c->n[s] + 2 * b;
    c->chosen_stride = cn_max_u32(c->chosen_stride, k);
    c->local_stride = cn_max_u32(c->local_stride, (area + c->n_held[s] + b - 1) / b);
    const uint32_t n_home = (c->base[s] + (c->most_n[s] << c->entry_log2[s]) + b - 1) / b;
    c->home_stride = cn_max_u32(c->home_stride, n_home);
}

static uint32_t *words(size_t n)
{
    uint32_t *p = cn_calloc(n + 1, sizeof *p);
    memset(p, POISON, n * sizeof *p);
    return p;
}

exchange_case *exchange_case_draw(test_rng *r, uint32_t longest)
{
    static const uint32_t blocks[] = {16, 64, 256}, heads[] = {1, 2, 4};
    static const uint32_t dims[] = {DIM, 24, 80, 128, 256};
    exchange_case *c = cn_calloc(1, sizeof *c);
    const bool is_long = longest > LONG;
    const uint32_t dim = is_long ? DIM : dims[test_rng_below(r, 5)];
    const uint32_t b = blocks[test_rng_below(r, 3)];
    const uint32_t hk = is_long ? 1 : heads[test_rng_below(r, dim < 128 ? 3 : 2)];
    const uint32_t n_layers = 1 + test_rng_below(r, is_long ? 2 : 3);
    c->n_seqs = is_long ? 1 : 1 + test_rng_below(r, EXCHANGE_MAX_SEQS);
    c->first_layer = test_rng_below(r, n_layers);
    c->n_layers = 1 + test_rng_below(r, n_layers - c->first_layer);
    c->holds = test_rng_below(r, 2);
    c->local.block_tokens = b;
    c->chosen_stride = 1;
    c->first[0] = test_rng_below(r, 9);
    for (uint32_t s = 0; s < c->n_seqs; s++) draw_seq(c, r, s, longest);
    c->chosen_stride += test_rng_below(r, 3);
    c->move_stride = c->chosen_stride + test_rng_below(r, 3);
    c->n_slots = c->n_seqs + test_rng_below(r, 3);
    uint32_t order[EXCHANGE_MAX_SEQS + 2];
    shuffle(r, order, c->n_slots);
    memcpy(c->slots, order, sizeof c->slots);
    const uint32_t n_local = c->n_seqs * c->local_stride, n_home = c->n_seqs * c->home_stride;
    c->local = cn_kv_layout_make(n_layers, n_local + 1, hk, b, dim, CN_F32);
    c->home = cn_kv_layout_make(n_layers, n_home + 2, hk, b, dim, CN_F32);
    c->local_tables = words(n_local);
    c->home_tables = words(n_home);
    shuffle(r, c->local_tables, n_local);
    shuffle(r, c->home_tables, n_home);
    c->origin = words(cn_kv_side_elems(&c->local));
    c->chosen = words(exchange_case_chosen(c));
    c->score = cn_calloc(exchange_case_scores(c) + 1, sizeof *c->score);
    exchange_case_next(c, r, SCORES_RANDOM, NULL);
    return c;
}

void exchange_case_free(exchange_case *c)
{
    cn_free(c->local_tables);
    cn_free(c->home_tables);
    cn_free(c->origin);
    cn_free(c->chosen);
    cn_free(c->score);
    cn_free(c);
}

/* ---- the next exchange ---- */

static void hold(exchange_case *c, test_rng *r, const exchange_case_unit *u, const uint32_t *chosen)
{
    const uint32_t s = u->seq, end = c->base[s] + c->n[s];
    for (uint32_t i = 0; i < c->n_held[s]; i++) {
        uint32_t *p = &c->origin[exchange_case_side(c, u, c->held_from[s] + i)];
        if (chosen && test_rng_below(r, 4)) continue;
        uint32_t position = NO_CANDIDATE + i;
        const uint32_t drawn = test_rng_below(r, end + 1);
        bool taken = exchange_case_holds(c, u, drawn);
        for (uint32_t e = 0; chosen && e < c->k[s]; e++) taken |= chosen[u->chosen + e] == drawn;
        if (!taken) position = drawn;
        *p = position;
    }
}

static uint16_t next_score(test_rng *r, exchange_change change, uint16_t old)
{
    const uint16_t drawn = (uint16_t)test_rng_below(r, 1 << 16);
    switch (change) {
    case SCORES_INVERTED: return (uint16_t)~old;
    case SCORES_RANDOM: return drawn;
    case SCORES_FEW_CHANGE: return drawn % 16 == 0 ? (uint16_t)(old + drawn / 64) : old;
    case SCORES_OF_FOUR: return (uint16_t)(drawn % 4 * 0x5555);
    case SCORES_EQUAL: return 0x8000;
    default: return old;
    }
}

void exchange_case_next(exchange_case *c, test_rng *r, exchange_change change,
                        const uint32_t *chosen)
{
    for (uint32_t s = 0; s < c->n_seqs; s++) {
        const uint32_t room = c->most_n[s] - c->n[s];
        if (change != SCORES_SAME && change != SCORES_INVERTED && room > 0 &&
            test_rng_below(r, 4) == 0)
            c->n[s] += 1 + test_rng_below(r, room);
        c->first[s + 1] = c->first[s] + c->n[s];
    }
    const size_t n = exchange_case_scores(c);
    for (size_t i = 0; i < n; i++) c->score[i] = next_score(r, change, c->score[i]);
    if (!c->holds) return;
    for (size_t i = 0; i < exchange_case_units(c); i++) {
        const exchange_case_unit u = exchange_case_unit_at(c, i);
        hold(c, r, &u, chosen);
    }
}
