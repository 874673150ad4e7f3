/* SPDX-License-Identifier: Apache-2.0
 *
 * Graphs: nodes, instances, launches, and the memory of their allocation nodes.
 */
#include "graph.h"
#include "address.h"
#include "context.h"
#include "memory.h"
#include "module.h"
#include "stream.h"

#include <stdlib.h>
#include <string.h>

#define GRAPH_MAGIC 0x47524150
#define EXEC_MAGIC 0x47455845
#define POOL_STEP_BYTES (32 * MIB)

struct node {
	enum graph_node_type type;
	struct graph *graph;
	uint64_t duration_ns;
	uint64_t local_bytes;
	CUfunction kernel; /* of a node made by hand or captured */
	uint64_t bytes;    /* of an allocation */
	CUdeviceptr address;
	struct graph *child;
	struct graph *bodies[2]; /* of a conditional node */
	bool is_captured;
	struct node *next;
};

struct graph {
	uint32_t magic;
	CUdevice ordinal;
	struct node *first;
	struct node **last;
	unsigned int count;
};

#define MOST_LEFT 64

/* What a launch needs to know of a graph: nodes may change afterwards. */
struct exec {
	uint32_t magic;
	CUdevice ordinal;
	uint64_t duration_ns;
	uint64_t kernels;
	uint64_t local_bytes;
	uint64_t held_bytes; /* allocated and not yet freed, while the nodes are read */
	uint64_t allocated_bytes;
	uint64_t number;
	size_t left_count; /* what a launch leaves allocated: numbers of regions */
	uint64_t left[MOST_LEFT];
};

/* The graph memory of one device. What a graph frees itself the next launch may have; what it
 * leaves allocated stays its own until the program frees it. */
static struct {
	uint64_t used_bytes;
	uint64_t used_high_bytes;
	uint64_t reserved_bytes;
	uint64_t reserved_high_bytes;
} graph_memory[FAKE_MAX_CARDS];

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

static struct node *add_node(struct graph *graph, enum graph_node_type type, uint64_t duration_ns)
{
	struct node *node = calloc(1, sizeof(*node));

	if (node == NULL)
		return NULL;
	node->type = type;
	node->graph = graph;
	node->duration_ns = duration_ns;
	*graph->last = node;
	graph->last = &node->next;
	graph->count++;
	return node;
}

/* The address is fixed when the node is made; the memory comes at the first launch. */
static struct node *add_allocation(struct graph *graph, uint64_t bytes)
{
	CUdeviceptr address = address_reserve(bytes);
	if (address == 0)
		return NULL;
	struct node *node = add_node(graph, GRAPH_NODE_MEM_ALLOC, 0);
	if (node == NULL || memory_describe(REGION_GRAPH, address, bytes, graph->ordinal) == NULL) {
		address_release(address, bytes);
		return NULL;
	}
	node->bytes = bytes;
	node->address = address;
	return node;
}

static void drop_graph(struct graph *graph)
{
	while (graph->first != NULL) {
		struct node *node = graph->first;
		graph->first = node->next;
		struct region *region =
			node->type == GRAPH_NODE_MEM_ALLOC ? memory_find(node->address) : NULL;
		if (region != NULL && region->kind == REGION_GRAPH) {
			region->orphaned = region->taken;
			if (!region->taken)
				memory_release(region);
		}
		free(node);
	}
	graph->magic = 0;
	free(graph);
}

/* --- capture -------------------------------------------------------------------------------- */

CUresult graph_capture(struct stream *stream, enum graph_node_type type, uint64_t duration_ns)
{
	if (stream->capture_number <= broken)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	return add_node(stream->capture, type, duration_ns) != NULL ? CUDA_SUCCESS
								    : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult graph_capture_kernel(struct stream *stream, uint64_t duration_ns, CUfunction kernel)
{
	if (stream->capture_number <= broken)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	struct node *node = add_node(stream->capture, GRAPH_NODE_KERNEL, duration_ns);
	if (node == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	node->kernel = kernel;
	node->local_bytes = kernel->local_bytes;
	node->is_captured = true;
	return CUDA_SUCCESS;
}

CUresult graph_capture_allocation(struct stream *stream, uint64_t bytes, CUdeviceptr *address)
{
	if (stream->capture_number <= broken)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	const struct node *node = add_allocation(stream->capture, bytes);
	if (node == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*address = node->address;
	return CUDA_SUCCESS;
}

CUresult graph_capture_release(struct stream *stream, CUdeviceptr address)
{
	if (stream->capture_number <= broken)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	struct node *node = add_node(stream->capture, GRAPH_NODE_MEM_FREE, 0);
	if (node == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	node->address = address;
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
	if (thread_mode == CAPTURE_RELAXED)
		return CUDA_SUCCESS;
	DRIVER_LOCKED();
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

static CUresult add(const char *function, struct node **out, struct graph *graph,
		    enum graph_node_type type, uint64_t duration_ns)
{
	CUresult status = enter(function, out != NULL && graph_valid(graph));
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	*out = add_node(graph, type, duration_ns);
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

static CUresult add_kernel(const char *function, struct node **out, struct graph *graph,
			   const struct kernel_parameters *parameters, CUfunction kernel)
{
	if (parameters == NULL || !function_valid(kernel))
		return enter(function, false);
	CUresult status = add(function, out, graph, GRAPH_NODE_KERNEL,
			      function_duration_ns(kernel, parameters->parameters));
	if (status == CUDA_SUCCESS) {
		(*out)->kernel = kernel;
		(*out)->local_bytes = kernel->local_bytes;
	}
	return status;
}

#define DEPENDENCIES struct node **out, struct graph *graph, const void *dependencies, size_t count

CUDA_API(cuGraphAddKernelNode, (DEPENDENCIES, const struct kernel_parameters *parameters))
{
	(void)dependencies;
	(void)count;
	return add_kernel(__func__, out, graph, parameters,
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
	(void)dependencies;
	(void)count;
	return add_kernel(__func__, out, graph, parameters, kernel_of(parameters));
}

CUDA_API(cuGraphAddEmptyNode, (DEPENDENCIES))
{
	(void)dependencies;
	(void)count;
	return add(__func__, out, graph, GRAPH_NODE_EMPTY, 0);
}

CUDA_API(cuGraphAddHostNode, (DEPENDENCIES, const void *parameters))
{
	(void)dependencies;
	(void)count;
	(void)parameters;
	return add(__func__, out, graph, GRAPH_NODE_HOST, 0);
}

CUDA_API(cuGraphAddMemcpyNode, (DEPENDENCIES, const void *parameters, CUcontext context))
{
	(void)dependencies;
	(void)count;
	(void)parameters;
	(void)context;
	return add(__func__, out, graph, GRAPH_NODE_MEMCPY, 0);
}

CUDA_API(cuGraphAddMemsetNode, (DEPENDENCIES, const void *parameters, CUcontext context))
{
	(void)dependencies;
	(void)count;
	(void)parameters;
	(void)context;
	return add(__func__, out, graph, GRAPH_NODE_MEMSET, 0);
}

CUDA_API(cuGraphAddChildGraphNode, (DEPENDENCIES, struct graph *child))
{
	(void)dependencies;
	(void)count;
	if (!graph_valid(child))
		return enter(__func__, false);
	CUresult status = add(__func__, out, graph, GRAPH_NODE_GRAPH, 0);
	if (status == CUDA_SUCCESS)
		(*out)->child = child;
	return status;
}

struct allocation_parameters {
	unsigned char pool_properties[88];
	const void *access;
	size_t access_count;
	size_t bytes;
	CUdeviceptr address; /* out */
};

static CUresult add_allocation_node(const char *function, struct node **out, struct graph *graph,
				    struct allocation_parameters *parameters)
{
	CUresult status = enter(function, out != NULL && graph_valid(graph) && parameters != NULL &&
						  parameters->bytes != 0);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	*out = add_allocation(graph, parameters->bytes);
	if (*out == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	parameters->address = (*out)->address;
	return CUDA_SUCCESS;
}

CUDA_API(cuGraphAddMemAllocNode, (DEPENDENCIES, struct allocation_parameters *parameters))
{
	(void)dependencies;
	(void)count;
	return add_allocation_node(__func__, out, graph, parameters);
}

static CUresult add_free_node(const char *function, struct node **out, struct graph *graph,
			      CUdeviceptr address)
{
	CUresult status = add(function, out, graph, GRAPH_NODE_MEM_FREE, 0);

	if (status == CUDA_SUCCESS)
		(*out)->address = address;
	return status;
}

CUDA_API(cuGraphAddMemFreeNode, (DEPENDENCIES, CUdeviceptr address))
{
	(void)dependencies;
	(void)count;
	return add_free_node(__func__, out, graph, address);
}

struct node_parameters {
	int type;
	int reserved[3];
	union {
		struct kernel_parameters kernel;
		struct allocation_parameters allocation;
		CUdeviceptr address;
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

static CUresult add_conditional(const char *function, struct node **out, struct graph *graph,
				struct conditional_parameters *parameters)
{
	if (parameters->count == 0 || parameters->count > 2)
		return enter(function, false);
	CUresult status = add(function, out, graph, GRAPH_NODE_CONDITIONAL, 0);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	for (unsigned int i = 0; i < parameters->count; i++)
		(*out)->bodies[i] = new_graph(graph->ordinal);
	parameters->bodies = (*out)->bodies;
	return CUDA_SUCCESS;
}

static CUresult add_any(const char *function, struct node **out, struct graph *graph,
			struct node_parameters *parameters)
{
	if (parameters == NULL)
		return enter(function, false);
	switch (parameters->type) {
	case GRAPH_NODE_KERNEL:
		return add_kernel(function, out, graph, &parameters->of.kernel,
				  kernel_of(&parameters->of.kernel));
	case GRAPH_NODE_MEM_ALLOC:
		return add_allocation_node(function, out, graph, &parameters->of.allocation);
	case GRAPH_NODE_MEM_FREE:
		return add_free_node(function, out, graph, parameters->of.address);
	case GRAPH_NODE_CONDITIONAL:
		return add_conditional(function, out, graph, &parameters->of.conditional);
	case GRAPH_NODE_EMPTY:
	case GRAPH_NODE_MEMCPY:
	case GRAPH_NODE_MEMSET:
	case GRAPH_NODE_HOST:
		return add(function, out, graph, (enum graph_node_type)parameters->type, 0);
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

CUDA_API(cuGraphAddNode, (DEPENDENCIES, struct node_parameters *parameters))
{
	(void)dependencies;
	(void)count;
	return add_any(__func__, out, graph, parameters);
}

CUDA_API(cuGraphAddNode_v2, (struct node * *out, struct graph *graph, const void *dependencies,
			     const void *edges, size_t count, struct node_parameters *parameters))
{
	(void)dependencies;
	(void)edges;
	(void)count;
	return add_any(__func__, out, graph, parameters);
}

CUDA_API(cuGraphAddDependencies,
	 (struct graph * graph, const void *from, const void *to, size_t count))
{
	(void)from;
	(void)to;
	(void)count;
	return enter(__func__, graph_valid(graph));
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

/* What was captured depends on what was captured before it; nodes made by hand do not say. */
static bool is_behind(const struct node *node, const struct node *before)
{
	return node != NULL && node->is_captured && before != NULL && before->next == node;
}

static const struct node *before_of(const struct node *node)
{
	const struct node *before = node->graph->first;

	while (before != NULL && before->next != node)
		before = before->next;
	return before;
}

CUDA_API(cuGraphNodeGetDependencies, (struct node * node, struct node **out, size_t *count))
{
	CUresult status = enter(__func__, node != NULL && out == NULL && count != NULL);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	*count = is_behind(node, before_of(node));
	return CUDA_SUCCESS;
}

CUDA_API(cuGraphNodeGetDependentNodes, (struct node * node, struct node **out, size_t *count))
{
	CUresult status = enter(__func__, node != NULL && out == NULL && count != NULL);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	*count = is_behind(node->next, node);
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
	const int properties[] = {1, 0, 1, node != NULL ? node->graph->ordinal : 0};
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

static uint64_t allocated_at(const struct graph *graph, CUdeviceptr address)
{
	for (const struct node *node = graph->first; node != NULL; node = node->next)
		if (node->type == GRAPH_NODE_MEM_ALLOC && node->address == address)
			return node->bytes;
	return 0;
}

static bool frees(const struct graph *graph, CUdeviceptr address)
{
	for (const struct node *node = graph->first; node != NULL; node = node->next)
		if (node->type == GRAPH_NODE_MEM_FREE && node->address == address)
			return true;
	return false;
}

static void leave(struct exec *exec, const struct graph *graph, const struct node *node)
{
	const struct region *region = memory_find(node->address);

	if (region != NULL && !frees(graph, node->address) && exec->left_count < MOST_LEFT)
		exec->left[exec->left_count++] = region->number;
}

/* What one node frees the next may have: the memory of a graph is the most that it holds at once.
 */
static void read_graph(struct exec *exec, const struct graph *graph)
{
	for (const struct node *node = graph->first; node != NULL; node = node->next) {
		exec->duration_ns += node->duration_ns;
		exec->kernels += node->type == GRAPH_NODE_KERNEL;
		exec->held_bytes += node->bytes;
		if (node->type == GRAPH_NODE_MEM_ALLOC)
			leave(exec, graph, node);
		if (exec->held_bytes > exec->allocated_bytes)
			exec->allocated_bytes = exec->held_bytes;
		if (node->type == GRAPH_NODE_MEM_FREE)
			exec->held_bytes -= allocated_at(graph, node->address);
		if (node->local_bytes > exec->local_bytes)
			exec->local_bytes = node->local_bytes;
		if (node->child != NULL)
			read_graph(exec, node->child);
		/* As if each of them runs once. */
		for (int i = 0; i < 2; i++)
			if (node->bodies[i] != NULL)
				read_graph(exec, node->bodies[i]);
	}
}

static CUresult instantiate(const char *function, struct exec **out, const struct graph *graph)
{
	CUresult status = enter(function, out != NULL && graph_valid(graph));
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	struct exec *exec = calloc(1, sizeof(*exec));
	if (exec == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	exec->magic = EXEC_MAGIC;
	exec->ordinal = graph->ordinal;
	exec->number = ++execs;
	read_graph(exec, graph);
	*out = exec;
	return CUDA_SUCCESS;
}

static CUresult instantiate_old(const char *function, struct exec **out, const struct graph *graph,
				struct node **failed, const char *log, size_t length)
{
	(void)failed;
	(void)log;
	(void)length;
	return instantiate(function, out, graph);
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
	(void)flags;
	return instantiate(__func__, out, graph);
}

struct instantiate_parameters {
	uint64_t flags;
	CUstream upload;
	struct node *failed;
	int result;
};

static CUresult instantiate_with(const char *function, bool per_thread, struct exec **out,
				 struct graph *graph, struct instantiate_parameters *parameters)
{
	(void)per_thread;
	CUresult status = instantiate(function, parameters != NULL ? out : NULL, graph);
	if (parameters != NULL) {
		parameters->failed = NULL;
		parameters->result = status != CUDA_SUCCESS;
	}
	return status;
}

STREAM_API(cuGraphInstantiateWithParams, _ptsz,
	   (struct exec * *out, struct graph *graph, struct instantiate_parameters *parameters),
	   instantiate_with, out, graph, parameters)

static bool exec_valid(const struct exec *exec)
{
	return exec != NULL && exec->magic == EXEC_MAGIC;
}

CUDA_API(cuGraphExecDestroy, (struct exec * exec))
{
	CUresult status = enter(__func__, exec_valid(exec));
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	exec->magic = 0;
	free(exec);
	return CUDA_SUCCESS;
}

/* Both versions: afterwards the instance runs what the graph says now. */
static CUresult update(const char *function, struct exec *exec, const struct graph *graph)
{
	CUresult status = enter(function, exec_valid(exec) && graph_valid(graph));
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	struct exec fresh = {.magic = EXEC_MAGIC, .ordinal = exec->ordinal, .number = exec->number};
	read_graph(&fresh, graph);
	*exec = fresh;
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

/* What an earlier launch has left allocated and the program has not freed, this one has again. */
static uint64_t taken_bytes(const struct exec *exec)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < exec->left_count; i++) {
		const struct region *region = memory_by_number(exec->left[i]);
		bytes += region != NULL && region->taken ? region->bytes : 0;
	}
	return bytes;
}

/* A graph's allocations come from its device's graph memory, which grows in steps of 32 MiB (a node
 * of 100 MiB took 128, measured) and keeps what it has. */
static bool reserve_graph_memory(const struct exec *exec)
{
	CUdevice ordinal = exec->ordinal;
	uint64_t *used = &graph_memory[ordinal].used_bytes;
	uint64_t most = *used - taken_bytes(exec) + exec->allocated_bytes;
	uint64_t wanted = round_up(most, POOL_STEP_BYTES);
	uint64_t *reserved = &graph_memory[ordinal].reserved_bytes;

	if (wanted > *reserved) {
		if (!state_take(device_card(ordinal), HOLDING_MEMORY, wanted - *reserved))
			return false;
		*reserved = wanted;
	}
	for (size_t i = 0; i < exec->left_count; i++) {
		struct region *region = memory_by_number(exec->left[i]);
		if (region == NULL || region->taken)
			continue;
		region->taken = true;
		*used += region->bytes;
	}
	if (*reserved > graph_memory[ordinal].reserved_high_bytes)
		graph_memory[ordinal].reserved_high_bytes = *reserved;
	if (most > graph_memory[ordinal].used_high_bytes)
		graph_memory[ordinal].used_high_bytes = most;
	return true;
}

CUresult graph_free(struct region *region)
{
	if (!region->taken)
		return CUDA_ERROR_INVALID_VALUE;
	region->taken = false;
	graph_memory[region->ordinal].used_bytes -= region->bytes;
	if (region->orphaned)
		memory_release(region);
	return CUDA_SUCCESS;
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
	if (!reserve_graph_memory(exec) || !context_reserve_local(context, exec->local_bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (run)
		(void)stream_submit(stream, exec->duration_ns, exec->kernels > 0);
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

/* --- graph memory --------------------------------------------------------------------------- */

static void trim_graph_memory(CUdevice ordinal)
{
	uint64_t *reserved = &graph_memory[ordinal].reserved_bytes;
	uint64_t keep = round_up(graph_memory[ordinal].used_bytes, POOL_STEP_BYTES);

	if (keep >= *reserved)
		return;
	state_give(device_card(ordinal), HOLDING_MEMORY, *reserved - keep);
	*reserved = keep;
}

void graph_forget_context(const struct context *context)
{
	if (!context->primary)
		return;
	graph_memory[context->ordinal].used_bytes = 0;
	trim_graph_memory(context->ordinal);
}

CUDA_API(cuDeviceGraphMemTrim, (CUdevice device))
{
	CUresult status = enter(__func__, true);
	if (status == CUDA_SUCCESS && !device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	trim_graph_memory(device);
	return CUDA_SUCCESS;
}

enum { USED_CURRENT = 0, USED_HIGH = 1, RESERVED_CURRENT = 2, RESERVED_HIGH = 3 };

CUDA_API(cuDeviceGetGraphMemAttribute, (CUdevice device, int attribute, uint64_t *out))
{
	CUresult status = enter(__func__, out != NULL && attribute >= 0 && attribute <= 3);
	if (status == CUDA_SUCCESS && !device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	const uint64_t values[] = {[USED_CURRENT] = graph_memory[device].used_bytes,
				   [USED_HIGH] = graph_memory[device].used_high_bytes,
				   [RESERVED_CURRENT] = graph_memory[device].reserved_bytes,
				   [RESERVED_HIGH] = graph_memory[device].reserved_high_bytes};
	*out = values[attribute];
	return CUDA_SUCCESS;
}

/* Only a high-water mark can be set, and only to 0. */
CUDA_API(cuDeviceSetGraphMemAttribute, (CUdevice device, int attribute, const uint64_t *value))
{
	CUresult status =
		enter(__func__, value != NULL && *value == 0 &&
					(attribute == USED_HIGH || attribute == RESERVED_HIGH));
	if (status == CUDA_SUCCESS && !device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	if (attribute == USED_HIGH)
		graph_memory[device].used_high_bytes = graph_memory[device].used_bytes;
	else
		graph_memory[device].reserved_high_bytes = graph_memory[device].reserved_bytes;
	return CUDA_SUCCESS;
}
