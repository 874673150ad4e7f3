/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of a process in the simulated driver: cuInit, the child of a fork, entry checks.
 */
#include "context.h"
#include "driver.h"

#include <pthread.h>

static pthread_mutex_t tables = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t initialising = PTHREAD_MUTEX_INITIALIZER;
static bool initialised;

void driver_lock(void)
{
	(void)pthread_mutex_lock(&tables);
}

void driver_unlock(const int *unused)
{
	(void)unused;
	(void)pthread_mutex_unlock(&tables);
}

CUresult enter_early(const char *function)
{
	return (CUresult)state_fault(function);
}

bool driver_initialised(void)
{
	return __atomic_load_n(&initialised, __ATOMIC_ACQUIRE) && !state_forked();
}

CUresult enter_initialised(const char *function)
{
	CUresult fault = (CUresult)state_fault(function);

	if (fault != CUDA_SUCCESS)
		return fault;
	return driver_initialised() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult enter_current(struct context **current)
{
	*current = context_current();
	if (*current == NULL)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!context_live(*current))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	/* A card that has fallen off the bus fails whatever is asked of it. */
	return device_describe((*current)->ordinal)->lost != 0 ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

static CUresult initialise(void)
{
	if (state_map() == NULL)
		return CUDA_ERROR_NO_DEVICE;
	device_enumerate();
	if (device_count() == 0)
		return CUDA_ERROR_NO_DEVICE;
	if (state_join() != 0)
		return CUDA_ERROR_UNKNOWN;
	for (CUdevice ordinal = 0; ordinal < device_count(); ordinal++) {
		uint64_t cost = device_describe(ordinal)->process_hidden_bytes;
		if (!state_take(device_card(ordinal), HOLDING_HIDDEN, cost))
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return CUDA_SUCCESS;
}

CUDA_API(cuInit, (unsigned int flags))
{
	CUresult status = enter_always(__func__, flags == 0);

	if (status != CUDA_SUCCESS)
		return status;
	if (state_forked())
		return CUDA_ERROR_NOT_INITIALIZED;
	(void)pthread_mutex_lock(&initialising);
	if (!initialised) {
		status = initialise();
		__atomic_store_n(&initialised, status == CUDA_SUCCESS, __ATOMIC_RELEASE);
	}
	(void)pthread_mutex_unlock(&initialising);
	return status;
}

CUDA_API(cuDriverGetVersion, (int *version))
{
	CUresult status = enter_always(__func__, version != NULL);

	if (status != CUDA_SUCCESS)
		return status;
	const struct fake_state *state = state_map();
	*version = state != NULL ? (int)state->cuda_version : 0;
	return CUDA_SUCCESS;
}
