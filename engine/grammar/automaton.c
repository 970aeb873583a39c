/* automaton.c - see automaton.h. A place is a node and a frame. A frame is the node that a call
 * returns to and the frame around the call; equal frames are one, and so are equal states.
 *
 * Work is counted where it is done: edges that are read, places that are met, places that are
 * sorted, nodes of the trie that are visited. The work of a transition depends on the state and the
 * byte alone. The cost of a mask is the work that it would be for an automaton without any
 * transition: it does not depend on other texts. */
#include "engine/grammar/automaton.h"

#include <stdlib.h>

enum {
    UNKNOWN = UINT32_MAX, /* a state that was not made yet */
    BYTES = 256,
    FIRST_TABLE = 64,
    MAX_WORK = 4 * CN_AUTOMATON_MAX_PLACES,
    SORT_WORK = 8,  /* of a place that is sorted */
    COST_UNIT = 16, /* of move.cost */
    MAX_MOVE_WORK = UINT16_MAX * COST_UNIT,
    MAX_RESTARTS = 3, /* of a walk that a shrink interrupts */
    NO_FRAME = 0
};

typedef struct place {
    uint32_t node, frame;
} place;

typedef struct frame {
    place around; /* where the call returns to */
    uint32_t depth;
    bool in_unique; /* inside an array whose items differ */
} frame;

/* A transition. */
typedef struct move {
    uint32_t to;   /* UNKNOWN: not taken yet */
    uint16_t cost; /* its work, in units of COST_UNIT */
    uint16_t mark; /* the number of the last walk that took it */
} move;

typedef struct state {
    place *places; /* [n] sorted; those with a byte edge */
    uint32_t n;
    bool accepts, opens; /* the text matches; an array whose items differ has begun */
    uint32_t outside;    /* the state without places in such an array; UNKNOWN */
    move *moves;         /* [BYTES], or NULL */
    uint32_t *mask;      /* or NULL */
    uint64_t mask_cost;  /* with the mask */
} state;

/* The mask that is being made: a walk over the trie of the vocabulary. There is one at a time,
 * because it marks the transitions that it takes. */
typedef struct mask_walk {
    uint32_t *mask;    /* NULL: no walk */
    uint32_t from, at; /* its state, and the next node of the trie */
    uint16_t number;   /* not 0 */
    uint32_t n_restarts;
    uint64_t cost; /* so far */
    uint32_t at_depth[CN_TRIE_MAX_DEPTH + 1];
} mask_walk;

/* A hash table of indices: slots[cap], cap a power of two; 0 is a free slot. */
typedef struct index_table {
    uint32_t *slots;
    uint32_t cap, n;
} index_table;

typedef struct tables {
    frame *frames; /* [0] is that of the root rule */
    state *states; /* [0] is CN_STATE_NONE */
    uint32_t n_frames, cap_frames, n_states, cap_states;
    index_table frame_index, state_index;
    uint64_t bytes;
} tables;

struct cn_automaton {
    cn_net net;
    const cn_vocabulary *vocabulary;
    uint64_t *total_bytes;
    tables t;
    cn_list matchers;
    uint32_t start;
    /* The closure being made: work[] are the places that it has met, in order. */
    place *work, *kernel;
    uint32_t n_work, n_kernel, cap_work;
    index_table met; /* of work, index + 1 */
    bool accepts, opens;
    uint64_t n_worked; /* work since the automaton was made */
    mask_walk walk;
};

static cn_status automaton_too_large(void)
{
    return cn_fail(
        CN_ERR_ARG,
        "a text of the grammar can be at more than %d places of it at once, the limit of "
        "a state: expected fewer alternatives or smaller bounds",
        CN_AUTOMATON_MAX_PLACES);
}

static cn_status too_slow(void)
{
    return cn_fail(CN_ERR_ARG,
                   "the grammar has too many states, or they are too large: expected fewer "
                   "alternatives or smaller bounds");
}

static cn_status no_room(void) { return cn_fail(CN_ERR_MEMORY, "out of memory for a grammar"); }

/* ---- hash tables ---- */

static uint64_t hash_place(place p) { return cn_hash64(p.frame, &p, sizeof p); }

static cn_status table_grow(index_table *t)
{
    const uint32_t cap = t->cap ? 2 * t->cap : FIRST_TABLE;
    uint32_t *slots = cn_calloc(cap, sizeof *slots);
    if (!slots) return no_room();
    cn_free(t->slots);
    *t = (index_table){slots, cap, 0};
    return CN_OK;
}

static void table_put(index_table *t, uint64_t hash, uint32_t value)
{
    uint32_t at = (uint32_t)hash & (t->cap - 1);
    while (t->slots[at]) at = (at + 1) & (t->cap - 1);
    t->slots[at] = value;
    t->n++;
}

static bool is_index_full(const index_table *t) { return 2 * (t->n + 1) > t->cap; }

/* ---- frames ---- */

static cn_status intern_frame(tables *t, place around, bool in_unique, uint32_t *out)
{
    if (is_index_full(&t->frame_index)) {
        CN_TRY(table_grow(&t->frame_index));
        t->bytes += t->frame_index.cap / 2 * sizeof(uint32_t);
        for (uint32_t i = 1; i < t->n_frames; i++)
            table_put(&t->frame_index, hash_place(t->frames[i].around), i);
    }
    const uint32_t mask = t->frame_index.cap - 1;
    const uint64_t hash = hash_place(around);
    for (uint32_t at = (uint32_t)hash & mask; t->frame_index.slots[at]; at = (at + 1) & mask) {
        *out = t->frame_index.slots[at];
        const place p = t->frames[*out].around;
        if (p.node == around.node && p.frame == around.frame) return CN_OK;
    }
    if (t->n_frames == t->cap_frames) {
        const uint32_t cap = 2 * t->cap_frames;
        frame *frames = cn_realloc(t->frames, cap, sizeof *frames);
        if (!frames) return no_room();
        t->bytes += (cap - t->cap_frames) * sizeof *frames;
        t->frames = frames;
        t->cap_frames = cap;
    }
    *out = t->n_frames++;
    t->frames[*out] = (frame){around, t->frames[around.frame].depth + 1, in_unique};
    table_put(&t->frame_index, hash, *out);
    return CN_OK;
}

/* ---- states ---- */

static uint64_t hash_state(const state *s)
{
    return cn_hash64(2u * s->opens + s->accepts, s->places, s->n * sizeof *s->places);
}

static int compare_places(const void *pa, const void *pb)
{
    const place *a = pa, *b = pb;
    if (a->node != b->node) return a->node < b->node ? -1 : 1;
    return a->frame < b->frame ? -1 : a->frame > b->frame;
}

static cn_status add_state(tables *t, const state *s, uint32_t *out)
{
    if (t->n_states == t->cap_states) {
        const uint32_t cap = 2 * t->cap_states;
        state *states = cn_realloc(t->states, cap, sizeof *states);
        if (!states) return no_room();
        t->bytes += (cap - t->cap_states) * sizeof *states;
        t->states = states;
        t->cap_states = cap;
    }
    place *copy = cn_calloc(s->n + 1, sizeof *copy);
    if (!copy) return no_room();
    if (s->n > 0) memcpy(copy, s->places, s->n * sizeof *copy);
    t->bytes += (s->n + 1) * sizeof *copy;
    *out = t->n_states++;
    t->states[*out] = *s;
    t->states[*out].places = copy;
    t->states[*out].outside = UNKNOWN;
    return CN_OK;
}

/* Finds or makes the state with these places, which it sorts. */
static cn_status intern_state(tables *t, const state *s, uint32_t *out)
{
    *out = CN_STATE_NONE;
    if (s->n == 0 && !s->accepts) return CN_OK;
    qsort(s->places, s->n, sizeof *s->places, compare_places);
    if (is_index_full(&t->state_index)) {
        CN_TRY(table_grow(&t->state_index));
        t->bytes += t->state_index.cap / 2 * sizeof(uint32_t);
        for (uint32_t i = 1; i < t->n_states; i++)
            table_put(&t->state_index, hash_state(&t->states[i]), i);
    }
    const uint32_t mask = t->state_index.cap - 1;
    const uint64_t hash = hash_state(s);
    for (uint32_t at = (uint32_t)hash & mask; t->state_index.slots[at]; at = (at + 1) & mask) {
        *out = t->state_index.slots[at];
        const state *same = &t->states[*out];
        if (same->n == s->n && same->accepts == s->accepts && same->opens == s->opens &&
            memcmp(same->places, s->places, s->n * sizeof *s->places) == 0)
            return CN_OK;
    }
    CN_TRY(add_state(t, s, out));
    table_put(&t->state_index, hash, *out);
    return CN_OK;
}

static void free_tables(tables *t)
{
    for (uint32_t i = 0; i < t->n_states; i++) {
        cn_free(t->states[i].places);
        cn_free(t->states[i].moves);
        cn_free(t->states[i].mask);
    }
    cn_free(t->states);
    cn_free(t->frames);
    cn_free(t->frame_index.slots);
    cn_free(t->state_index.slots);
    *t = (tables){0};
}

static cn_status make_tables(tables *t)
{
    *t = (tables){.frames = cn_calloc(FIRST_TABLE, sizeof *t->frames),
                  .states = cn_calloc(FIRST_TABLE, sizeof *t->states),
                  .n_frames = 1,
                  .n_states = 1,
                  .cap_frames = FIRST_TABLE,
                  .cap_states = FIRST_TABLE};
    if (!t->frames || !t->states) {
        t->n_states = 0;
        free_tables(t);
        return no_room();
    }
    t->bytes = FIRST_TABLE * (sizeof *t->frames + sizeof *t->states);
    return CN_OK;
}

/* ---- closures ---- */

static cn_status grow_work(cn_automaton *a)
{
    if (a->cap_work >= MAX_WORK) return automaton_too_large();
    const uint32_t cap = a->cap_work ? 2 * a->cap_work : FIRST_TABLE;
    place *work = cn_realloc(a->work, cap, sizeof *work);
    if (!work) return no_room();
    a->work = work;
    place *kernel = cn_realloc(a->kernel, cap, sizeof *kernel);
    if (!kernel) return no_room();
    a->kernel = kernel;
    a->cap_work = cap;
    return CN_OK;
}

/* Adds a place to the closure, unless it has it or cannot be completed. */
static cn_status meet_place(cn_automaton *a, place p)
{
    a->n_worked++;
    if (a->net.nodes[p.node].height + a->t.frames[p.frame].depth > CN_NET_MAX_DEPTH) return CN_OK;
    if (is_index_full(&a->met)) {
        CN_TRY(table_grow(&a->met));
        for (uint32_t i = 0; i < a->n_work; i++) table_put(&a->met, hash_place(a->work[i]), i + 1);
    }
    const uint32_t mask = a->met.cap - 1;
    const uint64_t hash = hash_place(p);
    for (uint32_t at = (uint32_t)hash & mask; a->met.slots[at]; at = (at + 1) & mask) {
        const place q = a->work[a->met.slots[at] - 1];
        if (q.node == p.node && q.frame == p.frame) return CN_OK;
    }
    if (a->n_work == a->cap_work) CN_TRY(grow_work(a));
    a->work[a->n_work++] = p;
    table_put(&a->met, hash, a->n_work);
    return CN_OK;
}

static cn_status enter_call(cn_automaton *a, const cn_net_edge *e, uint32_t around)
{
    const cn_net_node *after = &a->net.nodes[e->to];
    uint32_t inside = around;
    if (after->height + a->t.frames[around].depth > CN_NET_MAX_DEPTH) return CN_OK;
    if (!after->end) {
        const uint32_t least = a->net.nodes[a->net.rules[e->rule].start].height + 1u;
        if (least + a->t.frames[around].depth > CN_NET_MAX_DEPTH) return CN_OK;
        CN_TRY(intern_frame(&a->t, (place){e->to, around},
                            after->ends_unique || a->t.frames[around].in_unique, &inside));
    }
    return meet_place(a, (place){a->net.rules[e->rule].start, inside});
}

static cn_status follow_place(cn_automaton *a, place p)
{
    const cn_net_node *node = &a->net.nodes[p.node];
    a->opens |= node->unique;
    if (node->end) {
        if (p.frame != NO_FRAME) return meet_place(a, a->t.frames[p.frame].around);
        a->accepts = true;
    }
    bool reads = false;
    for (uint32_t i = node->edges; i; i = a->net.edges[i].next) {
        const cn_net_edge *e = &a->net.edges[i];
        a->n_worked++;
        if (e->kind == CN_EDGE_BYTE) reads = true;
        if (e->kind == CN_EDGE_EMPTY) CN_TRY(meet_place(a, (place){e->to, p.frame}));
        if (e->kind == CN_EDGE_CALL) CN_TRY(enter_call(a, e, p.frame));
    }
    if (reads) a->kernel[a->n_kernel++] = p;
    return CN_OK;
}

/* Clears only the slots in use if the table has grown much larger than they are. */
static void open_closure(cn_automaton *a)
{
    const bool few = a->met.n < a->met.cap / 16;
    if (!few && a->met.slots) memset(a->met.slots, 0, a->met.cap * sizeof *a->met.slots);
    for (uint32_t i = 0; few && i < a->met.n; i++) {
        uint32_t at = (uint32_t)hash_place(a->work[i]) & (a->met.cap - 1);
        while (a->met.slots[at] != i + 1) at = (at + 1) & (a->met.cap - 1);
        a->met.slots[at] = 0;
    }
    a->n_work = a->n_kernel = a->met.n = 0;
    a->accepts = a->opens = false;
}

/* `began`: n_worked before the closure was opened. */
static cn_status close_closure(cn_automaton *a, uint64_t began, uint32_t *out)
{
    for (uint32_t i = 0; i < a->n_work; i++) {
        CN_TRY(follow_place(a, a->work[i]));
        if (a->n_worked - began > MAX_MOVE_WORK) return too_slow();
    }
    a->n_worked += SORT_WORK * a->n_kernel;
    if (a->n_kernel > CN_AUTOMATON_MAX_PLACES) return automaton_too_large();
    if (a->n_worked - began > MAX_MOVE_WORK) return too_slow();
    const state s = {
        .places = a->kernel, .n = a->n_kernel, .accepts = a->accepts, .opens = a->opens};
    return intern_state(&a->t, &s, out);
}

/* ---- transitions ---- */

static cn_status ensure_moves(tables *t, uint32_t id)
{
    if (t->states[id].moves) return CN_OK;
    move *m = cn_calloc(BYTES, sizeof *m);
    if (!m) return no_room();
    for (uint32_t i = 0; i < BYTES; i++) m[i].to = UNKNOWN;
    t->states[id].moves = m;
    t->bytes += BYTES * sizeof *m;
    return CN_OK;
}

static cn_status make_move(cn_automaton *a, uint32_t from, uint8_t byte)
{
    const uint64_t began = a->n_worked;
    uint32_t to;
    open_closure(a);
    for (uint32_t i = 0; i < a->t.states[from].n; i++) {
        const place p = a->t.states[from].places[i];
        for (uint32_t k = a->net.nodes[p.node].edges; k; k = a->net.edges[k].next) {
            const cn_net_edge *e = &a->net.edges[k];
            a->n_worked++;
            if (e->kind == CN_EDGE_BYTE && e->lo <= byte && byte <= e->hi)
                CN_TRY(meet_place(a, (place){e->to, p.frame}));
        }
        if (a->n_worked - began > MAX_MOVE_WORK) return too_slow();
    }
    CN_TRY(close_closure(a, began, &to));
    CN_TRY(ensure_moves(&a->t, from));
    a->t.states[from].moves[byte] =
        (move){.to = to, .cost = (uint16_t)cn_ceil_div(a->n_worked - began, COST_UNIT)};
    return CN_OK;
}

/* Takes a transition that is not known. */
static cn_status find_move(cn_automaton *a, uint32_t from, uint8_t byte)
{
    const uint64_t before = a->t.bytes;
    if (before > CN_AUTOMATON_MAX_BYTES) return too_slow();
    const cn_status status = make_move(a, from, byte);
    *a->total_bytes += a->t.bytes - before;
    return status;
}

static cn_status step_automaton(cn_automaton *a, uint32_t from, uint8_t byte, uint32_t *out)
{
    const move *moves = a->t.states[from].moves;
    if (!moves || moves[byte].to == UNKNOWN) CN_TRY(find_move(a, from, byte));
    *out = a->t.states[from].moves[byte].to;
    return CN_OK;
}

/* ---- masks ---- */

static void end_walk(mask_walk *w)
{
    cn_free(w->mask);
    w->mask = NULL;
}

/* Whether a matcher needs the mask of this state. */
static bool is_matched(const cn_automaton *a, uint32_t id)
{
    for (cn_list_node *at = a->matchers.head; at; at = at->next)
        if (CN_CONTAINER_OF(at, cn_matcher, node)->state == id) return true;
    return id == a->start;
}

/* Numbers of walks begin again at 1. */
static void forget_marks(cn_automaton *a)
{
    for (uint32_t i = 0; i < a->t.n_states; i++)
        for (uint32_t k = 0; a->t.states[i].moves && k < BYTES; k++)
            a->t.states[i].moves[k].mark = 0;
    a->walk.number = 1;
}

static cn_status begin_walk(cn_automaton *a, uint32_t from)
{
    mask_walk *w = &a->walk;
    w->mask = cn_calloc(a->vocabulary->mask_words, sizeof *w->mask);
    if (!w->mask) return no_room();
    w->from = w->at_depth[0] = from;
    w->at = 0;
    w->cost = 0;
    if (++w->number == 0) forget_marks(a);
    return CN_OK;
}

static void allow_id(uint32_t *mask, uint32_t id) { mask[id / 32] |= 1u << id % 32; }

/* Walks until the end of the trie, or until n_worked reaches `until`. `at` has the transitions of
 * the states at_depth, or NULL: siblings share them. */
static cn_status walk_trie(cn_automaton *a, uint64_t until)
{
    const cn_token_trie *trie = &a->vocabulary->trie;
    mask_walk *w = &a->walk;
    move *at[CN_TRIE_MAX_DEPTH + 1];
    uint32_t i = w->at;
    uint64_t n_visited = 0; /* of the nodes, not yet in n_worked */
    cn_status status = CN_OK;
    for (uint32_t d = 0; i < trie->n_nodes && d < trie->nodes[i].depth; d++)
        at[d] = a->t.states[w->at_depth[d]].moves;
    while (i < trie->n_nodes && a->n_worked + n_visited < until) {
        const cn_trie_node *node = &trie->nodes[i];
        const uint32_t depth = node->depth, from = w->at_depth[depth - 1];
        if (!at[depth - 1] || at[depth - 1][node->byte].to == UNKNOWN) {
            status = find_move(a, from, node->byte);
            if (status != CN_OK) break;
            at[depth - 1] = a->t.states[from].moves;
        }
        move *m = &at[depth - 1][node->byte];
        n_visited++;
        if (m->mark != w->number) w->cost += (uint64_t)m->cost * COST_UNIT;
        m->mark = w->number;
        const uint32_t to = m->to;
        if (to == CN_STATE_NONE) {
            i = node->skip;
            continue;
        }
        w->at_depth[depth] = to;
        at[depth] = a->t.states[to].moves;
        for (uint32_t k = 0; k < node->n_ids; k++) allow_id(w->mask, trie->ids[node->first_id + k]);
        i++;
    }
    w->at = i;
    w->cost += n_visited;
    a->n_worked += n_visited;
    return status;
}

/* Gives the mask of a walk that has ended to its state. */
static void keep_mask(cn_automaton *a)
{
    mask_walk *w = &a->walk;
    const cn_vocabulary *v = a->vocabulary;
    state *s = &a->t.states[w->from];
    for (uint32_t i = 0; s->accepts && i < v->n_eos; i++) allow_id(w->mask, v->eos[i]);
    s->mask = w->mask;
    s->mask_cost = w->cost;
    w->mask = NULL;
    w->n_restarts = 0;
    a->t.bytes += v->mask_words * sizeof *s->mask;
    *a->total_bytes += v->mask_words * sizeof *s->mask;
}

/* Makes the mask of a state, after that of the walk under way if a matcher needs it. */
static cn_status make_mask(cn_automaton *a, uint32_t id, uint64_t until)
{
    mask_walk *w = &a->walk;
    if (w->mask && w->from != id && !is_matched(a, w->from)) end_walk(w);
    while (!a->t.states[id].mask && a->n_worked < until) {
        const bool lost = w->n_restarts > MAX_RESTARTS;
        if (!w->mask) CN_TRY(begin_walk(a, id));
        const cn_status status = lost ? too_slow() : walk_trie(a, until);
        if (status != CN_OK) {
            end_walk(w);
            w->n_restarts = 0;
            return status;
        }
        if (w->at == a->vocabulary->trie.n_nodes) keep_mask(a);
    }
    return CN_OK;
}

cn_status cn_matcher_mask(cn_matcher *m, uint64_t *work, const uint32_t **mask)
{
    cn_automaton *a = m->automaton;
    *mask = a->t.states[m->state].mask;
    if (*mask) return CN_OK;
    const uint64_t began = a->n_worked;
    const cn_status status = make_mask(a, m->state, began + *work);
    const uint64_t done = a->n_worked - began;
    *work -= done < *work ? done : *work;
    *mask = a->t.states[m->state].mask;
    return status;
}

uint64_t cn_matcher_mask_cost(const cn_matcher *m)
{
    const cn_automaton *a = m->automaton;
    const state *s = &a->t.states[m->state];
    if (s->mask) return s->mask_cost;
    return a->walk.mask && a->walk.from == m->state ? a->walk.cost : 0;
}

/* ---- matchers ---- */

void cn_matcher_start(cn_matcher *m, cn_automaton *a)
{
    *m = (cn_matcher){.automaton = a, .state = a->start};
    cn_list_append(&a->matchers, &m->node);
}

void cn_matcher_end(cn_matcher *m)
{
    if (m->automaton) cn_list_remove(&m->automaton->matchers, &m->node);
    cn_unique_items_free(&m->items);
    *m = (cn_matcher){0};
}

/* Follows the items of arrays. The byte has led from a state to that of the matcher. */
static cn_status read_item(cn_matcher *m, uint32_t from, uint8_t byte)
{
    bool same;
    uint64_t steps = 0;
    CN_TRY(
        cn_unique_items_read(&m->items, byte, cn_automaton_opens(m->automaton, m->state), &same));
    if (same) {
        CN_TRY(cn_automaton_step_outside(m->automaton, from, byte, &m->state, &steps));
        m->items.at.place = CN_ITEMS_NONE;
    }
    cn_unique_items_keep(&m->items);
    if (m->state != CN_STATE_NONE) return CN_OK;
    return cn_fail(CN_ERR_ARG, "uniqueItems: byte %u ends an item that is equal to an earlier one",
                   byte);
}

cn_status cn_matcher_push(cn_matcher *m, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t to = CN_STATE_NONE;
        const uint32_t from = m->state;
        const cn_status status = step_automaton(m->automaton, from, (uint8_t)bytes[i], &to);
        m->state = to;
        CN_TRY(status);
        if (to == CN_STATE_NONE)
            return cn_fail(CN_ERR_ARG, "byte %u does not continue a text of the grammar",
                           (uint8_t)bytes[i]);
        if (m->automaton->net.n_unique > 0) CN_TRY(read_item(m, from, (uint8_t)bytes[i]));
    }
    return CN_OK;
}

bool cn_matcher_accepts(const cn_matcher *m) { return m->automaton->t.states[m->state].accepts; }

bool cn_matcher_is_complete(const cn_matcher *m) { return m->automaton->t.states[m->state].n == 0; }

/* ---- arrays whose items differ ---- */

bool cn_automaton_has_unique(const cn_automaton *a) { return a->net.n_unique > 0; }

bool cn_automaton_opens(const cn_automaton *a, uint32_t id) { return a->t.states[id].opens; }

const char *cn_automaton_unique_place(const cn_automaton *a, uint32_t i)
{
    const char *text = a->net.places.data;
    for (; i > 0; i--) text += strlen(text) + 1;
    return text;
}

const cn_vocabulary *cn_automaton_vocabulary(const cn_automaton *a) { return a->vocabulary; }

cn_status cn_automaton_step(cn_automaton *a, uint32_t from, uint8_t byte, uint32_t *to,
                            uint64_t *steps)
{
    CN_TRY(step_automaton(a, from, byte, to));
    *steps += 1 + (uint64_t)a->t.states[from].moves[byte].cost * COST_UNIT;
    return CN_OK;
}

/* Makes the state without places in an array whose items differ. */
static cn_status make_outside(cn_automaton *a, uint32_t id)
{
    const uint64_t before = a->t.bytes;
    uint32_t n = 0, outside;
    while (a->cap_work < a->t.states[id].n) CN_TRY(grow_work(a));
    for (uint32_t i = 0; i < a->t.states[id].n; i++) {
        const place p = a->t.states[id].places[i];
        if (!a->net.nodes[p.node].ends_unique && !a->t.frames[p.frame].in_unique)
            a->kernel[n++] = p;
    }
    const state s = {.places = a->kernel, .n = n};
    CN_TRY(intern_state(&a->t, &s, &outside));
    a->t.states[id].outside = outside;
    *a->total_bytes += a->t.bytes - before;
    return CN_OK;
}

cn_status cn_automaton_step_outside(cn_automaton *a, uint32_t from, uint8_t byte, uint32_t *to,
                                    uint64_t *steps)
{
    *steps += a->t.states[from].n;
    if (a->t.states[from].outside == UNKNOWN) CN_TRY(make_outside(a, from));
    *to = a->t.states[from].outside;
    return *to == CN_STATE_NONE ? CN_OK : cn_automaton_step(a, *to, byte, to, steps);
}

/* ---- memory ---- */

const char *cn_automaton_warnings(const cn_automaton *a) { return a->net.warnings.data; }

uint64_t cn_automaton_bytes(const cn_automaton *a) { return a->t.bytes; }
uint64_t cn_automaton_net_bytes(const cn_automaton *a) { return cn_net_bytes(&a->net); }

void cn_automaton_adopt(cn_automaton *a, uint64_t *bytes)
{
    *a->total_bytes -= a->t.bytes;
    *bytes += a->t.bytes;
    a->total_bytes = bytes;
}

/* The frame of `to` that equals frame f of `from`. A frame is made after those around it. */
static cn_status move_frame(const tables *from, tables *to, uint32_t f, uint32_t *out)
{
    uint32_t inside[CN_NET_MAX_DEPTH + 1], n = 0;
    for (; f != NO_FRAME; f = from->frames[f].around.frame) inside[n++] = f;
    *out = NO_FRAME;
    while (n > 0) {
        const frame *fr = &from->frames[inside[--n]];
        CN_TRY(intern_frame(to, (place){fr->around.node, *out}, fr->in_unique, out));
    }
    return CN_OK;
}

static cn_status move_state(cn_automaton *a, tables *to, uint32_t id, uint32_t *out)
{
    const state *s = &a->t.states[id];
    while (a->cap_work < s->n) CN_TRY(grow_work(a));
    for (uint32_t i = 0; i < s->n; i++) {
        a->kernel[i].node = s->places[i].node;
        CN_TRY(move_frame(&a->t, to, s->places[i].frame, &a->kernel[i].frame));
    }
    const state copy = {.places = a->kernel, .n = s->n, .accepts = s->accepts, .opens = s->opens};
    return intern_state(to, &copy, out);
}

static cn_status move_all(cn_automaton *a, tables *to, uint32_t *start, uint32_t *states)
{
    CN_TRY(move_state(a, to, a->start, start));
    uint32_t i = 0;
    for (cn_list_node *at = a->matchers.head; at; at = at->next, i++)
        CN_TRY(move_state(a, to, CN_CONTAINER_OF(at, cn_matcher, node)->state, &states[i]));
    return CN_OK;
}

/* A mask that a matcher may be about to use stays. */
static void move_mask(cn_automaton *a, tables *to, uint32_t id, uint32_t moved)
{
    state *s = &a->t.states[id];
    if (!s->mask) return;
    to->states[moved].mask = s->mask;
    to->states[moved].mask_cost = s->mask_cost;
    to->bytes += a->vocabulary->mask_words * sizeof *s->mask;
    s->mask = NULL;
}

/* Replaces the tables. states[i] is the new state of matcher i. */
static void take_tables(cn_automaton *a, tables *fresh, uint32_t start, const uint32_t *states)
{
    uint32_t i = 0;
    move_mask(a, fresh, a->start, start);
    for (cn_list_node *at = a->matchers.head; at; at = at->next, i++) {
        cn_matcher *m = CN_CONTAINER_OF(at, cn_matcher, node);
        move_mask(a, fresh, m->state, states[i]);
        m->state = states[i];
    }
    a->walk.n_restarts += a->walk.mask != NULL;
    end_walk(&a->walk);
    *a->total_bytes += fresh->bytes - a->t.bytes;
    free_tables(&a->t);
    a->t = *fresh;
    a->start = start;
}

cn_status cn_automaton_shrink(cn_automaton *a)
{
    tables fresh;
    uint32_t start;
    CN_TRY(make_tables(&fresh));
    uint32_t *states = cn_calloc(a->matchers.n + 1, sizeof *states);
    const cn_status status = states ? move_all(a, &fresh, &start, states) : no_room();
    if (status == CN_OK)
        take_tables(a, &fresh, start, states);
    else
        free_tables(&fresh);
    cn_free(states);
    return status;
}

/* ---- create, free ---- */

/* The state at a node that no call contains. */
static cn_status make_state(cn_automaton *a, uint32_t node, uint32_t *out)
{
    const uint64_t before = a->t.bytes, began = a->n_worked;
    open_closure(a);
    cn_status status = meet_place(a, (place){node, NO_FRAME});
    if (status == CN_OK) status = close_closure(a, began, out);
    *a->total_bytes += a->t.bytes - before;
    return status;
}

cn_status cn_automaton_next_unique(cn_automaton *a, uint32_t *node, uint32_t *i, uint32_t *out)
{
    *out = CN_STATE_NONE;
    for (; *node < a->net.n_nodes; ++*node) {
        if (!a->net.nodes[*node].unique) continue;
        if (a->net.nodes[*node].height != CN_NET_NO_END) return make_state(a, *node, out);
        ++*i;
    }
    return CN_OK;
}

cn_status cn_automaton_create(cn_automaton **out, cn_net *net, const cn_vocabulary *vocabulary,
                              uint64_t *bytes)
{
    cn_automaton *a = cn_calloc(1, sizeof *a);
    if (!a) {
        cn_net_free(net);
        return no_room();
    }
    a->net = *net;
    *net = (cn_net){0};
    a->vocabulary = vocabulary;
    a->total_bytes = bytes;
    cn_status status = make_tables(&a->t);
    *bytes += a->t.bytes;
    if (status == CN_OK) status = make_state(a, a->net.rules[0].start, &a->start);
    if (status != CN_OK) {
        cn_automaton_free(a);
        return status;
    }
    *out = a;
    return CN_OK;
}

void cn_automaton_free(cn_automaton *a)
{
    if (!a) return;
    CN_ASSERT(a->matchers.n == 0);
    *a->total_bytes -= a->t.bytes;
    end_walk(&a->walk);
    free_tables(&a->t);
    cn_net_free(&a->net);
    cn_free(a->work);
    cn_free(a->kernel);
    cn_free(a->met.slots);
    cn_free(a);
}
