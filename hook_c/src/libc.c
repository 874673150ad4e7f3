// SPDX-License-Identifier: Apache-2.0
#include "libc.h"

#include "image.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

/* The loader's list of objects, kept for debuggers. */
extern struct r_debug _r_debug __attribute__((weak));

/* libc is loaded when the program starts and stays, and so do all objects before it in the list:
 * the list can be read up to it without the loader's lock, which only libc's function takes. */
static void *address_in_libc(const char *symbol)
{
	struct image image;

	if (&_r_debug == NULL)
		return NULL;
	for (const struct link_map *object = _r_debug.r_map; object != NULL;
	     object = object->l_next)
		if (image_read(object->l_addr, object->l_name, object->l_ld, &image) &&
		    strcmp(image.soname, "libc.so.6") == 0)
			return image_address(&image, symbol);
	return NULL;
}

/* Puts the address of libc's function into `function` at its first use. Two threads that look at
 * the same time find the same. */
static void find_once(void **function, const char *symbol, const void *imported)
{
	if (__atomic_load_n(function, __ATOMIC_RELAXED) != NULL)
		return;

	void *address = address_in_libc(symbol);

	if (address == NULL) /* a loader that keeps nothing for debuggers */
		address = (void *)imported;
	__atomic_store_n(function, address, __ATOMIC_RELAXED);
}

int libc_each_object(int (*visit)(struct dl_phdr_info *, size_t, void *), void *data)
{
	static union {
		void *address;
		int (*call)(int (*)(struct dl_phdr_info *, size_t, void *), void *);
	} function;

	find_once(&function.address, "dl_iterate_phdr", dl_iterate_phdr);
	return function.call(visit, data);
}

uintptr_t libc_page_bytes(void)
{
	static union {
		void *address;
		unsigned long (*call)(unsigned long);
	} function;

	find_once(&function.address, "getauxval", getauxval);
	return function.call(AT_PAGESZ);
}

bool libc_is_ready(void)
{
	/* Either alone may be missing later: after clearenv(), or without an argv[0]. */
	return environ != NULL || *program_invocation_name != '\0';
}

bool libc_is_loading(void)
{
	return &_r_debug != NULL &&
	       __atomic_load_n(&_r_debug.r_state, __ATOMIC_RELAXED) != RT_CONSISTENT;
}

struct dlopen_search {
	void *address;
};

static int visit_dlopen(struct dl_phdr_info *info, size_t size, void *data)
{
	struct dlopen_search *search = data;
	struct image image;

	(void)size;
	/* Before glibc 2.34 it was a library of its own. */
	if (image_of(info, &image) &&
	    (strcmp(image.soname, "libc.so.6") == 0 || strcmp(image.soname, "libdl.so.2") == 0))
		search->address = image_address(&image, "dlopen");
	return search->address != NULL;
}

bool libc_keep_object(const char *path)
{
	struct dlopen_search search = {NULL};
	void *(*real_dlopen)(const char *, int);

	libc_each_object(visit_dlopen, &search);
	memcpy((void *)&real_dlopen, (const void *)&search.address, sizeof(search.address));
	return real_dlopen == NULL ||
	       real_dlopen(path, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) != NULL;
}
