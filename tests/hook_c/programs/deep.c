// SPDX-License-Identifier: Apache-2.0
/* An object that is loaded with RTLD_DEEPBIND: it binds libc's dlsym and dlvsym, past any that are
 * preloaded, and prints which object answers for entry points of the driver. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static void show(const char *way, void *address)
{
	Dl_info info;

	if (address == NULL || dladdr(address, &info) == 0)
		printf("%s none\n", way);
	else
		printf("%s %s\n", way, strrchr(info.dli_fname, '/') + 1);
}

/* Which dlsym this object has bound, and what that finds in a library of this name. */
__attribute__((visibility("default"))) int look(const char *library)
{
	void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	size_t bytes = (size_t)3 << 30;
	unsigned long long pointer = 0;

	if (handle == NULL)
		return 1;
	show("dlsym", (void *)dlsym);
	show("hooked", dlsym(handle, "cuMemAlloc_v2"));
	show("pass", dlsym(handle, "cuEventCreate"));
	show("nvml", dlsym(dlopen("libnvidia-ml.so.1", RTLD_NOW), "nvmlDeviceGetMemoryInfo"));

	int (*allocate)(unsigned long long *, size_t) = NULL;
	void *symbol = dlsym(handle, "cuMemAlloc_v2");

	memcpy((void *)&allocate, (const void *)&symbol, sizeof(allocate));
	printf("refused %d\n", allocate == NULL ? -1 : allocate(&pointer, bytes));
	return dlclose(handle);
}
