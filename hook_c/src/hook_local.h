// SPDX-License-Identifier: Apache-2.0
/* Local memory of kernels: what a launch asks before it goes on. */
#ifndef VGPU_HOOK_LOCAL_H
#define VGPU_HOOK_LOCAL_H

#include "hook.h"
#include "hook_launch.h"

#define LOCAL_FIRST_BYTES UINT64_C(1024)           /* a thread, with which a context begins */
#define LOCAL_TOO_MANY_BYTES (UINT64_C(512) << 10) /* a thread; of no card (H200, driver 580) */
#define LOCAL_UNIT_BYTES UINT64_C(16)
#define LOCAL_UNITS(bytes) (((bytes) + LOCAL_UNIT_BYTES - 1) / LOCAL_UNIT_BYTES)
#define LOCAL_PLACES 2048

extern uint64_t local_known[LOCAL_PLACES] __attribute__((visibility("hidden")));

static inline unsigned int local_place(const void *function)
{
	return (unsigned int)((uint64_t)(uintptr_t)function * UINT64_C(0x9e3779b97f4a7c15) >> 53);
}

_Static_assert(LOCAL_PLACES == 1 << (64 - 53), "local_place takes eleven bits");

/* Nearly every launch: the kernel has been seen, and every context has room for it. */
static inline bool launch_is_known(const void *function)
{
	uint64_t word = __atomic_load_n(&local_known[local_place(function)], __ATOMIC_RELAXED);

	return word >> 16 == (uint64_t)(uintptr_t)function &&
	       (word & UINT16_MAX) <= __atomic_load_n(&launch_words.room, __ATOMIC_RELAXED) &&
	       word != 0;
}

/* Bytes a thread; 0 for what is no kernel. */
uint64_t local_bytes_of(void *function);

/* Charges what the context of the stream has to grow by. local_end must follow if it returns 0;
 * it takes the charge back if the call has failed. */
int local_begin(struct hook_call *call, struct tenant *tenant, void *stream, uint64_t bytes);
int local_end(struct hook_call *call, int status);

void local_context_made(struct tenant *tenant);
void local_context_gone(struct tenant *tenant, uint64_t context);
void local_forget_kernels(void);

#endif
