// SPDX-License-Identifier: Apache-2.0
/* The compute limit: what stands before and behind every launch. */
#ifndef VGPU_HOOK_LAUNCH_H
#define VGPU_HOOK_LAUNCH_H

#include "hook.h"

/* What every launch reads of its process. The driver's own work between two launches fills the
 * caches: what belongs together lies in one line of them. */
struct launch_words {
	/* A process that no compute limit concerns compares two words at a launch: the sequence
	 * word of its limits file, and what it was when no card had a limit. */
	const uint32_t *seq;
	uint32_t free_seq;
	uint32_t captures; /* of streams, that have begun and not ended */
	uint32_t contexts; /* living ones of this process */
	uint64_t room;     /* that each has for a thread's local memory, in LOCAL_UNITs */
	/* By index in the limits; NULL: no launch has asked yet. Wiped by fork, never unmapped. */
	struct launch_card *cards;
	struct launch_card *only_card; /* where there is one; not ready in a forked child */
};

extern struct launch_words launch_words __attribute__((visibility("hidden")));

static inline bool launch_is_free(void)
{
	return __atomic_load_n(__atomic_load_n(&launch_words.seq, __ATOMIC_RELAXED),
			       __ATOMIC_RELAXED) ==
	       __atomic_load_n(&launch_words.free_seq, __ATOMIC_RELAXED);
}

/* Before the first launch, so that none has to go unlimited for want of memory. False: none. */
bool launch_prepare(void);

/* From now on launches of this process ask nothing: no limit concerns it. */
void launch_is_inert(void);

/* What is launched: launches of one key take about the same time. */
struct launch {
	uint64_t key;
	uint32_t gaps; /* between kernels of a graph, one after the other */
	bool is_graph;
	bool is_dependent; /* programmatic: it may begin before the one before it has ended */
};

enum gate_way {
	GATE_PASSED,  /* it may go at once, and is counted */
	GATE_STARTED, /* the same, on an idle card: when the driver's launch has returned matters */
	GATE_ASKS,
	GATE_MEASURES,
};

/* Whether the launch has to ask before it goes, or only something is to be measured. Nearly every
 * one passes: in the stream of the one before it, and in the only context. `has_end`: gate_end
 * follows; else no launch passes that it has to follow. */
enum gate_way gate_try(struct launch_card *card, uint64_t key, const void *stream, bool has_end);

/* Where the process has one card only. Nothing follows. */
static inline bool gate_passes(uint64_t key, const void *stream)
{
	return gate_try(__atomic_load_n(&launch_words.only_card, __ATOMIC_RELAXED), key, stream,
			false) == GATE_PASSED;
}

/* Lets the launch through when it may go, and counts it. gate_end must follow. */
void gate_begin(struct hook_call *call, struct tenant *tenant, struct launch launch, void *stream);
void gate_end(struct hook_call *call);

/* Events die with their context, marks must stand in a stream before that goes. */
void gate_forget_context(uint64_t context);

static inline void *launch_stream(void *stream, bool is_thread)
{
	return stream == NULL && is_thread ? (void *)STREAM_PER_THREAD : stream;
}

#define LAUNCH_DEPENDENT (UINT64_C(1) << 63) /* launches are of other classes than without */

static inline uint64_t launch_key(const void *function, const uint32_t grid_and_block[6])
{
	uint64_t key = (uint64_t)(uintptr_t)function;

	for (int i = 0; grid_and_block != NULL && i < 6; i += 2)
		key = (key ^ ((uint64_t)grid_and_block[i] << 32 | grid_and_block[i + 1])) *
		      UINT64_C(0x9e3779b97f4a7c15);
	return (key ^ key >> 32) | 1;
}

static inline bool launch_is_dependent(const struct cuda_launch_config *config)
{
	for (uint32_t i = 0; config->attributes != NULL && i < config->attribute_count; i++)
		if (config->attributes[i].id ==
		    CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
			return config->attributes[i].value.allowed != 0;
	return false;
}

static inline uint64_t launch_config_key(const struct cuda_launch_config *config,
					 const void *function)
{
	return launch_key(function, config->grid_and_block) ^
	       (launch_is_dependent(config) ? LAUNCH_DEPENDENT : 0);
}

static inline bool launch_config_passes(const struct cuda_launch_config *config,
					const void *function, bool is_thread)
{
	return config != NULL && gate_passes(launch_config_key(config, function),
					     launch_stream(config->stream, is_thread));
}

#endif
