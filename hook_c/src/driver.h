// SPDX-License-Identifier: Apache-2.0
/* The real entry points of libcuda.so.1 and libnvidia-ml.so.1, and the hooks that stand for them.
 *
 * They are found by reading the symbol tables of the loaded objects, never through dlsym: that one
 * is ours. Nothing here takes a lock of our own, because a thread inside dlopen (which holds the
 * loader's) may need an entry point while another one is looking for them. Two threads that look
 * at the same time write the same values.
 *
 * When a library has been found, the loader's table of its symbols is rewritten to name the hooks,
 * unless this process is inert. */
#ifndef VGPU_DRIVER_H
#define VGPU_DRIVER_H

#include "hooks.gen.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum driver_library {
	DRIVER_CUDA,
	DRIVER_NVML,
	DRIVER_LIBRARIES,
};

/* One row of the generated table. */
struct driver_name {
	const char *symbol;
	void **real;
	void *hook; /* NULL: we only call it */
	enum driver_library library;
};

extern const struct driver_name driver_names[]; /* sorted by symbol; hooks.gen.c */
extern const size_t driver_names_count;

extern struct driver driver
	__attribute__((visibility("hidden"))); /* NULL: the loaded driver does not export it */
extern uint32_t driver_found[DRIVER_LIBRARIES];

/* 1: a loaded library's symbol table could not be changed. What the program finds through dlsym,
 * dlvsym and cuGetProcAddress is a hook all the same. */
extern uint32_t driver_unpatched;

bool driver_search(enum driver_library library);

/* At every dlsym: looks for the libraries if anything was loaded since it last looked, so that they
 * are patched before the program finds them past us. A load that is under way may fail: what it
 * brings is looked at later. */
void driver_notice(void);

/* Keeps a loaded library from being unloaded, because addresses of ours point into it: when the
 * program looks up one of its names, and before every dlclose.
 *
 * It calls the loader, so it is not for a hook: a constructor may wait for a thread that calls the
 * driver, and the loader holds its lock while a constructor runs. Nor is it for any other dlsym:
 * the loader calls the program's malloc, which may look something up. */
void driver_keep(enum driver_library library);

/* Whether the library is loaded; then its entry points stand in `driver`. */
static inline bool driver_ready(enum driver_library library)
{
	return __atomic_load_n(&driver_found[library], __ATOMIC_ACQUIRE) != 0 ||
	       driver_search(library);
}

/* The row of a symbol, NULL if it is none of ours. */
const struct driver_name *driver_name_of(const char *symbol);

/* The hook that stands for a real entry point; NULL for any other address. */
void *driver_hook_of(const void *real);

/* For an address that no hook stands for. Whether it lies in a second driver of this process: one
 * loaded from another path, or one in another namespace of the loader (dlmopen), whose objects are
 * not seen from here. */
bool driver_is_another(const void *address);

/* The first definition of a symbol behind this library in the order of the loader; NULL if there
 * is none. For dlsym and dlvsym themselves. */
void *driver_next(const char *symbol);

/* Whether this library was loaded from the folder (its own path, not an environment variable). */
bool driver_own_path_is_in(const char *folder);

#endif
