// SPDX-License-Identifier: Apache-2.0
/* Functions of libc past every replacement of them.
 *
 * A sanitizer replaces dl_iterate_phdr and dlopen, and looks for libc's by dlsym, which is ours:
 * its own do not work yet. So libc's are read from its symbol table. */
#ifndef VGPU_LIBC_H
#define VGPU_LIBC_H

#include <link.h>
#include <stdbool.h>
#include <stdint.h>

/* As dl_iterate_phdr(3). Holds the loader's lock meanwhile. */
int libc_each_object(int (*visit)(struct dl_phdr_info *, size_t, void *), void *data);

/* Loads nothing: keeps what is loaded from `path` for ever. False: nothing is. Takes the loader's
 * lock. Not before libc is ready: the loader would run its constructors without arguments and
 * environment. */
bool libc_keep_object(const char *path);

/* Whether libc's own constructor has run. Other objects' may run before it. */
bool libc_is_ready(void);

/* Whether the loader is adding or removing objects, in whichever thread. */
bool libc_is_loading(void);

uintptr_t libc_page_bytes(void);

#endif
