// SPDX-License-Identifier: Apache-2.0
/* Every way in which a program can ask for an entry point of the driver: dlsym, dlvsym (through
 * lookup_thunk.S) and cuGetProcAddress. The driver is asked first, then the address that it gave
 * is exchanged for the hook: version, flags and odd names are its business. */
#ifndef VGPU_LOOKUP_H
#define VGPU_LOOKUP_H

#include <stdint.h>

struct lookup_answer {
	void *symbol;
	uint64_t is_given; /* 0: the real function answers */
};

/* Called by the thunks. They leave the real functions in the two variables. */
struct lookup_answer lookup_dlsym(void *handle, const char *name);
struct lookup_answer lookup_dlvsym(void *handle, const char *name, const char *version);
extern void *(*lookup_next_dlsym)(void *, const char *);
extern void *(*lookup_next_dlvsym)(void *, const char *, const char *);

#endif
