// SPDX-License-Identifier: Apache-2.0
/* Prints, a line a way of looking, which object answers for cuMemAlloc_v2. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static void show(const char *way, void *address)
{
	Dl_info info;

	if (address == NULL) {
		printf("%s none\n", way);
		return;
	}
	if (dladdr(address, &info) == 0) {
		printf("%s unknown\n", way);
		return;
	}
	printf("%s %s %s\n", way, strrchr(info.dli_fname, '/') + 1,
	       info.dli_sname == NULL ? "?" : info.dli_sname);
}

typedef int (*get_v1)(const char *, void **, int, uint64_t);
typedef int (*get_v2)(const char *, void **, int, uint64_t, int *);

static void *by_v2(get_v2 get, const char *name, int version, uint64_t flags)
{
	void *address = NULL;
	int status;

	return get != NULL && get(name, &address, version, flags, &status) == 0 ? address : NULL;
}

static void *by_v1(get_v1 get, const char *name, int version, uint64_t flags)
{
	void *address = NULL;

	return get != NULL && get(name, &address, version, flags) == 0 ? address : NULL;
}

int main(int argc, char **argv)
{
	const char *name = "cuMemAlloc_v2";

	show("before", dlsym(RTLD_DEFAULT, name));
	show("before-self", dlsym(dlopen(NULL, RTLD_NOW), name));

	void *handle = dlopen(argc > 1 ? argv[1] : "libcuda.so.1",
			      argc > 2 ? RTLD_NOW | RTLD_DEEPBIND : RTLD_NOW);

	if (handle == NULL) {
		puts(dlerror());
		return 1;
	}
	dlerror();
	show("handle", dlsym(handle, name));
	show("error", dlerror());
	show("dlvsym", dlvsym(handle, name, "GLIBC_2.2.5"));
	show("default", dlsym(RTLD_DEFAULT, name));
	show("next", dlsym(RTLD_NEXT, name));
	show("pass", dlsym(handle, "cuEventCreate"));
	show("no-such", dlsym(handle, "cuNoSuchThing"));
	show("other", dlsym(RTLD_DEFAULT, "cudaMalloc"));

	get_v1 v1 = (get_v1)dlsym(handle, "cuGetProcAddress");
	get_v2 v2 = (get_v2)dlsym(handle, "cuGetProcAddress_v2");

	show("v1", by_v1(v1, "cuMemAlloc", 11030, 0));
	show("v1-2000", by_v1(v1, "cuMemAlloc", 2000, 0));
	show("v2", by_v2(v2, "cuMemAlloc", 12000, 0));
	show("v2-async", by_v2(v2, "cuMemAllocAsync", 12000, 0));
	show("v2-async-thread", by_v2(v2, "cuMemAllocAsync", 12000, 2));
	show("v2-pass", by_v2(v2, "cuEventCreate", 12000, 0));
	show("v2-ctx-3020", by_v2(v2, "cuCtxCreate", 3020, 0));
	show("v2-ctx-12000", by_v2(v2, "cuCtxCreate", 12000, 0));
	show("v2-ctx-13000", by_v2(v2, "cuCtxCreate", 13000, 0));
	show("v2-empty", by_v2(v2, "", 0, 0));
	show("v2-suffix", by_v2(v2, "cuMemAlloc_v2", 12000, 0));
	show("v2-self-11030", by_v2(v2, "cuGetProcAddress", 11030, 0));
	show("v2-self-12000", by_v2(v2, "cuGetProcAddress", 12000, 0));
	show("v2-again",
	     by_v2((get_v2)by_v2(v2, "cuGetProcAddress", 12000, 0), "cuMemFree", 12000, 0));
	return 0;
}
