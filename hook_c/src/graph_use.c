// SPDX-License-Identifier: Apache-2.0
#include "graph_use.h"

#include "sys.h"

#define SEVERAL UINT64_MAX /* no stream's name */
#define MOST_BYTES (UINT64_MAX / 4)

static void lock(struct tenant_graphs *graphs)
{
	while (__atomic_exchange_n(&graphs->locked, 1, __ATOMIC_ACQUIRE) != 0)
		sys_yield();
}

static void unlock(struct tenant_graphs *graphs)
{
	__atomic_store_n(&graphs->locked, 0, __ATOMIC_RELEASE);
}

static uint64_t add(uint64_t sum, uint64_t bytes)
{
	return sum > MOST_BYTES - bytes ? MOST_BYTES : sum + bytes;
}

static void count_in(struct tenant_graphs_sum *sum, const struct table_entry *instance)
{
	sum->bytes = add(sum->bytes, GRAPH_BYTES(instance));
	if (GRAPH_LEAVES(instance))
		sum->left_bytes = add(sum->left_bytes, GRAPH_BYTES(instance));
}

static void count(struct tenant_graphs *graphs, struct table_entry *instance)
{
	uint32_t refs = GRAPH_COUNTED + graphs->epoch;

	if (instance->refs < GRAPH_COUNTED + graphs->first_epoch)
		count_in(&graphs->all, instance);
	if (instance->refs != refs)
		count_in(&graphs->recent, instance);
	instance->refs = refs;
}

static uint64_t least(uint64_t one, uint64_t other)
{
	return one < other ? one : other;
}

uint64_t graph_use_begin(struct tenant_pool *pool, struct table_entry *instance, uint64_t stream,
			 struct graph_use *before)
{
	struct tenant_graphs *graphs = &pool->graphs;
	uint64_t own = GRAPH_BYTES(instance);
	uint64_t others;

	lock(graphs);
	__atomic_add_fetch(&graphs->calls, 1, __ATOMIC_SEQ_CST);
	*before = (struct graph_use){.graphs = *graphs, .refs = instance->refs};
	graphs->begun++;
	count(graphs, instance);
	if (graphs->stream == 0 && stream != STREAM_PER_THREAD) /* which is one in every thread */
		graphs->stream = stream;
	else if (graphs->stream != stream)
		graphs->stream = SEVERAL;
	if (graphs->stream == SEVERAL)
		others = least(graphs->all.bytes, graphs->recent.bytes) - own;
	else
		others = least(graphs->all.left_bytes, graphs->recent.left_bytes) -
			 (GRAPH_LEAVES(instance) ? own : 0);
	unlock(graphs);
	return others;
}

void graph_use_cancel(struct tenant_pool *pool, struct table_entry *instance,
		      const struct graph_use *before)
{
	struct tenant_graphs *graphs = &pool->graphs;

	lock(graphs);
	/* What others have counted since then stays. */
	if (graphs->begun == before->graphs.begun + 1) {
		graphs->stream = before->graphs.stream;
		graphs->all = before->graphs.all;
		graphs->recent = before->graphs.recent;
		instance->refs = before->refs;
	}
	unlock(graphs);
	graph_use_end(pool);
}

void graph_use_end(struct tenant_pool *pool)
{
	__atomic_sub_fetch(&pool->graphs.calls, 1, __ATOMIC_SEQ_CST);
}

uint32_t graph_use_moment(struct tenant_pool *pool)
{
	struct tenant_graphs *graphs = &pool->graphs;
	uint32_t moment;

	lock(graphs);
	/* With a launch under way no later moment is this one. */
	moment = graphs->begun - graph_use_is_under_way(pool);
	unlock(graphs);
	return moment;
}

void graph_use_recount(struct tenant_pool *pool, uint32_t moment, uint64_t reserved_bytes)
{
	struct tenant_graphs *graphs = &pool->graphs;

	lock(graphs);
	if (graphs->begun == moment && !graph_use_is_under_way(pool)) {
		graphs->epoch++;
		graphs->recent.bytes = reserved_bytes;
		graphs->recent.left_bytes = least(graphs->recent.left_bytes, reserved_bytes);
		if (reserved_bytes == 0) {
			graphs->first_epoch = graphs->epoch;
			graphs->all = graphs->recent;
			graphs->stream = 0;
		}
	}
	unlock(graphs);
}

void graph_use_forget_stream(struct tenant_pool *pool, uint64_t stream)
{
	struct tenant_graphs *graphs = &pool->graphs;

	lock(graphs);
	if (graphs->stream == stream)
		graphs->stream = SEVERAL;
	unlock(graphs);
}
