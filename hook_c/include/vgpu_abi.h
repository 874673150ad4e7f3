/* SPDX-License-Identifier: Apache-2.0
 *
 * The two files that the node agent and libvgpu.so share, one pair per container.
 *
 *   limits  the agent writes, the tenant maps read-only
 *   usage   the tenant writes, the agent reads with pread and trusts nothing in it
 *
 * Little-endian, 128-byte lines, fixed sizes, never truncated or renamed. A reader refuses another
 * major version and accepts any minor one. cffi reads the text between the two "abi" markers.
 */
#ifndef VGPU_ABI_H
#define VGPU_ABI_H

#include <stddef.h>
#include <stdint.h>

/* abi: begin */
#define VGPU_ABI_MAJOR 1
#define VGPU_ABI_MINOR 4
#define VGPU_LIMITS_MAGIC 0x4c504756
#define VGPU_USAGE_MAGIC 0x55504756
#define VGPU_MAX_DEVICES 16
#define VGPU_MAX_SLOTS 1024
#define VGPU_RING_ENTRIES 512
#define VGPU_RING_TEXT_BYTES 112

#define VGPU_KIND_NONE 0
#define VGPU_KIND_GPU 1
#define VGPU_KIND_MIG 2

#define VGPU_MODE_HARD 1
#define VGPU_MODE_BURST 2

#define VGPU_SLOT_FREE 0
#define VGPU_SLOT_CLAIMED 1
#define VGPU_SLOT_LIVE 2

/* Of a slot: its owner has ended, and forked children keep at the card what it held. */
#define VGPU_FLAG_KEPT 1

#define VGPU_RING_DEBUG 1
#define VGPU_RING_WARNING 2
#define VGPU_RING_ERROR 3

struct vgpu_header {
	uint32_t magic;
	uint16_t major;
	uint16_t minor;
	uint32_t size; /* of the whole file, bytes */
	uint32_t reserved;
};

/* One card of the container, in the order in which it sees them. */
struct vgpu_limits_device {
	/* line 0: what was promised */
	uint8_t uuid[16]; /* binary form of GPU-… or MIG-… */
	uint32_t kind;
	uint32_t mode;
	uint64_t memory_bytes;         /* never 0 in a used entry */
	uint64_t virtual_memory_bytes; /* 0 = none */
	uint32_t cores_percent;        /* 1..100 */
	uint32_t reserved_percent;
	uint32_t cores_max_percent;
	int32_t priority;
	uint32_t weight;
	uint8_t pad0[68];
	/* line 1: written by the arbiter */
	uint32_t gate;  /* futex word, changes with every grant */
	uint32_t alone; /* 1: no other slice is on the card */
	uint64_t grant_until_ns;
	uint64_t grant_from_ns; /* minor 3: launches wait until then; an older library does not */
	uint8_t pad1[104];
	/* line 2: measured by the agent */
	uint64_t overhead_bytes; /* what NVML sees beyond the account */
	uint64_t context_bytes;  /* what one context costs on this card; 0 = not measured */
	uint8_t pad2[112];
};

struct vgpu_limits {
	struct vgpu_header header;
	uint64_t heartbeat_ns; /* CLOCK_MONOTONIC of the host at the agent's last sign of life */
	uint32_t seq;          /* odd while the agent writes; readers are bounded */
	uint32_t ndev;         /* 1..VGPU_MAX_DEVICES */
	uint8_t allocation_uuid[16];
	uint64_t arbiter_ns; /* minor 1: CLOCK_MONOTONIC at the slot arbiter's last sign of life */
	uint8_t pad[72];
	struct vgpu_limits_device dev[16];
};

/* The tenant's answers to the arbiter, one line a card. */
struct vgpu_usage_turn {
	uint32_t want; /* futex word; grows while a thread is kept from launching */
	uint32_t insync;
	uint32_t drained;
	uint32_t pad0;
	uint64_t vq_end_ns;
	/* minor 1: time of the card that all processes share; throttle.h */
	int64_t balance_ns;   /* may still be used; negative: owed */
	uint64_t refilled_ns; /* CLOCK_MONOTONIC of the last refill */
	uint64_t stretch;     /* the last stretch of busy time that was charged */
	/* minor 2: of containers with several cards */
	uint64_t window_end_ns; /* of the first card: until then all cards may be launched on */
	uint64_t due_ns;        /* predicted, at the last launch, for all that was launched */
	uint32_t launches;      /* on the card, modulo 2^32: how far one is behind another */
	uint32_t pad1;
	uint64_t deferred_ns; /* minor 4: owed beyond balance_ns, and worked off slowly */
	uint8_t pad2[48];
};

/* What one process holds on one card. */
struct vgpu_usage_device {
	uint64_t used_bytes;
	uint64_t high_bytes;
	uint64_t busy_ns;
	uint64_t launches;
	uint64_t refused;
	uint64_t asked_bytes; /* of calls that are being decided; not held */
	/* minor 1 */
	uint64_t pending_ns;   /* predicted work that is not charged yet; lowest bit: it may not
				* have ended */
	uint64_t queue_end_ns; /* predicted; lowest bit: a thread waits for the card */
};

/* One process. Written by that process alone; cleared by whoever finds it dead. Its owner holds a
 * lock of the kernel (F_GETLK shows it) on the byte of the file that has the slot's number, for as
 * long as it lives. */
struct vgpu_usage_slot {
	uint32_t state;      /* VGPU_SLOT_… */
	uint32_t pid;        /* in the process's own PID namespace */
	uint64_t start_time; /* /proc/PID/stat field 22, clock ticks */
	uint64_t pidns;      /* inode of the PID namespace */
	uint32_t gen;        /* grows with every owner */
	uint32_t flags;      /* VGPU_FLAG_… */
	/* minor 2: grows before every growth of a used_bytes; a reader that looks twice and sees it
	 * unchanged in all slots has seen the sums of one moment. 0: an older writer. */
	uint64_t grants;
	uint8_t pad[88];
	struct vgpu_usage_device dev[16];
};

struct vgpu_usage_message {
	uint32_t level; /* VGPU_RING_… ; 0 = empty */
	uint32_t pid;
	uint64_t number; /* of the message, from 1; tells the reader what it has lost */
	char text[112];
};

struct vgpu_usage {
	struct vgpu_header header;
	uint32_t slots_high; /* slots at or above this index were never used */
	uint32_t pad0;
	uint64_t reaped_ns; /* CLOCK_MONOTONIC of the last look for dead slots */
	uint64_t ring_next; /* number of the last message */
	uint8_t pad1[88];
	struct vgpu_usage_turn turn[16];
	struct vgpu_usage_slot slot[1024];
	struct vgpu_usage_message ring[512];
};
/* abi: end */

/* Where a container finds them. */
#define VGPU_CONTAINER_DIR "/dev/vgpu"
#define VGPU_CONTAINER_LIBRARY VGPU_CONTAINER_DIR "/libvgpu.so"
#define VGPU_CONTAINER_LIMITS VGPU_CONTAINER_DIR "/limits"
#define VGPU_CONTAINER_USAGE VGPU_CONTAINER_DIR "/usage"

_Static_assert(sizeof(struct vgpu_header) == 16, "ABI");
_Static_assert(sizeof(struct vgpu_limits_device) == 3UL * 128, "ABI");
_Static_assert(offsetof(struct vgpu_limits_device, gate) == 128, "ABI");
_Static_assert(offsetof(struct vgpu_limits_device, overhead_bytes) == 256, "ABI");
_Static_assert(offsetof(struct vgpu_limits, dev) == 128, "ABI");
_Static_assert(sizeof(struct vgpu_limits) == 128UL + VGPU_MAX_DEVICES * 384UL, "ABI");
_Static_assert(sizeof(struct vgpu_usage_turn) == 128, "ABI");
_Static_assert(sizeof(struct vgpu_usage_device) == 64, "ABI");
_Static_assert(sizeof(struct vgpu_usage_slot) == 128UL + VGPU_MAX_DEVICES * 64UL, "ABI");
_Static_assert(sizeof(struct vgpu_usage_message) == 128, "ABI");
_Static_assert(offsetof(struct vgpu_usage, turn) == 128, "ABI");
_Static_assert(offsetof(struct vgpu_usage, slot) == 128UL + VGPU_MAX_DEVICES * 128UL, "ABI");
_Static_assert(sizeof(struct vgpu_usage) == 128UL + VGPU_MAX_DEVICES * 128UL +
						    VGPU_MAX_SLOTS * 1152UL +
						    VGPU_RING_ENTRIES * 128UL,
	       "ABI");
_Static_assert(sizeof(struct vgpu_usage) <= 2UL * 1024 * 1024 - 65536, "fits its tmpfs");

#endif
