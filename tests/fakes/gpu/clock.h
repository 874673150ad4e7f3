/* SPDX-License-Identifier: Apache-2.0
 *
 * The time of the simulation, and who kept a card busy when.
 */
#ifndef FAKE_GPU_CLOCK_H
#define FAKE_GPU_CLOCK_H

#include "state.h"

/* Nanoseconds; the same clock for all processes. */
uint64_t clock_now_ns(void);

/* Sleep until then. Holds no lock. */
void clock_wait_until_ns(uint64_t when_ns);

/* Note that this process keeps a card busy from start to end. Parts that lie further in the future
 * than the ring of periods reaches are left out. */
void clock_record_busy(unsigned int card, uint64_t start_ns, uint64_t end_ns);

/* The last 200 ms period that is over, and how busy a slot kept a card in it, 0..100. */
uint64_t clock_last_period(void);
unsigned int clock_busy_percent(const struct fake_held *held, uint64_t period);

/* The wall clock's microseconds at the end of a period. */
uint64_t clock_period_end_us(uint64_t period);

#endif
