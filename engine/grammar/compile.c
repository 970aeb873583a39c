/* compile.c - see compile.h. */
#include "engine/grammar/compile.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include "engine/base/json.h"
#include "engine/grammar/calls.h"
#include "engine/grammar/gbnf.h"
#include "engine/grammar/lark.h"
#include "engine/grammar/regex.h"
#include "engine/grammar/schema.h"
#include "engine/grammar/text_dfa.h"
#include "engine/grammar/unique_masks.h"

struct cn_compiler {
    const cn_vocabulary *vocabulary;
    pthread_t thread;
    pthread_mutex_t lock; /* protects the fields below */
    pthread_cond_t posted, done_one;
    cn_list waiting, done;
    bool stop;
};

/* ---- one form ---- */

static cn_status emit_choice(const json_t *list, cn_net *net)
{
    size_t i;
    json_t *v;
    const size_t n = json_array_size(list);
    if (n == 0 || n > CN_COMPILE_MAX_CHOICES)
        return cn_fail(CN_ERR_ARG, "expected an array of 1 to %d strings", CN_COMPILE_MAX_CHOICES);
    json_array_foreach(list, i, v) if (json_string_length(v) ==
                                       0) return cn_fail(CN_ERR_ARG, "expected non-empty strings");
    cn_net_word *words = cn_calloc(n, sizeof *words);
    if (!words) return cn_fail(CN_ERR_MEMORY, "out of memory for choices");
    json_array_foreach(list, i, v) words[i] =
        (cn_net_word){json_string_value(v), json_string_length(v)};
    cn_net_words(net, net->rules[0].start, net->rules[0].end, words, n);
    cn_free(words);
    return net->status;
}

static cn_status emit_schema(json_t *schema, const cn_structure *s, cn_net *net)
{
    cn_json_rules rules;
    CN_TRY(cn_json_rules_add(net, s->whitespace, &rules));
    if (schema) return cn_schema_emit(schema, s->strict, net, &rules, 0);
    cn_net_call(net, net->rules[0].start, net->rules[0].end, rules.any_object);
    return net->status;
}

/* Reads the text, which is JSON: a schema, a list of choices or a form of calls. */
static cn_status emit_json(const cn_structure *s, cn_net *net)
{
    json_t *value;
    const bool calls = s->kind == CN_STRUCTURE_CALLS, choice = s->kind == CN_STRUCTURE_CHOICE;
    CN_TRY(cn_json_parse(&value, s->text, strlen(s->text),
                         calls    ? "tools"
                         : choice ? "choice"
                                  : "schema",
                         calls ? CN_CALLS_MAX_BYTES : CN_SCHEMA_MAX_BYTES, CN_SCHEMA_MAX_DEPTH,
                         CN_ERR_ARG));
    const cn_status status = calls    ? cn_calls_emit(value, s->whitespace, net)
                             : choice ? emit_choice(value, net)
                                      : emit_schema(value, s, net);
    json_decref(value);
    return status;
}

static cn_status emit_form_regex(const char *text, cn_net *net)
{
    const cn_net_rule r = net->rules[0];
    const size_t n = strlen(text);
    cn_dfa d;
    if (!cn_dfa_looks_ahead(text, n, false))
        return cn_regex_emit(text, n, false, CN_TEXT_PLAIN, net, r.start, r.end);
    CN_TRY(cn_dfa_from_regex(&d, text, n, false, net));
    cn_dfa_emit(&d, CN_TEXT_PLAIN, net, r.start, r.end);
    cn_dfa_free(&d);
    return net->status;
}

static cn_status emit_root(const cn_structure *s, cn_net *net)
{
    cn_net_rule_new(net);
    CN_TRY(net->status);
    switch (s->kind) {
    case CN_STRUCTURE_JSON: return emit_schema(NULL, s, net);
    case CN_STRUCTURE_SCHEMA:
    case CN_STRUCTURE_CALLS:
    case CN_STRUCTURE_CHOICE: return emit_json(s, net);
    case CN_STRUCTURE_REGEX: return emit_form_regex(s->text, net);
    case CN_STRUCTURE_GRAMMAR:
        return strstr(s->text, "::=") ? cn_gbnf_emit(s->text, strlen(s->text), net)
                                      : cn_lark_emit(s->text, strlen(s->text), net);
    case CN_STRUCTURE_NONE: break;
    }
    CN_ASSERT(!"a structure");
    return CN_OK;
}

/* The first mask is part of the compilation, so that a request never waits for it, and a form whose
 * first mask takes too long is refused. */
static cn_status make_first_mask(cn_automaton *a)
{
    cn_matcher m;
    const uint32_t *mask;
    uint64_t steps = CN_FIRST_MASK_STEPS;
    cn_matcher_start(&m, a);
    const cn_status status = cn_matcher_mask(&m, &steps, &mask);
    cn_matcher_end(&m);
    CN_TRY(status);
    if (mask) return CN_OK;
    return cn_fail(CN_ERR_ARG,
                   "the tokens that may begin a text take more than %d automaton steps: expected "
                   "fewer alternatives or smaller bounds",
                   CN_FIRST_MASK_STEPS);
}

/* If no text matches the form, it is built again to say why. */
static cn_status make_net(const cn_structure *form, bool explains, cn_net *net)
{
    *net = (cn_net){.explains = explains};
    cn_status status = emit_root(form, net);
    const bool built = status == CN_OK;
    if (built) status = cn_net_finish(net);
    if (status == CN_OK) return CN_OK;
    cn_net_free(net);
    return built && status == CN_ERR_ARG && !explains ? make_net(form, true, net) : status;
}

static cn_status compile(const cn_vocabulary *vocabulary, cn_compile_job *job)
{
    cn_net net;
    cn_automaton *a;
    CN_TRY(make_net(&job->form, false, &net));
    CN_TRY(cn_automaton_create(&a, &net, vocabulary, &job->bytes));
    cn_status status = cn_automaton_check_unique(a);
    if (status == CN_OK) status = make_first_mask(a);
    if (status == CN_OK)
        job->automaton = a;
    else
        cn_automaton_free(a);
    return status;
}

/* ---- the thread ---- */

static void *form_thread_main(void *arg)
{
    cn_compiler *c = arg;
    pthread_mutex_lock(&c->lock);
    while (!c->stop) {
        cn_compile_job *job = CN_CONTAINER_OF(cn_list_pop(&c->waiting), cn_compile_job, node);
        if (!job) {
            pthread_cond_wait(&c->posted, &c->lock);
            continue;
        }
        pthread_mutex_unlock(&c->lock);
        job->status = compile(c->vocabulary, job);
        job->error = job->status == CN_OK ? NULL : cn_strdup(cn_last_error());
        pthread_mutex_lock(&c->lock);
        cn_list_append(&c->done, &job->node);
        pthread_cond_signal(&c->done_one);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* Signals go to the threads of the caller, which may be waiting for one. */
static bool try_start(cn_compiler *c)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(&c->thread, NULL, form_thread_main, c) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

static void free_compiler(cn_compiler *c)
{
    pthread_cond_destroy(&c->posted);
    pthread_cond_destroy(&c->done_one);
    pthread_mutex_destroy(&c->lock);
    cn_free(c);
}

cn_status cn_compiler_create(cn_compiler **out, const cn_vocabulary *vocabulary)
{
    pthread_condattr_t attr;
    cn_compiler *c = cn_calloc(1, sizeof *c);
    if (!c) return cn_fail(CN_ERR_MEMORY, "out of memory for the compiler of grammars");
    c->vocabulary = vocabulary;
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->posted, NULL);
    pthread_cond_init(&c->done_one, &attr);
    pthread_condattr_destroy(&attr);
    if (!try_start(c)) {
        free_compiler(c);
        return cn_fail(CN_ERR_MEMORY, "cannot start the thread that compiles grammars");
    }
    *out = c;
    return CN_OK;
}

void cn_compiler_free(cn_compiler *c)
{
    if (!c) return;
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    pthread_cond_signal(&c->posted);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->thread, NULL);
    free_compiler(c);
}

void cn_compiler_post(cn_compiler *c, cn_compile_job *job)
{
    pthread_mutex_lock(&c->lock);
    cn_list_append(&c->waiting, &job->node);
    pthread_cond_signal(&c->posted);
    pthread_mutex_unlock(&c->lock);
}

bool cn_compiler_try_cancel(cn_compiler *c, cn_compile_job *job)
{
    pthread_mutex_lock(&c->lock);
    cn_list_node *at = c->waiting.head;
    while (at && at != &job->node) at = at->next;
    if (at) cn_list_remove(&c->waiting, at);
    pthread_mutex_unlock(&c->lock);
    return at != NULL;
}

cn_compile_job *cn_compiler_take(cn_compiler *c)
{
    pthread_mutex_lock(&c->lock);
    cn_compile_job *job = CN_CONTAINER_OF(cn_list_pop(&c->done), cn_compile_job, node);
    pthread_mutex_unlock(&c->lock);
    return job;
}

void cn_compiler_wait(cn_compiler *c, uint32_t timeout_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&c->lock);
    while (c->done.n == 0 && pthread_cond_timedwait(&c->done_one, &c->lock, &until) != ETIMEDOUT) {
    }
    pthread_mutex_unlock(&c->lock);
}
