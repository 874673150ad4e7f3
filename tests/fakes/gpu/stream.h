/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams and events on the simulated time line. A stream is first in, first out: what is put into
 * it starts when everything before it is over, and its end is known at once. Streams of a process
 * run side by side, and processes do not slow each other down.
 */
#ifndef FAKE_GPU_STREAM_H
#define FAKE_GPU_STREAM_H

#include "context.h"

struct graph;

/* Defines a function and its variant for per-thread default streams (`_ptsz`, `_ptds`). */
#define STREAM_API(name, suffix, parameters, implementation, ...)                                  \
	CUDA_API(name, parameters)                                                                 \
	{                                                                                          \
		return implementation(__func__, false, __VA_ARGS__);                               \
	}                                                                                          \
	CUDA_API(name##suffix, parameters)                                                         \
	{                                                                                          \
		return implementation(__func__, true, __VA_ARGS__);                                \
	}

enum { CU_STREAM_NON_BLOCKING = 1 };
enum { CU_EVENT_DISABLE_TIMING = 2 };

struct stream {
	uint32_t magic;
	unsigned int flags;
	int priority;
	struct context *context;
	uint64_t tail_ns; /* when everything put into it so far is over */
	uint64_t number;
	const void *thread;    /* whose per-thread default stream this is */
	struct graph *capture; /* being recorded, or NULL */
	uint64_t capture_number;
	bool capture_origin; /* the capture began here */
	int capture_mode;    /* 0 global, 1 thread-local, 2 relaxed */
	struct stream *next; /* of the context; later of the spare ones */
};

/* All of these: caller holds the driver lock. */

/* The stream a handle means for this thread; NULL when it means none. */
struct stream *stream_find(struct context *context, CUstream handle, bool per_thread);

/* When something put in now would start. */
uint64_t stream_ready_ns(const struct stream *stream);

/* Put work into a stream that is not capturing; returns when it will be over. A kernel keeps the
 * card busy and counts as a launch, anything else only takes time. */
uint64_t stream_submit(struct stream *stream, uint64_t duration_ns, bool kernel);

/* Joins a synchronous call to its stream's end: waits, then lets pools shrink. No lock held. */
void stream_wait_ns(struct context *context, uint64_t end_ns);

#endif
