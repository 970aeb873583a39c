/* unique_masks.c - see unique_masks.h. */
#include "engine/grammar/unique_masks.h"

enum {
    BYTES = 256,
    N_FIRST = 3,
    FIRST_LEVELS = 256,
    MAX_LEVELS = 1 << 16, /* bytes that a search reads */
    N_SEEN = 2048,
    MAX_SEARCHES = 1 << 14, /* whose results are remembered */
    /* In place of a search: no end follows the text, or one does. */
    EXHAUSTED = UINT32_MAX,
    SUCCEEDED = UINT32_MAX - 1
};

/* A text that a search has read, and the bytes that it has tried after it. */
typedef struct level {
    cn_items_mark mark;
    uint32_t state, n_tried;
    uint64_t key;
    uint8_t byte; /* the last of the text; 0: none */
} level;

/* A text that a search has met, by its hash: other ways to it need not be taken. */
typedef struct seen_text {
    uint64_t key;
    uint32_t search;
} seen_text;

typedef struct walk {
    cn_automaton *automaton;
    cn_unique_items *items;
    uint8_t order[BYTES]; /* in which bytes are tried; see next_byte */
    level *levels;        /* [n_levels] */
    uint32_t n_levels;
    cn_items_mark mark_at[CN_TRIE_MAX_DEPTH + 1]; /* at each depth of the trie */
    uint32_t state_at[CN_TRIE_MAX_DEPTH + 1];
    /* An item that is not new has ended, so that fewer texts follow than the mask allows. */
    bool left_at[CN_TRIE_MAX_DEPTH + 1];
    bool left; /* by the byte read last */
    seen_text seen[N_SEEN];
    uint64_t failed[MAX_SEARCHES / 64]; /* searches that found no end: bits */
    uint32_t search, begin_len; /* the number of this one; bytes of the items' text at first */
    uint64_t steps, max_steps;
} walk;

typedef enum outcome { FOUND, NOT_FOUND, UNKNOWN } outcome;

static void free_walk(walk *w)
{
    if (w) cn_free(w->levels);
    cn_free(w);
}

static cn_status add_levels(walk *w)
{
    const uint32_t n = w->n_levels ? 2 * w->n_levels : FIRST_LEVELS;
    level *levels = n <= MAX_LEVELS ? cn_realloc(w->levels, n, sizeof *levels) : NULL;
    if (!levels && n <= MAX_LEVELS) return cn_fail(CN_ERR_MEMORY, "out of memory for a token mask");
    if (!levels)
        return cn_fail(CN_ERR_ARG, "uniqueItems: the end of an item is more than %d bytes away",
                       MAX_LEVELS);
    w->levels = levels;
    w->n_levels = n;
    return CN_OK;
}

static walk *make_walk(cn_automaton *a, cn_unique_items *items, uint64_t max_steps)
{
    static const char first[] = "\"],", *spaces = " \n\r\t";
    walk *w = cn_calloc(1, sizeof *w);
    uint32_t n = 0;
    if (!w) return NULL;
    for (const char *c = first; *c; c++) w->order[n++] = (uint8_t)*c;
    for (uint32_t b = 1; b < BYTES; b++)
        if (!strchr(first, (int)b) && !strchr(spaces, (int)b)) w->order[n++] = (uint8_t)b;
    for (const char *c = spaces; *c; c++) w->order[n++] = (uint8_t)*c;
    w->automaton = a;
    w->items = items;
    w->begin_len = items->at.len;
    w->max_steps = max_steps;
    items->steps = 0;
    if (add_levels(w) == CN_OK) return w;
    free_walk(w);
    return NULL;
}

/* ---- searches ---- */

static bool is_unique_too_costly(const walk *w)
{
    return w->steps + w->items->steps > w->max_steps;
}

/* A text is its state and what was added to the items since the walk began. */
static uint64_t unique_key_of(const walk *w, uint32_t state)
{
    const cn_items_mark *at = &w->items->at;
    const bool is_old = at->begin < w->begin_len; /* the item in progress was there at first */
    const uint64_t key =
        cn_hash64(((uint64_t)state << 4 | at->place) << 1 | is_old, at->escape, at->n_escape) ^
        (uint64_t)at->base << 32;
    const size_t n = at->len > w->begin_len ? at->len - w->begin_len : 0;
    return cn_hash64(key ^ at->n, n > 0 ? w->items->text.data + w->begin_len : "", n) | 1;
}

/* What is known of a text: whether an end follows it, or this search was at it already or an
 * earlier one has found no end from there. UNKNOWN: it is met now. */
static outcome recall(walk *w, uint64_t key)
{
    seen_text *s = &w->seen[key / 2 % N_SEEN];
    w->steps++;
    if (s->key == key && s->search == SUCCEEDED) return FOUND;
    if (s->key == key && (s->search == w->search || s->search == EXHAUSTED)) return NOT_FOUND;
    if (s->key == key && s->search < MAX_SEARCHES &&
        w->failed[s->search / 64] >> s->search % 64 & 1)
        return NOT_FOUND;
    *s = (seen_text){key, w->search};
    return UNKNOWN;
}

/* All ways after a text have been taken. In white space they may lead back to a text before it. */
static void end_level(walk *w, const level *l)
{
    const cn_items_place place = l->mark.place;
    if (place == CN_ITEMS_STRING || place == CN_ITEMS_WORD)
        w->seen[l->key / 2 % N_SEEN] = (seen_text){l->key, EXHAUSTED};
}

static void end_search(walk *w, bool failed)
{
    if (failed && w->search < MAX_SEARCHES)
        w->failed[w->search / 64] |= UINT64_C(1) << w->search % 64;
    w->search++;
}

/* The next byte to try: those that may end the item or the array come first, then the one that was
 * read last. */
static uint8_t next_byte(const walk *w, level *l)
{
    const bool in_string = l->mark.place == CN_ITEMS_STRING;
    if (l->n_tried == N_FIRST && l->byte) {
        const uint8_t byte = l->byte;
        l->byte = 0;
        return byte;
    }
    const uint32_t n = l->n_tried++;
    return w->order[n < N_FIRST && !in_string ? (n + 1) % N_FIRST : n];
}

/* Reads a byte after a text. *to is CN_STATE_NONE if it does not follow; *same: because it ends an
 * item that is not new. */
static cn_status read_unique_byte(walk *w, uint32_t from, const cn_items_mark *mark, uint8_t byte,
                                  uint32_t *to, bool *same)
{
    *same = w->left = false;
    CN_TRY(cn_automaton_step(w->automaton, from, byte, to, &w->steps));
    if (*to == CN_STATE_NONE) return CN_OK;
    cn_unique_items_back(w->items, mark);
    CN_TRY(cn_unique_items_read(w->items, byte, cn_automaton_opens(w->automaton, *to), same));
    if (!*same) return CN_OK;
    CN_TRY(cn_automaton_step_outside(w->automaton, from, byte, to, &w->steps));
    w->items->at.place = CN_ITEMS_NONE;
    w->left = true;
    *same = *to == CN_STATE_NONE;
    return CN_OK;
}

static bool is_end(const cn_unique_items *u, uint32_t n_before, bool exact)
{
    if (u->at.place == CN_ITEMS_NONE || u->at.n > n_before) return true;
    return !exact && u->at.place == CN_ITEMS_STRING && u->at.is_new;
}

/* Searches for a text that ends the item in progress, or the next one, or the array. A string that
 * begins like no other item can be ended, because every state can be completed: unless `exact`,
 * that is enough. If an end is found, items and *state are those after it; else items are as they
 * were. */
static cn_status find_end(walk *w, uint32_t *state, bool exact, outcome *out)
{
    cn_unique_items *u = w->items;
    const uint32_t n_before = u->at.n;
    uint32_t depth = 0, to;
    w->levels[0] = (level){.mark = u->at, .state = *state, .key = unique_key_of(w, *state)};
    *out = recall(w, w->levels[0].key);
    while (*out == UNKNOWN && !is_unique_too_costly(w)) {
        level *l = &w->levels[depth];
        bool same;
        if (l->n_tried == BYTES - 1) { /* no byte 0 */
            end_level(w, l);
            if (depth-- == 0) *out = NOT_FOUND;
            continue;
        }
        const uint8_t byte = next_byte(w, l);
        CN_TRY(read_unique_byte(w, l->state, &l->mark, byte, &to, &same));
        if (to == CN_STATE_NONE) continue;
        *state = to;
        if (is_end(u, n_before, exact)) {
            *out = FOUND;
            break;
        }
        const uint64_t key = unique_key_of(w, to);
        const outcome known = recall(w, key);
        if (known == FOUND) *out = FOUND;
        if (known != UNKNOWN) continue;
        if (depth + 1 == w->n_levels) CN_TRY(add_levels(w));
        w->levels[++depth] = (level){.mark = u->at, .state = to, .key = key, .byte = byte};
    }
    /* An end was found after the texts of all levels. */
    for (uint32_t i = 0; *out == FOUND && !exact && i <= depth; i++)
        w->seen[w->levels[i].key / 2 % N_SEEN] = (seen_text){w->levels[i].key, SUCCEEDED};
    end_search(w, *out == NOT_FOUND);
    if (*out != FOUND) cn_unique_items_back(u, &w->levels[0].mark);
    return CN_OK;
}

/* ---- masks ---- */

static bool is_allowed(const uint32_t *mask, uint32_t id) { return mask[id / 32] >> id % 32 & 1; }

static void ban(const cn_token_trie *trie, const cn_trie_node *node, uint32_t *mask)
{
    for (uint32_t k = 0; k < node->n_ids; k++) {
        const uint32_t id = trie->ids[node->first_id + k];
        mask[id / 32] &= ~(1u << id % 32);
    }
}

/* Whether a token below the node, or of it, may end an item. */
static bool is_of_interest(const cn_unique_items *u, const cn_trie_node *node)
{
    if (u->at.place == CN_ITEMS_NONE) return node->has_list;
    return u->at.place != CN_ITEMS_STRING || !u->at.is_new || node->has_quote;
}

/* Bans the tokens of a node if the text after them cannot go on to a new item or the end. */
static cn_status check_unique_tokens(walk *w, const cn_trie_node *node, uint32_t state,
                                     uint32_t *mask)
{
    const cn_token_trie *trie = &cn_automaton_vocabulary(w->automaton)->trie;
    const cn_items_mark mark = w->items->at;
    bool any = false;
    outcome found;
    for (uint32_t k = 0; k < node->n_ids; k++)
        any |= is_allowed(mask, trie->ids[node->first_id + k]);
    if (!any || mark.place == CN_ITEMS_NONE) return CN_OK;
    if (mark.place == CN_ITEMS_STRING && mark.is_new) return CN_OK;
    CN_TRY(find_end(w, &state, false, &found));
    cn_unique_items_back(w->items, &mark);
    if (found != FOUND) ban(trie, node, mask);
    return CN_OK;
}

static cn_status walk_unique_trie(walk *w, uint32_t *mask)
{
    const cn_token_trie *trie = &cn_automaton_vocabulary(w->automaton)->trie;
    for (uint32_t i = 0; i < trie->n_nodes && !is_unique_too_costly(w);) {
        const cn_trie_node *node = &trie->nodes[i];
        const uint32_t depth = node->depth;
        const cn_items_mark *mark = &w->mark_at[depth - 1];
        uint32_t to;
        bool same;
        w->steps++;
        cn_unique_items_back(w->items, mark);
        const bool left = w->left_at[depth - 1];
        if (!left && !is_of_interest(w->items, node)) {
            i = node->skip;
            continue;
        }
        CN_TRY(read_unique_byte(w, w->state_at[depth - 1], mark, node->byte, &to, &same));
        if (to == CN_STATE_NONE) {
            for (; (same || left) && i < node->skip; i++) ban(trie, &trie->nodes[i], mask);
            i = node->skip;
            continue;
        }
        w->left_at[depth] = left || w->left;
        w->state_at[depth] = to;
        w->mark_at[depth] = w->items->at;
        CN_TRY(check_unique_tokens(w, node, to, mask));
        i++;
    }
    return CN_OK;
}

cn_status cn_matcher_exclude(cn_matcher *m, uint32_t *mask, uint64_t *steps)
{
    if (!cn_automaton_has_unique(m->automaton)) return CN_OK;
    const cn_items_mark mark = m->items.at;
    walk *w = make_walk(m->automaton, &m->items, CN_UNIQUE_MAX_STEPS);
    if (!w) return cn_fail(CN_ERR_MEMORY, "out of memory for a token mask");
    w->mark_at[0] = mark;
    w->state_at[0] = m->state;
    cn_status status = walk_unique_trie(w, mask);
    cn_unique_items_back(&m->items, &mark);
    if (status == CN_OK && is_unique_too_costly(w))
        status = cn_fail(CN_ERR_ARG,
                         "uniqueItems: the tokens that may follow take more than %d "
                         "automaton steps",
                         CN_UNIQUE_MAX_STEPS);
    *steps += w->steps + m->items.steps;
    free_walk(w);
    return status;
}

/* ---- arrays ---- */

/* Fills an array that has begun with different items until it may end. */
static cn_status fill_array(walk *w, uint32_t state)
{
    outcome found = FOUND;
    bool same;
    CN_TRY(cn_unique_items_read(w->items, '[', true, &same));
    while (found == FOUND && w->items->at.place != CN_ITEMS_NONE) {
        w->begin_len = w->items->at.len;
        CN_TRY(find_end(w, &state, true, &found));
    }
    if (found == FOUND) return CN_OK;
    if (found == UNKNOWN)
        return cn_fail(CN_ERR_ARG,
                       "uniqueItems: finding minItems different items takes more than %d automaton "
                       "steps: expected a smaller minItems",
                       CN_UNIQUE_MAX_CHECK_STEPS);
    return cn_fail(CN_ERR_ARG,
                   "uniqueItems: expected a minItems of at most %u, because there are "
                   "no more different items",
                   w->items->at.n - w->items->at.base);
}

cn_status cn_automaton_check_unique(cn_automaton *a)
{
    cn_unique_items items = {0};
    uint32_t state = CN_STATE_NONE;
    cn_status status = CN_OK;
    if (!cn_automaton_has_unique(a)) return CN_OK;
    walk *w = make_walk(a, &items, CN_UNIQUE_MAX_CHECK_STEPS);
    if (!w) return cn_fail(CN_ERR_MEMORY, "out of memory for a grammar");
    for (uint32_t node = 0, i = 0; status == CN_OK; node++, i++) {
        status = cn_automaton_next_unique(a, &node, &i, &state);
        if (status != CN_OK || state == CN_STATE_NONE) break;
        status = fill_array(w, state);
        if (status != CN_OK)
            cn_fail_within(status, "schema at %s", cn_automaton_unique_place(a, i));
        cn_unique_items_back(&items, &(cn_items_mark){0});
    }
    free_walk(w);
    cn_unique_items_free(&items);
    return status;
}
