/* lane_engines.c - see lane_engines.h. */
#include "engine/lanes/lane_engines.h"

#include "engine/cpu/cpu_pool.h"
#include "engine/engine_probe.h"
#include "engine/start/host_memory.h"

/* Which devices the engines have. */
typedef struct lane_devices {
    uint32_t n;
    cn_devices named; /* n 0: none are */
} lane_devices;

static cn_status find_devices(lane_devices *out, const cn_config *c)
{
    *out = (lane_devices){.n = c->n_lanes};
    if (!c->devices) return CN_OK;
    CN_TRY(cn_devices_parse(&out->named, c->devices));
    out->n = out->named.n;
    return CN_OK;
}

/* Sets the device of engine i; on_cpu: --device auto took the CPU for engine 0. */
static cn_status set_device(cn_config *mine, const lane_devices *d, uint32_t i, bool on_cpu)
{
    char device[16];
    const bool is_auto = strcmp(mine->device, "auto") == 0;
    const bool named = d->named.n > 0;
    if (!named && (d->n == 1 || strcmp(mine->device, "cpu") == 0 || (is_auto && i == 0)))
        return CN_OK;
    snprintf(device, sizeof device, "cuda:%u", named ? d->named.ordinals[i] : i);
    char *name = cn_strdup(on_cpu ? "cpu" : device);
    if (!name) return cn_fail(CN_ERR_MEMORY, "out of memory for the name of a device");
    cn_free(mine->device);
    mine->device = name;
    return CN_OK;
}

/* The threads of engine i. */
static uint32_t share_threads(const cn_config *c, uint32_t i, uint32_t n)
{
    const uint32_t all = c->n_threads ? c->n_threads : cn_cpu_count();
    return cn_max_u32(all / n + (i < all % n), 1);
}

/* --home-space is of each engine; the limit is of the machine. */
static cn_status check_host(const cn_config *c, uint32_t n)
{
    cn_config *all;
    CN_TRY(cn_config_copy(&all, c));
    all->home_space_gib *= (float)n;
    const cn_status status = cn_host_check(all);
    cn_config_free(all);
    return status;
}

/* Plans engine i with its share of what the engines divide. */
static cn_status plan_engine(cn_lane_engines *engines, const cn_config *c, const lane_devices *d,
                             uint32_t i)
{
    cn_config *mine;
    const bool on_cpu = i > 0 && cn_engine_is_on_cpu(engines->at[0]);
    CN_TRY(cn_config_copy(&mine, c));
    if (d->n > 1) mine->n_threads = share_threads(c, i, d->n);
    mine->swap_space_gib /= (float)d->n;
    mine->host_space_gib /= (float)d->n;
    cn_status status = set_device(mine, d, i, on_cpu);
    if (status == CN_OK) status = cn_engine_plan_start(&engines->at[i], mine);
    cn_config_free(mine);
    if (status == CN_OK) engines->n = i + 1;
    return status;
}

cn_status cn_lane_engines_plan(cn_lane_engines *engines, const cn_config *c)
{
    lane_devices d;
    CN_TRY(find_devices(&d, c));
    if (d.n > 1) CN_TRY(check_host(c, d.n));
    for (uint32_t i = 0; i < d.n; i++) {
        const cn_status status = plan_engine(engines, c, &d, i);
        if (status != CN_OK && d.n > 1) return cn_fail_within(status, "engine %u", i);
        CN_TRY(status);
    }
    if (d.n == 1) return CN_OK;
    CN_TRY(cn_load_gate_create(&engines->gate, d.n));
    for (uint32_t i = 0; i < d.n; i++) cn_engine_set_gate(engines->at[i], engines->gate);
    return CN_OK;
}

/* A step of a large model takes minutes on a CPU, which does not hang. */
double cn_lane_engines_stall_s(const cn_lane_engines *engines, const cn_config *c)
{
    const bool counts =
        cn_config_is_given(c, &c->health_stall_s) || !cn_engine_is_on_cpu(engines->at[0]);
    return counts ? c->health_stall_s : 0;
}

void cn_lane_engines_free(cn_lane_engines *engines)
{
    for (uint32_t i = 0; i < engines->n; i++) cn_engine_free(engines->at[i]);
    cn_load_gate_free(engines->gate);
    *engines = (cn_lane_engines){0};
}
