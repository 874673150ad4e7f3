/* SPDX-License-Identifier: Apache-2.0
 *
 * Graphs and stream capture. A graph is a list of nodes that run one after the other; edges say
 * only which allocations may have the same addresses.
 */
#ifndef FAKE_GPU_GRAPH_H
#define FAKE_GPU_GRAPH_H

#include "driver.h"

struct graph;
struct region;
struct stream;

enum graph_node_type {
	GRAPH_NODE_KERNEL = 0,
	GRAPH_NODE_MEMCPY = 1,
	GRAPH_NODE_MEMSET = 2,
	GRAPH_NODE_HOST = 3,
	GRAPH_NODE_GRAPH = 4,
	GRAPH_NODE_EMPTY = 5,
	GRAPH_NODE_WAIT_EVENT = 6,
	GRAPH_NODE_EVENT_RECORD = 7,
	GRAPH_NODE_MEM_ALLOC = 10,
	GRAPH_NODE_MEM_FREE = 11,
	GRAPH_NODE_CONDITIONAL = 13,
};

/* Of these, graph_check_unsafe and enter_unsafe take the driver lock; of the others the caller
 * holds it. */

/* Note work of a stream that is being captured. An error once the capture is broken. */
CUresult graph_capture(struct stream *stream, enum graph_node_type type, uint64_t duration_ns);

/* The same for a kernel, and for a stream-ordered allocation and its release. */
CUresult graph_capture_kernel(struct stream *stream, uint64_t duration_ns, CUfunction kernel);
CUresult graph_capture_allocation(struct stream *stream, uint64_t bytes, CUdeviceptr *address);
CUresult graph_capture_release(struct stream *stream, CUdeviceptr address);

/* A stream that waits for an event of a capture belongs to the capture from then on. */
CUresult graph_join_capture(struct stream *stream, struct graph *capture, uint64_t number);

/* Whether a call that captures forbid may go on in this thread. If not, it breaks the captures and
 * returns an error. tests/fakes/captures_h200.jsonl lists the calls. */
CUresult graph_check_unsafe(void);
CUresult graph_check_unsafe_locked(void);

/* `enter` and `enter_context` of such a call. */
static inline CUresult enter_unsafe(const char *function, bool valid)
{
	CUresult status = enter(function, valid);

	return status != CUDA_SUCCESS ? status : graph_check_unsafe();
}

static inline CUresult enter_unsafe_context(const char *function, bool valid,
					    struct context **current)
{
	CUresult status = enter_context(function, valid, current);

	return status != CUDA_SUCCESS ? status : graph_check_unsafe();
}

/* What happens to everything under capture when a call does what captures forbid. */
void graph_break_captures(void);

/* A program frees what a launch has left allocated; without a stream at once. */
CUresult graph_free(struct region *region, const struct stream *stream);

/* Give back the graph memory of a device that no graph is using. */
void graph_forget_context(const struct context *context);

#endif
