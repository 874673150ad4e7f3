// SPDX-License-Identifier: Apache-2.0
#include "launch_policy.h"

#include "hook_launch.h"
#include "hook_local.h"
#include "throttle.h"

#define BATCH_NS 500000
#define SLOT_BATCH_NS 4000000       /* beside others: each turn costs a change of contexts */
#define IN_PIECES_NS 10000000       /* beyond the horizon: slots and windows come in one piece */
#define KEPT_NS UINT64_C(500000000) /* beyond it: of the time for which others went first */
#define HEARTBEAT_NS 200000000      /* an arbiter that is silent for longer is gone */

static const uint32_t not_free = 1;
struct launch_words launch_words
	__attribute__((aligned(64))) = {.seq = &not_free, .room = LOCAL_UNITS(LOCAL_FIRST_BYTES)};

_Static_assert(sizeof(launch_words) <= 64, "in one line");

/* Whoever writes limits writes 1 to 100. What is none of these promises nothing, and gets the
 * least. */
static uint32_t percent_of(uint32_t number)
{
	return number == 0 || number > 100 ? 1 : number;
}

/* Whether the container has several cards. A developer's limit is one for each card that there is,
 * of which a program may use a single one. */
bool policy_is_joint(const struct tenant *tenant)
{
	return tenant->limits.file != NULL && tenant->limits.count > 1;
}

/* Credit grows no further than the horizon: who waited for more would wait for ever. */
static uint64_t batch_within(uint64_t horizon_ns, uint64_t batch_ns)
{
	return batch_ns < horizon_ns / 2 ? batch_ns : horizon_ns / 2;
}

/* What holds for the card now. Of numbers that are changed while they are read each is an old or a
 * new one, and the next look is a millisecond of work away. */
struct policy policy_of(const struct tenant *tenant, unsigned int index, uint64_t now_ns)
{
	const struct vgpu_limits *file = tenant->limits.file;
	const struct vgpu_limits_device *dev = file == NULL ? NULL : &file->dev[index];
	uint64_t beyond_ns = policy_is_joint(tenant) ? IN_PIECES_NS : 0;
	uint64_t batch_ns = BATCH_NS;
	struct policy policy = {.is_settled = true};

	if (dev == NULL) {
		policy.percent = percent_of(tenant->limits.card[index].cores_percent);
		policy.horizon_ns = policy.percent * THROTTLE_HORIZON_NS / 100;
		policy.batch_ns = batch_within(policy.horizon_ns, batch_ns);
		return policy;
	}

	uint32_t cores = percent_of(__atomic_load_n(&dev->cores_percent, __ATOMIC_RELAXED));
	uint32_t ceiling = percent_of(__atomic_load_n(&dev->cores_max_percent, __ATOMIC_RELAXED));
	bool is_burst = __atomic_load_n(&dev->mode, __ATOMIC_RELAXED) == VGPU_MODE_BURST;
	bool is_alone = __atomic_load_n(&dev->alone, __ATOMIC_RELAXED) == 1;
	uint64_t sign_ns = __atomic_load_n(&file->arbiter_ns, __ATOMIC_RELAXED);

	policy.is_gated = !is_alone && sign_ns != 0 && now_ns < sign_ns + HEARTBEAT_NS;
	policy.is_settled = is_alone || sign_ns == 0;
	/* Beyond one's own share only where somebody sees to it that it is idle time. */
	policy.percent =
		is_burst && (is_alone || policy.is_gated) && ceiling > cores ? ceiling : cores;
	if (!policy.is_settled) {
		beyond_ns = IN_PIECES_NS;
		batch_ns = SLOT_BATCH_NS;
	}
	policy.horizon_ns = policy.percent * THROTTLE_HORIZON_NS / 100 + beyond_ns;
	policy.batch_ns = batch_within(policy.horizon_ns, batch_ns);
	if (policy.is_gated)
		policy.kept_ns = policy.percent * KEPT_NS / 100;
	return policy;
}

/* Whether no card of this process has a limit; then launches ask no more until the file changes. */
bool policy_try_to_be_free(struct tenant *tenant, uint64_t now_ns)
{
	const struct vgpu_limits *file = tenant->limits.file;
	const uint32_t *word = file == NULL ? &not_free : &file->seq;
	uint32_t seq = __atomic_load_n(word, __ATOMIC_ACQUIRE);

	if (file != NULL && seq % 2 != 0)
		return false;
	for (unsigned int i = 0; i < tenant->limits.count; i++) {
		struct policy policy = policy_of(tenant, i, now_ns);

		if (policy.percent < 100 || policy.is_gated || !policy.is_settled)
			return false;
	}
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (__atomic_load_n(word, __ATOMIC_RELAXED) != seq)
		return false;
	__atomic_store_n(&launch_words.free_seq, seq, __ATOMIC_RELAXED);
	__atomic_store_n(&launch_words.seq, word, __ATOMIC_RELAXED);
	return true;
}

void launch_is_inert(void)
{
	__atomic_store_n(&launch_words.free_seq, not_free, __ATOMIC_RELAXED);
}
