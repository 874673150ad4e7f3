// SPDX-License-Identifier: Apache-2.0
/* What a launch of a graph finds in use of the memory that a device keeps for graphs.
 *
 * The driver maps an instance's memory at its launch, from what the device has: all but what
 * somebody has left allocated, and what unfinished launches of other instances use, unless those
 * are in the same stream. Nothing says how much that is. So every instance that has been launched
 * counts as in use by all others, or, while there is only one stream with launches, if it leaves
 * something allocated. A trim gives back all that is not in use: from then on there is a number for
 * all that was launched before, and whichever of the two is less holds. */
#ifndef VGPU_GRAPH_USE_H
#define VGPU_GRAPH_USE_H

#include "hook.h"

/* What there was before a launch. */
struct graph_use {
	struct tenant_graphs graphs;
	uint32_t refs;
};

/* Before a launch of an instance, whose `refs` may change, in the stream of that name. Returns what
 * others may have in use; graph_use_end must follow, or graph_use_cancel if it is not made. */
uint64_t graph_use_begin(struct tenant_pool *pool, struct table_entry *instance, uint64_t stream,
			 struct graph_use *before);
void graph_use_end(struct tenant_pool *pool);
void graph_use_cancel(struct tenant_pool *pool, struct table_entry *instance,
		      const struct graph_use *before);

/* Whether a launch is being made: it counts on what the pool had when it began. */
static inline bool graph_use_is_under_way(const struct tenant_pool *pool)
{
	return __atomic_load_n(&pool->graphs.calls, __ATOMIC_SEQ_CST) != 0;
}

/* Before a trim, with what is reserved after it. No launch may be under way, or begin meanwhile:
 * then nothing changes. */
uint32_t graph_use_moment(struct tenant_pool *pool);
void graph_use_recount(struct tenant_pool *pool, uint32_t moment, uint64_t reserved_bytes);

/* The stream is destroyed, and may go on until its work is done; its name may be given anew. */
void graph_use_forget_stream(struct tenant_pool *pool, uint64_t stream);

#endif
