// SPDX-License-Identifier: Apache-2.0
/* A simulated world for the compute limit: processes (each a coroutine) on one clock, and two
 * cards that run their kernels. Nothing takes real time, and every run is the same.
 *
 * A card behaves as an H100 and an H200 were measured to: contexts take turns of 2 ms when several
 * have work, a change costs 142 us, one that interrupts 150 us, the work of a context that the card
 * is not at is noticed 20 us later, a timing event behind a kernel takes 2 us of the card, and the
 * way from one kernel to the next 1.8 us. Kernels fill it: those of one process run one after the
 * other. A collective is a kernel on each card that gets on only while all of them run.
 */
#ifndef VGPU_HOOK_SIM_H
#define VGPU_HOOK_SIM_H

#include <stdbool.h>
#include <stdint.h>

#define SIM_CARDS 2
#define SIM_PROCESSES 12
#define SIM_US UINT64_C(1000)
#define SIM_MS UINT64_C(1000000)
#define SIM_GAP_NS 1800 /* between two kernels */
#define SIM_BINS 600
#define SIM_BIN_NS (100 * SIM_MS)

/* Of the way to the card and back, as a program sees it. */
struct sim_latency {
	uint64_t launch_ns; /* that a launch takes its thread */
	uint64_t start_ns;  /* from then to its first work, on an idle card */
	uint64_t drain_ns;  /* from the end of the work to a wait's return */
	uint64_t cold_ns;   /* by which the first calls after a sleep are longer */
};

extern const struct sim_latency sim_usual_latency; /* after sim_begin */
extern struct sim_latency sim_latency;

struct sim_event {
	bool is_recorded;
	bool is_done;
	uint64_t time_ns;
};

/* Starts from nothing, at a clock that is not 0. */
void sim_begin(void);

/* A process that runs `body` with its number, from `start_ns` after the beginning on. */
unsigned int sim_spawn(void (*body)(unsigned int), uint64_t start_ns);

/* Runs until so much time has passed. */
void sim_run(uint64_t ns);

/* Called before another process goes on. */
extern void (*sim_switched)(unsigned int process);

/* In a process: its number, the time, and what passes time. */
unsigned int sim_self(void);
uint64_t sim_now(void);
void sim_spend(uint64_t ns);
void sim_sleep(uint64_t ns);
void sim_wait(const uint32_t *word, uint32_t seen, uint64_t ns);
void sim_wake(const uint32_t *word);

/* By which one who sleeps comes late, this time. */
uint64_t sim_wake_latency_ns(void);

/* Stopped, a process does nothing more; what it has launched is still run. */
void sim_stop(unsigned int process);

/* On a card. `collective`: the same number on each card, 0 for an ordinary kernel. */
void sim_launch(unsigned int card, uint64_t duration_ns, uint64_t collective);
void sim_launch_dependent(unsigned int card, uint64_t duration_ns); /* there is no gap before it */
void sim_record(unsigned int card, struct sim_event *event);
bool sim_is_idle(unsigned int card); /* nothing of this process is left */
void sim_synchronize(unsigned int card);

/* The truth: of a process from the beginning on. Bins and stalls are the first card's. */
uint64_t sim_busy_ns(unsigned int process, unsigned int card);
uint64_t sim_done_ns(unsigned int process, unsigned int card); /* without waits for a peer */
/* Of a card: how often another process's kernel came next, and the time between the two. */
uint64_t sim_hand_overs(unsigned int card);
uint64_t sim_hand_over_ns(unsigned int card);
double sim_bin(unsigned int process, unsigned int bin);
uint64_t sim_longest_stall_ns(unsigned int process); /* without work on the card */

#endif
