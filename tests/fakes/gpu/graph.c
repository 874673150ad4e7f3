/* SPDX-License-Identifier: Apache-2.0
 *
 * Graphs: nodes, instances, launches, and the memory of their allocation nodes.
 */
#include "graph.h"
#include "address.h"
#include "context.h"
#include "graph_memory.h"
#include "memory.h"
#include "module.h"
#include "stream.h"

#include <stdlib.h>
#include <string.h>

#define GRAPH_MAGIC 0x47524150
#define EXEC_MAGIC 0x47455845
#define INSTANTIATE_AUTO_FREE 1
#define INSTANTIATE_UPLOAD 2
#define INSTANTIATE_DEVICE_LAUNCH 4

struct node {
	enum graph_node_type type;
	struct graph *graph;
	uint64_t duration_ns;
	uint64_t local_bytes;
	CUfunction kernel; /* of a node made by hand or captured */
	uint64_t bytes;    /* of an allocation */
	CUdevice ordinal;  /* where it is to be */
	CUdeviceptr address;
	uint64_t region; /* of an allocation that this graph does not free: its number */
	const struct node *allocated; /* what a node frees, if this graph has allocated it */
	struct graph *child;
	struct graph *bodies[2]; /* of a conditional node */
	struct edge {
		struct node *node;
	} *after;
	size_t after_count;
	struct node *next;
};

struct exec;

struct graph {
	uint32_t magic;
	CUdevice ordinal;
	struct node *first;
	struct node **last;
	struct node *tail; /* of a capture: the newest node */
	unsigned int count;
	/* Where all its allocations lie. What is free at a node may be given again. */
	CUdeviceptr heap;
	uint64_t heap_bytes;
	struct exec *instance; /* of a graph that allocates there is one at most */
};

#define MOST_LEFT 64

/* What a launch needs to know of a graph: nodes may change afterwards. */
struct exec {
	uint32_t magic;
	CUdevice ordinal;
	struct graph *graph; /* NULL: destroyed, or it allocates nothing */
	uint64_t duration_ns;
	uint64_t kernels;
	uint64_t local_bytes;
	size_t disabled_count;
	const struct node *disabled[MOST_LEFT];
	bool frees_itself; /* what its last launch has left */
	struct graph_mapping mapping;
	size_t left_count; /* what a launch leaves allocated: numbers of regions */
	uint64_t left[MOST_LEFT];
	size_t freed_count; /* what it frees that others have left */
	uint64_t freed[MOST_LEFT];
};

static uint64_t captures;        /* begun so far; a capture's number */
static uint64_t broken;          /* captures up to this number are broken */
static unsigned int global_open; /* captures in mode GLOBAL that are under way */
static uint64_t execs;

enum capture_mode { CAPTURE_GLOBAL = 0, CAPTURE_THREAD_LOCAL = 1, CAPTURE_RELAXED = 2 };

static __thread int thread_mode = CAPTURE_GLOBAL;
static __thread unsigned int thread_open; /* captures that this thread began, not RELAXED */

/* --- nodes ---------------------------------------------------------------------------------- */

static bool graph_valid(const struct graph *graph)
{
	return graph != NULL && graph->magic == GRAPH_MAGIC;
}

static struct graph *new_graph(CUdevice ordinal)
{
	struct graph *graph = calloc(1, sizeof(*graph));

	if (graph == NULL)
		return NULL;
	graph->magic = GRAPH_MAGIC;
	graph->ordinal = ordinal;
	graph->last = &graph->first;
	return graph;
}

static struct node *add_node(struct graph *graph, enum graph_node_type type, uint64_t duration_ns,
			     struct node *const *after, size_t count)
{
	struct node *node = calloc(1, sizeof(*node));

	if (node == NULL)
		return NULL;
	node->after = calloc(count + 1, sizeof(*node->after));
	if (node->after == NULL) {
		free(node);
		return NULL;
	}
	for (; node->after_count < count; node->after_count++)
		node->after[node->after_count].node = after[node->after_count];
	node->type = type;
	node->graph = graph;
	node->duration_ns = duration_ns;
	*graph->last = node;
	graph->last = &node->next;
	graph->count++;
	return node;
}

/* --- addresses ------------------------------------------------------------------------------ */

static bool is_behind(const struct node *node, const struct node *before)
{
	if (node == before)
		return true;
	for (size_t i = 0; i < node->after_count; i++)
		if (is_behind(node->after[i].node, before))
			return true;
	return false;
}

/* Whether the graph has freed it when it comes to what stands behind those nodes. */
static bool is_freed(const struct node *allocation, struct node *const *after, size_t count)
{
	for (const struct node *node = allocation->graph->first; node != NULL; node = node->next)
		for (size_t i = 0; node->allocated == allocation && i < count; i++)
			if (is_behind(after[i], node))
				return true;
	return false;
}

/* Regions are made of granules. */
static uint64_t end_of(const struct node *node)
{
	return node->address + round_up(node->bytes, GRANULE_BYTES);
}

static const struct node *in_the_way(const struct graph *graph, CUdeviceptr start, uint64_t bytes,
				     struct node *const *after, size_t count)
{
	for (const struct node *node = graph->first; node != NULL; node = node->next)
		if (node->type == GRAPH_NODE_MEM_ALLOC && node->address < start + bytes &&
		    start < end_of(node) && !is_freed(node, after, count))
			return node;
	return NULL;
}

static CUdeviceptr heap_end(const struct graph *graph)
{
	CUdeviceptr end = round_up(graph->heap, GRAPH_BLOCK_BYTES);

	for (const struct node *node = graph->first; node != NULL; node = node->next)
		if (node->type == GRAPH_NODE_MEM_ALLOC && end_of(node) > end)
			end = end_of(node);
	return end;
}

/* The lowest place among the addresses given so far that is free at a node behind those, else the
 * end of them; 0: there is none. */
static CUdeviceptr find_place(struct graph *graph, uint64_t bytes, struct node *const *after,
			      size_t count)
{
	if (graph->heap == 0) {
		graph->heap_bytes =
			round_up(device_describe(graph->ordinal)->memory_bytes, GRAPH_BLOCK_BYTES) +
			GRAPH_BLOCK_BYTES;
		graph->heap = address_reserve(graph->heap_bytes);
		if (graph->heap == 0)
			return 0;
	}

	CUdeviceptr start = round_up(graph->heap, GRAPH_BLOCK_BYTES);
	const struct node *node;

	while ((node = in_the_way(graph, start, bytes, after, count)) != NULL)
		start = end_of(node);
	if (bytes > heap_end(graph) - start)
		start = heap_end(graph);
	return bytes <= graph->heap + graph->heap_bytes - start ? start : 0;
}

/* What the graph frees itself never outlives a launch. */
static void forget_region(struct node *node)
{
	struct region *region = node->region != 0 ? memory_by_number(node->region) : NULL;

	node->region = 0;
	if (region == NULL)
		return;
	region->orphaned = region->taken;
	if (!region->taken)
		memory_undescribe(region);
}

/* The address is fixed when the node is made; the memory comes at the first launch. */
static struct node *add_allocation(struct graph *graph, uint64_t bytes, struct node *const *after,
				   size_t count)
{
	CUdeviceptr address = bytes <= ADDRESS_BYTES ? find_place(graph, bytes, after, count) : 0;
	if (address == 0)
		return NULL;
	for (struct node *old = graph->first; old != NULL; old = old->next)
		if (old->type == GRAPH_NODE_MEM_ALLOC &&
		    old->address < address + round_up(bytes, GRANULE_BYTES) &&
		    address < end_of(old))
			forget_region(old);
	struct node *node = add_node(graph, GRAPH_NODE_MEM_ALLOC, 0, after, count);
	if (node == NULL)
		return NULL;
	const struct region *region = memory_describe(REGION_GRAPH, address, bytes, graph->ordinal);
	node->ordinal = graph->ordinal;
	node->bytes = bytes;
	node->address = address;
	node->region = region != NULL ? region->number : 0;
	return node;
}

static struct node *add_free(struct graph *graph, CUdeviceptr address, struct node *const *after,
			     size_t count)
{
	struct node *node = add_node(graph, GRAPH_NODE_MEM_FREE, 0, after, count);

	if (node == NULL)
		return NULL;
	node->address = address;
	for (const struct node *other = graph->first; other != NULL; other = other->next)
		if (other->type == GRAPH_NODE_MEM_ALLOC && other->address == address)
			node->allocated = other;
	return node;
}

/* Addresses at which something is left are not used again. */
static void drop_graph(struct graph *graph)
{
	bool is_left = false;

	while (graph->first != NULL) {
		struct node *node = graph->first;
		const struct region *region =
			node->region != 0 ? memory_by_number(node->region) : NULL;
		is_left |= region != NULL && region->taken;
		forget_region(node);
		graph->first = node->next;
		free(node->after);
		free(node);
	}
	if (graph->heap != 0 && !is_left)
		address_release(graph->heap, graph->heap_bytes);
	if (graph->instance != NULL)
		graph->instance->graph = NULL;
	graph->magic = 0;
	free(graph);
}

/* --- capture -------------------------------------------------------------------------------- */

/* What is captured stands behind what was captured before it, also where that was another stream.
 */
static struct node *capture_node(struct graph *graph, enum graph_node_type type,
				 uint64_t duration_ns)
{
	struct node *node = add_node(graph, type, duration_ns, &graph->tail, graph->tail != NULL);

	if (node != NULL)
		graph->tail = node;
	return node;
}

CUresult graph_capture(struct stream *stream, enum graph_node_type type, uint64_t duration_ns)
{
	if (stream->capture_number <= broken)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	return capture_node(stream->capture, type, duration_ns) != NULL ? CUDA_SUCCESS
									: CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult graph_capture_kernel(struct stream *stream, uint64_t duration_ns, CUfunction kernel)
{
	if (stream->capture_number <= broken)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	struct node *node = capture_node(stream->capture, GRAPH_NODE_KERNEL, duration_ns);
	if (node == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	node->kernel = kernel;
	node->local_bytes = kernel->local_bytes;
	return CUDA_SUCCESS;
}

CUresult graph_capture_allocation(struct stream *stream, uint64_t bytes, CUdeviceptr *address)
{
	struct graph *graph = stream->capture;
	if (stream->capture_number <= broken)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	struct node *node = add_allocation(graph, bytes, &graph->tail, graph->tail != NULL);
	if (node == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	graph->tail = node;
	*address = node->address;
	return CUDA_SUCCESS;
}

CUresult graph_capture_release(struct stream *stream, CUdeviceptr address)
{
	struct graph *graph = stream->capture;
	if (stream->capture_number <= broken)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	struct node *node = add_free(graph, address, &graph->tail, graph->tail != NULL);
	if (node == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	graph->tail = node;
	return CUDA_SUCCESS;
}

CUresult graph_join_capture(struct stream *stream, struct graph *capture, uint64_t number)
{
	if (number <= broken)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	stream->capture = capture;
	stream->capture_number = number;
	return CUDA_SUCCESS;
}

void graph_break_captures(void)
{
	broken = captures;
}

CUresult graph_check_unsafe(void)
{
	DRIVER_LOCKED();
	return graph_check_unsafe_locked();
}

CUresult graph_check_unsafe_locked(void)
{
	if (thread_mode == CAPTURE_RELAXED)
		return CUDA_SUCCESS;
	if (thread_open == 0 && (thread_mode == CAPTURE_THREAD_LOCAL || global_open == 0))
		return CUDA_SUCCESS;
	graph_break_captures();
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static CUresult begin_capture(const char *function, bool per_thread, CUstream handle, int mode)
{
	struct context *context = NULL;
	CUresult status = enter_context(function, mode >= 0 && mode <= 2, &context);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	struct stream *stream = stream_find(context, handle, per_thread);
	if (stream == NULL)
		return CUDA_ERROR_INVALID_HANDLE;
	if (stream == context->legacy)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (stream->capture != NULL)
		return CUDA_ERROR_ILLEGAL_STATE;
	stream->capture = new_graph(context->ordinal);
	if (stream->capture == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	stream->capture_number = ++captures;
	stream->capture_origin = true;
	stream->capture_mode = mode;
	if (mode == CAPTURE_GLOBAL)
		global_open++;
	if (mode != CAPTURE_RELAXED)
		thread_open++;
	return CUDA_SUCCESS;
}

STREAM_API(cuStreamBeginCapture_v2, _ptsz, (CUstream handle, int mode), begin_capture, handle, mode)

static CUresult begin_capture_v1(const char *function, bool per_thread, CUstream handle)
{
	return begin_capture(function, per_thread, handle, CAPTURE_GLOBAL);
}

STREAM_API(cuStreamBeginCapture, _ptsz, (CUstream handle), begin_capture_v1, handle)

static CUresult end_capture(const char *function, bool per_thread, CUstream handle,
			    struct graph **out)
{
	struct context *context = NULL;
	CUresult status = enter_context(function, out != NULL, &context);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	struct stream *stream = stream_find(context, handle, per_thread);
	if (stream == NULL)
		return CUDA_ERROR_INVALID_HANDLE;
	if (stream->capture == NULL)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (!stream->capture_origin)
		return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
	struct graph *graph = stream->capture;
	uint64_t number = stream->capture_number;
	if (stream->capture_mode == CAPTURE_GLOBAL)
		global_open--;
	if (stream->capture_mode != CAPTURE_RELAXED && thread_open > 0)
		thread_open--;
	for (struct stream *s = context->streams; s != NULL; s = s->next)
		if (s->capture == graph)
			s->capture = NULL;
	stream->capture_origin = false;
	if (number <= broken) {
		*out = NULL;
		drop_graph(graph);
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	}
	*out = graph;
	return CUDA_SUCCESS;
}

STREAM_API(cuStreamEndCapture, _ptsz, (CUstream handle, struct graph **out), end_capture, handle,
	   out)

/* 0 none, 1 active, 2 broken */
static int capture_state(const struct stream *stream)
{
	if (stream->capture == NULL)
		return 0;
	return stream->capture_number <= broken ? 2 : 1;
}

static CUresult is_capturing(const char *function, bool per_thread, CUstream handle, int *out)
{
	struct context *context = NULL;
	CUresult status = enter_context(function, out != NULL, &context);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	const struct stream *stream = stream_find(context, handle, per_thread);
	if (stream == NULL)
		return CUDA_ERROR_INVALID_HANDLE;
	for (const struct stream *s = context->streams; s != NULL; s = s->next)
		if (stream == context->legacy && s->capture != NULL &&
		    (s->flags & CU_STREAM_NON_BLOCKING) == 0)
			return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	*out = capture_state(stream);
	return CUDA_SUCCESS;
}

STREAM_API(cuStreamIsCapturing, _ptsz, (CUstream handle, int *out), is_capturing, handle, out)

static CUresult capture_info(const char *function, bool per_thread, CUstream handle, int *out,
			     unsigned long long *number, struct graph **graph)
{
	struct context *context = NULL;
	CUresult status = enter_context(function, out != NULL, &context);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	const struct stream *stream = stream_find(context, handle, per_thread);
	if (stream == NULL)
		return CUDA_ERROR_INVALID_HANDLE;
	*out = capture_state(stream);
	if (number != NULL && *out == 1)
		*number = stream->capture_number;
	if (graph != NULL && *out == 1)
		*graph = stream->capture;
	return CUDA_SUCCESS;
}

static CUresult capture_info_v1(const char *function, bool per_thread, CUstream handle, int *out,
				unsigned long long *number)
{
	return capture_info(function, per_thread, handle, out, number, NULL);
}

STREAM_API(cuStreamGetCaptureInfo, _ptsz, (CUstream handle, int *out, unsigned long long *number),
	   capture_info_v1, handle, out, number)

static CUresult capture_info_v2(const char *function, bool per_thread, CUstream handle, int *out,
				unsigned long long *number, struct graph **graph,
				const void **dependencies, size_t *count)
{
	if (dependencies != NULL)
		*dependencies = NULL;
	if (count != NULL)
		*count = 0;
	return capture_info(function, per_thread, handle, out, number, graph);
}

STREAM_API(cuStreamGetCaptureInfo_v2, _ptsz,
	   (CUstream handle, int *out, unsigned long long *number, struct graph **graph,
	    const void **dependencies, size_t *count),
	   capture_info_v2, handle, out, number, graph, dependencies, count)

CUDA_API(cuThreadExchangeStreamCaptureMode, (int *mode))
{
	CUresult status = enter(__func__, mode != NULL && *mode >= 0 && *mode <= 2);

	if (status != CUDA_SUCCESS)
		return status;
	int before = thread_mode;
	thread_mode = *mode;
	*mode = before;
	return CUDA_SUCCESS;
}

/* --- making graphs by hand ------------------------------------------------------------------ */

CUDA_API(cuGraphCreate, (struct graph * *out, unsigned int flags))
{
	const struct context *context = context_current();
	CUresult status = enter(__func__, out != NULL && flags == 0);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	*out = new_graph(context != NULL ? context->ordinal : 0);
	return *out != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUDA_API(cuGraphDestroy, (struct graph * graph))
{
	CUresult status = enter(__func__, graph_valid(graph));
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	drop_graph(graph);
	return CUDA_SUCCESS;
}

#define DEPENDENCIES struct node **out, struct graph *graph, struct node *const *after, size_t count
#define DEPEND out, graph, after, count

static CUresult add(const char *function, DEPENDENCIES, enum graph_node_type type,
		    uint64_t duration_ns)
{
	CUresult status =
		enter(function, out != NULL && graph_valid(graph) && (after != NULL || count == 0));
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	*out = add_node(graph, type, duration_ns, after, count);
	return *out != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

struct kernel_parameters {
	CUfunction function;
	unsigned int grid[3];
	unsigned int block[3];
	unsigned int shared_bytes;
	void **parameters;
	void **extra;
	/* from version 2 on */
	CUfunction kernel;
	CUcontext context;
};

static CUresult add_kernel(const char *function, DEPENDENCIES,
			   const struct kernel_parameters *parameters, CUfunction kernel)
{
	if (parameters == NULL || !function_valid(kernel))
		return enter(function, false);
	CUresult status = add(function, DEPEND, GRAPH_NODE_KERNEL,
			      function_duration_ns(kernel, parameters->parameters));
	if (status == CUDA_SUCCESS) {
		(*out)->kernel = kernel;
		(*out)->local_bytes = kernel->local_bytes;
	}
	return status;
}

CUDA_API(cuGraphAddKernelNode, (DEPENDENCIES, const struct kernel_parameters *parameters))
{
	return add_kernel(__func__, DEPEND, parameters,
			  parameters != NULL ? parameters->function : NULL);
}

static CUfunction kernel_of(const struct kernel_parameters *parameters)
{
	if (parameters == NULL)
		return NULL;
	return parameters->function != NULL ? parameters->function : parameters->kernel;
}

CUDA_API(cuGraphAddKernelNode_v2, (DEPENDENCIES, const struct kernel_parameters *parameters))
{
	return add_kernel(__func__, DEPEND, parameters, kernel_of(parameters));
}

CUDA_API(cuGraphAddEmptyNode, (DEPENDENCIES))
{
	return add(__func__, DEPEND, GRAPH_NODE_EMPTY, 0);
}

CUDA_API(cuGraphAddHostNode, (DEPENDENCIES, const void *parameters))
{
	(void)parameters;
	return add(__func__, DEPEND, GRAPH_NODE_HOST, 0);
}

CUDA_API(cuGraphAddMemcpyNode, (DEPENDENCIES, const void *parameters, CUcontext context))
{
	(void)parameters;
	(void)context;
	return add(__func__, DEPEND, GRAPH_NODE_MEMCPY, 0);
}

CUDA_API(cuGraphAddMemsetNode, (DEPENDENCIES, const void *parameters, CUcontext context))
{
	(void)parameters;
	(void)context;
	return add(__func__, DEPEND, GRAPH_NODE_MEMSET, 0);
}

static bool allocates(const struct graph *graph)
{
	for (const struct node *node = graph->first; node != NULL; node = node->next)
		if (node->type == GRAPH_NODE_MEM_ALLOC || node->type == GRAPH_NODE_MEM_FREE ||
		    (node->child != NULL && allocates(node->child)))
			return true;
	return false;
}

#define OWNERSHIP_MOVE 1

/* Not cloned, as a driver does: the child is what it was when the instance is made. */
static CUresult add_child(const char *function, DEPENDENCIES, struct graph *child, bool moved)
{
	if (!graph_valid(child))
		return enter(function, false);
	if (!moved && allocates(child))
		return CUDA_ERROR_NOT_SUPPORTED;
	CUresult status = add(function, DEPEND, GRAPH_NODE_GRAPH, 0);
	if (status == CUDA_SUCCESS)
		(*out)->child = child;
	return status;
}

CUDA_API(cuGraphAddChildGraphNode, (DEPENDENCIES, struct graph *child))
{
	return add_child(__func__, DEPEND, child, false);
}

struct allocation_parameters {
	unsigned char pool_properties[88];
	const void *access;
	size_t access_count;
	size_t bytes;
	CUdeviceptr address; /* out */
};

#define LOCATION_ID 12

static CUresult add_allocation_node(const char *function, DEPENDENCIES,
				    struct allocation_parameters *parameters)
{
	CUresult status =
		enter(function, out != NULL && graph_valid(graph) && parameters != NULL &&
					(after != NULL || count == 0) && parameters->bytes != 0);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	int ordinal = 0;
	memcpy(&ordinal, &parameters->pool_properties[LOCATION_ID], sizeof(ordinal));
	if (!device_valid(ordinal))
		return CUDA_ERROR_INVALID_VALUE;
	if (graph->heap == 0)
		graph->ordinal = ordinal; /* one for all of it, whatever the others ask for */
	*out = add_allocation(graph, parameters->bytes, after, count);
	if (*out == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*out)->ordinal = ordinal;
	parameters->address = (*out)->address;
	return CUDA_SUCCESS;
}

CUDA_API(cuGraphAddMemAllocNode, (DEPENDENCIES, struct allocation_parameters *parameters))
{
	return add_allocation_node(__func__, DEPEND, parameters);
}

static CUresult add_free_node(const char *function, DEPENDENCIES, CUdeviceptr address)
{
	CUresult status =
		enter(function, out != NULL && graph_valid(graph) && (after != NULL || count == 0));
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	*out = add_free(graph, address, after, count);
	return *out != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUDA_API(cuGraphAddMemFreeNode, (DEPENDENCIES, CUdeviceptr address))
{
	return add_free_node(__func__, DEPEND, address);
}

struct node_parameters {
	int type;
	int reserved[3];
	union {
		struct kernel_parameters kernel;
		struct allocation_parameters allocation;
		CUdeviceptr address;
		struct {
			struct graph *graph;
			int ownership;
		} child;
		struct conditional_parameters {
			unsigned long long handle;
			int kind;
			unsigned int count;
			struct graph **bodies; /* out */
			CUcontext context;
		} conditional;
		long long size[29];
	} of;
	long long end;
};

static CUresult add_conditional(const char *function, DEPENDENCIES,
				struct conditional_parameters *parameters)
{
	if (parameters->count == 0 || parameters->count > 2)
		return enter(function, false);
	CUresult status = add(function, DEPEND, GRAPH_NODE_CONDITIONAL, 0);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	for (unsigned int i = 0; i < parameters->count; i++)
		(*out)->bodies[i] = new_graph(graph->ordinal);
	parameters->bodies = (*out)->bodies;
	return CUDA_SUCCESS;
}

static CUresult add_any(const char *function, DEPENDENCIES, struct node_parameters *parameters)
{
	if (parameters == NULL)
		return enter(function, false);
	switch (parameters->type) {
	case GRAPH_NODE_KERNEL:
		return add_kernel(function, DEPEND, &parameters->of.kernel,
				  kernel_of(&parameters->of.kernel));
	case GRAPH_NODE_MEM_ALLOC:
		return add_allocation_node(function, DEPEND, &parameters->of.allocation);
	case GRAPH_NODE_MEM_FREE:
		return add_free_node(function, DEPEND, parameters->of.address);
	case GRAPH_NODE_CONDITIONAL:
		return add_conditional(function, DEPEND, &parameters->of.conditional);
	case GRAPH_NODE_GRAPH:
		return add_child(function, DEPEND, parameters->of.child.graph,
				 parameters->of.child.ownership == OWNERSHIP_MOVE);
	case GRAPH_NODE_EMPTY:
	case GRAPH_NODE_MEMCPY:
	case GRAPH_NODE_MEMSET:
	case GRAPH_NODE_HOST:
		return add(function, DEPEND, (enum graph_node_type)parameters->type, 0);
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

CUDA_API(cuGraphAddNode, (DEPENDENCIES, struct node_parameters *parameters))
{
	return add_any(__func__, DEPEND, parameters);
}

CUDA_API(cuGraphAddNode_v2, (struct node * *out, struct graph *graph, struct node *const *after,
			     const void *edges, size_t count, struct node_parameters *parameters))
{
	(void)edges;
	return add_any(__func__, DEPEND, parameters);
}

static bool add_dependency(struct node *node, struct node *before)
{
	struct edge *longer = realloc(node->after, (node->after_count + 1) * sizeof(*longer));

	if (longer == NULL)
		return false;
	node->after = longer;
	node->after[node->after_count++].node = before;
	return true;
}

CUDA_API(cuGraphAddDependencies,
	 (struct graph * graph, struct node *const *from, struct node *const *to, size_t count))
{
	CUresult status =
		enter(__func__, graph_valid(graph) && ((from != NULL && to != NULL) || count == 0));
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	for (size_t i = 0; i < count; i++)
		if (!add_dependency(to[i], from[i]))
			return CUDA_ERROR_OUT_OF_MEMORY;
	return CUDA_SUCCESS;
}

CUDA_API(cuGraphGetNodes, (struct graph * graph, struct node **out, size_t *count))
{
	CUresult status = enter(__func__, graph_valid(graph) && count != NULL);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	size_t written = 0;
	for (struct node *node = graph->first; out != NULL && node != NULL && written < *count;
	     node = node->next)
		out[written++] = node;
	*count = out != NULL ? written : graph->count;
	return CUDA_SUCCESS;
}

CUDA_API(cuGraphNodeGetDependencies, (struct node * node, struct node **out, size_t *count))
{
	CUresult status = enter(__func__, node != NULL && out == NULL && count != NULL);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	*count = node->after_count;
	return CUDA_SUCCESS;
}

CUDA_API(cuGraphNodeGetDependentNodes, (struct node * node, struct node **out, size_t *count))
{
	CUresult status = enter(__func__, node != NULL && out == NULL && count != NULL);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	*count = 0;
	for (const struct node *other = node->graph->first; other != NULL; other = other->next)
		for (size_t i = 0; i < other->after_count; i++)
			*count += other->after[i].node == node;
	return CUDA_SUCCESS;
}

CUDA_API(cuGraphNodeGetType, (struct node * node, int *out))
{
	CUresult status = enter(__func__, node != NULL && out != NULL);

	if (status == CUDA_SUCCESS)
		*out = (int)node->type;
	return status;
}

static CUresult enter_node(const char *function, const struct node *node, enum graph_node_type type,
			   const void *out)
{
	return enter(function, out != NULL && node != NULL && node->type == type);
}

static CUresult get_kernel(const char *function, const struct node *node,
			   struct kernel_parameters *out, size_t bytes)
{
	CUresult status = enter_node(function, node, GRAPH_NODE_KERNEL, out);
	if (status != CUDA_SUCCESS)
		return status;
	const struct kernel_parameters parameters = {
		.function = node->kernel, .grid = {1, 1, 1}, .block = {1, 1, 1}};
	memcpy(out, &parameters, bytes);
	return CUDA_SUCCESS;
}

CUDA_API(cuGraphKernelNodeGetParams, (struct node * node, struct kernel_parameters *out))
{
	return get_kernel(__func__, node, out, offsetof(struct kernel_parameters, kernel));
}

CUDA_API(cuGraphKernelNodeGetParams_v2, (struct node * node, struct kernel_parameters *out))
{
	return get_kernel(__func__, node, out, sizeof(*out));
}

CUDA_API(cuGraphMemAllocNodeGetParams, (struct node * node, struct allocation_parameters *out))
{
	const int properties[] = {1, 0, 1, node != NULL ? node->ordinal : 0};
	CUresult status = enter_node(__func__, node, GRAPH_NODE_MEM_ALLOC, out);
	if (status != CUDA_SUCCESS)
		return status;
	*out = (struct allocation_parameters){.bytes = node->bytes, .address = node->address};
	memcpy(out->pool_properties, properties, sizeof(properties));
	return CUDA_SUCCESS;
}

CUDA_API(cuGraphMemFreeNodeGetParams, (struct node * node, CUdeviceptr *out))
{
	CUresult status = enter_node(__func__, node, GRAPH_NODE_MEM_FREE, out);

	if (status == CUDA_SUCCESS)
		*out = node->address;
	return status;
}

CUDA_API(cuGraphChildGraphNodeGetGraph, (struct node * node, struct graph **out))
{
	CUresult status = enter_node(__func__, node, GRAPH_NODE_GRAPH, (const void *)out);

	if (status == CUDA_SUCCESS)
		*out = node->child;
	return status;
}

/* --- running -------------------------------------------------------------------------------- */

static bool frees(const struct graph *graph, const struct node *allocation)
{
	for (const struct node *node = graph->first; node != NULL; node = node->next)
		if (node->allocated == allocation)
			return true;
	return false;
}

static void note(uint64_t *list, size_t *count, uint64_t region)
{
	if (region != 0 && *count < MOST_LEFT)
		list[(*count)++] = region;
}

/* A block behind every part of the addresses that an allocation lies in. */
static size_t blocks_of(const struct graph *graph)
{
	size_t count = 0;

	for (uint64_t block = 0; block * GRAPH_BLOCK_BYTES < graph->heap_bytes; block++) {
		CUdeviceptr start =
			round_up(graph->heap, GRAPH_BLOCK_BYTES) + block * GRAPH_BLOCK_BYTES;
		const struct node *node = graph->first;

		while (node != NULL &&
		       (node->type != GRAPH_NODE_MEM_ALLOC ||
			node->address >= start + GRAPH_BLOCK_BYTES || end_of(node) <= start))
			node = node->next;
		count += node != NULL;
	}
	return count;
}

static void read_graph(struct exec *exec, const struct graph *graph)
{
	exec->mapping.count += blocks_of(graph);
	for (const struct node *node = graph->first; node != NULL; node = node->next) {
		exec->duration_ns += node->duration_ns;
		exec->kernels += node->type == GRAPH_NODE_KERNEL;
		if (node->type == GRAPH_NODE_MEM_ALLOC && !frees(graph, node))
			note(exec->left, &exec->left_count, node->region);
		if (node->type == GRAPH_NODE_MEM_FREE && node->allocated == NULL) {
			const struct region *region = memory_find(node->address);
			if (region != NULL)
				note(exec->freed, &exec->freed_count, region->number);
		}
		if (node->local_bytes > exec->local_bytes)
			exec->local_bytes = node->local_bytes;
		if (node->child != NULL) {
			read_graph(exec, node->child);
			exec->mapping.count += allocates(node->child); /* one more (measured) */
		}
		/* As if each of them runs once. */
		for (int i = 0; i < 2; i++)
			if (node->bodies[i] != NULL)
				read_graph(exec, node->bodies[i]);
	}
}

static bool has_allocating_body(const struct graph *graph)
{
	for (const struct node *node = graph->first; node != NULL; node = node->next)
		for (int i = 0; i < 2; i++)
			if (node->bodies[i] != NULL && allocates(node->bodies[i]))
				return true;
	return false;
}

/* Of what a graph says now; NULL: no memory of the machine. */
static struct exec *make_exec(struct graph *graph)
{
	struct exec *exec = calloc(1, sizeof(*exec));

	if (exec == NULL)
		return NULL;
	exec->magic = EXEC_MAGIC;
	exec->ordinal = graph->ordinal;
	read_graph(exec, graph);
	exec->mapping.block = calloc(exec->mapping.count + 1, sizeof(*exec->mapping.block));
	if (exec->mapping.block == NULL) {
		free(exec);
		return NULL;
	}
	exec->mapping.owner = ++execs;
	return exec;
}

static CUresult instantiate(const char *function, struct exec **out, struct graph *graph,
			    uint64_t flags)
{
	CUresult status = enter_unsafe(function, out != NULL && graph_valid(graph));
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	if (graph->instance != NULL)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (has_allocating_body(graph) ||
	    (allocates(graph) && (flags & INSTANTIATE_DEVICE_LAUNCH) != 0))
		return CUDA_ERROR_INVALID_VALUE;
	struct exec *exec = make_exec(graph);
	if (exec == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	exec->frees_itself = (flags & INSTANTIATE_AUTO_FREE) != 0;
	if (allocates(graph)) {
		graph->instance = exec;
		exec->graph = graph;
	}
	*out = exec;
	return CUDA_SUCCESS;
}

static CUresult instantiate_old(const char *function, struct exec **out, struct graph *graph,
				struct node **failed, const char *log, size_t length)
{
	(void)failed;
	(void)log;
	(void)length;
	return instantiate(function, out, graph, 0);
}

CUDA_API(cuGraphInstantiate,
	 (struct exec * *out, struct graph *graph, struct node **failed, char *log, size_t length))
{
	return instantiate_old(__func__, out, graph, failed, log, length);
}

CUDA_API(cuGraphInstantiate_v2,
	 (struct exec * *out, struct graph *graph, struct node **failed, char *log, size_t length))
{
	return instantiate_old(__func__, out, graph, failed, log, length);
}

CUDA_API(cuGraphInstantiateWithFlags,
	 (struct exec * *out, struct graph *graph, unsigned long long flags))
{
	return instantiate(__func__, out, graph, flags);
}

static bool exec_valid(const struct exec *exec)
{
	return exec != NULL && exec->magic == EXEC_MAGIC;
}

CUDA_API(cuGraphExecDestroy, (struct exec * exec))
{
	CUresult status = enter_unsafe(__func__, exec_valid(exec));
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	if (exec->graph != NULL)
		exec->graph->instance = NULL;
	exec->magic = 0;
	free(exec->mapping.block);
	free(exec);
	return CUDA_SUCCESS;
}

/* Both versions: afterwards the instance runs what the graph says now. */
static CUresult update(const char *function, struct exec *exec, struct graph *graph)
{
	CUresult status = enter(function, exec_valid(exec) && graph_valid(graph));
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	struct exec *fresh = make_exec(graph);
	if (fresh == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	fresh->graph = exec->graph;
	fresh->frees_itself = exec->frees_itself;
	free(exec->mapping.block);
	*exec = *fresh;
	free(fresh);
	return CUDA_SUCCESS;
}

CUDA_API(cuGraphExecUpdate,
	 (struct exec * exec, struct graph *graph, struct node **failed, int *result))
{
	if (failed != NULL)
		*failed = NULL;
	if (result != NULL)
		*result = 0;
	return update(__func__, exec, graph);
}

struct update_result {
	int result;
	struct node *failed;
	struct node *failed_from;
};

CUDA_API(cuGraphExecUpdate_v2,
	 (struct exec * exec, struct graph *graph, struct update_result *result))
{
	if (result != NULL)
		*result = (struct update_result){.result = 0};
	return update(__func__, exec, graph);
}

/* One kernel of an instance is replaced by another. */
static CUresult set_kernel(const char *function, struct exec *exec, const struct node *node,
			   const struct kernel_parameters *parameters)
{
	CUfunction kernel = kernel_of(parameters);
	CUresult status =
		enter(function, exec_valid(exec) && node != NULL && function_valid(kernel));
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	if (kernel->local_bytes > exec->local_bytes)
		exec->local_bytes = kernel->local_bytes;
	return CUDA_SUCCESS;
}

CUDA_API(cuGraphExecKernelNodeSetParams,
	 (struct exec * exec, struct node *node, const struct kernel_parameters *parameters))
{
	return set_kernel(__func__, exec, node, parameters);
}

CUDA_API(cuGraphExecKernelNodeSetParams_v2,
	 (struct exec * exec, struct node *node, const struct kernel_parameters *parameters))
{
	return set_kernel(__func__, exec, node, parameters);
}

CUDA_API(cuGraphExecNodeSetParams,
	 (struct exec * exec, struct node *node, struct node_parameters *parameters))
{
	if (parameters == NULL || parameters->type != GRAPH_NODE_KERNEL)
		return enter(__func__, false);
	return set_kernel(__func__, exec, node, &parameters->of.kernel);
}

static const struct node **find_disabled(struct exec *exec, const struct node *node)
{
	for (size_t i = 0; i < exec->disabled_count; i++)
		if (exec->disabled[i] == node)
			return &exec->disabled[i];
	return NULL;
}

static CUresult enter_enabled(const char *function, const struct exec *exec,
			      const struct node *node)
{
	return enter(function,
		     exec_valid(exec) && node != NULL &&
			     (node->type == GRAPH_NODE_KERNEL || node->type == GRAPH_NODE_MEMCPY ||
			      node->type == GRAPH_NODE_MEMSET));
}

CUDA_API(cuGraphNodeGetEnabled, (struct exec * exec, struct node *node, unsigned int *out))
{
	CUresult status = enter_enabled(__func__, out != NULL ? exec : NULL, node);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	*out = find_disabled(exec, node) == NULL;
	return CUDA_SUCCESS;
}

CUDA_API(cuGraphNodeSetEnabled, (struct exec * exec, struct node *node, unsigned int enabled))
{
	CUresult status = enter_enabled(__func__, exec, node);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	const struct node **place = find_disabled(exec, node);
	if ((place == NULL) == (enabled != 0))
		return CUDA_SUCCESS;
	if (place != NULL) {
		*place = exec->disabled[--exec->disabled_count];
		exec->duration_ns += node->duration_ns;
	} else if (exec->disabled_count < MOST_LEFT) {
		exec->disabled[exec->disabled_count++] = node;
		exec->duration_ns -= node->duration_ns;
	}
	return CUDA_SUCCESS;
}

static bool is_held(const struct exec *exec)
{
	for (size_t i = 0; i < exec->left_count; i++) {
		const struct region *region = memory_by_number(exec->left[i]);
		if (region != NULL && region->taken)
			return true;
	}
	return false;
}

static void hold(const struct exec *exec)
{
	for (size_t i = 0; i < exec->left_count; i++) {
		struct region *region = memory_by_number(exec->left[i]);
		if (region == NULL)
			continue;
		region->taken = true;
		region->holder = exec->mapping.owner;
	}
}

CUresult graph_free(struct region *region, const struct stream *stream)
{
	uint64_t holder = region->holder;
	CUdevice ordinal = region->ordinal;

	if (!region->taken)
		return CUDA_ERROR_INVALID_VALUE;
	region->taken = false;
	region->holder = 0;
	if (region->orphaned)
		memory_undescribe(region);
	if (!memory_is_held_by(holder))
		graph_memory_free(ordinal, holder, stream);
	return CUDA_SUCCESS;
}

static void free_others(const struct exec *exec, const struct stream *stream)
{
	for (size_t i = 0; i < exec->freed_count; i++) {
		struct region *region = memory_by_number(exec->freed[i]);
		if (region != NULL && region->taken)
			(void)graph_free(region, stream);
	}
}

static CUresult launch(const char *function, bool per_thread, struct exec *exec, CUstream handle,
		       bool run)
{
	struct context *context = NULL;
	CUresult status = enter_context(function, exec_valid(exec), &context);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	struct stream *stream = stream_find(context, handle, per_thread);
	if (stream == NULL)
		return CUDA_ERROR_INVALID_HANDLE;
	if (stream->capture != NULL)
		return graph_capture(stream, GRAPH_NODE_GRAPH, exec->duration_ns);
	if (run && is_held(exec) && !exec->frees_itself)
		return CUDA_ERROR_INVALID_VALUE;
	if (!graph_memory_map(exec->ordinal, &exec->mapping, stream) ||
	    !context_reserve_local(context, exec->local_bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!run)
		return CUDA_SUCCESS;
	uint64_t end_ns = stream_submit(stream, exec->duration_ns, exec->kernels > 0);
	graph_memory_use(exec->ordinal, &exec->mapping, stream, end_ns, exec->left_count != 0);
	hold(exec);
	free_others(exec, stream);
	return CUDA_SUCCESS;
}

static CUresult launch_graph(const char *function, bool per_thread, struct exec *exec,
			     CUstream handle)
{
	return launch(function, per_thread, exec, handle, true);
}

STREAM_API(cuGraphLaunch, _ptsz, (struct exec * exec, CUstream handle), launch_graph, exec, handle)

static CUresult upload_graph(const char *function, bool per_thread, struct exec *exec,
			     CUstream handle)
{
	return launch(function, per_thread, exec, handle, false);
}

STREAM_API(cuGraphUpload, _ptsz, (struct exec * exec, CUstream handle), upload_graph, exec, handle)

struct instantiate_parameters {
	uint64_t flags;
	CUstream upload;
	struct node *failed;
	int result;
};

static CUresult instantiate_with(const char *function, bool per_thread, struct exec **out,
				 struct graph *graph, struct instantiate_parameters *parameters)
{
	CUresult status = instantiate(function, parameters != NULL ? out : NULL, graph,
				      parameters != NULL ? parameters->flags : 0);
	if (status == CUDA_SUCCESS && (parameters->flags & INSTANTIATE_UPLOAD) != 0)
		status = launch(function, per_thread, *out, parameters->upload, false);
	if (parameters != NULL) {
		parameters->failed = NULL;
		parameters->result = status != CUDA_SUCCESS;
	}
	return status;
}

STREAM_API(cuGraphInstantiateWithParams, _ptsz,
	   (struct exec * *out, struct graph *graph, struct instantiate_parameters *parameters),
	   instantiate_with, out, graph, parameters)

void graph_forget_context(const struct context *context)
{
	if (context->primary)
		graph_memory_trim(context->ordinal, true);
}
