// SPDX-License-Identifier: Apache-2.0
#include "lookup.h"

#include "ascii.h"
#include "cuda_abi.h"
#include "driver.h"
#include "hook.h"
#include "tenant.h"

#include <dlfcn.h>
#include <string.h>

__attribute__((visibility("hidden"))) void *(*lookup_next_dlsym)(void *, const char *);
__attribute__((visibility("hidden"))) void *(*lookup_next_dlvsym)(void *, const char *,
								  const char *);

static const struct lookup_answer no_answer = {NULL, 0};

static void *find_nothing(void *handle, const char *name)
{
	(void)handle;
	(void)name;
	return NULL;
}

static void *find_no_version(void *handle, const char *name, const char *version)
{
	(void)version;
	return find_nothing(handle, name);
}

static int close_nothing(void *handle)
{
	(void)handle;
	return -1;
}

/* Not in a constructor: other constructors may call dlsym before ours would have run. */
static void find_next(void)
{
	void *address = driver_next("dlsym");
	void *(*next_dlsym)(void *, const char *) = find_nothing;
	void *(*next_dlvsym)(void *, const char *, const char *) = find_no_version;

	if (address != NULL)
		memcpy((void *)&next_dlsym, (const void *)&address, sizeof(address));
	address = driver_next("dlvsym"); /* musl has none */
	if (address != NULL)
		memcpy((void *)&next_dlvsym, (const void *)&address, sizeof(address));
	__atomic_store_n(&lookup_next_dlvsym, next_dlvsym, __ATOMIC_RELEASE);
	__atomic_store_n(&lookup_next_dlsym, next_dlsym, __ATOMIC_RELEASE);
}

/* cuInit and nvmlInit, but not cublasCreate, cudaMalloc or custom_init. */
static bool is_driver_name(const char *name)
{
	return (name[0] == 'c' && name[1] == 'u' && ascii_is_upper(name[2])) ||
	       (strncmp(name, "nvml", 4) == 0 && ascii_is_upper(name[4]));
}

/* Sanitizers look for libc's functions before libc is ready, and have replaced what it exports. So
 * nothing here calls a function that a program can replace: strings are this library's own
 * (own_string.c), and libc.h finds the others past the replacements. */
static const struct driver_name *hooked_name(const char *name)
{
	if (__atomic_load_n(&lookup_next_dlsym, __ATOMIC_ACQUIRE) == NULL)
		find_next();
	driver_notice();
	if (name == NULL || !is_driver_name(name))
		return NULL;

	const struct driver_name *row = driver_name_of(name);

	if (row == NULL || row->hook == NULL)
		return NULL;
	driver_keep(row->library);
	return row;
}

static struct lookup_answer given(void *symbol)
{
	return (struct lookup_answer){symbol, 1};
}

static void *ask_next(void *handle, const char *name, const char *version)
{
	return version == NULL ? lookup_next_dlsym(handle, name)
			       : lookup_next_dlvsym(handle, name, version);
}

/* What a program gets of a second driver: this library is not in another namespace of the loader,
 * and it knows the addresses of one driver. Two drivers of one process share nothing. */
static int refuse_cuda(void)
{
	return CUDA_ERROR_SYSTEM_NOT_READY;
}

static int refuse_nvml(void)
{
	return NVML_ERROR_NO_PERMISSION;
}

static void *refusal_of(const struct driver_name *row)
{
	int (*refuse)(void) = row->library == DRIVER_CUDA ? refuse_cuda : refuse_nvml;
	void *address;

	memcpy((void *)&address, (const void *)&refuse, sizeof(address));
	return address;
}

static struct lookup_answer choose(void *handle, const char *name, const char *version)
{
	const struct driver_name *row = hooked_name(name);

	if (row == NULL)
		return no_answer;

	bool is_loaded = driver_ready(row->library) && *row->real != NULL;

	if (handle != RTLD_DEFAULT && handle != RTLD_NEXT) {
		void *found = ask_next(handle, name, version);
		void *hook = is_loaded && found != NULL ? driver_hook_of(found) : NULL;

		if (hook != NULL && !tenant_is_inert())
			return given(hook);
		if (hook == NULL && found != NULL && !tenant_is_inert() && driver_is_another(found))
			return given(refusal_of(row));
		/* Somebody else's function of this name, or none: the real dlsym says it again. */
		if (found != row->hook)
			return no_answer;
	}
	/* The whole program is asked, and it holds our export. Without the driver it must look as
	 * if it did not; looking from here, behind this library, also leaves the text for dlerror.
	 */
	if (!is_loaded)
		return given(ask_next(RTLD_NEXT, name, version));
	return given(tenant_is_inert() ? *row->real : row->hook);
}

/* A driver that a hook found without a look-up may be about to go. */
__attribute__((visibility("default"))) int dlclose(void *handle)
{
	int (*next_dlclose)(void *) = close_nothing;
	void *address = driver_next("dlclose");

	if (address != NULL)
		memcpy((void *)&next_dlclose, (const void *)&address, sizeof(address));
	for (int library = 0; library < DRIVER_LIBRARIES; library++)
		driver_keep((enum driver_library)library);
	return next_dlclose(handle);
}

struct lookup_answer lookup_dlsym(void *handle, const char *name)
{
	return choose(handle, name, NULL);
}

struct lookup_answer lookup_dlvsym(void *handle, const char *name, const char *version)
{
	return choose(handle, name, version);
}

int lookup_end(int status, void **address)
{
	if (status == CUDA_SUCCESS && address != NULL && *address != NULL && !tenant_is_inert()) {
		void *hook = driver_hook_of(*address);

		if (hook != NULL)
			*address = hook;
	}
	return status;
}
