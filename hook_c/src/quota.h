// SPDX-License-Identifier: Apache-2.0
/* May this process take so many bytes of that card? The only place that compares with a limit.
 *
 * Reserve before the driver is asked, release when the driver said no or when the memory is free
 * again: a process that is killed in between has counted too much, never too little. */
#ifndef VGPU_QUOTA_H
#define VGPU_QUOTA_H

#include "limits.h"
#include "region.h"

#include <stdbool.h>
#include <stdint.h>

/* How the driver cuts device memory: up to 1 MiB from shared slabs in steps of 512 bytes, above
 * that in whole slabs. Measured on an H100 with drivers of CUDA 13.0. */
#define QUOTA_SLAB_BYTES (UINT64_C(2) << 20)
#define QUOTA_SMALL_BYTES (UINT64_C(1) << 20)
#define QUOTA_SMALL_STEP UINT64_C(512)

static inline uint64_t quota_round_up(uint64_t bytes, uint64_t step)
{
	return (bytes + step - 1) / step * step;
}

/* Lives in memory that a forked child finds zeroed, like the region it writes to. */
struct quota {
	struct region *region;
	struct limits *limits;
	struct quota_small {
		uint64_t bytes;   /* of the living small allocations: of each its part of a slab */
		uint64_t charged; /* whole slabs */
		uint32_t count;
		uint32_t locked;
	} small[VGPU_MAX_DEVICES];
};

struct quota_view {
	uint64_t limit_bytes; /* LIMITS_NONE: no limit */
	uint64_t used_bytes;  /* of the whole container, overhead included */
};

/* Exactly so many bytes. Any thread; false leaves nothing counted. */
bool quota_reserve(struct quota *quota, unsigned int card, uint64_t bytes);
void quota_release(struct quota *quota, unsigned int card, uint64_t bytes);

/* The same for what may not be needed: it counts against whatever anybody else asks for, and is not
 * held. quota_keep, of the part that is, and quota_drop, of the rest, must follow. */
bool quota_ask(struct quota *quota, unsigned int card, uint64_t bytes);
void quota_keep(struct quota *quota, unsigned int card, uint64_t bytes);
void quota_drop(struct quota *quota, unsigned int card, uint64_t bytes);

/* quota_ask, but tries once, and a refusal is none that anybody sees. */
bool quota_try(struct quota *quota, unsigned int card, uint64_t bytes);

/* What the driver takes for an array of so many bytes; give back with the same number. Small ones
 * share slabs, and nobody can tell which: each is counted as that part of one that it takes when
 * all are alike, and what is freed stays charged until no small array is left. */
bool quota_take(struct quota *quota, unsigned int card, uint64_t asked);
void quota_give(struct quota *quota, unsigned int card, uint64_t asked);

struct quota_view quota_look(struct quota *quota, unsigned int card);

#endif
