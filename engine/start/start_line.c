/* start_line.c - see start_line.h. */
#include "engine/start/start_line.h"

#include "compress/policy.h"
#include "compress/selector.h"
#include "engine/start/start_plan.h"

enum { LINE_BYTES = 2048, PART_BYTES = 256 };

/* The last name of a path, without slashes after it. */
static void put_name(char *text, size_t size, const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    size_t at = n;
    while (at > 0 && path[at - 1] != '/') at--;
    snprintf(text, size, "%.*s", (int)(n - at), path + at);
}

static void put_bytes(char *text, size_t size, uint64_t bytes)
{
    if (bytes >= CN_GIB)
        snprintf(text, size, "%.1f GiB", cn_gib(bytes));
    else
        snprintf(text, size, "%.1f MiB", (double)bytes / (1 << 20));
}

static void put_params(char *text, size_t size, uint64_t n)
{
    if (n >= 1000000000)
        snprintf(text, size, "%.1fB", (double)n / 1e9);
    else
        snprintf(text, size, "%.1fM", (double)n / 1e6);
}

const char *cn_start_dtype_name(cn_dtype t) { return t == CN_F32 ? "float32" : "bfloat16"; }

/* Appends the names of a set, other than `except`: ", requests may choose window, zip". */
static size_t put_choices(char *text, size_t size, uint32_t set, uint32_t except,
                          const char *(*name)(uint32_t))
{
    size_t used = 0;
    for (uint32_t i = 0; set >> i; i++)
        if (set >> i & 1 && i != except && used < size)
            used += (size_t)snprintf(text + used, size - used, "%s%s",
                                     used ? ", " : ", requests may choose ", name(i));
    return used;
}

static const char *line_policy_name(uint32_t i) { return cn_kv_policy_name((cn_kv_policy)i); }
static const char *line_selector_name(uint32_t i) { return cn_kv_select_name((cn_kv_select)i); }

static void put_policy(char *text, size_t size, const cn_config *c, const cn_memory_plan *p)
{
    const cn_kv_params *kv = &c->kv;
    size_t used = (size_t)snprintf(text, size, "policy %s", cn_kv_policy_name(kv->policy));
    used += put_choices(text + used, size - used, cn_config_policies(c), kv->policy,
                        line_policy_name);
    if (p->n_max_blocks)
        used += (size_t)snprintf(
            text + used, size - used, ", budget %llu tokens",
            (unsigned long long)cn_round_up(kv->budget_tokens, p->block_tokens));
    const uint32_t selectors = cn_config_selectors(c) & ~(1U << CN_SELECT_NONE);
    if (!selectors) return;
    used += (size_t)snprintf(text + used, size - used, "; selector %s",
                             cn_kv_select_name(kv->select));
    put_choices(text + used, size - used, selectors, kv->select, line_selector_name);
}

static void put_concurrency(char *text, size_t size, const cn_config *c, const cn_memory_plan *p,
                            uint32_t max_model_len)
{
    if (cn_policy_of(c->kv.policy)->keep != CN_KEEP_ALL)
        snprintf(text, size, "%u requests of any length at once", p->concurrency_capped);
    else if (p->concurrency_full > 0)
        snprintf(text, size, "%u requests of %u tokens at once", p->concurrency_full,
                 max_model_len);
    else
        snprintf(text, size, "no request longer than %u tokens", p->max_request_tokens);
}

void cn_start_line_format(char *text, size_t size, const cn_start_facts *f)
{
    char name[PART_BYTES], params[PART_BYTES];
    put_name(name, sizeof name, f->model);
    put_params(params, sizeof params, cn_model_config_n_params(f->config));
    const cn_quant *q = &f->config->quant;
    const int n = snprintf(text, size, "%s (%s, %s parameters) on %s; %s%s", name,
                           f->config->architecture, params, f->choice->why,
                           cn_start_dtype_name(f->backend->act_dtype),
                           !q->fp8               ? ""
                           : q->x == CN_X_PLAIN ? ", weights of fp8"
                                                : ", weights of fp8, inputs rounded to it");
    if (!f->plan || n < 0 || (size_t)n >= size) return;
    char bytes[PART_BYTES], policy[2 * PART_BYTES], at_once[PART_BYTES];
    const cn_config *c = f->options;
    put_bytes(bytes, sizeof bytes, f->plan->kv_bytes);
    put_policy(policy, sizeof policy, c, f->plan);
    put_concurrency(at_once, sizeof at_once, c, f->plan,
                    cn_start_max_model_len(c, f->config));
    snprintf(text + n, size - (size_t)n, "; KV %s%s, %llu tokens; %s; %s", bytes,
             cn_planner_kv_form(c) == CN_KV_FP8 ? " of fp8" : "",
             (unsigned long long)f->plan->n_blocks * f->plan->block_tokens, policy, at_once);
}

void cn_start_line_log(const cn_start_facts *f)
{
    char text[LINE_BYTES];
    cn_start_line_format(text, sizeof text, f);
    cn_log(f->choice->gpu_unused ? CN_LOG_WARN : CN_LOG_INFO, "%s", text);
}
