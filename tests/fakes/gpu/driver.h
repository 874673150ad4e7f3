/* SPDX-License-Identifier: Apache-2.0
 *
 * What every file of the simulated libcuda.so.1 stands on: entry checks, the process's one lock,
 * and the devices that it sees.
 */
#ifndef FAKE_GPU_DRIVER_H
#define FAKE_GPU_DRIVER_H

#include "cuda_types.h"
#include "state.h"

/* Declares and defines an exported function; its header would only repeat the name. */
#define CUDA_API(name, parameters)                                                                 \
	__attribute__((visibility("default"))) CUresult name parameters;                           \
	__attribute__((visibility("default"))) CUresult name parameters

#define KIB ((uint64_t)1024)
#define MIB (1024 * KIB)
#define GRANULE_BYTES (2 * MIB) /* what the driver takes from a card at a time */
#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

static inline uint64_t round_up(uint64_t value, uint64_t step)
{
	return (value + step - 1) / step * step;
}

struct context;

/* What an entry point asks before anything else: an injected fault, then whether cuInit was called
 * here. enter_early is for functions that work before cuInit. */
CUresult enter_early(const char *function);
CUresult enter_initialised(const char *function);
bool driver_initialised(void);

/* The calling thread's current context, if it is usable. */
CUresult enter_current(struct context **current);

/* First lines of the entry points. A bad argument (`valid` is false) is told after a fault and
 * before anything about the context. */
static inline CUresult enter_always(const char *function, bool valid)
{
	CUresult status = enter_early(function);

	if (status != CUDA_SUCCESS)
		return status;
	return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static inline CUresult enter(const char *function, bool valid)
{
	CUresult status = enter_initialised(function);

	if (status != CUDA_SUCCESS)
		return status;
	return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static inline CUresult enter_context(const char *function, bool valid, struct context **current)
{
	CUresult status = enter(function, valid);

	return status != CUDA_SUCCESS ? status : enter_current(current);
}

/* Guards all tables of this process. Never held while something waits for the GPU. */
void driver_lock(void);
void driver_unlock(const int *unused);
#define DRIVER_LOCKED()                                                                            \
	__attribute__((cleanup(driver_unlock))) int driver_locked = (driver_lock(), 0);            \
	(void)driver_locked

/* Devices in CUDA's order, after CUDA_VISIBLE_DEVICES. */
int device_count(void);
bool device_valid(CUdevice ordinal);
unsigned int device_card(CUdevice ordinal);
const struct fake_card *device_describe(CUdevice ordinal);

/* Decides which cards this process sees; called once, by cuInit. */
void device_enumerate(void);

#endif
