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

/* First line of every entry point: an injected fault, else not initialised, else a bad argument. */
nvmlReturn_t nvml_enter(const char *function, bool valid);

/* The same for functions that work before nvmlInit. */
nvmlReturn_t nvml_enter_always(const char *function, bool valid);

/* The same for functions of a device; *card is its card. A lost card is an error, unless only what
 * the handle itself remembers is asked for. */
nvmlReturn_t nvml_enter_device(const char *function, bool valid, nvmlDevice_t device,
			       unsigned int *card);
nvmlReturn_t nvml_enter_identity(const char *function, bool valid, nvmlDevice_t device,
				 unsigned int *card);

/* Copies a text with its end, or says that the buffer is too small. */
nvmlReturn_t nvml_copy(char *out, unsigned int length, const char *text);

/* Devices in NVML's order. Called by the first nvmlInit. */
void nvml_enumerate(void);
unsigned int nvml_count(void);
nvmlDevice_t nvml_handle(unsigned int index);

#endif
