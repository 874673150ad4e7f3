// SPDX-License-Identifier: Apache-2.0
/* Linked with libcuda.so.1, as CuPy and the stubs of Triton are. Prints total and free memory. */
#include <stddef.h>
#include <stdio.h>

int cuInit(unsigned int flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);

int main(void)
{
	void *context;
	size_t free_bytes = 0;
	size_t total_bytes = 0;
	int status = cuInit(0);

	if (status == 0)
		status = cuDevicePrimaryCtxRetain(&context, 0);
	if (status == 0)
		status = cuCtxSetCurrent(context);
	if (status == 0)
		status = cuMemGetInfo_v2(&free_bytes, &total_bytes);
	printf("%d %zu %zu\n", status, total_bytes, free_bytes);
	return 0;
}
