/* device_choice.c - see device_choice.h. The shared object is never unloaded, because the driver
 * may call its code at exit. */
#include "engine/start/device_choice.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "compress/policy.h"
#include "compress/selector.h"
#include "engine/start/planner.h"
#include "engine/start/start_plan.h"

#define CUDA_LIBRARY "cinch-cuda.so"

/* ---- the name of a device ---- */

typedef enum device_kind { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA } device_kind;

static cn_status parse_device(const char *option, const char *text, device_kind *kind,
                              uint32_t *ordinal)
{
    *ordinal = 0;
    if (strcmp(text, "auto") == 0) {
        *kind = DEVICE_AUTO;
        return CN_OK;
    }
    if (strcmp(text, "cpu") == 0) {
        *kind = DEVICE_CPU;
        return CN_OK;
    }
    *kind = DEVICE_CUDA;
    if (strcmp(text, "cuda") == 0) return CN_OK;
    const char *digits = text + strlen("cuda:");
    const bool numbered = strncmp(text, "cuda:", strlen("cuda:")) == 0 && *digits &&
                          strlen(digits) <= 3 && !digits[strspn(digits, "0123456789")];
    if (!numbered)
        return cn_fail(CN_ERR_ARG, "--%s %s: expected auto, cpu, cuda or cuda:N", option, text);
    *ordinal = (uint32_t)strtoul(digits, NULL, 10);
    return CN_OK;
}

/* ---- the shared object ---- */

/* The CUDA libraries that the shared object loads end the process at less. */
enum { LEAST_ADDRESS_MIB = 8192 };

/* MiB of address space that the process may have. */
static uint64_t address_limit_mib(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_AS, &limit) == 0 ? limit.rlim_cur >> 20 : UINT64_MAX;
}

/* Opens dir/name if it exists and there is address space for it. *found: whether it exists. */
static void *open_in(const char *dir, const char *name, bool *found)
{
    char path[PATH_MAX];
    const int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    *found = n > 0 && (size_t)n < sizeof path && access(path, F_OK) == 0;
    if (!*found || address_limit_mib() < LEAST_ADDRESS_MIB) return NULL;
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

/* Writes the folder of the program; false if it is unknown. */
static bool program_folder(char program[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", program, PATH_MAX - 1);
    program[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(program, '/');
    if (slash) *slash = '\0';
    return slash != NULL;
}

/* Opens the first shared object in the places where an installation or a build has it. */
static void *open_beside(const char *program, bool *found)
{
    static const char *const places[] = {"", "/..", "/../lib/cinch"};
    char dir[PATH_MAX + 16];
    void *library = NULL;
    *found = false;
    for (size_t i = 0; i < sizeof places / sizeof *places && !*found; i++) {
        snprintf(dir, sizeof dir, "%s%s", program, places[i]);
        library = open_in(dir, CUDA_LIBRARY, found);
    }
    return library;
}

/* Copies the name of the library that the loader refused: its message begins with the path. */
static void refused_library(char *name, size_t size)
{
    const char *message = dlerror();
    const size_t n = message ? strcspn(message, ":") : 0;
    const char *slash = n ? memrchr(message, '/', n) : NULL;
    const char *begin = slash ? slash + 1 : message;
    snprintf(name, size, "%.*s", n ? (int)(message + n - begin) : 0, n ? begin : "");
}

static cn_status load_library(void **library)
{
    char program[PATH_MAX], refused[256];
    bool found = false;
    if (address_limit_mib() < LEAST_ADDRESS_MIB)
        return cn_fail(CN_ERR_DEVICE,
                       "the address space is limited to %llu MiB (ulimit -v): a GPU needs at least "
                       "%d MiB: raise the limit, or use --device cpu",
                       (unsigned long long)address_limit_mib(), LEAST_ADDRESS_MIB);
    *library = program_folder(program) ? open_beside(program, &found) : NULL;
    if (!found) *library = dlopen(CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (*library) return CN_OK;
    refused_library(refused, sizeof refused);
    if (*refused && strcmp(refused, CUDA_LIBRARY) != 0)
        return cn_fail(CN_ERR_DEVICE,
                       "%s needs %s, which is missing or has another version: install the CUDA 13 "
                       "libraries, or use --device cpu",
                       CUDA_LIBRARY, refused);
    if (found)
        return cn_fail(CN_ERR_DEVICE,
                       "%s is damaged or was built for other libraries: rebuild it (make cuda), or "
                       "use --device cpu",
                       CUDA_LIBRARY);
    return cn_fail(CN_ERR_DEVICE,
                   "%s not found in %s or in the loader's paths: build it (make cuda), or use "
                   "--device cpu",
                   CUDA_LIBRARY, program);
}

cn_status cn_backend_cuda_load(cn_backend **out, cn_cuda_backend_opts o)
{
    *out = NULL;
    void *library;
    CN_TRY(load_library(&library));
    /* dlsym() returns an object pointer, also for a function. */
    union {
        void *object;
        cn_backend_cuda_open_fn open;
    } entry = {dlsym(library, "cn_backend_cuda_open")};
    if (!entry.object)
        return cn_fail(CN_ERR_DEVICE,
                       "%s has no cn_backend_cuda_open: rebuild it (make cuda), or use --device "
                       "cpu",
                       CUDA_LIBRARY);
    o.base = cn_base_calls_get();
    o.version = CINCH_VERSION;
    o.header_sum = CN_HEADER_SUM;
    return entry.open(out, &o);
}

/* ---- choosing ---- */

/* A request may use any score, so the backend must have all. */
static cn_status check_scores(const cn_backend *be)
{
#define SCORE_NAME(KIND, name) #name,
    static const char *const names[] = {CN_SCORES(SCORE_NAME)};
    for (uint32_t i = 0; i < CN_N_SCORES; i++)
        if (!(be->scores >> i & 1))
            return cn_fail(CN_ERR_DEVICE,
                           "the %s backend does not compute the score %s of kv policy zip: use "
                           "--device cpu",
                           be->name, names[i]);
    return CN_OK;
}

cn_status cn_backend_check_ops(const cn_backend *be, uint32_t policies, uint32_t selectors,
                               uint32_t homes)
{
    const bool away = homes & ~(1U << CN_HOME_DEVICE);
    const cn_policy_needs needs = cn_policies_need(policies);
    const cn_selector_needs selects = cn_selectors_need(selectors);
    const struct {
        const char *name;
        bool there;
    } ops[] = {
        {"embed", be->embed},
        {"rmsnorm", be->rmsnorm},
        {"gemm", be->gemm},
        {"rope_store", be->rope_store},
        {"attn_decode", be->attn_decode},
        {"attn_prefill", be->attn_prefill},
        {"silu_mul", be->silu_mul},
        {"gather", be->gather},
        {"sample", be->sample},
        {"count_reset", be->count_reset},
        {"copy_blocks", be->copy_blocks},
        {"compress", be->compress || !needs.capped},
        {"attend_selected", be->attend_selected || !selects.any},
        {"digest", be->digest || !selects.digests},
        {"draft_store", be->draft_store || !selects.head},
        {"draft_part", be->draft_part || !selects.head},
        {"draft_before", be->draft_before || !selects.head},
        {"draft_keep", be->draft_keep || !selects.head},
        {"predict", be->predict || !selects.slots},
        {"score", be->score || !away},
        {"exchange", be->exchange || !away},
        {"fetch", be->fetch || !away},
    };
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (!ops[i].there)
            return cn_fail(CN_ERR_DEVICE, "the %s backend lacks the op %s", be->name, ops[i].name);
    for (unsigned i = 0; i < CN_N_POLICIES; i++) {
        const cn_policy *p = cn_policy_of((cn_kv_policy)i);
        if (policies >> i & 1 && p->keep != CN_KEEP_ALL && !(be->keeps >> p->keep & 1))
            return cn_fail(CN_ERR_DEVICE, "the %s backend does not support the kv policy %s",
                           be->name, p->name);
    }
    return needs.keeps >> CN_KEEP_BEST & 1 ? check_scores(be) : CN_OK;
}

/* Refuses selectors and homes of latent attention that the backend lacks. */
static cn_status check_latent_kv(const cn_backend *be, const cn_config *c, const cn_model_config *m)
{
    const bool selects = cn_selectors_need(cn_config_selectors(c)).any;
    if (m->latent.rank == 0 || be->ranks_latent || (!selects && !cn_config_away(c))) return CN_OK;
    return cn_fail(CN_ERR_DEVICE,
                   "%s: %s has latent attention, for which the %s backend does not support %s yet: "
                   "leave them out, or use --device cpu",
                   selects ? "--kv-select, --kv-selectors" : "--kv-home, --kv-homes",
                   m->architecture, be->name, selects ? "selectors" : "homes");
}

cn_status cn_backend_check_kv(const cn_backend *be, const cn_config *c, const cn_model_config *m)
{
    CN_TRY(check_latent_kv(be, c, m));
    if (cn_policies_need(cn_config_policies(c)).slots && !(be->head_rules >> c->kv.head_rule & 1))
        return cn_fail(CN_ERR_DEVICE,
                       "--kv-head-rule mean: the %s backend does not support it: leave it out, or "
                       "set --device cpu",
                       be->name);
    const cn_sel_forms forms = cn_selectors_forms(cn_config_selectors(c));
    const struct {
        bool there, wanted;
        const char *with;
    } uses[] = {
        {be->kv_forms >> CN_KV_FP8 & 1, true, ""},
        {be->select_kv_forms >> CN_KV_FP8 & 1, cn_selectors_need(cn_config_selectors(c)).any,
         " with selectors (--kv-select, --kv-selectors)"},
        {be->row_kv_forms >> CN_KV_FP8 & 1,
         (forms.stage[1] & cn_sel_forms_of_key(CN_KEY_ROWS)) != 0,
         " with selectors that can rank rows of K (oracle, spade, last)"},
        {be->home_kv_forms >> CN_KV_FP8 & 1, cn_config_away(c) != 0, " with homes (--kv-homes)"},
    };
    if (cn_planner_kv_form(c) == CN_KV_PLAIN) return CN_OK;
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++)
        if (uses[i].wanted && !uses[i].there)
            return cn_fail(CN_ERR_DEVICE,
                           "--kv-cache-dtype fp8: the %s backend does not support it%s: set "
                           "--kv-cache-dtype auto, or --device cpu",
                           be->name, uses[i].with);
    return CN_OK;
}

static cn_status check_fp8_sizes(const cn_backend *be, const cn_model_config *m)
{
    const struct {
        const char *name;
        uint32_t columns;
    } inputs[] = {
        {"hidden_size", m->hidden},
        {"num_attention_heads times head_dim", m->n_heads * m->head_dim},
        {"intermediate_size", cn_model_config_widest_mlp(m)},
        {"moe_intermediate_size", m->experts.intermediate},
    };
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        if (inputs[i].columns % be->fp8_columns != 0)
            return cn_fail(CN_ERR_DEVICE,
                           "FP8 weights: %s is %u, and the %s backend needs multiples of %u: use "
                           "the bf16 checkpoint, or --device cpu",
                           inputs[i].name, inputs[i].columns, be->name, be->fp8_columns);
    return CN_OK;
}

/* What a user changes who cannot have FP8 weights. */
static const char *without_fp8(const cn_model_config *m)
{
    return m->quant.at_load ? "--quantization auto, or --device cpu"
                            : "the bf16 checkpoint, or --device cpu";
}

static cn_status check_fp8_experts(const cn_backend *be, const cn_model_config *m)
{
    for (uint32_t layer = 0; layer < m->n_layers && !be->fp8_experts; layer++)
        if (cn_model_config_layer(m, layer).mlp == CN_MLP_EXPERTS &&
            (cn_model_config_is_fp8(m, CN_QUANT_EXPERT_GATE_UP, layer) ||
             cn_model_config_is_fp8(m, CN_QUANT_EXPERT_DOWN, layer)))
            return cn_fail(CN_ERR_DEVICE,
                           "FP8 weights of experts (%s): the %s backend does not support them "
                           "yet: use %s",
                           m->quant.at_load ? "--quantization fp8" : "quantization_config",
                           be->name, without_fp8(m));
    return check_fp8_sizes(be, m);
}

cn_status cn_backend_check_fp8(const cn_backend *be, const cn_model_config *m)
{
    if (!m->quant.fp8) return CN_OK;
    if (be->fp8_x_forms >> m->quant.x & 1) return check_fp8_experts(be, m);
    if (be->fp8_x_forms)
        return cn_fail(CN_ERR_DEVICE,
                       "FP8 weights: the %s backend multiplies them with inputs in e4m3 only: "
                       "leave out --no-fp8-activations, or use --device cpu",
                       be->name);
    return cn_fail(CN_ERR_DEVICE,
                   "FP8 weights (%s): the %s backend does not support them: use %s",
                   m->quant.at_load ? "--quantization fp8" : "quantization_config", be->name,
                   without_fp8(m));
}

/* An op that only some models need. */
typedef struct model_op {
    const char *name;
    bool there;
} model_op;

static cn_status check_model_ops(const cn_backend *be, const cn_model_config *m, const char *part,
                                 const model_op *ops, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!ops[i].there)
            return cn_fail(CN_ERR_DEVICE,
                           "%s has %s, and the %s backend lacks the op %s: use --device cpu",
                           m->architecture, part, be->name, ops[i].name);
    return CN_OK;
}

cn_status cn_backend_check_latent(const cn_backend *be, const cn_model_config *m)
{
    const model_op ops[] = {{"latent_store", be->latent_store}, {"heads_gemm", be->heads_gemm}};
    if (m->latent.rank == 0) return CN_OK;
    return check_model_ops(be, m, "latent attention", ops, sizeof ops / sizeof *ops);
}

cn_status cn_backend_check_model(const cn_backend *be, const cn_model_config *m)
{
    const model_op ops[] = {{"route", be->route},
                            {"expert_gate_up", be->expert_gate_up},
                            {"expert_down", be->expert_down},
                            {"expert_sum", be->expert_sum}};
    CN_TRY(cn_backend_check_fp8(be, m));
    CN_TRY(cn_backend_check_latent(be, m));
    if (m->experts.router.n_experts == 0) return CN_OK;
    return check_model_ops(be, m, "layers with experts", ops, sizeof ops / sizeof *ops);
}

cn_status cn_backend_check_ranks(const cn_backend *be, const cn_config *c)
{
    if (c->n_ranks <= 1 || be->reduce_norm) return CN_OK;
    return cn_fail(CN_ERR_DEVICE,
                   "--tensor-parallel-size %u: the %s backend does not split a model yet: use "
                   "--device cpu, or --data-parallel-size",
                   c->n_ranks, be->name);
}

/* The ranks wait for each other, so each has a thread of its own. */
cn_status cn_backend_open_rank(cn_backend **out)
{
    const cn_cpu_backend_opts o = {.n_threads = 1, .threaded = true};
    return cn_backend_cpu_open(out, &o);
}

static cn_status open_cpu(cn_backend **out, const cn_config *c)
{
    const cn_cpu_backend_opts o = {.n_threads = c->n_threads};
    return c->n_ranks > 1 ? cn_backend_open_rank(out) : cn_backend_cpu_open(out, &o);
}

typedef struct cuda_needs {
    const cn_device_needs *needs;
    bool *lacks; /* set when the GPU could be opened but lacks what the options need */
} cuda_needs;

static cn_status check_and_size(const void *ctx, cn_backend *be, uint64_t *bytes)
{
    const cuda_needs *n = ctx;
    const cn_status status = n->needs->check(n->needs->ctx, be);
    *n->lacks = status != CN_OK;
    return status == CN_OK ? n->needs->bytes(n->needs->ctx, be, bytes) : status;
}

/* As in cn_cuda_backend_opts. */
static uint32_t fp8_products(const cn_model_config *m)
{
    static const cn_quant_part parts[] = {CN_QUANT_QKV, CN_QUANT_O, CN_QUANT_GATE_UP,
                                          CN_QUANT_DOWN};
    uint32_t bits = 0;
    for (uint32_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        bool all = true;
        for (uint32_t layer = 0; layer < m->n_layers; layer++)
            all = all && cn_model_config_is_fp8(m, parts[i], layer);
        bits |= (uint32_t)all << i;
    }
    return bits;
}

static cn_status open_cuda(cn_backend **out, const cn_config *c, const cn_model_config *m,
                           const cuda_needs *n, uint32_t ordinal)
{
    *out = NULL;
    *n->lacks = false;
    if (c->dtype == CN_OPT_DTYPE_FLOAT32)
        return cn_fail(CN_ERR_ARG,
                       "--dtype float32: not supported on a GPU, which computes in bfloat16; use "
                       "--device cpu");
    cn_buf cache = {0};
    CN_TRY(cn_cache_dir(&cache));
    const cn_cuda_backend_opts o = {
        .device = ordinal,
        .memory_share = c->gpu_memory_utilization,
        .wanted_bytes = check_and_size,
        .wanted_ctx = n,
        .n_heads = m->n_heads,
        .n_kv_heads = m->n_kv_heads,
        .head_dim = m->head_dim,
        .hidden = m->hidden,
        .intermediate = cn_model_config_widest_mlp(m),
        .n_experts = m->experts.router.n_experts,
        .fp8_products = fp8_products(m),
        .vocab = m->vocab,
        .max_seqs = cn_start_max_rows(c),
        .max_tokens = cn_start_max_tokens(c),
        .plain_bytes = cn_start_plain_bytes(c, m),
        .score_layers = n->needs->score_layers,
        .score_heads = m->draft.n_heads,
        .batch_invariant = c->batch_invariant,
        .cache_dir = cache.len ? cache.data : NULL,
    };
    cn_status status = cn_backend_cuda_load(out, o);
    cn_buf_free(&cache);
    CN_TRY(status);
    status = cn_backend_check_ops(*out, cn_config_policies(c), cn_config_selectors(c),
                                  cn_config_homes(c));
    if (status == CN_OK) return CN_OK;
    *n->lacks = true;
    (*out)->close(*out);
    *out = NULL;
    return cn_fail(status, "%s: use --device cpu", cn_last_error());
}

void cn_device_explain_cpu(cn_device_choice *out, const cn_cpu_reason *r)
{
    out->gpu_unused = r->has_gpu && !r->float32;
    if (!r->has_gpu)
        snprintf(out->why, sizeof out->why, "cpu: no GPU found");
    else if (r->float32)
        snprintf(out->why, sizeof out->why, "cpu: --dtype float32 does not run on a GPU");
    else if (r->missing)
        snprintf(out->why, sizeof out->why, "cpu: a GPU is here, but %s is not: make cuda%s",
                 r->missing, r->installed ? " in the source tree builds it" : "");
    else
        snprintf(out->why, sizeof out->why, "cpu: a GPU is here, but not usable: %s", r->error);
}

/* Explains why --device auto took the CPU, after the GPU could not be opened. */
static void explain_cpu(cn_device_choice *out, const cn_config *c)
{
    char program[PATH_MAX], here[PATH_MAX], missing[PATH_MAX + 32] = CUDA_LIBRARY;
    bool found = false, installed = false;
    cn_log(CN_LOG_DEBUG, "--device auto uses the CPU: %s", cn_last_error());
    if (program_folder(program)) {
        open_beside(program, &found);
        const char *folder = strrchr(program, '/');
        installed = folder && strcmp(folder, "/bin") == 0;
        if (installed)
            snprintf(missing, sizeof missing, "%.*s/lib/cinch/" CUDA_LIBRARY,
                     (int)(folder - program), program);
        else
            snprintf(missing, sizeof missing, "%s/" CUDA_LIBRARY, program);
        const size_t n = getcwd(here, sizeof here) ? strlen(here) : 0;
        if (n > 1 && strncmp(missing, here, n) == 0 && missing[n] == '/')
            memmove(missing, missing + n + 1, strlen(missing + n + 1) + 1);
    }
    cn_device_explain_cpu(out, &(cn_cpu_reason){.has_gpu = access("/dev/nvidiactl", F_OK) == 0,
                                                .float32 = c->dtype == CN_OPT_DTYPE_FLOAT32,
                                                .missing = found ? NULL : missing,
                                                .installed = installed,
                                                .error = cn_last_error()});
}

static void describe_gpu(cn_device_choice *out, const cn_config *c, uint32_t ordinal)
{
    cn_gpu_uuid(ordinal, out->uuid);
    if (out->uuid[0])
        snprintf(out->why, sizeof out->why, "cuda:%u (%s): --device %s", ordinal, out->uuid,
                 c->device);
    else
        snprintf(out->why, sizeof out->why, "cuda:%u: --device %s", ordinal, c->device);
}

cn_status cn_backend_open(cn_backend **out, const cn_config *c, const cn_model_config *m,
                          const cn_device_needs *needs, cn_device_choice *choice)
{
    device_kind kind;
    uint32_t ordinal;
    bool lacks;
    const cuda_needs cuda = {needs, &lacks};
    *out = NULL;
    *choice = (cn_device_choice){.why = "cpu: --device cpu"};
    CN_TRY(parse_device("device", c->device, &kind, &ordinal));
    if (kind != DEVICE_CPU) {
        const cn_status status = open_cuda(out, c, m, &cuda, ordinal);
        if (status == CN_OK) describe_gpu(choice, c, ordinal);
        if (status == CN_OK || lacks || kind == DEVICE_CUDA) return status;
        explain_cpu(choice, c);
    }
    return open_cpu(out, c);
}

/* ---- the cache device ---- */

/* The device of --cache-device, and that of the model. A model on `auto` takes GPU 0. */
typedef struct cache_choice {
    device_kind kind, model_kind;
    uint32_t ordinal, model_ordinal;
} cache_choice;

static cn_status choose_cache(cache_choice *out, const cn_config *c)
{
    cache_choice p;
    CN_TRY(parse_device("device", c->device, &p.model_kind, &p.model_ordinal));
    CN_TRY(parse_device("cache-device", c->cache_device, &p.kind, &p.ordinal));
    if (p.kind == DEVICE_AUTO) {
        p.kind = p.model_kind == DEVICE_CPU ? DEVICE_CPU : DEVICE_CUDA;
        p.ordinal = CN_CUDA_ANY_PEER;
    }
    *out = p;
    if (p.model_kind == DEVICE_AUTO || p.model_kind == p.kind) return CN_OK;
    return cn_fail(CN_ERR_ARG, "--cache-device %s: expected %s beside a model on %s",
                   c->cache_device, p.model_kind == DEVICE_CPU ? "cpu" : "cuda:N",
                   p.model_kind == DEVICE_CPU ? "cpu" : "cuda");
}

static cn_status open_cpu_cache(cn_backend **out)
{
    const cn_cpu_backend_opts o = {.n_threads = 1, .threaded = true};
    return cn_backend_cpu_open(out, &o);
}

cn_status cn_backend_open_cache(cn_backend **out, const cn_config *c, const cn_model_config *m,
                                const cn_device_needs *needs)
{
    cache_choice p;
    *out = NULL;
    CN_TRY(choose_cache(&p, c));
    if (p.kind == DEVICE_CPU) return open_cpu_cache(out);
    bool lacks = false;
    const cuda_needs cuda = {needs, &lacks};
    const cn_cuda_backend_opts o = {
        .device = p.ordinal,
        .beside = p.model_ordinal + 1,
        .wanted_bytes = check_and_size,
        .wanted_ctx = &cuda,
        .n_heads = m->n_heads,
        .n_kv_heads = m->n_kv_heads,
        .head_dim = m->head_dim,
        .max_seqs = cn_start_max_rows(c),
        .max_tokens = cn_start_max_rows(c),
        .score_layers = needs->score_layers,
        .high_streams = 2, /* ranks and pushes */
        .batch_invariant = c->batch_invariant,
    };
    const cn_status status = cn_backend_cuda_load(out, o);
    const bool may_be_cpu = p.model_kind == DEVICE_AUTO && p.ordinal == CN_CUDA_ANY_PEER;
    if (status == CN_OK || lacks || !may_be_cpu) return status;
    cn_log(CN_LOG_DEBUG, "--cache-device auto uses the CPU: %s", cn_last_error());
    return open_cpu_cache(out);
}

cn_status cn_backend_cache_shares_gpu(const cn_config *c, bool *shares)
{
    cache_choice p;
    CN_TRY(choose_cache(&p, c));
    if (p.kind == DEVICE_CPU)
        return cn_fail(CN_ERR_ARG, "--cache-device %s: expected cuda:N beside a model on a GPU",
                       c->cache_device);
    *shares = p.ordinal == p.model_ordinal;
    return CN_OK;
}

cn_status cn_backend_check_pair(const cn_backend *model_be, const cn_backend *cache_be,
                                const cn_config *c)
{
    if (strcmp(model_be->name, cache_be->name) == 0) return CN_OK;
    return cn_fail(CN_ERR_DEVICE,
                   "--cache-device %s is on %s, but the model on %s: set --cache-device %s",
                   c->cache_device, cache_be->name, model_be->name,
                   strcmp(model_be->name, "cpu") == 0 ? "cpu"
                                                      : "cuda:N, or cuda:0 for the model's GPU");
}
