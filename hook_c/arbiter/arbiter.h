// SPDX-License-Identifier: Apache-2.0
/* The slot arbiter: a thread of the node agent. It writes gates and its signs of life into the
 * limits files; what tenants say in their usage files is read by pread and trusted in nothing: a
 * tenant that lies gets turns that it leaves unused, or loses its own. A usage file is mapped as
 * the address of a futex only. cffi reads the text between the two "arbiter" markers. */
#ifndef VGPU_ARBITER_H
#define VGPU_ARBITER_H

#include <stdint.h>

/* arbiter: begin */
struct vgpu_arbiter_counts {
	uint64_t held_ns; /* of its cards, while there were others */
	uint64_t turns;
};

struct vgpu_arbiter;

/* NULL: errno says why. */
struct vgpu_arbiter *vgpu_arbiter_start(void);

/* Ends the thread. Gates stay as they are; tenants find out by the missing sign of life. */
void vgpu_arbiter_stop(struct vgpu_arbiter *arbiter);

/* A container with a slice of each of the `count` cards, numbered by the caller from 0, in the
 * order of its limits. Returns its number, or -errno. */
int vgpu_arbiter_add(struct vgpu_arbiter *arbiter, const char *limits_path, const char *usage_path,
		     const uint32_t *cards, uint32_t count, uint32_t weight);
void vgpu_arbiter_set_weight(struct vgpu_arbiter *arbiter, int tenant, uint32_t weight);
void vgpu_arbiter_remove(struct vgpu_arbiter *arbiter, int tenant);
struct vgpu_arbiter_counts vgpu_arbiter_read(struct vgpu_arbiter *arbiter, int tenant);
/* arbiter: end */

#endif
