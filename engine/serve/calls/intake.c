/* intake.c - the thread that parses bodies and tokenises prompts, one request at a time, and starts
 * threads for the large ones (intake_long.c): interactive requests before batch requests. See
 * service.h. */

#include "engine/base/json.h"
#include "engine/sampler.h"
#include "engine/serve/calls/service_state.h"
#include "engine/text/prompt.h"

enum { OTHER_VALUES = 1 << 20 }; /* JSON values of a body besides the ids of one prompt */

cn_status cn_intake_open(cn_service *s)
{
    const cn_config *c = s->config;
    const char *dir = c->tokenizer ? c->tokenizer : c->model;
    if (cn_engine_tokenizer(s->engines.at[0])) CN_TRY(cn_tokenizer_load(&s->tokenizer, dir));
    CN_TRY(cn_chat_template_load(&s->chat, dir, c->chat_template));
    s->vocab = cn_engine_model_config(s->engines.at[0])->vocab;
    s->longest_token = cn_prompt_longest_token(s->tokenizer);
    s->json_limits = (cn_json_limits){.max_bytes = SIZE_MAX,
                                      .max_values = (size_t)s->max_model_len + OTHER_VALUES,
                                      .max_depth = CN_API_MAX_DEPTH};
    return CN_OK;
}

cn_status cn_intake_parse(cn_service *s, const cn_buf *text, json_t **body, uint64_t *bytes)
{
    const char *data = text->data ? text->data : "";
    const cn_json_size size = cn_json_measure(data, text->len);
    *bytes = 0;
    if (size.values <= s->json_limits.max_values) {
        if (size.bytes > s->memory.most)
            return cn_fail(CN_ERR_ARG, "body: its JSON values take %zu bytes, but "
                           "--max-buffered-bytes is %llu: send less at once", size.bytes,
                           (unsigned long long)s->memory.most);
        if (!cn_budget_try_take(&s->memory, size.bytes))
            return cn_fail(CN_ERR_BUSY, "the memory for requests has no room for %zu bytes of JSON "
                           "values (--max-buffered-bytes): try again later", size.bytes);
        *bytes = size.bytes;
    }
    cn_status status = cn_json_parse_request(body, data, text->len, "body", &s->json_limits);
    if (status == CN_OK) return CN_OK;
    cn_budget_give(&s->memory, *bytes);
    *bytes = 0;
    return status;
}

static cn_status parse_body(cn_call *call)
{
    json_t *body;
    cn_budget *memory = &call->service->memory;
    CN_TRY(cn_intake_parse(call->service, &call->body, &body, &call->held_bytes));
    cn_buf_free(&call->body);
    /* A client that asks for another model has reached the wrong server. */
    cn_status status =
        cn_api_model_check(cn_service_names(call->service), json_object_get(body, "model"));
    if (status == CN_OK)
        status = cn_api_request_parse(&call->parsed, call->endpoint, body,
                                      &call->service->defaults);
    const uint64_t kept = cn_json_measure_tree(body).bytes;
    if (kept < call->held_bytes) {
        cn_budget_give(memory, call->held_bytes - kept);
        call->held_bytes = kept;
    }
    json_decref(body);
    call->request = &call->parsed;
    call->parsed.params.klass = call->klass;
    call->parsed.params.custom_id = call->custom_id;
    return status;
}

/* ---- what a request takes ---- */

static cn_status check_intake_priority(cn_call *call)
{
    const int32_t priority = call->request->params.priority;
    if (call->service->config->scheduling_policy != CN_OPT_SCHEDULING_PRIORITY ||
        priority >= call->min_priority)
        return CN_OK;
    return cn_fail_param("priority",
                         "priority: this API key may set %d or more, got %d: the line of the key "
                         "in the key file sets its limit (priority=N)",
                         call->min_priority, priority);
}

static cn_status take_samples(cn_call *call, uint32_t n)
{
    if (!call->samples || n <= 1) return CN_OK;
    if (n > call->samples->most)
        return cn_fail_param("n", "n: expected at most %llu samples (--max-requests-per-key), got "
                             "%u", (unsigned long long)call->samples->most, n);
    if (!cn_budget_try_take(call->samples, n - 1))
        return cn_fail(CN_ERR_BUSY, "this API key has no room for %u samples "
                       "(--max-requests-per-key %llu): try again later", n,
                       (unsigned long long)call->samples->most);
    call->held_samples = n - 1;
    return CN_OK;
}

/* Host memory of the request's samples before their admission. tests/test_serve_bounds.c compares
 * it with the process. */
static uint64_t samples_bytes(const cn_sampling *s, uint32_t vocab, size_t n_prompt)
{
    enum { SAMPLE_BYTES = 4096, PROMPT_TOKEN_BYTES = 5, LOGPROB_TOKENS = 64 };
    uint64_t shared = PROMPT_TOKEN_BYTES * (uint64_t)n_prompt, sample = SAMPLE_BYTES;
    if (s->n_allowed_token_ids) shared += vocab / 8;
    sample += 2 * sizeof(uint32_t) * (uint64_t)s->repetition_max_pattern_size;
    if (s->logprobs >= 0)
        sample += LOGPROB_TOKENS * (sizeof(cn_token_logprobs) +
                                    (uint64_t)s->logprobs * sizeof(cn_logprob));
    for (size_t i = 0; i < s->n_stop; i++) shared += 4 * strlen(s->stop[i]) + 64;
    for (size_t i = 0; i < s->n_bad_words; i++) shared += 8 * strlen(s->bad_words[i]) + 32;
    return shared + s->n * (sample + 2 * s->n_stop);
}

static cn_status take_intake_memory(cn_call *call)
{
    cn_budget *memory = &call->service->memory;
    const cn_request_params *p = &call->request->params;
    const uint64_t score_bytes =
        p->score_prompt ? sizeof(cn_token_logprobs) + 3 * (1 + p->n_prompt_top) * sizeof(cn_logprob)
                        : 0;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < call->request->n_prompts; i++)
        bytes += (p->structure.text ? strlen(p->structure.text) : 0) +
                 samples_bytes(&p->sampling, call->service->vocab, call->tokens[i].len) +
                 call->tokens[i].len * score_bytes;
    if (bytes + call->held_bytes > memory->most)
        return cn_fail_param("n",
                             "n: %u samples of each of %u prompts take %llu bytes of host memory "
                             "with their body, but --max-buffered-bytes is %llu: lower n or send "
                             "fewer prompts",
                             p->sampling.n, call->request->n_prompts,
                             (unsigned long long)(bytes + call->held_bytes),
                             (unsigned long long)memory->most);
    if (!cn_budget_try_take(memory, bytes))
        return cn_fail(CN_ERR_BUSY, "the memory for requests has no room for %llu bytes "
                       "(--max-buffered-bytes): try again later", (unsigned long long)bytes);
    call->held_bytes += bytes;
    return CN_OK;
}

static cn_status make_tokens(cn_service *s, cn_call *call, bool is_long)
{
    const cn_intake_turn turn = {s, &call->cancelled, is_long};
    const cn_encode_opts turns = cn_intake_encode_opts(&turn);
    const cn_prompt_maker maker = {.tokenizer = s->tokenizer,
                                   .chat = s->chat,
                                   .vocab = s->vocab,
                                   .max_model_len = s->max_model_len,
                                   .longest_token = s->longest_token,
                                   .turns = &turns};
    cn_request_params p = call->request->params;
    const uint32_t n = call->request->n_prompts;
    call->tokens = cn_calloc(n, sizeof *call->tokens);
    if (!call->tokens) return cn_fail(CN_ERR_MEMORY, "out of memory for %u prompts", n);
    call->n_tokens = n;
    for (uint32_t i = 0; i < n; i++) {
        cn_api_request_set_prompt(call->request, i, &p);
        const cn_status status = cn_prompt_tokens(&maker, &p, &call->tokens[i]);
        if (status != CN_OK)
            return n > 1 ? cn_fail_within(status, "prompt %u of %u", i + 1, n) : status;
    }
    return CN_OK;
}

/* The engine thread does not encode texts. */
static cn_status make_bad_words(cn_service *s, cn_call *call, bool is_long)
{
    const cn_sampling *p = &call->request->params.sampling;
    const cn_intake_turn turn = {s, &call->cancelled, is_long};
    const cn_encode_opts turns = cn_intake_encode_opts(&turn);
    if (p->n_bad_words == 0) return CN_OK;
    CN_TRY(cn_sampling_check(p, s->vocab, s->max_model_len));
    return cn_bad_words_make(&call->bad_words, p, s->tokenizer, s->vocab, &turns);
}

static void read_call(cn_call *call, bool is_long)
{
    cn_service *s = call->service;
    cn_status status = CN_OK;
    if (atomic_load(&s->intake_stop) || atomic_load(&call->cancelled))
        status = cn_fail(CN_ERR_CANCELLED, "cancelled");
    if (status == CN_OK && !call->request) status = parse_body(call);
    if (status == CN_OK) status = check_intake_priority(call);
    if (status == CN_OK && !call->is_read)
        status = take_samples(call, call->request->params.sampling.n * call->request->n_prompts);
    if (status == CN_OK) status = make_tokens(s, call, is_long);
    if (status == CN_OK) status = make_bad_words(s, call, is_long);
    if (status == CN_OK && !call->is_read) status = take_intake_memory(call);
    if (status != CN_OK) {
        cn_serve_stats_lock(s->serve_stats)->rejected_invalid += status == CN_ERR_ARG;
        cn_serve_stats_unlock(s->serve_stats);
        cn_call_finish(call, status);
        return;
    }
    call->is_read = true;
    cn_engine_choose(s, call);
    cn_engine_thread_post(call);
}

static void read_long_call(void *call) { read_call(call, true); }

static size_t call_bytes(const cn_call *call)
{
    if (!call->request) return call->body.len;
    cn_request_params p = call->request->params;
    size_t n = 0;
    for (uint32_t i = 0; i < call->request->n_prompts; i++) {
        cn_api_request_set_prompt(call->request, i, &p);
        n += cn_prompt_bytes(&p);
    }
    return n;
}

void cn_intake_take(cn_mail *mail)
{
    cn_call *call = CN_CONTAINER_OF(mail, cn_call, mail);
    const cn_intake_long o = {call->owner, call->klass, call_bytes(call)};
    if (o.bytes > CN_LARGE_BODY_BYTES && !atomic_load(&call->service->intake_stop))
        cn_intake_run_long(call->service, &o, read_long_call, call);
    else
        read_call(call, false);
}

/* ---- /tokenize and /detokenize ---- */

static void open_done(cn_mail *mail)
{
    cn_token_job *job = CN_CONTAINER_OF(mail, cn_token_job, mail);
    job->done(job);
}

static void read_token_job(cn_token_job *job, bool is_long)
{
    cn_service *s = job->service;
    job->status = atomic_load(&s->intake_stop)
                      ? cn_fail(CN_ERR_CANCELLED, "the server is stopping")
                      : cn_intake_token_job(job, is_long);
    if (job->status != CN_OK) {
        const char *text = cn_last_error(), *param = cn_last_param();
        if (cn_buf_add(&job->error, text, strlen(text)) != CN_OK) cn_buf_clear(&job->error);
        if (cn_buf_add(&job->at_fault, param, strlen(param)) != CN_OK) cn_buf_clear(&job->at_fault);
    }
    job->mail.open = open_done;
    cn_mailbox_post(job->reply_to, CN_MAIL_EXPRESS, &job->mail);
}

static void read_long_token_job(void *job) { read_token_job(job, true); }

static void take_token_job(cn_mail *mail)
{
    cn_token_job *job = CN_CONTAINER_OF(mail, cn_token_job, mail);
    const cn_intake_long o = {job->owner, CN_CLASS_INTERACTIVE, job->body.len};
    if (o.bytes > CN_LARGE_BODY_BYTES)
        cn_intake_run_long(job->service, &o, read_long_token_job, job);
    else
        read_token_job(job, false);
}

bool cn_service_try_tokens(cn_service *s, cn_token_job *job)
{
    job->service = s;
    job->mail.open = take_token_job;
    const bool express = job->body.len <= CN_LARGE_BODY_BYTES;
    return cn_mailbox_try_post(s->intake_box, express ? CN_MAIL_EXPRESS : CN_MAIL_NORMAL,
                               &job->mail);
}

/* ---- the thread ---- */

static void open_intake_stop(cn_mail *mail)
{
    cn_service *s = CN_CONTAINER_OF(mail, cn_service, intake_stop_mail);
    atomic_store(&s->intake_stop, true);
}

void cn_intake_stop(cn_service *s)
{
    s->intake_stop_mail.open = open_intake_stop;
    cn_mailbox_post(s->intake_box, CN_MAIL_EXPRESS, &s->intake_stop_mail);
}

void *cn_intake_main(void *service)
{
    cn_service *s = service;
    for (;;) {
        cn_mail *mail = cn_mailbox_take(s->intake_box);
        if (mail)
            mail->open(mail);
        else if (atomic_load(&s->intake_stop) && s->n_long == 0)
            return NULL;
        else
            cn_intake_rest(s);
    }
}
