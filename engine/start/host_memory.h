/* host_memory.h - how much memory the machine has, and whether what the options put there fits.
 *
 * Owner: the caller; plain values. Thread: any. Stage: start, before anything is opened. */
#ifndef CN_HOST_MEMORY_H
#define CN_HOST_MEMORY_H

#include "engine/options/options.h"

/* The smallest limit that the cgroups of a process set on its memory; UINT64_MAX: none. `list` is a
 * file like /proc/self/cgroup, `root` a folder like /sys/fs/cgroup. Both versions of cgroups are
 * read, and the groups above those of the process too. */
uint64_t cn_host_cgroup_bytes(const char *list, const char *root);

/* Bytes of memory that the process can have: those of --host-memory, or the smaller of physical
 * memory and the limit of its cgroups. 0 when unknown. */
uint64_t cn_host_bytes(const cn_config *c);

/* CN_ERR_ARG, with the numbers, when the swap space and the homes in host memory exceed 70 % of
 * these bytes. A plan with --gpu-memory is for another machine: it is checked only with
 * --host-memory. */
cn_status cn_host_check(const cn_config *c);

#endif
