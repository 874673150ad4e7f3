// SPDX-License-Identifier: Apache-2.0
/* Time as the launch hooks see it: the machine's, or in their test a simulated one. */
#ifndef VGPU_LAUNCH_CLOCK_H
#define VGPU_LAUNCH_CLOCK_H

#include <stdint.h>

/* CLOCK_MONOTONIC. */
uint64_t clock_ns(void);

/* May return early. */
void clock_sleep(uint64_t ns);

/* Awake until then: for moments that a sleep would miss. */
void clock_spin(uint64_t until_ns);

/* Until the word has another value than `seen`, at most so long; may return early. The words lie in
 * files that processes share. */
void clock_wait(const uint32_t *word, uint32_t seen, uint64_t ns);
void clock_wake(uint32_t *word);

/* The processor's counter against CLOCK_MONOTONIC: where both stood, and ns a tick <<
 * CLOCK_SCALE_BITS. Written under an odd `changes`. */
struct clock_anchor {
	uint32_t changes;
	uint64_t ticks;
	uint64_t ns;
	uint64_t scale; /* 0: not known yet */
} __attribute__((aligned(64)));

extern struct clock_anchor clock_anchor __attribute__((visibility("hidden")));

#define CLOCK_SCALE_BITS 24
#define CLOCK_GOOD_FOR_TICKS (UINT64_C(1) << 33) /* times the scale is no more than a word */
#define CLOCK_GOOD_FOR_NS UINT64_C(1000000000)

static inline uint64_t clock_ticks(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#else
	uint64_t ticks;

	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
	return ticks;
#endif
}

/* CLOCK_MONOTONIC to within some microseconds, by the processor's counter. */
static inline uint64_t clock_near_ns(void)
{
	uint32_t changes = __atomic_load_n(&clock_anchor.changes, __ATOMIC_ACQUIRE);
	uint64_t scale = __atomic_load_n(&clock_anchor.scale, __ATOMIC_RELAXED);
	uint64_t ns = __atomic_load_n(&clock_anchor.ns, __ATOMIC_RELAXED);
	uint64_t ticks = clock_ticks() - __atomic_load_n(&clock_anchor.ticks, __ATOMIC_RELAXED);
	uint64_t passed_ns = (ticks * scale) >> CLOCK_SCALE_BITS;

	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (changes % 2 != 0 || scale == 0 || ticks > CLOCK_GOOD_FOR_TICKS ||
	    passed_ns > CLOCK_GOOD_FOR_NS ||
	    __atomic_load_n(&clock_anchor.changes, __ATOMIC_RELAXED) != changes)
		return clock_ns();
	return ns + passed_ns;
}

#endif
