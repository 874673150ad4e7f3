// SPDX-License-Identifier: Apache-2.0
/* Time as the launch hooks see it: the machine's, or in their test a simulated one. */
#ifndef VGPU_LAUNCH_CLOCK_H
#define VGPU_LAUNCH_CLOCK_H

#include <stdint.h>

/* CLOCK_MONOTONIC. */
uint64_t clock_ns(void);

/* The same to within some microseconds, by the processor's counter. */
uint64_t clock_near_ns(void);

/* May return early. */
void clock_sleep(uint64_t ns);

/* Awake until then: for moments that a sleep would miss. */
void clock_spin(uint64_t until_ns);

/* Until the word has another value than `seen`, at most so long; may return early. The words lie in
 * files that processes share. */
void clock_wait(const uint32_t *word, uint32_t seen, uint64_t ns);
void clock_wake(uint32_t *word);

#endif
