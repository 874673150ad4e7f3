// SPDX-License-Identifier: Apache-2.0
#include "launch_card.h"

#include "hook_launch.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

const uint64_t never_ends = UINT64_MAX;

static struct launch_card *cards_of_process(void)
{
	struct launch_card *cards = __atomic_load_n(&launch_words.cards, __ATOMIC_ACQUIRE);
	size_t size = sizeof(*cards) * VGPU_MAX_DEVICES;

	if (cards != NULL)
		return cards;

	struct launch_card *fresh = sys_map(size, PROT_READ | PROT_WRITE, -1);

	if (fresh == NULL)
		return NULL;
	if (sys_advise(fresh, size, MADV_WIPEONFORK) == 0 &&
	    __atomic_compare_exchange_n(&launch_words.cards, &cards, fresh, false, __ATOMIC_ACQ_REL,
					__ATOMIC_ACQUIRE))
		return fresh;
	sys_unmap(fresh, size);
	return cards;
}

bool launch_prepare(void)
{
	return cards_of_process() != NULL;
}

/* Under the lock. */
static void prepare(struct launch_card *card, struct tenant *tenant, unsigned int index)
{
	struct vgpu_usage *usage = tenant->region.usage;

	card->index = (uint16_t)index;
	card->region = &tenant->region;
	card->turn = &usage->turn[index];
	card->limits = tenant->limits.file == NULL ? NULL : &tenant->limits.file->dev[index];
	card->gate_end = &never_ends;
	card->window_end = &never_ends;
	card->window_ns = WINDOW_NS;
	card->only_stream = NO_STREAM;
	card->throttle.account = card_account(card->turn);
	if (tenant->limits.count == 1)
		__atomic_store_n(&launch_words.only_card, card, __ATOMIC_RELAXED);
	__atomic_store_n(&card->is_ready, 1, __ATOMIC_RELEASE);
}

/* The card of the stream, which need not be the current context's. */
struct launch_card *card_of(struct tenant *tenant, void *stream)
{
	struct launch_card *cards = cards_of_process();
	int index = 0;

	if (cards == NULL)
		return NULL;
	if (tenant->limits.count != 1) {
		void *context;
		int device = stream_device(stream, &context);

		if (device < 0)
			return NULL; /* no context: the driver says so itself */
		index = device_card(tenant, device);
	}
	if (index < 0)
		return NULL;

	struct launch_card *card = &cards[index];

	if (__atomic_load_n(&card->is_ready, __ATOMIC_ACQUIRE) == 0) {
		card_lock(card);
		if (card->is_ready == 0)
			prepare(card, tenant, (unsigned int)index);
		card_unlock(card);
	}
	return card;
}

/* Where the others see what we do; another place once the slot was lost. */
uint64_t card_pending_of_container(const struct tenant *tenant, unsigned int index)
{
	const struct vgpu_usage *usage = tenant->region.usage;
	uint32_t count = __atomic_load_n(&usage->slots_high, __ATOMIC_RELAXED);
	uint64_t sum = 0;

	for (uint32_t i = 0; i < count && i < VGPU_MAX_SLOTS; i++) {
		uint64_t pending =
			__atomic_load_n(&usage->slot[i].dev[index].pending_ns, __ATOMIC_RELAXED);

		if (__atomic_load_n(&usage->slot[i].state, __ATOMIC_RELAXED) == VGPU_SLOT_LIVE &&
		    pending != 0)
			sum += pending < THROTTLE_OWED_NS ? pending : THROTTLE_OWED_NS;
	}
	return sum;
}
