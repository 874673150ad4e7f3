/* SPDX-License-Identifier: Apache-2.0
 *
 * Primary and created contexts, the stack of each thread, and what a context costs on its card.
 */
#include "context.h"
#include "graph.h"
#include "pool.h"
#include "stream.h"

#include <stdlib.h>
#include <string.h>

#define STACK_DEPTH 64
#define DEFAULT_STACK_BYTES 1024
#define TOO_LARGE_STACK_BYTES ((size_t)512 << 10) /* INVALID_VALUE (H200, driver 580) */

static struct context *contexts;
static struct context *primary[FAKE_MAX_CARDS];
static uint64_t made;

static __thread struct context *stack[STACK_DEPTH];
static __thread int depth;

struct context *context_current(void)
{
	return depth > 0 ? stack[depth - 1] : NULL;
}

bool context_live(const struct context *context)
{
	return __atomic_load_n(&context->live, __ATOMIC_ACQUIRE);
}

static bool known(const struct context *context)
{
	for (const struct context *c = contexts; c != NULL; c = c->next)
		if (c == context)
			return true;
	return false;
}

static struct context *add_context(CUdevice ordinal, bool is_primary)
{
	struct context *context = calloc(1, sizeof(*context));

	if (context == NULL)
		return NULL;
	context->ordinal = ordinal;
	context->card = device_card(ordinal);
	context->primary = is_primary;
	context->next = contexts;
	contexts = context;
	return context;
}

/* Take the context's cost and make it usable. Caller holds the driver lock. */
static CUresult activate(struct context *context)
{
	const struct fake_card *card = device_describe(context->ordinal);

	if (card->lost != 0)
		return CUDA_ERROR_UNKNOWN;
	if (!state_take(context->card, HOLDING_CONTEXT, card->context_bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!state_take(context->card, HOLDING_HIDDEN, card->context_hidden_bytes)) {
		state_give(context->card, HOLDING_CONTEXT, card->context_bytes);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	memset(context->limit, 0, sizeof(context->limit));
	context->limit[CU_LIMIT_STACK_SIZE] = DEFAULT_STACK_BYTES;
	context->limit[CU_LIMIT_PRINTF_FIFO_SIZE] = 7 * MIB;
	context->limit[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 * MIB;
	context->local_memory_bytes = 0;
	context->number = ++made;
	stream_init_context(context);
	__atomic_store_n(&context->live, true, __ATOMIC_RELEASE);
	return CUDA_SUCCESS;
}

static void deactivate(struct context *context)
{
	const struct fake_card *card = device_describe(context->ordinal);

	__atomic_store_n(&context->live, false, __ATOMIC_RELEASE);
	memory_forget_context(context);
	pool_forget_context(context);
	graph_forget_context(context);
	stream_forget_context(context);
	state_give(context->card, HOLDING_CONTEXT,
		   card->context_bytes + context->local_memory_bytes);
	state_give(context->card, HOLDING_HIDDEN, card->context_hidden_bytes);
}

bool context_reserve_local(struct context *context, uint64_t per_thread)
{
	const struct fake_card *card = device_describe(context->ordinal);

	if (per_thread <= DEFAULT_STACK_BYTES)
		return true;
	uint64_t wanted = (per_thread - DEFAULT_STACK_BYTES) * card->sm_count *
			  (uint64_t)card->threads_per_sm;
	if (wanted <= context->local_memory_bytes)
		return true;
	if (!state_take(context->card, HOLDING_CONTEXT, wanted - context->local_memory_bytes))
		return false;
	context->local_memory_bytes = wanted;
	return true;
}

/* --- primary contexts ----------------------------------------------------------------------- */

static struct context *primary_of(CUdevice device)
{
	if (primary[device] == NULL)
		primary[device] = add_context(device, true);
	return primary[device];
}

static CUresult enter_device(const char *function, bool valid, CUdevice device)
{
	CUresult status = enter(function, valid);

	if (status == CUDA_SUCCESS && !device_valid(device))
		return CUDA_ERROR_INVALID_DEVICE;
	return status;
}

CUDA_API(cuDevicePrimaryCtxRetain, (CUcontext * out, CUdevice device))
{
	CUresult status = enter_device(__func__, out != NULL, device);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	struct context *context = primary_of(device);
	if (context == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!context->live)
		status = activate(context);
	if (status != CUDA_SUCCESS)
		return status;
	context->retained++;
	*out = context;
	return CUDA_SUCCESS;
}

static CUresult primary_release(const char *function, CUdevice device)
{
	CUresult status = enter_device(function, true, device);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	struct context *context = primary[device];
	if (context == NULL || context->retained == 0)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (--context->retained == 0)
		deactivate(context);
	return CUDA_SUCCESS;
}

CUDA_API(cuDevicePrimaryCtxRelease, (CUdevice device))
{
	return primary_release(__func__, device);
}

CUDA_API(cuDevicePrimaryCtxRelease_v2, (CUdevice device))
{
	return primary_release(__func__, device);
}

static CUresult primary_reset(const char *function, CUdevice device)
{
	CUresult status = enter_device(function, true, device);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	struct context *context = primary[device];
	if (context != NULL && context->live)
		deactivate(context);
	if (context != NULL)
		context->retained = 0;
	return CUDA_SUCCESS;
}

CUDA_API(cuDevicePrimaryCtxReset, (CUdevice device))
{
	return primary_reset(__func__, device);
}

CUDA_API(cuDevicePrimaryCtxReset_v2, (CUdevice device))
{
	return primary_reset(__func__, device);
}

static CUresult primary_set_flags(const char *function, CUdevice device, unsigned int flags)
{
	CUresult status = enter_device(function, true, device);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	struct context *context = primary_of(device);
	if (context == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	context->flags = flags;
	return CUDA_SUCCESS;
}

CUDA_API(cuDevicePrimaryCtxSetFlags, (CUdevice device, unsigned int flags))
{
	return primary_set_flags(__func__, device, flags);
}

CUDA_API(cuDevicePrimaryCtxSetFlags_v2, (CUdevice device, unsigned int flags))
{
	return primary_set_flags(__func__, device, flags);
}

CUDA_API(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned int *flags, int *active))
{
	CUresult status = enter_device(__func__, flags != NULL && active != NULL, device);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	const struct context *context = primary[device];
	*flags = context != NULL ? context->flags : 0;
	*active = context != NULL && context->live;
	return CUDA_SUCCESS;
}

/* --- created contexts ----------------------------------------------------------------------- */

static CUresult create(const char *function, CUcontext *out, unsigned int flags, CUdevice device,
		       unsigned int api_version)
{
	CUresult status = enter_device(function, out != NULL, device);
	if (status != CUDA_SUCCESS)
		return status;
	if (depth == STACK_DEPTH)
		return CUDA_ERROR_OUT_OF_MEMORY;
	DRIVER_LOCKED();
	struct context *context = add_context(device, false);
	if (context == NULL)
		return CUDA_ERROR_OUT_OF_MEMORY;
	status = activate(context);
	if (status != CUDA_SUCCESS)
		return status;
	context->flags = flags;
	context->api_version = api_version;
	stack[depth++] = context;
	*out = context;
	return CUDA_SUCCESS;
}

CUDA_API(cuCtxCreate, (CUcontext * out, unsigned int flags, CUdevice device))
{
	return create(__func__, out, flags, device, 3010);
}

CUDA_API(cuCtxCreate_v2, (CUcontext * out, unsigned int flags, CUdevice device))
{
	return create(__func__, out, flags, device, 3020);
}

CUDA_API(cuCtxCreate_v3, (CUcontext * out, const void *affinity, int affinity_count,
			  unsigned int flags, CUdevice device))
{
	(void)affinity;
	(void)affinity_count;
	return create(__func__, out, flags, device, 3020);
}

CUDA_API(cuCtxCreate_v4,
	 (CUcontext * out, const void *parameters, unsigned int flags, CUdevice device))
{
	(void)parameters;
	return create(__func__, out, flags, device, 3020);
}

static CUresult destroy(const char *function, CUcontext context)
{
	CUresult status = enter(function, context != NULL);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	if (!known(context))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (context->primary)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!context->live)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	deactivate(context);
	if (context_current() == context)
		depth--;
	return CUDA_SUCCESS;
}

CUDA_API(cuCtxDestroy, (CUcontext context))
{
	return destroy(__func__, context);
}

CUDA_API(cuCtxDestroy_v2, (CUcontext context))
{
	return destroy(__func__, context);
}

CUDA_API(cuCtxAttach, (CUcontext * out, unsigned int flags))
{
	CUresult status = enter(__func__, out != NULL && flags == 0);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	struct context *context = context_current();
	if (context == NULL)
		return CUDA_ERROR_INVALID_CONTEXT;
	context->attached++;
	*out = context;
	return CUDA_SUCCESS;
}

CUDA_API(cuCtxDetach, (CUcontext context))
{
	{
		DRIVER_LOCKED();
		if (context != NULL && known(context) && context->live && context->attached > 0) {
			context->attached--;
			return CUDA_SUCCESS;
		}
	}
	return destroy(__func__, context);
}

/* --- the thread's stack --------------------------------------------------------------------- */

CUDA_API(cuCtxSetCurrent, (CUcontext context))
{
	CUresult status = enter(__func__, true);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	if (context == NULL) {
		if (depth > 0)
			depth--;
		return CUDA_SUCCESS;
	}
	if (!known(context))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!context->live)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	if (depth == 0)
		depth = 1;
	stack[depth - 1] = context;
	return CUDA_SUCCESS;
}

CUDA_API(cuCtxGetCurrent, (CUcontext * out))
{
	CUresult status = enter(__func__, out != NULL);

	if (status == CUDA_SUCCESS)
		*out = context_current();
	return status;
}

static CUresult push(const char *function, CUcontext context)
{
	CUresult status = enter(function, true);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	if (context == NULL || !known(context))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!context->live)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	if (depth == STACK_DEPTH)
		return CUDA_ERROR_INVALID_VALUE;
	stack[depth++] = context;
	return CUDA_SUCCESS;
}

CUDA_API(cuCtxPushCurrent, (CUcontext context))
{
	return push(__func__, context);
}

CUDA_API(cuCtxPushCurrent_v2, (CUcontext context))
{
	return push(__func__, context);
}

static CUresult pop(const char *function, CUcontext *out)
{
	CUresult status = enter(function, true);

	if (status != CUDA_SUCCESS)
		return status;
	if (depth == 0)
		return CUDA_ERROR_INVALID_CONTEXT;
	depth--;
	if (out != NULL)
		*out = stack[depth];
	return CUDA_SUCCESS;
}

CUDA_API(cuCtxPopCurrent, (CUcontext * out))
{
	return pop(__func__, out);
}

CUDA_API(cuCtxPopCurrent_v2, (CUcontext * out))
{
	return pop(__func__, out);
}

/* --- questions about a context -------------------------------------------------------------- */

CUDA_API(cuCtxGetDevice, (CUdevice * out))
{
	struct context *context = NULL;
	CUresult status = enter_context(__func__, out != NULL, &context);

	if (status == CUDA_SUCCESS)
		*out = context->ordinal;
	return status;
}

CUDA_API(cuCtxGetDevice_v2, (CUdevice * out, CUcontext asked))
{
	struct context *context = asked;
	CUresult status = asked != NULL ? enter(__func__, out != NULL)
					: enter_context(__func__, out != NULL, &context);

	if (status == CUDA_SUCCESS)
		*out = context->ordinal;
	return status;
}

CUDA_API(cuCtxGetFlags, (unsigned int *out))
{
	struct context *context = NULL;
	CUresult status = enter_context(__func__, out != NULL, &context);

	if (status == CUDA_SUCCESS)
		*out = context->flags;
	return status;
}

CUDA_API(cuCtxSetFlags, (unsigned int flags))
{
	struct context *context = NULL;
	CUresult status = enter_context(__func__, true, &context);

	if (status == CUDA_SUCCESS)
		context->flags = flags;
	return status;
}

CUDA_API(cuCtxGetId, (CUcontext asked, unsigned long long *out))
{
	struct context *context = asked;
	CUresult status = asked != NULL ? enter(__func__, out != NULL)
					: enter_context(__func__, out != NULL, &context);

	if (status == CUDA_SUCCESS)
		*out = context->number;
	return status;
}

CUDA_API(cuCtxGetApiVersion, (CUcontext asked, unsigned int *out))
{
	struct context *context = asked;
	CUresult status = asked != NULL ? enter(__func__, out != NULL)
					: enter_context(__func__, out != NULL, &context);

	if (status == CUDA_SUCCESS)
		*out = context->api_version;
	return status;
}

CUDA_API(cuCtxGetLimit, (size_t * out, int limit))
{
	struct context *context = NULL;
	CUresult status = enter_context(
		__func__, out != NULL && limit >= 0 && limit < CONTEXT_LIMITS, &context);

	if (status == CUDA_SUCCESS)
		*out = context->limit[limit];
	return status;
}

/* Back to the default stack returns everything that local memory had taken (measured). */
static CUresult set_stack_limit(struct context *context, size_t bytes)
{
	if (bytes >= TOO_LARGE_STACK_BYTES)
		return CUDA_ERROR_INVALID_VALUE;
	if (bytes <= DEFAULT_STACK_BYTES) {
		state_give(context->card, HOLDING_CONTEXT, context->local_memory_bytes);
		context->local_memory_bytes = 0;
		return CUDA_SUCCESS;
	}
	return context_reserve_local(context, bytes) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUDA_API(cuCtxSetLimit, (int limit, size_t value))
{
	struct context *context = NULL;
	CUresult status =
		enter_unsafe_context(__func__, limit >= 0 && limit < CONTEXT_LIMITS, &context);
	if (status != CUDA_SUCCESS)
		return status;
	DRIVER_LOCKED();
	if (limit == CU_LIMIT_STACK_SIZE)
		status = set_stack_limit(context, value);
	if (status == CUDA_SUCCESS)
		context->limit[limit] = value;
	return status;
}

CUDA_API(cuCtxGetStreamPriorityRange, (int *least, int *greatest))
{
	struct context *context = NULL;
	CUresult status = enter_context(__func__, true, &context);

	if (status != CUDA_SUCCESS)
		return status;
	if (least != NULL)
		*least = 0;
	if (greatest != NULL)
		*greatest = -5;
	return CUDA_SUCCESS;
}
