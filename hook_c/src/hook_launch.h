// SPDX-License-Identifier: Apache-2.0
/* The compute limit: what stands before and behind every launch. */
#ifndef VGPU_HOOK_LAUNCH_H
#define VGPU_HOOK_LAUNCH_H

#include "hook.h"

/* A process that no compute limit concerns compares two words at a launch: the sequence word of its
 * limits file, and what it was when no card had a limit. */
extern const uint32_t *launch_seq;
extern uint32_t launch_free_seq;

static inline bool launch_is_free(void)
{
	return __atomic_load_n(__atomic_load_n(&launch_seq, __ATOMIC_RELAXED), __ATOMIC_RELAXED) ==
	       __atomic_load_n(&launch_free_seq, __ATOMIC_RELAXED);
}

/* Before the first launch, so that none has to go unlimited for want of memory. False: none. */
bool launch_prepare(void);

/* From now on launches of this process ask nothing: no limit concerns it. */
void launch_is_inert(void);

/* Lets the launch through when it may go, and counts it. `key` names what is launched: launches of
 * one key take about the same time. gate_end must follow. */
void gate_begin(struct hook_call *call, struct tenant *tenant, uint64_t key, void *stream);
void gate_end(struct hook_call *call);

/* Events die with their context, marks must stand in a stream before that goes. */
void gate_forget_context(uint64_t context);

static inline uint64_t launch_key(const void *function, const uint32_t grid_and_block[6])
{
	uint64_t key = (uint64_t)(uintptr_t)function;

	for (int i = 0; grid_and_block != NULL && i < 6; i++)
		key = (key ^ grid_and_block[i]) * UINT64_C(0x100000001b3);
	return key | 1;
}

#endif
