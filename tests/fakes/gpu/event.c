/* SPDX-License-Identifier: Apache-2.0
 *
 * Events. Their time is known as soon as they are recorded, since every stream knows its end.
 */
#include "event.h"
#include "clock.h"
#include "graph.h"
#include "stream.h"

#include <stdlib.h>

#define MAGIC 0x4556454e
#define RESOLUTION_NS 32 /* measured on an H100 */

static struct event *spare; /* destroyed ones; never freed, so that old handles can be told */

bool event_valid(const struct event *event)
{
	return event != NULL && event->magic == MAGIC;
}

CUDA_API(cuEventCreate, (CUevent * out, unsigned int flags))
{
	struct context *context = NULL;
	CUresult status = enter_context(__func__, out != NULL && flags < 8, &context);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	struct event *event = spare;
	if (event != NULL)
		spare = event->next;
	else
		event = malloc(sizeof(*event));
	if (event == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*event = (struct event){.magic = MAGIC, .flags = flags, .context = context};
	*out = event;
	return CUDA_SUCCESS;
}

static CUresult destroy(const char *function, CUevent event)
{
	CUresult status = enter(function, true);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	if (!event_valid(event))
		return CUDA_ERROR_INVALID_HANDLE;
	event->magic = 0;
	event->next = spare;
	spare = event;
	return CUDA_SUCCESS;
}

CUDA_API(cuEventDestroy, (CUevent event))
{
	return destroy(__func__, event);
}

CUDA_API(cuEventDestroy_v2, (CUevent event))
{
	return destroy(__func__, event);
}

static CUresult record(const char *function, bool per_thread, CUevent event, CUstream handle)
{
	struct context *context = NULL;
	CUresult status = enter_context(function, true, &context);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	const struct stream *stream = stream_find(context, handle, per_thread);
	if (stream == NULL || !event_valid(event) || event->context != stream->context)
		return CUDA_ERROR_INVALID_HANDLE;
	event->recorded = true;
	event->capture = stream->capture;
	event->capture_number = stream->capture_number;
	event->time_ns = stream_ready_ns(stream);
	return CUDA_SUCCESS;
}

STREAM_API(cuEventRecord, _ptsz, (CUevent event, CUstream handle), record, event, handle)

static CUresult record_with_flags(const char *function, bool per_thread, CUevent event,
				  CUstream handle, unsigned int flags)
{
	(void)flags;
	return record(function, per_thread, event, handle);
}

STREAM_API(cuEventRecordWithFlags, _ptsz, (CUevent event, CUstream handle, unsigned int flags),
	   record_with_flags, event, handle, flags)

/* When the event happens; 0 for one that was never recorded. */
static CUresult time_of(CUevent event, uint64_t *time_ns)
{
	CUresult status = graph_check_unsafe();

	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	if (!event_valid(event))
		return CUDA_ERROR_INVALID_HANDLE;
	if (event->capture != NULL) {
		graph_break_captures();
		return CUDA_ERROR_CAPTURED_EVENT;
	}
	*time_ns = event->recorded ? event->time_ns : 0;
	return CUDA_SUCCESS;
}

CUDA_API(cuEventQuery, (CUevent event))
{
	uint64_t time_ns = 0;
	CUresult status = enter(__func__, true);

	if (status == CUDA_SUCCESS)
		status = time_of(event, &time_ns);
	if (status != CUDA_SUCCESS)
		return status;
	return time_ns <= clock_now_ns() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUDA_API(cuEventSynchronize, (CUevent event))
{
	struct context *context = NULL;
	uint64_t time_ns = 0;
	CUresult status = enter_context(__func__, true, &context);

	if (status == CUDA_SUCCESS)
		status = time_of(event, &time_ns);
	if (status == CUDA_SUCCESS)
		stream_wait_ns(context, time_ns);
	return status;
}

static CUresult elapsed(const char *function, float *out, CUevent start, CUevent end)
{
	CUresult status = enter(function, out != NULL);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	if (!event_valid(start) || !event_valid(end) || !start->recorded || !end->recorded ||
	    start->context != end->context ||
	    ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) != 0)
		return CUDA_ERROR_INVALID_HANDLE;
	uint64_t now = clock_now_ns();
	if (start->time_ns > now || end->time_ns > now)
		return CUDA_ERROR_NOT_READY;
	int64_t ticks =
		(int64_t)(end->time_ns / RESOLUTION_NS) - (int64_t)(start->time_ns / RESOLUTION_NS);
	*out = (float)((double)(ticks * RESOLUTION_NS) / 1e6);
	return CUDA_SUCCESS;
}

CUDA_API(cuEventElapsedTime, (float *out, CUevent start, CUevent end))
{
	return elapsed(__func__, out, start, end);
}

CUDA_API(cuEventElapsedTime_v2, (float *out, CUevent start, CUevent end))
{
	return elapsed(__func__, out, start, end);
}
