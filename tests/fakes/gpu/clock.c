/* SPDX-License-Identifier: Apache-2.0
 *
 * Clock and busy periods. NVML shows whole periods of 200 ms, after they are over (measured).
 */
#include "clock.h"

#include <errno.h>
#include <time.h>

#define NS_PER_SECOND 1000000000ULL

static uint64_t read_clock(clockid_t id)
{
	struct timespec now;

	(void)clock_gettime(id, &now);
	return (uint64_t)now.tv_sec * NS_PER_SECOND + (uint64_t)now.tv_nsec;
}

uint64_t clock_now_ns(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

void clock_wait_until_ns(uint64_t when_ns)
{
	struct timespec when = {.tv_sec = (time_t)(when_ns / NS_PER_SECOND),
				.tv_nsec = (long)(when_ns % NS_PER_SECOND)};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL) == EINTR)
		;
}

void clock_record_busy(unsigned int card, uint64_t start_ns, uint64_t end_ns)
{
	struct fake_process *self = state_self();
	if (self == NULL || end_ns <= start_ns)
		return;
	struct fake_held *held = &self->held[card];
	uint64_t horizon = clock_now_ns() + (FAKE_BUSY_PERIODS / 2) * (uint64_t)FAKE_BUSY_PERIOD_NS;

	held->busy_ns += end_ns - start_ns;
	if (end_ns > horizon)
		end_ns = horizon;
	while (start_ns < end_ns) {
		uint64_t period = start_ns / FAKE_BUSY_PERIOD_NS;
		uint64_t period_end = (period + 1) * FAKE_BUSY_PERIOD_NS;
		uint64_t until = end_ns < period_end ? end_ns : period_end;
		unsigned int i = (unsigned int)(period % FAKE_BUSY_PERIODS);
		if (held->busy_period[i] != (uint32_t)period) {
			held->busy_us[i] = 0;
			held->busy_period[i] = (uint32_t)period;
		}
		held->busy_us[i] += (uint32_t)((until - start_ns + 500) / 1000);
		start_ns = until;
	}
}

uint64_t clock_last_period(void)
{
	return clock_now_ns() / FAKE_BUSY_PERIOD_NS - 1;
}

unsigned int clock_busy_percent(const struct fake_held *held, uint64_t period)
{
	unsigned int i = (unsigned int)(period % FAKE_BUSY_PERIODS);

	if (held->busy_period[i] != (uint32_t)period)
		return 0;
	uint64_t percent = (uint64_t)held->busy_us[i] * 100 / (FAKE_BUSY_PERIOD_NS / 1000);
	return percent > 100 ? 100 : (unsigned int)percent;
}

uint64_t clock_period_end_us(uint64_t period)
{
	uint64_t behind = clock_now_ns() - (period + 1) * FAKE_BUSY_PERIOD_NS;

	return (read_clock(CLOCK_REALTIME) - behind) / 1000;
}
