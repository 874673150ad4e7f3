// SPDX-License-Identifier: Apache-2.0
#include "quota.h"

#include "sys.h"

/* Two processes that reserve at the same time may each see the other's reservation and both
 * withdraw although one of them fits; they come back after different waits. */
#define RESERVE_TRIES 4

static bool fits(const struct quota *quota, unsigned int card, uint64_t limit)
{
	uint64_t overhead = limits_load(&quota->limits->card[card].overhead_bytes);
	uint64_t used = region_sum(quota->region, card);

	return used <= limit && overhead <= limit - used;
}

static void back_off(const struct quota *quota, unsigned int tries)
{
	sys_sleep_ns(1000L * (1 + (long)(quota->region->slot + tries * 7U) % 50));
}

static bool ask_if_fits(const struct quota *quota, unsigned int card, uint64_t bytes,
			uint64_t limit)
{
	if (bytes > limit)
		return false; /* also keeps the sums below far from wrapping */
	region_ask(quota->region, card, bytes);
	if (limit == LIMITS_NONE || fits(quota, card, limit))
		return true;
	region_withdraw(quota->region, card, bytes);
	return false;
}

static uint64_t limit_of(const struct quota *quota, unsigned int card)
{
	return limits_load(&quota->limits->card[card].memory_bytes);
}

bool quota_try(struct quota *quota, unsigned int card, uint64_t bytes)
{
	limits_refresh(quota->limits);
	if (!region_is_alone(quota->region) || !region_is_own(quota->region))
		region_tend(quota->region, false);
	return ask_if_fits(quota, card, bytes, limit_of(quota, card));
}

bool quota_ask(struct quota *quota, unsigned int card, uint64_t bytes)
{
	limits_refresh(quota->limits);
	region_tend(quota->region, false);

	for (unsigned int tries = 0; tries < RESERVE_TRIES; tries++) {
		uint64_t limit = limit_of(quota, card);

		if (ask_if_fits(quota, card, bytes, limit))
			return true;
		if (bytes > limit)
			break;
		if (tries == 0)
			region_tend(quota->region, true); /* a slot of the dead may be in the way */
		else
			back_off(quota, tries);
	}
	region_note_refused(quota->region, card);
	return false;
}

void quota_keep(struct quota *quota, unsigned int card, uint64_t bytes)
{
	region_take(quota->region, card, bytes);
	region_note_high(quota->region, card);
}

void quota_drop(struct quota *quota, unsigned int card, uint64_t bytes)
{
	region_withdraw(quota->region, card, bytes);
}

bool quota_reserve(struct quota *quota, unsigned int card, uint64_t bytes)
{
	if (!quota_ask(quota, card, bytes))
		return false;
	quota_keep(quota, card, bytes);
	return true;
}

void quota_release(struct quota *quota, unsigned int card, uint64_t bytes)
{
	region_sub(quota->region, card, bytes);
}

/* The lock is per process and card and never held over a call of the driver. */
static void lock_small(struct quota_small *small)
{
	while (__atomic_exchange_n(&small->locked, 1, __ATOMIC_ACQUIRE) != 0)
		sys_yield();
}

static void unlock_small(struct quota_small *small)
{
	__atomic_store_n(&small->locked, 0, __ATOMIC_RELEASE);
}

static uint64_t part_of_slab(uint64_t asked)
{
	return QUOTA_SLAB_BYTES / (QUOTA_SLAB_BYTES / quota_round_up(asked, QUOTA_SMALL_STEP));
}

static bool take_small(struct quota *quota, unsigned int card, uint64_t asked)
{
	struct quota_small *small = &quota->small[card];
	bool granted = true;

	lock_small(small);

	uint64_t needed = quota_round_up(small->bytes + part_of_slab(asked), QUOTA_SLAB_BYTES);

	if (needed > small->charged) {
		granted = quota_reserve(quota, card, needed - small->charged);
		small->charged = granted ? needed : small->charged;
	}
	if (granted) {
		small->bytes += part_of_slab(asked);
		small->count++;
	}
	unlock_small(small);
	return granted;
}

static void give_small(struct quota *quota, unsigned int card, uint64_t asked)
{
	struct quota_small *small = &quota->small[card];

	lock_small(small);
	small->bytes -= part_of_slab(asked);
	if (--small->count == 0) {
		quota_release(quota, card, small->charged);
		small->charged = 0;
	}
	unlock_small(small);
}

bool quota_take(struct quota *quota, unsigned int card, uint64_t asked)
{
	if (asked <= QUOTA_SMALL_BYTES)
		return take_small(quota, card, asked);
	if (asked > UINT64_MAX - QUOTA_SLAB_BYTES) {
		region_note_refused(quota->region, card);
		return false;
	}
	return quota_reserve(quota, card, quota_round_up(asked, QUOTA_SLAB_BYTES));
}

void quota_give(struct quota *quota, unsigned int card, uint64_t asked)
{
	if (asked <= QUOTA_SMALL_BYTES)
		give_small(quota, card, asked);
	else
		quota_release(quota, card, quota_round_up(asked, QUOTA_SLAB_BYTES));
}

struct quota_view quota_look(struct quota *quota, unsigned int card)
{
	limits_refresh(quota->limits);
	if (!region_is_alone(quota->region))
		region_tend(quota->region, false);

	uint64_t overhead = limits_load(&quota->limits->card[card].overhead_bytes);
	uint64_t used = region_sum(quota->region, card);

	return (struct quota_view){
		.limit_bytes = limits_load(&quota->limits->card[card].memory_bytes),
		.used_bytes = used > UINT64_MAX - overhead ? UINT64_MAX : used + overhead};
}
