// SPDX-License-Identifier: Apache-2.0
/* The work that a process had under way on its cards when it ended. The process cannot say any more
 * what that took. The slot that it leaves in the usage file says what was predicted, until when,
 * and whether a wait has shown its end. The process that proves it dead charges the container.
 *
 * Pure: no lock, no clock. */
#ifndef VGPU_LAST_WORK_H
#define VGPU_LAST_WORK_H

#include "vgpu_abi.h"

#include <stdbool.h>

/* As a slot has it: predicted work that is not charged yet; lowest bit: nobody knows that it has
 * ended. */
static inline uint64_t last_work_word(uint64_t pending_ns, bool is_over)
{
	return (pending_ns & ~UINT64_C(1)) | (is_over ? 0 : 1);
}

/* Charges it, and forgets it. The owner ended before `now_ns`, and nobody knows how long before. */
void last_work_charge(struct vgpu_usage *usage, struct vgpu_usage_slot *slot, uint64_t now_ns);

#endif
