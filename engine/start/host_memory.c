/* host_memory.c - see host_memory.h. */
#include "engine/start/host_memory.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_PERCENT = 70 }; /* the rest is for everything else on the machine */

/* ---- cgroups ---- */

/* Reads the limit in a file; UINT64_MAX if there is none ("max") or no such file. */
static uint64_t read_limit(const char *path)
{
    char text[32];
    FILE *f = fopen(path, "r");
    const bool read = f && fgets(text, sizeof text, f);
    if (f) fclose(f);
    if (!read || *text < '0' || *text > '9') return UINT64_MAX;
    return strtoull(text, NULL, 10);
}

/* The smallest limit of a group and those above it. A container may show a path that it cannot
 * see; its own limit is then at the root. */
static uint64_t least_limit(const char *root, const char *controller, char *group,
                            const char *file)
{
    uint64_t least = UINT64_MAX;
    for (;;) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s%s%s/%s", root, controller, group, file);
        const uint64_t limit = read_limit(path);
        if (limit < least) least = limit;
        char *slash = strrchr(group, '/');
        if (!slash) return least;
        *slash = '\0';
    }
}

/* The limit of a line "ID:CONTROLLERS:GROUP". Without controllers it is of version 2. */
static uint64_t line_limit(const char *root, char *line)
{
    line[strcspn(line, "\n")] = '\0';
    char *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group) return UINT64_MAX;
    *controllers++ = *group++ = '\0';
    if (!*controllers) return least_limit(root, "", group, "memory.max");
    for (char *name; (name = strsep(&controllers, ","));)
        if (strcmp(name, "memory") == 0)
            return least_limit(root, "/memory", group, "memory.limit_in_bytes");
    return UINT64_MAX;
}

uint64_t cn_host_cgroup_bytes(const char *list, const char *root)
{
    char line[PATH_MAX];
    uint64_t least = UINT64_MAX;
    FILE *f = fopen(list, "r");
    while (f && fgets(line, sizeof line, f)) {
        const uint64_t limit = line_limit(root, line);
        if (limit < least) least = limit;
    }
    if (f) fclose(f);
    return least;
}

/* ---- what fits ---- */

static uint64_t host_bytes_of_gib(float gib) { return (uint64_t)((double)gib * (double)CN_GIB); }

uint64_t cn_host_bytes(const cn_config *c)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    if (c->host_memory_gib > 0) return host_bytes_of_gib(c->host_memory_gib);
    if (pages <= 0 || page_bytes <= 0) return 0;
    const uint64_t all = (uint64_t)pages * (uint64_t)page_bytes;
    const uint64_t limit = cn_host_cgroup_bytes("/proc/self/cgroup", "/sys/fs/cgroup");
    return limit < all ? limit : all;
}

/* GiB of a home in host memory; 0 if it is not declared or lies elsewhere. */
static float home_gib(const cn_config *c, cn_kv_home home)
{
    return cn_config_away(c) >> home & 1 ? cn_config_home_gib(c, home) : 0;
}

cn_status cn_host_check(const cn_config *c)
{
    const bool elsewhere = c->gpu_memory && c->host_memory_gib <= 0;
    const uint64_t all = elsewhere ? 0 : cn_host_bytes(c), most = all / 100 * MOST_PERCENT;
    const struct {
        const char *option;
        float gib;
    } parts[] = {
        {"swap-space", c->swap_space_gib},
        {cn_config_home_option(c, CN_HOME_HOST), home_gib(c, CN_HOME_HOST)},
        {"home-space", cn_config_cache_is_cpu(c) ? home_gib(c, CN_HOME_PEER) : 0},
    };
    char names[128] = "";
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (parts[i].gib <= 0) continue;
        const size_t n = strlen(names);
        snprintf(names + n, sizeof names - n, "%s--%s %.5g", n ? " with " : "", parts[i].option,
                 (double)parts[i].gib);
        sum += host_bytes_of_gib(parts[i].gib);
    }
    if (all == 0 || sum <= most) return CN_OK;
    return cn_fail(CN_ERR_ARG,
                   "%s exceeds %d %% of the machine's %.4g GiB of memory%s: lower the sum to "
                   "%.4g%s",
                   names, MOST_PERCENT, cn_gib(all),
                   c->host_memory_gib > 0 ? " (--host-memory)" : "", cn_gib(most),
                   c->host_memory_gib > 0 ? ""
                                          : ", or set --host-memory if it has more than the kernel "
                                            "and its cgroup say");
}
