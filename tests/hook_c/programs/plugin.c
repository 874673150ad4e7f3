// SPDX-License-Identifier: Apache-2.0
/* A library that is linked with the driver. */
#include <stddef.h>

extern int cuInit(unsigned int flags);
extern int cuDeviceTotalMem_v2(size_t *bytes, int device);
int total(size_t *bytes);

int total(size_t *bytes)
{
	int status = cuInit(0);

	return status != 0 ? status : cuDeviceTotalMem_v2(bytes, 0);
}
