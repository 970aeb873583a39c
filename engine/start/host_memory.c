/* host_memory.c - see host_memory.h. */
#include "engine/start/host_memory.h"

#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST_PERCENT = 70 }; /* the rest is for everything else on the machine */

/* ---- cgroups ---- */

/* The files of a version of cgroups. */
typedef struct group_files {
    const char *folder; /* of the controller, below the root */
    const char *limits[2], *used;
    const char *freed[2]; /* keys of memory.stat: pages of files, which the kernel can drop */
} group_files;

static const group_files version_1 = {"/memory",
                                      {"memory.limit_in_bytes", NULL},
                                      "memory.usage_in_bytes",
                                      {"total_inactive_file ", "total_active_file "}};
static const group_files version_2 = {"",
                                      {"memory.max", "memory.high"},
                                      "memory.current",
                                      {"inactive_file ", "active_file "}};

/* Reads a number in a file; `none` if there is no such file, or no number ("max"). key: the start
 * of its line, or "". */
static uint64_t read_host_number(const char *path, const char *key, uint64_t none)
{
    char line[128];
    const size_t n = strlen(key);
    uint64_t number = none;
    FILE *f = fopen(path, "r");
    while (f && number == none && fgets(line, sizeof line, f)) {
        const char *at = line + n;
        if (strncmp(line, key, n) == 0 && at[strspn(at, " ")] >= '0' && at[strspn(at, " ")] <= '9')
            number = strtoull(at, NULL, 10);
        if (n == 0) break;
    }
    if (f) fclose(f);
    return number;
}

static uint64_t read_of_group(const char *folder, const char *file, const char *key, uint64_t none)
{
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    return read_host_number(path, key, none);
}

/* The limits of one group. */
static cn_host_room group_room(const char *folder, const group_files *v)
{
    cn_host_room r = {UINT64_MAX, UINT64_MAX};
    for (int i = 0; i < 2 && v->limits[i]; i++) {
        const uint64_t limit = read_of_group(folder, v->limits[i], "", UINT64_MAX);
        if (limit < r.all) r.all = limit;
    }
    if (r.all == UINT64_MAX) return r;
    uint64_t used = read_of_group(folder, v->used, "", 0);
    for (int i = 0; i < 2; i++) {
        const uint64_t freed = read_of_group(folder, "memory.stat", v->freed[i], 0);
        used -= freed < used ? freed : used;
    }
    r.free = used < r.all ? r.all - used : 0;
    return r;
}

static void keep_least(cn_host_room *r, cn_host_room other)
{
    if (other.all < r->all) r->all = other.all;
    if (other.free < r->free) r->free = other.free;
}

/* The least of a group and those above it. A container may show a path that it cannot see; its own
 * limit is then at the root. */
static cn_host_room least_room(const char *root, char *group, const group_files *v)
{
    cn_host_room least = {UINT64_MAX, UINT64_MAX};
    for (;;) {
        char folder[PATH_MAX];
        snprintf(folder, sizeof folder, "%s%s%s", root, v->folder, group);
        keep_least(&least, group_room(folder, v));
        char *slash = strrchr(group, '/');
        if (!slash) return least;
        *slash = '\0';
    }
}

/* What a line "ID:CONTROLLERS:GROUP" says. Without controllers it is of version 2. */
static cn_host_room line_room(const char *root, char *line)
{
    const cn_host_room none = {UINT64_MAX, UINT64_MAX};
    line[strcspn(line, "\n")] = '\0';
    char *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group) return none;
    *controllers++ = *group++ = '\0';
    if (!*controllers) return least_room(root, group, &version_2);
    for (char *name; (name = strsep(&controllers, ","));)
        if (strcmp(name, "memory") == 0) return least_room(root, group, &version_1);
    return none;
}

cn_host_room cn_host_cgroup_room(const char *list, const char *root)
{
    char line[PATH_MAX];
    cn_host_room least = {UINT64_MAX, UINT64_MAX};
    FILE *f = fopen(list, "r");
    while (f && fgets(line, sizeof line, f)) keep_least(&least, line_room(root, line));
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
    const uint64_t limit = cn_host_cgroup_room("/proc/self/cgroup", "/sys/fs/cgroup").all;
    return limit < all ? limit : all;
}

/* Bytes that the process could take now: the kernel's estimate, and what its cgroups leave.
 * UINT64_MAX when unknown. */
static uint64_t free_bytes(void)
{
    const uint64_t kib = read_host_number("/proc/meminfo", "MemAvailable:", UINT64_MAX / 1024);
    const uint64_t left = cn_host_cgroup_room("/proc/self/cgroup", "/sys/fs/cgroup").free;
    return kib < left / 1024 ? kib * 1024 : left;
}

/* GiB of a home in host memory; 0 if it is not declared or lies elsewhere. */
static float home_gib(const cn_config *c, cn_kv_home home)
{
    return cn_config_away(c) >> home & 1 ? cn_config_home_gib(c, home) : 0;
}

/* What the options put into host memory. */
typedef struct host_parts {
    char names[128];
    uint64_t bytes;
} host_parts;

static host_parts host_parts_of(const cn_config *c)
{
    const struct {
        const char *option;
        float gib;
    } parts[] = {
        {"swap-space", c->swap_space_gib},
        {cn_config_home_option(c, CN_HOME_HOST), home_gib(c, CN_HOME_HOST)},
        {"home-space", cn_config_cache_is_cpu(c) ? home_gib(c, CN_HOME_PEER) : 0},
    };
    host_parts p = {0};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (parts[i].gib <= 0) continue;
        const size_t n = strlen(p.names);
        snprintf(p.names + n, sizeof p.names - n, "%s--%s %.5g", n ? " with " : "",
                 parts[i].option, (double)parts[i].gib);
        p.bytes += host_bytes_of_gib(parts[i].gib);
    }
    return p;
}

cn_status cn_host_check(const cn_config *c)
{
    CN_TRY(cn_host_check_size(c));
    if (c->gpu_memory || c->host_memory_gib > 0) return CN_OK;
    return cn_host_check_within(c, (cn_host_room){cn_host_bytes(c), free_bytes()});
}

cn_status cn_host_check_size(const cn_config *c)
{
    if (c->gpu_memory && c->host_memory_gib <= 0) return CN_OK;
    return cn_host_check_within(c, (cn_host_room){cn_host_bytes(c), UINT64_MAX});
}

cn_status cn_host_check_within(const cn_config *c, cn_host_room room)
{
    const bool said = c->host_memory_gib > 0;
    const host_parts p = host_parts_of(c);
    const uint64_t all = room.all, most = all / 100 * MOST_PERCENT;
    if (all > 0 && p.bytes > most)
        return cn_fail(CN_ERR_ARG,
                       "%s exceeds %d %% of the machine's %.4g GiB of memory%s: lower the sum to "
                       "%.4g%s",
                       p.names, MOST_PERCENT, cn_gib(all), said ? " (--host-memory)" : "",
                       cn_gib(most), said ? ""
                                          : ", or set --host-memory if it has more than the kernel "
                                            "and its cgroup say");
    if (p.bytes <= room.free) return CN_OK;
    return cn_fail(CN_ERR_ARG,
                   "%s exceeds the %.4g GiB of memory that are free now, of %.4g: lower the sum, "
                   "end the programs that hold the rest, or set --host-memory",
                   p.names, cn_gib(room.free), cn_gib(all));
}

cn_status cn_host_check_read(const cn_config *c, const cn_backend *be)
{
    if (c->host_memory_gib <= 0 || !be->mem_avail || host_parts_of(c).bytes > 0) return CN_OK;
    return cn_fail(CN_ERR_ARG, "--host-memory has no effect on a GPU without swap space and "
                               "without a home in host memory: leave it out, or set --swap-space "
                               "or --home-space");
}
