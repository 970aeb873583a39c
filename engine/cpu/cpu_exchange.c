/* cpu_exchange.c - exchange: replaces entries of the exchange areas by better candidates. Tasks are
 * units.
 *
 * Two passes over the scores count them by their upper and then by their lower eight bits, which
 * gives the lowest wanted score. A third pass, newest candidate first, takes all above it and the
 * newest of those equal to it, and lists those that are not in the area, best first. Candidates
 * that are held or chosen are marked in bits, CN_CPU_MARKED candidates at a time. */

#include "engine/cpu/cpu_ops.h"

enum { MARKED = CN_CPU_MARKED, DIGITS = 256 };

typedef struct exchange_unit {
    const cn_exchange_args *a;
    cn_cpu_select_scratch *marks;
    uint32_t seq, layer, head;
    const uint16_t *score; /* [n] */
    uint32_t n, k;
    uint32_t log2, first;  /* of an entry; number of candidate 0 */
    uint32_t *chosen;      /* [k] */
    cn_move *moves;
    uint32_t n_new, n_moves;
} exchange_unit;

/* The wanted set: all candidates with a score above `lowest`, and those of this score from
 * `oldest` on, in both cases without the held ones. */
typedef struct wanted_set {
    uint32_t lowest, n_equal, oldest;
} wanted_set;

/* ---- marks of candidates [start, start + MARKED) ---- */

static void mark_cpu(uint64_t *marks, uint32_t at)
{
    if (at < MARKED) marks[at / 64] |= UINT64_C(1) << at % 64;
}

static bool is_marked(const uint64_t *marks, uint32_t at) { return marks[at / 64] >> at % 64 & 1; }

static void mark_held(const exchange_unit *u, uint32_t start)
{
    const cn_exchange_args *a = u->a;
    const cn_kv_layout *l = &a->local.layout;
    memset(u->marks->held, 0, sizeof u->marks->held);
    if (!a->local_tables) return;
    const uint32_t *table = a->local_tables + (size_t)u->seq * a->local_stride;
    for (uint32_t i = 0; i < a->n_held[u->seq]; i++) {
        const uint32_t slot = a->held_from[u->seq] + i, block = table[slot / l->block_tokens];
        const size_t at = cn_kv_side(l, u->layer, block, u->head, slot % l->block_tokens);
        mark_cpu(u->marks->held, (a->local.origin[at] >> u->log2) - u->first - start);
    }
}

static void mark_chosen(const exchange_unit *u, uint32_t start)
{
    memset(u->marks->chosen, 0, sizeof u->marks->chosen);
    for (uint32_t e = 0; e < u->k; e++) mark_cpu(u->marks->chosen, u->chosen[e] - u->first - start);
}

/* ---- the wanted set ---- */

/* Counts the low eight bits of score >> shift, of candidates that are not held and whose score has
 * `above` over these bits. */
static void count_digits(const exchange_unit *u, uint32_t shift, uint32_t above, uint32_t *count)
{
    memset(count, 0, DIGITS * sizeof *count);
    for (uint32_t start = 0; start < u->n; start += MARKED) {
        mark_held(u, start);
        for (uint32_t c = start; c < cn_min_u32(u->n, start + MARKED); c++) {
            const uint32_t score = u->score[c];
            count[score >> shift & (DIGITS - 1)] +=
                score >> (shift + 8) == above && !is_marked(u->marks->held, c - start);
        }
    }
}

/* Returns the digit of the *left-th best candidate that was counted, and leaves in *left how many
 * of this digit are among the best. */
static uint32_t digit_of(const uint32_t *count, uint32_t *left)
{
    uint32_t digit = DIGITS - 1;
    while (*left > count[digit]) {
        *left -= count[digit];
        CN_ASSERT(digit > 0); /* fewer than k candidates that are not held */
        digit--;
    }
    return digit;
}

/* ---- moves ---- */

/* Inserts a newcomer into the best min(n_new, cap), best first. Newer candidates come earlier.
 * `entry` holds the score until the victim is known. */
static void add_newcomer(exchange_unit *u, uint32_t c)
{
    const uint32_t cap = u->a->cap[u->seq], score = u->score[c];
    uint32_t at = cn_min_u32(u->n_new++, cap);
    while (at > 0 && u->moves[at - 1].entry < score) at--;
    if (at == cap) return;
    u->n_moves = cn_min_u32(u->n_new, cap);
    memmove(&u->moves[at + 1], &u->moves[at], (u->n_moves - 1 - at) * sizeof *u->moves);
    u->moves[at] = (cn_move){score, u->first + c};
}

/* Takes the wanted candidates, newest first: into the area with `fill`, else newcomers into
 * moves. */
static void take_cpu_wanted(exchange_unit *u, wanted_set *w)
{
    const bool fill = u->a->fill;
    uint32_t left = u->k;
    for (uint32_t end = u->n, start; end > 0; end = start) {
        start = (end - 1) / MARKED * MARKED;
        mark_held(u, start);
        mark_chosen(u, start);
        for (uint32_t c = end; c-- > start;) {
            if (u->score[c] < w->lowest || is_marked(u->marks->held, c - start)) continue;
            if (u->score[c] == w->lowest) {
                if (w->n_equal == 0) continue;
                w->n_equal--;
                w->oldest = c;
            }
            if (fill) {
                u->chosen[--left] = u->first + c;
                u->moves[left] = (cn_move){left, u->first + c};
            } else if (!is_marked(u->marks->chosen, c - start)) {
                add_newcomer(u, c);
            }
        }
    }
    if (fill) u->n_new = u->n_moves = u->k;
}

/* The first entries outside the wanted set receive the newcomers. */
static void replace_victims(const exchange_unit *u, const wanted_set *w)
{
    uint32_t n = 0;
    for (uint32_t e = 0; e < u->k && n < u->n_moves; e++) {
        const uint32_t c = u->chosen[e] - u->first;
        if (c < u->n && (u->score[c] > w->lowest || (u->score[c] == w->lowest && c >= w->oldest)))
            continue;
        u->chosen[e] = u->moves[n].source;
        u->moves[n++].entry = e;
    }
    CN_ASSERT(n == u->n_moves);
}

typedef struct exchange_job {
    cn_cpu *cpu;
    const cn_exchange_args *a;
} exchange_job;

static void exchange_task(void *ctx, uint32_t task, uint32_t worker)
{
    const exchange_job *job = ctx;
    const cn_exchange_args *a = job->a;
    const uint32_t hk = a->local.layout.n_kv_heads;
    const uint32_t seq = task / hk / a->n_layers, layer = task / hk % a->n_layers, n = a->n[seq];
    exchange_unit u = {.a = a, .seq = seq, .head = task % hk, .n = n, .k = a->k[seq]};
    a->n_moves[task] = a->n_missed[task] = 0;
    if (u.k == 0) return;
    u.layer = a->first_layer + layer;
    u.log2 = a->entry_log2[seq];
    u.first = a->base[seq] >> u.log2;
    u.score = a->score + ((size_t)a->first[seq] * a->n_layers + (size_t)layer * n) * hk +
              (size_t)u.head * n;
    u.chosen = a->chosen + (((size_t)u.layer * a->n_slots + a->slots[seq]) * hk + u.head) *
                               a->chosen_stride;
    u.moves = a->moves + (size_t)task * a->move_stride;
    u.marks = &job->cpu->select[worker];
    uint32_t count[DIGITS];
    wanted_set w = {.n_equal = u.k, .oldest = n};
    count_digits(&u, 8, 0, count);
    w.lowest = digit_of(count, &w.n_equal);
    count_digits(&u, 0, w.lowest, count);
    w.lowest = w.lowest << 8 | digit_of(count, &w.n_equal);
    take_cpu_wanted(&u, &w);
    if (!a->fill) replace_victims(&u, &w);
    a->n_moves[task] = u.n_moves;
    a->n_missed[task] = u.n_new - u.n_moves;
}

static cn_status check_exchange_room(const cn_exchange_args *a)
{
    for (uint32_t s = 0; s < a->n_seqs; s++) {
        const uint32_t k = a->k[s], n_moves = a->fill ? k : cn_min_u32(k, a->cap[s]);
        if (k > a->n[s])
            return cn_fail(CN_ERR_SHAPE,
                           "exchange: %u candidates of sequence %u: expected at least %u", a->n[s],
                           s, k);
        if (k > a->chosen_stride || n_moves > a->move_stride)
            return cn_fail(CN_ERR_SHAPE,
                           "exchange: %u entries and %u moves of sequence %u: expected at most %u "
                           "and %u",
                           k, n_moves, s, a->chosen_stride, a->move_stride);
    }
    return CN_OK;
}

cn_status cn_cpu_exchange(cn_stream *s, const cn_exchange_args *a)
{
    CN_TRY(check_exchange_room(a));
    exchange_job job = {cn_cpu_stream_owner(s), a};
    cn_cpu_parallel(s, a->n_seqs * a->n_layers * a->local.layout.n_kv_heads, exchange_task, &job);
    return CN_OK;
}
