/* SPDX-License-Identifier: Apache-2.0
 *
 * Modules and kernels. What a kernel does is in its name: busy_200us, busy_5ms, busy_20us_local8000
 * (bytes of local memory a thread); busy_param runs for the nanoseconds in its first argument, a
 * 64-bit number. Any other name is a kernel of 1 µs. A name that begins with "missing" is not
 * found.
 *
 * An image is taken as it comes, whatever its format. One that begins with the line "fakegpu" may
 * hold lines "global NAME BYTES": variables of the module, which take device memory.
 */
#ifndef FAKE_GPU_MODULE_H
#define FAKE_GPU_MODULE_H

#include "driver.h"

struct function {
	uint32_t magic;
	struct module *module;
	char name[128];
	uint64_t duration_ns;
	bool duration_is_parameter;
	uint64_t local_bytes;
	struct function *next;
};

bool function_valid(const struct function *function);

/* How long one launch takes. */
uint64_t function_duration_ns(const struct function *function, void *const *parameters);

#endif
