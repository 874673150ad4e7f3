// SPDX-License-Identifier: Apache-2.0
/* Instances of graphs. What one needs of a card is found when it is made, by reading its nodes: the
 * most local memory of a kernel, and the most that its allocations hold at one moment. Local memory
 * is charged then and there; what allocations need is asked for before each launch, because the
 * driver takes it at the first one and a trim between launches gives it back. */
#include "hook_local.h"

#include "hook_launch.h"

#include "sys.h"

#include <string.h>

#define GRAPH_DEPTH 8

/* What the walk over a graph's nodes has found so far. */
struct needs {
	uint64_t local_bytes; /* a thread */
	uint64_t held_bytes;  /* allocated and not yet freed, at this node */
	uint64_t peak_bytes;
	int device; /* of the allocations; -1: none yet */
	uint32_t gaps;
};

/* Addresses of a graph's allocations and their sizes, for the nodes that free them. */
struct walk {
	struct tenant *tenant;
	struct needs needs;
	struct allocation {
		uint64_t address;
		uint64_t bytes;
	} *allocations;
	size_t room;
	size_t count;
};

static void see_kernel(struct walk *walk, void *node)
{
	struct cuda_kernel_node kernel = {0};
	int (*get)(void *, void *) = driver.cuGraphKernelNodeGetParams_v2 != NULL
					     ? driver.cuGraphKernelNodeGetParams_v2
					     : driver.cuGraphKernelNodeGetParams;

	if (get == NULL || get(node, &kernel) != CUDA_SUCCESS)
		return;

	uint64_t bytes = local_bytes_of(kernel.function != NULL ? kernel.function : kernel.kernel);

	if (bytes > walk->needs.local_bytes)
		walk->needs.local_bytes = bytes;
}

static void see_allocation(struct walk *walk, void *node)
{
	struct cuda_graph_alloc alloc = {0};
	struct needs *needs = &walk->needs;

	if (driver.cuGraphMemAllocNodeGetParams == NULL ||
	    driver.cuGraphMemAllocNodeGetParams(node, &alloc) != CUDA_SUCCESS ||
	    alloc.pool.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return;
	if (needs->device < 0)
		needs->device = alloc.pool.location.id;
	if (needs->device != alloc.pool.location.id)
		return; /* a second card's: charged when it is there */
	if (__builtin_add_overflow(needs->held_bytes, alloc.bytes, &needs->held_bytes))
		needs->held_bytes = UINT64_MAX;
	if (needs->held_bytes > needs->peak_bytes)
		needs->peak_bytes = needs->held_bytes;
	if (walk->count < walk->room)
		walk->allocations[walk->count++] = (struct allocation){alloc.pointer, alloc.bytes};
}

static void see_free(struct walk *walk, void *node)
{
	uint64_t address = 0;

	if (driver.cuGraphMemFreeNodeGetParams == NULL ||
	    driver.cuGraphMemFreeNodeGetParams(node, &address) != CUDA_SUCCESS)
		return;
	/* From the end: graphs free what they have allocated last. */
	for (size_t i = walk->count; i-- > 0;) {
		if (walk->allocations[i].address != address)
			continue;
		walk->needs.held_bytes -= walk->allocations[i].bytes;
		walk->allocations[i] = walk->allocations[--walk->count];
		return;
	}
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
				 &body))
			return;
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

		/* No memory for it: its local memory is part of the overhead when it has run. */
		(void)table_put(&tenant->table, &body);
	}
	return status;
}

static void see_node(struct walk *walk, void *node, unsigned int depth)
{
	void *child = NULL;
	int type;

	if (driver.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS)
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
		if (depth < GRAPH_DEPTH &&
		    driver.cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS)
			see_graph(walk, child, depth + 1);
		break;
	case CU_GRAPH_NODE_TYPE_CONDITIONAL:
		if (depth < GRAPH_DEPTH)
			see_bodies(walk, node, depth + 1);
		break;
	default:
		break;
	}
}

/* Between the kernels of a graph that is one chain of them; a card rests there for a moment. 0 for
 * any other graph: what branches may run at the same time. */
static uint32_t gaps_of(void *const *nodes, size_t count)
{
	size_t roots = 0;

	if (driver.cuGraphNodeGetDependencies == NULL ||
	    driver.cuGraphNodeGetDependentNodes == NULL || count > UINT32_MAX)
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
	return roots == 1 ? (uint32_t)(count - 1) : 0;
}

/* In the order in which the driver lists the nodes, which is the order in which they were made. */
static void see_graph(struct walk *walk, void *graph, unsigned int depth)
{
	size_t count = 0;
	struct allocation *outer = walk->allocations;
	size_t outer_room = walk->room;
	size_t outer_count = walk->count;

	if (driver.cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS || count == 0)
		return;

	size_t bytes = count * (sizeof(void *) + sizeof(*outer));
	void **nodes = (void **)sys_map(bytes, PROT_READ | PROT_WRITE, -1);

	if (nodes == NULL)
		return;
	walk->allocations = (struct allocation *)(nodes + count);
	walk->room = count;
	walk->count = 0;
	if (driver.cuGraphGetNodes(graph, nodes, &count) == CUDA_SUCCESS)
		for (size_t i = 0; i < count; i++)
			see_node(walk, nodes[i], depth);
	if (depth == 0)
		walk->needs.gaps = gaps_of(nodes, count);
	sys_unmap((void *)nodes, bytes);
	walk->allocations = outer;
	walk->room = outer_room;
	walk->count = outer_count;
}

static struct needs needs_of(struct tenant *tenant, void *graph)
{
	struct walk walk = {.tenant = tenant, .needs = {.device = -1}};

	see_graph(&walk, graph, 0);
	return walk.needs;
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

	struct needs needs = needs_of(tenant, graph);
	int status = local_begin(call, tenant, NULL, needs.local_bytes);

	call->graph_tenant = tenant;
	call->graph = (struct table_entry){.kind = TABLE_GRAPH,
					   .bytes = needs.peak_bytes,
					   .owner = needs.local_bytes,
					   .card = (uint32_t)needs.device,
					   .gaps = needs.gaps,
					   .refs = GRAPH_NEW};
	return status;
}

int graph_instantiate_begin(struct hook_call *call, const void *out, void *graph)
{
	call->tenant = NULL;
	call->graph_tenant = NULL;
	return out == NULL ? CUDA_SUCCESS : prepare(call, graph);
}

int graph_instantiate_end(struct hook_call *call, int status, uint64_t instance)
{
	if (call->graph_tenant != NULL && status == CUDA_SUCCESS &&
	    (call->graph.bytes != 0 || call->graph.owner > LOCAL_FIRST_BYTES ||
	     call->graph.gaps != 0)) {
		call->graph.handle = instance;
		/* No memory for it: its needs are then charged when they have been met. */
		(void)table_put(&call->graph_tenant->table, &call->graph);
	}
	return local_end(call, status);
}

int graph_update_begin(struct hook_call *call, void *instance, void *graph)
{
	int status;

	call->graph = (struct table_entry){0};
	status = prepare(call, graph);
	call->graph.handle = (uint64_t)(uintptr_t)instance;
	return status;
}

int graph_update_end(struct hook_call *call, int status)
{
	struct table_entry old;

	if (call->graph_tenant != NULL && status == CUDA_SUCCESS)
		(void)table_take(&call->graph_tenant->table, TABLE_GRAPH, call->graph.handle, &old);
	return graph_instantiate_end(call, status, call->graph.handle);
}

/* One kernel of an instance is replaced. */
int graph_kernel_begin(struct hook_call *call, void *instance, const void *parameters)
{
	const struct cuda_kernel_node *kernel = parameters;
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
	if (bytes > entry.owner)
		entry.owner = bytes;
	call->graph_tenant = tenant;
	call->graph = entry;
	return local_begin(call, tenant, NULL, bytes);
}

int graph_node_set_begin(struct hook_call *call, void *instance, const void *parameters)
{
	const struct cuda_graph_node *node = parameters;

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

int graph_destroy_end(int status, void *instance)
{
	struct tenant *tenant = tenant_joined();
	struct table_entry entry;

	if (tenant != NULL && status == CUDA_SUCCESS)
		(void)table_take(&tenant->table, TABLE_GRAPH, (uint64_t)(uintptr_t)instance,
				 &entry);
	return pools_end(status);
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
	call->held = 0;
	call->pool = NULL;
	if (call->graph.bytes != 0 &&
	    !graph_memory_charge(call, tenant, (int)call->graph.card, call->graph.bytes,
				 call->graph.refs == GRAPH_NEW))
		return CUDA_ERROR_OUT_OF_MEMORY;

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
					.gaps = call->graph_tenant == NULL ? 0 : call->graph.gaps};

		gate_begin(call, tenant, launch, stream);
	}
	return status;
}

int graph_launch_end(struct hook_call *call, int status)
{
	struct tenant *tenant = call->graph_tenant;
	struct table_entry entry;

	gate_end(call);
	if (tenant == NULL)
		return pools_end(status);
	graph_memory_settle(tenant, call);
	if (status == CUDA_SUCCESS && call->graph.refs == GRAPH_NEW)
		(void)table_refer(&tenant->table, TABLE_GRAPH, call->graph.handle,
				  GRAPH_LAUNCHED - GRAPH_NEW, &entry);
	return pools_end(local_end(call, status));
}
