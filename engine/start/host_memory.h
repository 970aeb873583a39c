/* host_memory.h - how much memory the machine has, and whether what the options put there fits.
 *
 * Owner: the caller; plain values. Thread: any. Stage: start, before anything is opened. */
#pragma once

#include "engine/ops.h"
#include "engine/options/options.h"

/* Bytes; UINT64_MAX: no limit. */
typedef struct cn_host_room {
    uint64_t all;
    uint64_t free; /* of them not used now, or used for pages of files alone */
} cn_host_room;

/* The smallest limit that the cgroups of a process set on its memory, of those at which the kernel
 * slows it down too, and the least that one of them has free. `list` is a file like
 * /proc/self/cgroup, `root` a folder like /sys/fs/cgroup. Both versions of cgroups are read, and
 * the groups above those of the process too. */
cn_host_room cn_host_cgroup_room(const char *list, const char *root);

/* Bytes of memory that the process can have: those of --host-memory, or the smaller of physical
 * memory and the limit of its cgroups. 0 when unknown. */
uint64_t cn_host_bytes(const cn_config *c);

/* CN_ERR_ARG, with the numbers, when the swap space and the homes in host memory exceed 70 % of
 * these bytes, or without --host-memory what is free now. A plan with --gpu-memory is for another
 * machine: it is checked only with --host-memory. */
cn_status cn_host_check(const cn_config *c);

/* The same without what is free now: a plan is for a machine that has nothing else to do. */
cn_status cn_host_check_size(const cn_config *c);

/* The same, of a machine with this memory. all: 0: unknown. */
cn_status cn_host_check_within(const cn_config *c, cn_host_room room);

/* CN_ERR_ARG when --host-memory is given and nothing reads it. */
cn_status cn_host_check_read(const cn_config *c, const cn_backend *be);
