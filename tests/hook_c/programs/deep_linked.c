// SPDX-License-Identifier: Apache-2.0
/* An object that is linked with the driver and loaded with RTLD_DEEPBIND: the loader binds its
 * references to the driver, past what is preloaded, before anything has called dlsym. */
#include <stddef.h>
#include <stdio.h>

int cuInit(unsigned int flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes);
int nvmlInit_v2(void);

/* What the loader binds when it loads the object, and not at the first call. */
static int (*const allocate)(unsigned long long *, size_t) = cuMemAlloc_v2;

__attribute__((visibility("default"))) int use(void)
{
	unsigned long long pointer = 0;
	void *context;
	int status = cuInit(0);

	if (status == 0)
		status = cuDevicePrimaryCtxRetain(&context, 0);
	if (status == 0)
		status = cuCtxSetCurrent(context);
	printf("%d %d %d\n", status, cuMemAlloc_v2(&pointer, (size_t)3 << 30),
	       allocate(&pointer, (size_t)3 << 30));
	return 0;
}
