// SPDX-License-Identifier: Apache-2.0
#include "libc.h"

#include "image.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

typedef int each_object(int (*visit)(struct dl_phdr_info *, size_t, void *), void *data);

/* Two threads that look at the same time find the same. */
static each_object *real_each_object;
static unsigned long (*real_getauxval)(unsigned long);

/* What the loader keeps for debuggers. */
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

int libc_each_object(int (*visit)(struct dl_phdr_info *, size_t, void *), void *data)
{
	each_object *each = __atomic_load_n(&real_each_object, __ATOMIC_RELAXED);

	if (each == NULL) {
		void *address = address_in_libc("dl_iterate_phdr");

		each = dl_iterate_phdr; /* a loader that keeps nothing for debuggers */
		if (address != NULL)
			memcpy((void *)&each, (const void *)&address, sizeof(address));
		__atomic_store_n(&real_each_object, each, __ATOMIC_RELAXED);
	}
	return each(visit, data);
}

uintptr_t libc_page_bytes(void)
{
	unsigned long (*ask)(unsigned long) = __atomic_load_n(&real_getauxval, __ATOMIC_RELAXED);

	if (ask == NULL) {
		void *address = address_in_libc("getauxval");

		ask = getauxval;
		if (address != NULL)
			memcpy((void *)&ask, (const void *)&address, sizeof(address));
		__atomic_store_n(&real_getauxval, ask, __ATOMIC_RELAXED);
	}
	return ask(AT_PAGESZ);
}

bool libc_is_ready(void)
{
	/* Either alone may be missing later: after clearenv(), or without an argv[0]. */
	return environ != NULL || *program_invocation_name != '\0';
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

void libc_keep_object(const char *path)
{
	struct dlopen_search search = {NULL};
	void *(*real_dlopen)(const char *, int);

	libc_each_object(visit_dlopen, &search);
	memcpy((void *)&real_dlopen, (const void *)&search.address, sizeof(search.address));
	if (real_dlopen != NULL)
		real_dlopen(path, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}
