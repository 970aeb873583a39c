/* word_steps.c - see word_steps.h. */
#include "engine/text/word_steps.h"

#include "engine/base/utf8.h"
#include "engine/text/pretoken.h"
#include "engine/text/split_regex.h"
#include "engine/text/vocab.h"
#include "engine/text/word_regex.h"

enum { MAX_STEPS = 32 };

typedef enum step_kind { STEP_RULE, STEP_SPLIT, STEP_PREFIX, STEP_BYTES } step_kind;

typedef struct word_step {
    step_kind kind;
    cn_pretoken *rule;    /* STEP_RULE: covers the text with words */
    cn_word_regex *regex; /* STEP_SPLIT */
    cn_split_behavior behavior;
    bool invert;
} word_step;

struct cn_word_steps {
    word_step steps[MAX_STEPS];
    uint32_t n;
    bool has_byte_level;
    bool is_mapped; /* a step follows ByteLevel: words have to be mapped back to bytes */
};

/* One text. `each` may run another one. */
typedef struct word_run {
    cn_word_steps *w;
    cn_word_fn *each;
    void *context;
    cn_buf word;             /* a word as bytes */
    cn_buf texts[MAX_STEPS]; /* the changed piece of STEP_PREFIX and STEP_BYTES */
} word_run;

cn_status cn_word_steps_create(cn_word_steps **out)
{
    *out = cn_calloc(1, sizeof **out);
    return *out ? CN_OK : cn_fail(CN_ERR_MEMORY, "out of memory for the split rules");
}

void cn_word_steps_free(cn_word_steps *w)
{
    if (!w) return;
    for (uint32_t i = 0; i < w->n; i++) {
        cn_pretoken_free(w->steps[i].rule);
        cn_word_regex_free(w->steps[i].regex);
    }
    cn_free(w);
}

/* ---- adding steps ---- */

/* Adds an empty step. ByteLevel's mapping becomes a step when another one follows it. */
static cn_status add_step(cn_word_steps *w, step_kind kind, word_step **out)
{
    const bool maps = w->has_byte_level && !w->is_mapped;
    *out = NULL;
    if (w->n + maps >= MAX_STEPS)
        return cn_fail(CN_ERR_MODEL, "pre_tokenizer: more than %d steps", MAX_STEPS);
    if (maps) w->steps[w->n++].kind = STEP_BYTES;
    w->is_mapped = w->is_mapped || maps;
    *out = &w->steps[w->n++];
    (*out)->kind = kind;
    return CN_OK;
}

static cn_status add_rule(cn_word_steps *w, cn_split_rule rule)
{
    word_step *step = NULL;
    CN_TRY(add_step(w, STEP_RULE, &step));
    return cn_pretoken_create(&step->rule, rule);
}

static cn_status add_pattern(cn_word_steps *w, const char *pattern, cn_split_behavior behavior,
                             bool invert)
{
    word_step *step = NULL;
    CN_TRY(add_step(w, STEP_SPLIT, &step));
    step->behavior = behavior;
    step->invert = invert;
    return cn_word_regex_create(&step->regex, pattern, false);
}

cn_status cn_word_steps_add_split(cn_word_steps *w, const char *regex, cn_split_behavior behavior,
                                  bool invert)
{
    cn_split_rule rule;
    cn_buf pattern = {0};
    /* The rules cover every text, so nothing lies between their matches. */
    const bool covers = behavior == CN_SPLIT_ISOLATED || (behavior == CN_SPLIT_REMOVED && invert);
    if (covers && cn_split_rule_of_regex(regex, &rule)) return add_rule(w, rule);
    cn_status status = cn_split_regex_translate(&pattern, regex);
    if (status == CN_OK) status = add_pattern(w, pattern.data, behavior, invert);
    cn_buf_free(&pattern);
    return status;
}

cn_status cn_word_steps_add_text(cn_word_steps *w, const char *text, size_t n,
                                 cn_split_behavior behavior, bool invert)
{
    cn_buf pattern = {0};
    cn_status status = cn_split_regex_quote(&pattern, text, n);
    if (status == CN_OK) status = add_pattern(w, pattern.data, behavior, invert);
    cn_buf_free(&pattern);
    return status;
}

cn_status cn_word_steps_add_digits(cn_word_steps *w, bool individual)
{
    cn_buf pattern = {0};
    cn_status status = cn_split_regex_add_numeric(&pattern);
    if (status == CN_OK)
        status = add_pattern(w, pattern.data, individual ? CN_SPLIT_ISOLATED : CN_SPLIT_CONTIGUOUS,
                             false);
    cn_buf_free(&pattern);
    return status;
}

cn_status cn_word_steps_add_punctuation(cn_word_steps *w, cn_split_behavior behavior)
{
    cn_buf pattern = {0};
    cn_status status = cn_split_regex_add_punctuation(&pattern);
    if (status == CN_OK) status = add_pattern(w, pattern.data, behavior, false);
    cn_buf_free(&pattern);
    return status;
}

cn_status cn_word_steps_add_byte_level(cn_word_steps *w, bool add_prefix_space, bool use_regex)
{
    word_step *step = NULL;
    if (w->has_byte_level)
        return cn_fail(CN_ERR_MODEL, "pre_tokenizer: more than one ByteLevel is not supported");
    if (add_prefix_space) CN_TRY(add_step(w, STEP_PREFIX, &step));
    if (use_regex) CN_TRY(add_rule(w, CN_SPLIT_GPT2));
    w->has_byte_level = true;
    return CN_OK;
}

bool cn_word_steps_has_byte_level(const cn_word_steps *w) { return w->has_byte_level; }

/* ---- running ---- */

static cn_status run_from(word_run *r, uint32_t index, const char *text, size_t n);

static cn_status emit_word(word_run *r, const char *text, size_t n)
{
    if (!r->w->is_mapped) return r->each(r->context, text, n);
    cn_buf_clear(&r->word);
    for (size_t at = 0, len; at < n; at += len) {
        uint32_t cp;
        cn_utf8_read(text + at, n - at, &cp, &len);
        const char byte = (char)cn_vocab_char_byte(cp);
        CN_TRY(cn_buf_add(&r->word, &byte, 1));
    }
    return r->each(r->context, r->word.data, r->word.len);
}

static cn_status run_rule(word_run *r, uint32_t index, const char *text, size_t n)
{
    for (size_t at = 0, end; at < n; at = end) {
        CN_TRY(cn_pretoken_next(r->w->steps[index].rule, text, n, at, &end));
        CN_TRY(run_from(r, index + 1, text + at, end - at));
    }
    return CN_OK;
}

/* A match, or the text between two matches. */
typedef struct segment {
    size_t start, end;
    bool hit; /* after `invert` */
} segment;

typedef struct cursor {
    const word_step *step;
    const char *text;
    size_t n, at;
    bool is_known; /* the next match is known: [start, end) */
    size_t start, end;
} cursor;

/* Reads the next segment. *more is false at the end of the text. */
static cn_status next_segment(cursor *c, segment *s, bool *more)
{
    *more = c->at < c->n;
    if (!*more) return CN_OK;
    if (!c->is_known) {
        CN_TRY(cn_word_regex_find(c->step->regex, c->text, c->n, c->at, &c->is_known, &c->start,
                                  &c->end));
        if (!c->is_known) c->start = c->n;
    }
    const bool is_match = c->at == c->start;
    *s = (segment){c->at, is_match ? c->end : c->start, is_match != c->step->invert};
    if (is_match) c->is_known = false;
    c->at = s->end;
    return CN_OK;
}

static bool joins(cn_split_behavior behavior, const segment *s, const segment *next)
{
    switch (behavior) {
    case CN_SPLIT_CONTIGUOUS: return s->hit == next->hit;
    case CN_SPLIT_MERGED_WITH_PREVIOUS: return !s->hit && next->hit;
    case CN_SPLIT_MERGED_WITH_NEXT: return s->hit && !next->hit;
    case CN_SPLIT_REMOVED:
    case CN_SPLIT_ISOLATED: break;
    }
    return false;
}

static cn_status run_word_split(word_run *r, uint32_t index, const char *text, size_t n)
{
    const word_step *step = &r->w->steps[index];
    cursor c = {.step = step, .text = text, .n = n};
    segment piece, next;
    bool more;
    CN_TRY(next_segment(&c, &piece, &more));
    while (more) {
        CN_TRY(next_segment(&c, &next, &more));
        while (more && joins(step->behavior, &piece, &next)) {
            piece.end = next.end;
            piece.hit = next.hit;
            CN_TRY(next_segment(&c, &next, &more));
        }
        if (step->behavior != CN_SPLIT_REMOVED || !piece.hit)
            CN_TRY(run_from(r, index + 1, text + piece.start, piece.end - piece.start));
        piece = next;
    }
    return CN_OK;
}

static cn_status run_prefix(word_run *r, uint32_t index, const char *text, size_t n)
{
    cn_buf *changed = &r->texts[index];
    if (*text == ' ') return run_from(r, index + 1, text, n);
    cn_buf_clear(changed);
    CN_TRY(cn_buf_add(changed, " ", 1));
    CN_TRY(cn_buf_add(changed, text, n));
    return run_from(r, index + 1, changed->data, changed->len);
}

static cn_status run_bytes(word_run *r, uint32_t index, const char *text, size_t n)
{
    cn_buf *changed = &r->texts[index];
    cn_buf_clear(changed);
    for (size_t i = 0; i < n; i++) {
        char utf8[4];
        const size_t len = cn_utf8_write(utf8, cn_vocab_byte_char((unsigned char)text[i]));
        CN_TRY(cn_buf_add(changed, utf8, len));
    }
    return run_from(r, index + 1, changed->data, changed->len);
}

static cn_status run_from(word_run *r, uint32_t index, const char *text, size_t n)
{
    if (index == r->w->n) return emit_word(r, text, n);
    switch (r->w->steps[index].kind) {
    case STEP_RULE: return run_rule(r, index, text, n);
    case STEP_SPLIT: return run_word_split(r, index, text, n);
    case STEP_PREFIX: return run_prefix(r, index, text, n);
    case STEP_BYTES: return run_bytes(r, index, text, n);
    }
    return CN_OK;
}

cn_status cn_word_steps_run(cn_word_steps *w, const char *text, size_t n, cn_word_fn *each,
                            void *context)
{
    word_run r = {.w = w, .each = each, .context = context};
    const cn_status status = n ? run_from(&r, 0, text, n) : CN_OK;
    cn_buf_free(&r.word);
    for (uint32_t i = 0; i < w->n; i++) cn_buf_free(&r.texts[i]);
    return status;
}
