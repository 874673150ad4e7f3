/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams: order, default streams of both kinds, waiting.
 */
#include "stream.h"
#include "clock.h"
#include "event.h"
#include "graph.h"
#include "memory.h"
#include "pool.h"
#include "vmm.h"

#include <stdlib.h>

#define MAGIC 0x5354524d

static struct stream *spare; /* destroyed ones; never freed, so that old handles can be told */
static uint64_t made;

static __thread char thread_mark; /* its address names the thread */

/* --- order ---------------------------------------------------------------------------------- */

static struct stream *add_stream(struct context *context, unsigned int flags, int priority)
{
	struct stream *stream = spare;

	if (stream != NULL)
		spare = stream->next;
	else
		stream = malloc(sizeof(*stream));
	if (stream == NULL)
		return NULL;
	*stream = (struct stream){.magic = MAGIC,
				  .flags = flags,
				  .priority = priority,
				  .context = context,
				  .number = ++made,
				  .next = context->streams};
	context->streams = stream;
	return stream;
}

static void retire(struct stream *stream)
{
	struct context *context = stream->context;

	/* What is under way goes on: the context still has to wait for it. */
	if (stream->tail_ns > context->retired_ns)
		context->retired_ns = stream->tail_ns;
	stream->magic = 0;
	stream->next = spare;
	spare = stream;
}

void stream_init_context(struct context *context)
{
	context->retired_ns = 0;
	context->legacy = add_stream(context, 0, 0);
}

void stream_forget_context(struct context *context)
{
	while (context->streams != NULL) {
		struct stream *stream = context->streams;
		context->streams = stream->next;
		if (stream != context->legacy && stream->thread == NULL)
			state_give(context->card, HOLDING_CONTEXT,
				   device_describe(context->ordinal)->stream_bytes);
		retire(stream);
	}
	context->legacy = NULL;
}

static struct stream *thread_stream(struct context *context)
{
	for (struct stream *s = context->streams; s != NULL; s = s->next)
		if (s->thread == &thread_mark)
			return s;
	struct stream *stream = add_stream(context, 0, 0);
	if (stream != NULL)
		stream->thread = &thread_mark;
	return stream;
}

struct stream *stream_find(struct context *context, CUstream handle, bool per_thread)
{
	uintptr_t number = (uintptr_t)handle;

	if (number == 2 || (number == 0 && per_thread))
		return thread_stream(context);
	if (number <= 1)
		return context->legacy;
	return handle->magic == MAGIC ? handle : NULL;
}

static bool blocking(const struct stream *stream)
{
	return (stream->flags & CU_STREAM_NON_BLOCKING) == 0;
}

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* The legacy default stream and every blocking stream wait for each other. */
uint64_t stream_ready_ns(const struct stream *stream)
{
	const struct context *context = stream->context;
	uint64_t ready = later(clock_now_ns(), stream->tail_ns);

	if (!blocking(stream))
		return ready;
	if (stream != context->legacy)
		return later(ready, context->legacy->tail_ns);
	for (const struct stream *s = context->streams; s != NULL; s = s->next)
		if (blocking(s))
			ready = later(ready, s->tail_ns);
	return ready;
}

uint64_t stream_submit(struct stream *stream, uint64_t duration_ns, bool kernel)
{
	uint64_t start = stream_ready_ns(stream);

	stream->tail_ns = start + duration_ns;
	if (kernel) {
		state_self()->held[stream->context->card].launches++;
		clock_record_busy(stream->context->card, start, stream->tail_ns);
	}
	return stream->tail_ns;
}

void stream_wait_ns(struct context *context, uint64_t end_ns)
{
	if (end_ns > clock_now_ns())
		clock_wait_until_ns(end_ns);
	DRIVER_LOCKED();
	memory_release_freed(context);
	vmm_end_unmappings();
	pool_trim_idle(context);
}

static uint64_t context_end_ns(const struct context *context)
{
	uint64_t end = context->retired_ns;

	for (const struct stream *s = context->streams; s != NULL; s = s->next)
		end = later(end, s->tail_ns);
	return end;
}

/* --- making and unmaking -------------------------------------------------------------------- */

static CUresult create(const char *function, CUstream *out, unsigned int flags, int priority)
{
	struct context *context = NULL;
	CUresult status = enter_context(function, out != NULL && flags <= 1, &context);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	uint64_t cost = device_describe(context->ordinal)->stream_bytes;
	if (!state_take(context->card, HOLDING_CONTEXT, cost))
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = add_stream(context, flags, priority);
	return *out != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUDA_API(cuStreamCreate, (CUstream * out, unsigned int flags))
{
	return create(__func__, out, flags, 0);
}

CUDA_API(cuStreamCreateWithPriority, (CUstream * out, unsigned int flags, int priority))
{
	return create(__func__, out, flags, priority);
}

static CUresult destroy(const char *function, CUstream stream)
{
	CUresult status = enter(function, true);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	if ((uintptr_t)stream <= 2 || stream->magic != MAGIC)
		return CUDA_ERROR_INVALID_HANDLE;
	struct context *context = stream->context;
	struct stream **link = &context->streams;
	while (*link != stream)
		link = &(*link)->next;
	*link = stream->next;
	state_give(context->card, HOLDING_CONTEXT, device_describe(context->ordinal)->stream_bytes);
	retire(stream);
	return CUDA_SUCCESS;
}

CUDA_API(cuStreamDestroy, (CUstream stream))
{
	return destroy(__func__, stream);
}

CUDA_API(cuStreamDestroy_v2, (CUstream stream))
{
	return destroy(__func__, stream);
}

/* --- questions ------------------------------------------------------------------------------ */

/* Finds the stream for a function that only asks; the lock is held by the caller. */
static CUresult find(struct context *context, CUstream handle, bool per_thread,
		     struct stream **stream)
{
	*stream = stream_find(context, handle, per_thread);
	return *stream != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult get_flags(const char *function, bool per_thread, CUstream handle, unsigned int *out)
{
	struct context *context = NULL;
	struct stream *stream = NULL;
	CUresult status = enter_context(function, out != NULL, &context);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	status = find(context, handle, per_thread, &stream);
	if (status == CUDA_SUCCESS)
		*out = stream->flags;
	return status;
}

STREAM_API(cuStreamGetFlags, _ptsz, (CUstream handle, unsigned int *out), get_flags, handle, out)

static CUresult get_priority(const char *function, bool per_thread, CUstream handle, int *out)
{
	struct context *context = NULL;
	struct stream *stream = NULL;
	CUresult status = enter_context(function, out != NULL, &context);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	status = find(context, handle, per_thread, &stream);
	if (status == CUDA_SUCCESS)
		*out = stream->priority;
	return status;
}

STREAM_API(cuStreamGetPriority, _ptsz, (CUstream handle, int *out), get_priority, handle, out)

static CUresult get_id(const char *function, bool per_thread, CUstream handle,
		       unsigned long long *out)
{
	struct context *context = NULL;
	struct stream *stream = NULL;
	CUresult status = enter_context(function, out != NULL, &context);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	status = find(context, handle, per_thread, &stream);
	if (status == CUDA_SUCCESS)
		*out = stream->number;
	return status;
}

STREAM_API(cuStreamGetId, _ptsz, (CUstream handle, unsigned long long *out), get_id, handle, out)

static CUresult get_context(const char *function, bool per_thread, CUstream handle, CUcontext *out)
{
	struct context *context = NULL;
	struct stream *stream = NULL;
	CUresult status = enter_context(function, out != NULL, &context);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	status = find(context, handle, per_thread, &stream);
	if (status == CUDA_SUCCESS)
		*out = stream->context;
	return status;
}

STREAM_API(cuStreamGetCtx, _ptsz, (CUstream handle, CUcontext *out), get_context, handle, out)

static CUresult get_device(const char *function, bool per_thread, CUstream handle, CUdevice *out)
{
	struct context *context = NULL;
	struct stream *stream = NULL;
	CUresult status = enter_context(function, out != NULL, &context);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	status = find(context, handle, per_thread, &stream);
	if (status == CUDA_SUCCESS)
		*out = stream->context->ordinal;
	return status;
}

STREAM_API(cuStreamGetDevice, _ptsz, (CUstream handle, CUdevice *out), get_device, handle, out)

/* --- waiting -------------------------------------------------------------------------------- */

/* When the stream is through with everything; an error while it is being captured. */
static CUresult end_of(struct context *context, CUstream handle, bool per_thread, uint64_t *end_ns)
{
	struct stream *stream = NULL;

	DRIVER_LOCKED();
	CUresult status = find(context, handle, per_thread, &stream);
	if (status != CUDA_SUCCESS)
		return status;
	if (stream->capture != NULL) {
		graph_break_captures();
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	status = graph_check_unsafe_locked();
	if (status != CUDA_SUCCESS)
		return status;
	*end_ns = stream == context->legacy ? stream_ready_ns(stream) : stream->tail_ns;
	return CUDA_SUCCESS;
}

static CUresult synchronize(const char *function, bool per_thread, CUstream handle)
{
	struct context *context = NULL;
	uint64_t end_ns = 0;
	CUresult status = enter_context(function, true, &context);

	if (status == CUDA_SUCCESS)
		status = end_of(context, handle, per_thread, &end_ns);
	if (status == CUDA_SUCCESS)
		stream_wait_ns(context, end_ns);
	return status;
}

STREAM_API(cuStreamSynchronize, _ptsz, (CUstream handle), synchronize, handle)

static CUresult query(const char *function, bool per_thread, CUstream handle)
{
	struct context *context = NULL;
	uint64_t end_ns = 0;
	uint64_t now = clock_now_ns();
	CUresult status = enter_context(function, true, &context);

	if (status == CUDA_SUCCESS)
		status = end_of(context, handle, per_thread, &end_ns);
	if (status != CUDA_SUCCESS)
		return status;
	/* The legacy stream is ready at the earliest "now", and now is a little later than then. */
	return end_ns > now && end_ns > clock_now_ns() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

STREAM_API(cuStreamQuery, _ptsz, (CUstream handle), query, handle)

static CUresult context_synchronize(const char *function, struct context *asked)
{
	struct context *context = asked;
	CUresult status =
		asked != NULL ? enter(function, true) : enter_context(function, true, &context);
	uint64_t end_ns = 0;

	if (status == CUDA_SUCCESS)
		status = graph_check_unsafe();
	if (status != CUDA_SUCCESS)
		return status;
	{
		DRIVER_LOCKED();
		if (!context->live)
			return CUDA_ERROR_CONTEXT_IS_DESTROYED;
		end_ns = context_end_ns(context);
	}
	stream_wait_ns(context, end_ns);
	return CUDA_SUCCESS;
}

CUDA_API(cuCtxSynchronize, (void))
{
	return context_synchronize(__func__, NULL);
}

CUDA_API(cuCtxSynchronize_v2, (CUcontext context))
{
	return context_synchronize(__func__, context);
}

static CUresult wait_event(const char *function, bool per_thread, CUstream handle, CUevent event,
			   unsigned int flags)
{
	struct context *context = NULL;
	struct stream *stream = NULL;
	CUresult status = enter_context(function, true, &context);
	(void)flags;
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	status = find(context, handle, per_thread, &stream);
	if (status == CUDA_SUCCESS && !event_valid(event))
		status = CUDA_ERROR_INVALID_HANDLE;
	if (status != CUDA_SUCCESS)
		return status;
	if (event->capture != NULL)
		return graph_join_capture(stream, event->capture, event->capture_number);
	if (event->recorded)
		stream->tail_ns = later(stream->tail_ns, event->time_ns);
	return CUDA_SUCCESS;
}

STREAM_API(cuStreamWaitEvent, _ptsz, (CUstream handle, CUevent event, unsigned int flags),
	   wait_event, handle, event, flags)

/* The callback runs in the calling thread once the stream is dry, and the call returns after it:
 * no order that a program can rely on is broken, but nothing overlaps. */
typedef void (*host_function)(void *user);

static CUresult launch_host(const char *function, bool per_thread, CUstream handle,
			    host_function callback, void *user)
{
	struct context *context = NULL;
	uint64_t end_ns = 0;
	CUresult status = enter_context(function, callback != NULL, &context);
	if (status != CUDA_SUCCESS)
		return status;
	{
		DRIVER_LOCKED();
		struct stream *stream = NULL;
		status = find(context, handle, per_thread, &stream);
		if (status != CUDA_SUCCESS)
			return status;
		if (stream->capture != NULL)
			return graph_capture(stream, GRAPH_NODE_HOST, 0);
		end_ns = stream_ready_ns(stream);
	}
	clock_wait_until_ns(end_ns);
	callback(user);
	return CUDA_SUCCESS;
}

STREAM_API(cuLaunchHostFunc, _ptsz, (CUstream handle, host_function callback, void *user),
	   launch_host, handle, callback, user)

typedef void (*stream_callback)(CUstream stream, CUresult status, void *user);

static CUresult add_callback(const char *function, bool per_thread, CUstream handle,
			     stream_callback callback, void *user, unsigned int flags)
{
	struct context *context = NULL;
	uint64_t end_ns = 0;
	CUresult status = enter_context(function, callback != NULL && flags == 0, &context);

	if (status == CUDA_SUCCESS)
		status = end_of(context, handle, per_thread, &end_ns);
	if (status != CUDA_SUCCESS)
		return status;
	clock_wait_until_ns(end_ns);
	callback(handle, CUDA_SUCCESS, user);
	return CUDA_SUCCESS;
}

STREAM_API(cuStreamAddCallback, _ptsz,
	   (CUstream handle, stream_callback callback, void *user, unsigned int flags),
	   add_callback, handle, callback, user, flags)
