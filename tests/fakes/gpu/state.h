/* SPDX-License-Identifier: Apache-2.0
 *
 * The file `state`: what all processes of a simulated GPU share, and how they join and leave it.
 *
 * Python creates it; both simulated libraries map it. A process owns a slot as long as it holds the
 * record lock on that slot's byte of the file: the kernel drops the lock when the process dies, and
 * tells an observer the owner's PID in the observer's own PID namespace. Nothing else is needed to
 * know who is alive. cffi reads the text between the two "state" markers.
 */
#ifndef FAKE_GPU_STATE_H
#define FAKE_GPU_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* state: begin */
#define FAKE_STATE_MAGIC 0x55475046
#define FAKE_STATE_VERSION 2
#define FAKE_MAX_CARDS 16
#define FAKE_MAX_PROCESSES 1024
#define FAKE_MAX_FAULTS 32
#define FAKE_BUSY_PERIODS 32
#define FAKE_BUSY_PERIOD_NS 200000000

#define FAKE_SLOT_FREE 0
#define FAKE_SLOT_LIVE 1

/* A card, or a MIG instance: those come after the cards, each with memory and processors of its
 * own.
 */
struct fake_card {
	/* what the card is; written at creation */
	char uuid[48];
	char model[64];
	char serial[32];
	uint8_t uuid_bytes[16];
	uint64_t memory_bytes;         /* as NVML's total; CUDA sees less by reserved_bytes */
	uint64_t reserved_bytes;       /* taken by the driver, always */
	uint64_t context_bytes;        /* cost of a context, listed with its process */
	uint64_t context_hidden_bytes; /* the same, listed with no process */
	uint64_t process_hidden_bytes; /* cost of cuInit, listed with no process */
	uint64_t stream_bytes;         /* cost of a created stream, listed with its process */
	uint32_t minor;
	uint32_t pci_domain;
	uint32_t pci_bus;
	uint32_t pci_device;
	uint32_t sm_count;
	uint32_t threads_per_sm;
	uint32_t compute_major;
	uint32_t compute_minor;
	uint32_t mig_mode; /* 1: nothing runs but on its instances */
	uint32_t persistence_mode;
	/* of a MIG instance */
	uint32_t parent; /* index of its card + 1; 0: a card */
	uint32_t gpu_instance;
	uint32_t compute_instance;
	uint32_t slices;
	uint32_t gpu_instance_node; /* N of nvidia-caps/nvidia-capN */
	uint32_t compute_instance_node;
	/* what a test may change at any time */
	uint32_t lost;                 /* 1: the card has fallen off the bus */
	uint32_t utilisation_override; /* percent + 1; 0 = as measured */
	uint64_t foreign_bytes;        /* taken by nobody in particular */
	uint64_t xid;                  /* code of the last critical error */
	uint64_t xid_count;            /* grows with every such error */
};

/* What one process holds on one card. Only its owner writes it. */
struct fake_held {
	uint64_t context_bytes;
	uint64_t memory_bytes;
	uint64_t hidden_bytes; /* real, but listed with no process: managed memory, driver overhead
				*/
	uint64_t busy_ns;
	uint64_t launches;
	uint64_t pad[3];
	uint32_t busy_period[32]; /* number of the 200 ms period, see busy_us */
	uint32_t busy_us[32];
};

struct fake_process {
	uint64_t state; /* generation << 2 | FAKE_SLOT_… */
	int32_t pid;    /* in its own PID namespace: for messages only */
	uint32_t pad;
	char name[48];
	struct fake_held held[16];
};

/* The call after `skip` others of function `name`, and `times` in all, returns `code`. */
struct fake_fault {
	char name[56];
	int32_t code; /* CUresult or nvmlReturn_t; 0 = go on after the delay */
	uint32_t pid; /* 0 = any; else only the process with this PID in its own namespace */
	uint64_t delay_ns;
	uint64_t skip;
	uint64_t times;
	uint64_t calls; /* so far */
};

struct fake_state {
	uint32_t magic;
	uint32_t version;
	uint64_t size;         /* of the whole file, bytes */
	uint32_t card_count;   /* entries of `card`, instances included */
	uint32_t cuda_version; /* 13000 = 13.0 */
	char driver_version[32];
	char nvml_version[32];
	char node_directory[128]; /* where check_nodes looks for nvidia<minor> */
	uint32_t check_nodes;     /* 1: a card is seen only where its node can be opened */
	uint32_t processes_high;  /* slots at or above this index were never used */
	uint32_t lock;            /* slot + 1 of the owner; see state_lock */
	uint32_t lock_contended;
	uint32_t faults_high; /* entries of `fault` to look at */
	uint32_t clock_mode;  /* 0: the machine's monotonic clock; others are not made yet */
	uint64_t clock_ns;
	uint64_t changes; /* grows before every change of what a process holds */
	struct fake_card card[16];
	struct fake_fault fault[32];
	struct fake_process process[1024];
};
/* state: end */

_Static_assert(sizeof(struct fake_card) == 304, "layout");
_Static_assert(sizeof(struct fake_held) == 320, "layout");
_Static_assert(sizeof(struct fake_fault) == 96, "layout");
_Static_assert(offsetof(struct fake_state, card) == 256, "layout");

/* The shared state, or NULL when there is no usable file. Maps it once; any thread. */
struct fake_state *state_map(void);

/* Give this process a slot. 0, ENOENT (no state), or EAGAIN (all slots are taken). Idempotent. */
int state_join(void);

/* This process's slot, or NULL before state_join and in the child of a fork. */
struct fake_process *state_self(void);

/* True in the child of a fork whose parent had joined. */
bool state_forked(void);

/* Find out whether the owner of a slot lives; *pid is its PID as the caller sees it, 0 when it is
 * not in the caller's namespace. An observer is opened once for many questions. */
struct observer {
	int fd;
};
struct observer observer_open(void);
void observer_close(struct observer *observer);
bool observer_alive(const struct observer *observer, unsigned int slot, int *pid);

/* Taken before and after reading what several processes hold: equal when nothing changed meanwhile,
 * so that no memory was seen twice on its way from one process to another. */
uint64_t state_changes(void);
#define STATE_SNAPSHOT_TRIES 1000

/* Whether an entry is the card itself or a MIG instance of it. */
bool state_is_on(unsigned int entry, unsigned int card);

/* Bytes in use on a card by all the living and the driver. Frees the slots of the dead. */
uint64_t state_used_bytes(unsigned int card);

enum holding { HOLDING_CONTEXT, HOLDING_MEMORY, HOLDING_HIDDEN };

/* Take bytes of a card, if they are there. The caller has joined. Any thread. */
bool state_take(unsigned int card, enum holding what, uint64_t bytes);
void state_give(unsigned int card, enum holding what, uint64_t bytes);

/* Whether this process may see a card (device nodes and their cgroup rules, when check_nodes is
 * set). */
bool state_card_visible(unsigned int card);

/* The code of an injected fault for this call, or 0; sleeps first when the fault says so. */
int state_fault(const char *function);

#endif
