// SPDX-License-Identifier: Apache-2.0
/* Instances of graphs. What one needs of a card is found when it is made, by reading its nodes: the
 * most local memory of a kernel, and the memory behind the addresses of its allocations. Local
 * memory is charged then and there; what allocations need is asked for before each launch, because
 * the driver takes it at the first one and a trim between launches gives it back. */
#include "hook_local.h"

#include "hook_launch.h"
#include "pool_account.h"

#include "sys.h"

#include <string.h>

/* Of graphs in each other. The walk goes down on the program's stack, which is small in a thread of
 * musl: deeper ones are refused. */
#define GRAPH_DEPTH 64

/* The driver gives two allocations of a graph the same addresses if one is freed before the other
 * is made, by the graph's edges; a graph takes as many steps as its addresses touch, and one more
 * for every graph in it that allocates (bench/gpu/graphs.py, H200, driver 580). */
#define ADDRESS_BITS 48
#define STEPS ((UINT64_C(1) << ADDRESS_BITS) / POOL_STEP)

/* What the walk over a graph's nodes has found so far. */
struct walk {
	struct tenant *tenant;
	int status;           /* why the graph must not be instantiated: not all of it was seen */
	uint8_t *steps;       /* a bit each: it is touched; NULL: none yet */
	uint64_t local_bytes; /* a thread */
	uint64_t bytes;
	uint64_t unmatched; /* 0: everything that is allocated is freed again */
	int device;         /* of the allocations; -1: none yet */
	bool is_on_several;
	uint32_t chain; /* as in the table */
};

/* The first reason counts. */
static bool sees(struct walk *walk, int status)
{
	if (walk->status == CUDA_SUCCESS)
		walk->status = status;
	return status == CUDA_SUCCESS;
}

static void see_kernel(struct walk *walk, void *node)
{
	struct cuda_kernel_node kernel = {0};
	int (*get)(void *, void *) = driver.cuGraphKernelNodeGetParams_v2 != NULL
					     ? driver.cuGraphKernelNodeGetParams_v2
					     : driver.cuGraphKernelNodeGetParams;

	if (get == NULL || !sees(walk, get(node, &kernel)))
		return;

	uint64_t bytes = local_bytes_of(kernel.function != NULL ? kernel.function : kernel.kernel);

	if (bytes > walk->local_bytes)
		walk->local_bytes = bytes;
}

static void add_bytes(struct walk *walk, uint64_t bytes)
{
	if (__builtin_add_overflow(walk->bytes, bytes, &walk->bytes) ||
	    walk->bytes > POOL_MOST_BYTES)
		walk->bytes = POOL_MOST_BYTES + POOL_STEP; /* more than any card has */
}

static void touch(struct walk *walk, uint64_t address, uint64_t bytes)
{
	uint64_t last = (address + bytes - 1) / POOL_STEP;

	/* Without memory for it, addresses that two allocations share count twice. */
	if (walk->steps == NULL)
		walk->steps = sys_map(STEPS / 8, PROT_READ | PROT_WRITE, -1);
	for (uint64_t step = address / POOL_STEP; step <= last; step++) {
		uint8_t bit = (uint8_t)(1U << step % 8);

		if (walk->steps != NULL && (walk->steps[step % STEPS / 8] & bit) != 0)
			continue;
		if (walk->steps != NULL)
			walk->steps[step % STEPS / 8] |= bit;
		add_bytes(walk, POOL_STEP);
	}
}

/* So that no two sums of addresses are the same by chance, which come at even distances. */
static uint64_t mix(uint64_t address)
{
	address = (address ^ address >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
	address = (address ^ address >> 32) * UINT64_C(0x94d049bb133111eb);
	return address ^ address >> 31;
}

static void see_allocation(struct walk *walk, void *node)
{
	struct cuda_graph_alloc alloc = {0};

	if (driver.cuGraphMemAllocNodeGetParams == NULL ||
	    !sees(walk, driver.cuGraphMemAllocNodeGetParams(node, &alloc)) ||
	    is_on_host(&alloc.pool.location) || alloc.bytes == 0)
		return;
	if (walk->device < 0)
		walk->device = alloc.pool.location.id;
	walk->is_on_several |= walk->device != alloc.pool.location.id;
	if (alloc.bytes > POOL_MOST_BYTES)
		add_bytes(walk, alloc.bytes);
	else
		touch(walk, alloc.pointer, alloc.bytes);
	walk->unmatched += mix(alloc.pointer);
}

static void see_free(struct walk *walk, void *node)
{
	uint64_t address = 0;

	if (driver.cuGraphMemFreeNodeGetParams != NULL &&
	    sees(walk, driver.cuGraphMemFreeNodeGetParams(node, &address)))
		walk->unmatched -= mix(address);
}

static void see_graph(struct walk *walk, void *graph, unsigned int depth);

/* The driver tells the bodies of a conditional node when it is made, and never again. Handles have
 * 48 bits. */
static uint64_t number_of_body(const void *node, uint32_t index)
{
	return (uint64_t)(uintptr_t)node | (uint64_t)index << 48;
}

static void see_bodies(struct walk *walk, const void *node, unsigned int depth)
{
	struct table_entry body = {.refs = 1};

	for (uint32_t i = 0; i < body.refs; i++) {
		if (!table_refer(&walk->tenant->table, TABLE_BODY, number_of_body(node, i), 0,
				 &body)) {
			if (__atomic_load_n(&walk->tenant->lost_bodies, __ATOMIC_ACQUIRE) != 0)
				sees(walk, CUDA_ERROR_OUT_OF_MEMORY);
			return;
		}
		see_graph(walk, (void *)(uintptr_t)body.owner, depth); /* NOLINT */
	}
}

int graph_any_node_end(int status, uint64_t node, const void *parameters)
{
	const struct cuda_graph_conditional *made = parameters;
	struct tenant *tenant = tenant_joined();

	if (tenant == NULL || status != CUDA_SUCCESS || made == NULL ||
	    made->type != CU_GRAPH_NODE_TYPE_CONDITIONAL || made->bodies == NULL ||
	    made->count > UINT16_MAX)
		return status;
	for (uint32_t i = 0; i < made->count; i++) {
		const struct table_entry body = {
			.kind = TABLE_BODY,
			.handle = number_of_body((void *)(uintptr_t)node, i), /* NOLINT */
			.owner = (uint64_t)(uintptr_t)made->bodies[i],
			.refs = made->count};

		/* No memory for it: no graph with bodies that are not known is instantiated. */
		if (!table_put(&tenant->table, &body))
			__atomic_store_n(&tenant->lost_bodies, 1, __ATOMIC_RELEASE);
	}
	return status;
}

static void see_child(struct walk *walk, void *node, unsigned int depth)
{
	uint64_t before = walk->bytes;
	void *child = NULL;

	if (!sees(walk, driver.cuGraphChildGraphNodeGetGraph(node, &child)))
		return;
	see_graph(walk, child, depth);
	if (walk->bytes != before)
		add_bytes(walk, POOL_STEP);
}

static void see_node(struct walk *walk, void *node, unsigned int depth)
{
	int type;

	if (!sees(walk, driver.cuGraphNodeGetType(node, &type)))
		return;
	switch (type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		see_kernel(walk, node);
		break;
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		see_allocation(walk, node);
		break;
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		see_free(walk, node);
		break;
	case CU_GRAPH_NODE_TYPE_GRAPH:
		see_child(walk, node, depth + 1);
		break;
	case CU_GRAPH_NODE_TYPE_CONDITIONAL:
		see_bodies(walk, node, depth + 1);
		break;
	default:
		break;
	}
}

/* 0 for a graph that is no chain of kernels, since what branches may run at the same time, or a
 * short one. */
static uint32_t chain_of(void *const *nodes, size_t count)
{
	size_t roots = 0;

	if (driver.cuGraphNodeGetDependencies == NULL ||
	    driver.cuGraphNodeGetDependentNodes == NULL || count < 2 || count >= UINT32_MAX)
		return 0;
	for (size_t i = 0; i < count; i++) {
		size_t before = 0;
		size_t behind = 0;
		int type;

		/* The question fails where a dependency is not the plain one: kernels that start
		 * before the one before them has ended leave no gap. */
		if (driver.cuGraphNodeGetType(nodes[i], &type) != CUDA_SUCCESS ||
		    type != CU_GRAPH_NODE_TYPE_KERNEL ||
		    driver.cuGraphNodeGetDependencies(nodes[i], NULL, &before) != CUDA_SUCCESS ||
		    driver.cuGraphNodeGetDependentNodes(nodes[i], NULL, &behind) != CUDA_SUCCESS ||
		    before > 1 || behind > 1)
			return 0;
		roots += before == 0;
	}
	return roots == 1 ? (uint32_t)(count + 1) : 0;
}

/* Between the kernels that are not disabled; a card rests there for a moment. */
static uint32_t gaps_of(const struct table_entry *graph)
{
	return graph->chain > 2 ? graph->chain - 2 : 0;
}

static void see_graph(struct walk *walk, void *graph, unsigned int depth)
{
	size_t count = 0;

	if (depth > GRAPH_DEPTH) {
		sees(walk, CUDA_ERROR_NOT_SUPPORTED);
		return;
	}
	if (!sees(walk, driver.cuGraphGetNodes(graph, NULL, &count)) || count == 0)
		return;

	size_t bytes = count * sizeof(void *);
	void **nodes = (void **)sys_map(bytes, PROT_READ | PROT_WRITE, -1);

	if (nodes == NULL) {
		sees(walk, CUDA_ERROR_OUT_OF_MEMORY);
		return;
	}
	if (sees(walk, driver.cuGraphGetNodes(graph, nodes, &count)))
		for (size_t i = 0; i < count; i++)
			see_node(walk, nodes[i], depth);
	if (depth == 0)
		walk->chain = chain_of(nodes, count);
	sys_unmap((void *)nodes, bytes);
}

static struct walk walk_through(struct tenant *tenant, void *graph)
{
	struct walk walk = {.tenant = tenant, .device = -1};

	see_graph(&walk, graph, 0);
	if (walk.steps != NULL)
		sys_unmap(walk.steps, STEPS / 8);
	return walk;
}

/* Both for a new instance and for one that takes over what the graph is now. */
static int prepare(struct hook_call *call, void *graph)
{
	struct tenant *tenant;
	enum tenant_state state = tenant_join(&tenant);

	call->tenant = NULL;
	call->graph_tenant = NULL;
	if (state == TENANT_INERT || graph == NULL)
		return CUDA_SUCCESS;
	if (state == TENANT_REFUSED)
		return CUDA_ERROR_SYSTEM_NOT_READY;

	struct walk found = walk_through(tenant, graph);

	/* A launch is charged to one card, and nothing is taken without a charge. */
	if (found.status != CUDA_SUCCESS)
		return found.status;
	if (found.is_on_several)
		return CUDA_ERROR_NOT_SUPPORTED;

	int status = local_begin(call, tenant, NULL, found.local_bytes);

	call->graph_tenant = tenant;
	call->graph = (struct table_entry){.kind = TABLE_GRAPH,
					   .bytes = found.bytes |
						    (found.bytes != 0 && found.unmatched != 0),
					   .owner = found.local_bytes,
					   .card = (uint32_t)found.device,
					   .chain = found.chain,
					   .refs = GRAPH_NEW};
	return status;
}

int graph_instantiate_begin(struct hook_call *call, const void *out, void *graph)
{
	call->tenant = NULL;
	call->graph_tenant = NULL;
	return out == NULL ? CUDA_SUCCESS : prepare(call, graph);
}

static bool has_needs(const struct table_entry *graph)
{
	return graph->bytes != 0 || graph->owner > LOCAL_FIRST_BYTES || graph->chain != 0;
}

int graph_instantiate_end(struct hook_call *call, int status, uint64_t instance)
{
	if (call->graph_tenant != NULL && status == CUDA_SUCCESS && has_needs(&call->graph)) {
		call->graph.handle = instance;
		/* No memory for it: what its launches need would be charged to nobody. */
		if (!table_put(&call->graph_tenant->table, &call->graph)) {
			driver.cuGraphExecDestroy((void *)(uintptr_t)instance); /* NOLINT */
			status = CUDA_ERROR_OUT_OF_MEMORY;
		}
	}
	return local_end(call, status);
}

/* Makes sure that the needs of an instance that changes can be recorded when it has: the change
 * cannot be undone then. */
static bool has_place(struct tenant *tenant, const struct table_entry *graph)
{
	struct table_entry place = {.kind = TABLE_GRAPH,
				    .handle = graph->handle,
				    .card = graph->card,
				    .refs = GRAPH_NEW};

	return table_refer(&tenant->table, TABLE_GRAPH, graph->handle, 0, &place) ||
	       table_put(&tenant->table, &place);
}

/* It may be uploaded at once. */
int graph_with_begin(struct hook_call *call, const void *out, void *graph, const void *parameters,
		     bool is_thread)
{
	const struct cuda_graph_instantiation *wanted = parameters;
	int status = graph_instantiate_begin(call, out, graph);

	call->pool = NULL;
	if (status != CUDA_SUCCESS || call->graph_tenant == NULL || call->graph.bytes == 0 ||
	    wanted == NULL || (wanted->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) == 0)
		return status;

	void *stream = wanted->upload_stream;

	if (stream == NULL && is_thread)
		stream = (void *)STREAM_PER_THREAD;
	if (graph_memory_charge(call, call->graph_tenant, stream))
		return CUDA_SUCCESS;
	return local_end(call, refuse_in_stream(stream));
}

int graph_with_end(struct hook_call *call, int status, uint64_t instance)
{
	if (call->graph_tenant != NULL)
		graph_memory_settle(call->graph_tenant, call);
	return graph_instantiate_end(call, status, instance);
}

int graph_update_begin(struct hook_call *call, void *instance, void *graph)
{
	int status;

	call->graph = (struct table_entry){0};
	status = prepare(call, graph);
	call->graph.handle = (uint64_t)(uintptr_t)instance;
	if (status != CUDA_SUCCESS || call->graph_tenant == NULL || !has_needs(&call->graph) ||
	    instance == NULL || has_place(call->graph_tenant, &call->graph))
		return status;
	return local_end(call, CUDA_ERROR_OUT_OF_MEMORY);
}

int graph_update_end(struct hook_call *call, int status)
{
	struct table_entry old;

	if (call->graph_tenant != NULL && status == CUDA_SUCCESS && !has_needs(&call->graph))
		(void)table_take(&call->graph_tenant->table, TABLE_GRAPH, call->graph.handle, &old);
	return graph_instantiate_end(call, status, call->graph.handle);
}

/* One kernel of an instance is replaced. */
int graph_kernel_begin(struct hook_call *call, void *instance, const void *parameters)
{
	const struct cuda_kernel_node *kernel = instance == NULL ? NULL : parameters;
	struct tenant *tenant = tenant_joined();
	struct table_entry entry = {.kind = TABLE_GRAPH,
				    .handle = (uint64_t)(uintptr_t)instance,
				    .card = UINT32_MAX,
				    .refs = GRAPH_NEW};

	call->tenant = NULL;
	call->graph_tenant = NULL;
	if (tenant == NULL || kernel == NULL || kernel->function == NULL)
		return CUDA_SUCCESS;

	uint64_t bytes = local_bytes_of(kernel->function);

	if (bytes <= LOCAL_FIRST_BYTES)
		return CUDA_SUCCESS;
	(void)table_refer(&tenant->table, TABLE_GRAPH, entry.handle, 0, &entry);
	if (!has_place(tenant, &entry))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (bytes > entry.owner)
		entry.owner = bytes;
	call->graph_tenant = tenant;
	call->graph = entry;
	return local_begin(call, tenant, NULL, bytes);
}

int graph_node_set_begin(struct hook_call *call, void *instance, const void *parameters)
{
	const struct cuda_graph_node *node = instance == NULL ? NULL : parameters;

	return graph_kernel_begin(
		call, instance,
		node == NULL || node->type != CU_GRAPH_NODE_TYPE_KERNEL ? NULL : &node->alloc);
}

int graph_kernel_end(struct hook_call *call, int status)
{
	if (call->graph_tenant == NULL)
		return status;
	return graph_instantiate_end(call, status, call->graph.handle);
}

int graph_enable_begin(struct hook_call *call, void *instance, void *node)
{
	unsigned int is_enabled = 0;

	call->graph_tenant = tenant_joined();
	if (call->graph_tenant == NULL || driver.cuGraphNodeGetEnabled == NULL ||
	    driver.cuGraphNodeGetEnabled(instance, node, &is_enabled) != CUDA_SUCCESS ||
	    !table_refer(&call->graph_tenant->table, TABLE_GRAPH, (uint64_t)(uintptr_t)instance, 0,
			 &call->graph) ||
	    call->graph.chain == 0)
		call->graph_tenant = NULL;
	else
		call->graph.chain -= is_enabled != 0; /* without it */
	return CUDA_SUCCESS;
}

int graph_enable_end(struct hook_call *call, int status, unsigned int enabled)
{
	if (call->graph_tenant != NULL && status == CUDA_SUCCESS) {
		call->graph.chain += enabled != 0;
		(void)table_put(&call->graph_tenant->table, &call->graph);
	}
	return status;
}

int graph_destroy_end(int status, void *instance)
{
	struct tenant *tenant = tenant_joined();
	struct table_entry entry;

	if (tenant != NULL && status == CUDA_SUCCESS)
		(void)table_take(&tenant->table, TABLE_GRAPH, (uint64_t)(uintptr_t)instance,
				 &entry);
	return pools_end(status);
}

static bool charge_launch(struct hook_call *call, struct tenant *tenant, void *stream)
{
	uint32_t counted = call->graph.refs;
	bool fits = graph_memory_charge(call, tenant, stream);

	if (call->graph.refs != counted)
		(void)table_put(&tenant->table, &call->graph);
	return fits;
}

int graph_upload_begin(struct hook_call *call, void *instance, void *stream, bool is_thread)
{
	struct tenant *tenant = tenant_joined();
	int captured = 0;

	call->tenant = NULL;
	call->graph_tenant = NULL;
	call->gate = NULL;
	if (tenant == NULL || instance == NULL ||
	    !table_refer(&tenant->table, TABLE_GRAPH, (uint64_t)(uintptr_t)instance, 0,
			 &call->graph))
		return CUDA_SUCCESS;
	if (stream == NULL && is_thread)
		stream = (void *)STREAM_PER_THREAD;
	if (driver.cuStreamIsCapturing(stream, &captured) == CUDA_SUCCESS && captured != 0)
		return CUDA_SUCCESS; /* it becomes a part of another graph */
	call->pool = NULL;
	if (call->graph.bytes != 0 && !charge_launch(call, tenant, stream))
		return refuse_in_stream(stream);

	int status = local_begin(call, tenant, stream, call->graph.owner);

	if (status != CUDA_SUCCESS)
		graph_memory_settle(tenant, call);
	else
		call->graph_tenant = tenant;
	return status;
}

int graph_launch_begin(struct hook_call *call, void *instance, void *stream, bool is_thread)
{
	struct tenant *tenant = tenant_joined();
	int status = graph_upload_begin(call, instance, stream, is_thread);

	if (stream == NULL && is_thread)
		stream = (void *)STREAM_PER_THREAD;
	if (status == CUDA_SUCCESS && tenant != NULL && instance != NULL && !launch_is_free()) {
		struct launch launch = {.key = launch_key(instance, NULL),
					.is_graph = true,
					.gaps = call->graph_tenant == NULL ? 0
									   : gaps_of(&call->graph)};

		gate_begin(call, tenant, launch, stream);
	}
	return status;
}

int graph_launch_end(struct hook_call *call, int status)
{
	struct tenant *tenant = call->graph_tenant;

	gate_end(call);
	if (tenant == NULL)
		return pools_end(status);
	graph_memory_settle(tenant, call);
	return pools_end(local_end(call, status));
}
