/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts: what one process holds on one card, and which of them a thread works on.
 */
#ifndef FAKE_GPU_CONTEXT_H
#define FAKE_GPU_CONTEXT_H

#include "driver.h"

#define CONTEXT_LIMITS 16

struct region;
struct slab;
struct stream;

struct context {
	CUdevice ordinal;
	unsigned int card;
	bool primary;
	bool live;
	unsigned int attached; /* by cuCtxAttach, beside its maker */
	unsigned int retained; /* primary only */
	unsigned int flags;
	unsigned int api_version;
	uint64_t number; /* never the same twice in a process */
	size_t limit[CONTEXT_LIMITS];
	uint64_t local_memory_bytes; /* grown beyond what the context came with */
	struct slab *slabs;
	struct stream *streams; /* all of them, the two default ones included */
	struct stream *legacy;  /* stream 0 and CU_STREAM_LEGACY */
	uint64_t retired_ns;    /* when the last work of destroyed streams is over */
	struct context *next;   /* of all ever made; a handle stays readable after destruction */
};

/* The top of the calling thread's stack, or NULL. It may have been destroyed. */
struct context *context_current(void);
bool context_live(const struct context *context);

/* Grow the memory that the context keeps for kernels' local variables and stacks so that
 * `per_thread` bytes fit. It never shrinks here. Caller holds the driver lock. */
bool context_reserve_local(struct context *context, uint64_t per_thread);

/* What a dying context takes with it, one call a kind. Caller holds the driver lock. */
void memory_forget_context(struct context *context);
void stream_forget_context(struct context *context);
void stream_init_context(struct context *context);

#endif
