/* SPDX-License-Identifier: Apache-2.0
 *
 * What every file of the simulated libnvidia-ml.so.1 stands on: NVML's types as its public
 * documentation gives them, entry checks, and the devices that the process sees.
 */
#ifndef FAKE_GPU_NVML_H
#define FAKE_GPU_NVML_H

#include "state.h"

typedef enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_UNINITIALIZED = 1,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NOT_SUPPORTED = 3,
	NVML_ERROR_NO_PERMISSION = 4,
	NVML_ERROR_NOT_FOUND = 6,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
	NVML_ERROR_DRIVER_NOT_LOADED = 9,
	NVML_ERROR_TIMEOUT = 10,
	NVML_ERROR_GPU_IS_LOST = 15,
	NVML_ERROR_MEMORY = 20,
	NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
	NVML_ERROR_UNKNOWN = 999,
} nvmlReturn_t;

typedef struct nvml_device *nvmlDevice_t;

#define NVML_API(name, parameters)                                                                 \
	__attribute__((visibility("default"))) nvmlReturn_t name parameters;                       \
	__attribute__((visibility("default"))) nvmlReturn_t name parameters

/* A struct's version word: its number above its size. */
#define NVML_VERSION(type, number) ((unsigned int)(sizeof(type) | (number) << 24))

/* What an entry point asks before anything else: an injected fault, then whether nvmlInit was
 * called. nvml_enter_early is for functions that work before it. */
nvmlReturn_t nvml_enter_early(const char *function);
nvmlReturn_t nvml_enter_initialised(const char *function);

/* The card of a handle. A lost card is an error, unless `lost_too`. */
nvmlReturn_t nvml_card(nvmlDevice_t device, bool lost_too, unsigned int *card);

/* First lines of the entry points. A bad argument (`valid` is false) is told after a fault. */
static inline nvmlReturn_t nvml_enter_always(const char *function, bool valid)
{
	nvmlReturn_t status = nvml_enter_early(function);

	if (status != NVML_SUCCESS)
		return status;
	return valid ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

static inline nvmlReturn_t nvml_enter(const char *function, bool valid)
{
	nvmlReturn_t status = nvml_enter_initialised(function);

	if (status != NVML_SUCCESS)
		return status;
	return valid ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

static inline nvmlReturn_t nvml_enter_device(const char *function, bool valid, nvmlDevice_t device,
					     unsigned int *card)
{
	nvmlReturn_t status = nvml_enter(function, valid);

	return status != NVML_SUCCESS ? status : nvml_card(device, false, card);
}

/* For what a handle itself remembers, be its card lost or not. */
static inline nvmlReturn_t nvml_enter_identity(const char *function, bool valid,
					       nvmlDevice_t device, unsigned int *card)
{
	nvmlReturn_t status = nvml_enter(function, valid);

	return status != NVML_SUCCESS ? status : nvml_card(device, true, card);
}

/* Copies a text with its end, or says that the buffer is too small. */
nvmlReturn_t nvml_copy(char *out, unsigned int length, const char *text);

/* Whether a card is a MIG instance or is divided into some. */
bool nvml_is_mig(unsigned int card);

/* Devices in NVML's order, MIG instances not among them. Called by the first nvmlInit. */
void nvml_enumerate(void);
unsigned int nvml_count(void);
nvmlDevice_t nvml_handle(unsigned int index);

/* Of a MIG instance of a card, or of a card; NULL: there is none, or it is not visible. */
nvmlDevice_t nvml_instance(unsigned int card, unsigned int number);
nvmlDevice_t nvml_handle_of(unsigned int card);

#endif
