// SPDX-License-Identifier: Apache-2.0
/* What the generated stubs call. A stub is: enter; begin; the real function with the program's own
 * arguments; end. A class of api.tsv is a pair of functions here; a new function of the driver is a
 * new line of api.tsv.
 *
 * begin returns 0 to go on, or the code that the program gets instead of a call of the driver; it
 * fills the call in either case. end returns what the program gets. Both may be called by any
 * thread, and neither holds a lock when it returns. */
#ifndef VGPU_HOOK_H
#define VGPU_HOOK_H

#include "cuda_abi.h"
#include "driver.h"
#include "table.h"
#include "tenant.h"

/* What a call may take of a pool; pool_account.c. */
struct pool_call {
	uint64_t bytes;
	uint64_t others; /* of graphs: have so much of the pool in use */
	uint64_t growth; /* asked for */
	uint64_t at;     /* of the pool, when the call began */
	int waits;       /* hook_streams.c */
	bool is_tight;
};

/* One call of the driver in progress, on the stack of the stub. */
struct hook_call {
	struct tenant *tenant; /* NULL: nothing to do at the end */
	struct table_entry entry;
	struct tenant_pool *pool; /* hook_pool.c */
	uint64_t selections;      /* hook_pool.c; when that was the device's own */
	struct pool_call pool_call;
	uint64_t held;
	struct tenant *giving;       /* hook_pool.c; NULL: there is no pool */
	uint32_t waits_number;       /* hook_freed.c */
	struct tenant *graph_tenant; /* hook_graph.c */
	struct table_entry graph;
	struct launch_card *gate; /* hook_launch.c, launch_sync.c */
	bool is_marked;
	bool is_of_device; /* the pool */
	bool is_counted;   /* among the waits for the card; of a query: work is overdue */
	uint64_t begun_ns;
	uint64_t launches; /* that were made before the wait; launch_sync.c */
};

/* Where a program puts a node. */
struct graph_place {
	const void *out;
	void *graph;
	const void *dependencies;
	uint64_t count;
};

#define GRAPH_PLACE(...) (&(const struct graph_place){__VA_ARGS__})

/* CU_STREAM_PER_THREAD; below it CU_STREAM_LEGACY and the default. */
#define STREAM_PER_THREAD 2

/* Stubs of functions that the loaded driver lacks: a program can reach them only by linking with a
 * library that has them. */
#define HOOK_ENTER(symbol, library, missing)                                                       \
	do {                                                                                       \
		if (!driver_ready(library) || driver.symbol == NULL)                               \
			return missing;                                                            \
	} while (0)

/* What the driver has written to an out-parameter, whatever its width. */
#define HOOK_VALUE(status, out)                                                                    \
	((status) == CUDA_SUCCESS && (out) != NULL ? (uint64_t)(uintptr_t) * (out) : 0)

/* hook_device.c */
int init_begin(struct hook_call *call);
int init_end(struct hook_call *call, int status);
int memory_info_end(int status, void *free_bytes, void *total_bytes, size_t width);
int total_memory_end(int status, void *total_bytes, size_t width, int device);
int context_create_begin(struct hook_call *call, const void *out, int device);
int context_create_end(struct hook_call *call, int status, uint64_t context);
int context_destroy_end(int status, uint64_t context);
int context_attach_end(int status, uint64_t context);
int context_detach_end(int status, uint64_t context);
int primary_retain_begin(struct hook_call *call, const void *out, int device);
int primary_retain_end(struct hook_call *call, int status, uint64_t context);
int primary_release_end(int status, int device);

/* The index of the device in the limits, or, below 0: that it was not promised, or that the driver
 * does not say which card it is. It may say so later: before cuInit it says nothing. */
#define CARD_NOT_PROMISED (-1)
#define CARD_UNKNOWN (-2)
int device_card(struct tenant *tenant, int device);

/* The device of the current context; -1: there is none. Where the process sees one device only it
 * is that one, whether there is a context or not: the driver says so itself then. */
int device_now(const struct tenant *tenant);

/* The device and the context in which work of the stream runs: the current ones for the streams
 * without a handle of their own, and where the driver cannot say. -1: there is none. */
int stream_device(void *stream, void **context);

/* hook_refusal.c */
/* The driver's answer to every call before cuInit, when it looks at no argument; CUDA_SUCCESS
 * afterwards. Asked before a structure of the program is read. */
int early_answer(void);

/* A call for a device that does not exist can take nothing, and is the driver's to answer. */
bool is_on_host(const struct cuda_location *location);
bool device_exists(int device);

/* The code for a call that the account has no room for: what the driver has against it, else
 * CUDA_ERROR_OUT_OF_MEMORY. Of a call in the current context; in a stream; of cuMemCreate. */
int refuse_memory(void);
int refuse_in_stream(void *stream);
int refuse_properties(const struct cuda_allocation_properties *properties, uint64_t bytes);

/* hook_memory.c */
int alloc_begin(struct hook_call *call, const void *out, uint64_t bytes);
int managed_begin(struct hook_call *call, const void *out, uint64_t bytes, unsigned int flags);
int alloc_end(struct hook_call *call, int status, uint64_t pointer);
int pitch_begin(struct hook_call *call, const void *out, const void *out_pitch, uint64_t width,
		uint64_t height, unsigned int element_bytes);
int pitch_end(struct hook_call *call, int status, uint64_t pointer, uint64_t pitch,
	      uint64_t height);
int free_begin(struct hook_call *call, uint64_t pointer);
int free_async_begin(struct hook_call *call, uint64_t pointer, void *stream, bool is_thread);
int free_end(struct hook_call *call, int status);

/* Charges the card of the current context for what the driver takes for so many bytes. */
int charge_current(struct hook_call *call, const void *out, uint64_t bytes, enum table_kind kind);

/* Ends every allocation that the context held. */
void memory_forget_context(struct tenant *tenant, uint64_t context);

/* hook_freed.c */
/* Lets this thread make calls that a capture of another one would forbid, until it is called again
 * with what it has written. */
void exchange_capture_mode(int *mode);

/* Puts an event of ours into the stream, which is one of that context. */
bool record_event(void *stream, void *context, void **event);
int free_async_end(struct hook_call *call, int status, void *stream, bool is_thread);

/* Around a call of the program that waits for the card. */
void wait_begin(struct hook_call *call);
int wait_end(struct hook_call *call, int status);

/* Gives back what has been freed in the order of streams and is done; `waits`, unless NULL: also
 * what is so soon. False: there was none. */
bool freed_settle(struct tenant *tenant, int *waits);

/* A mapping of the object ends with what has been put into the stream so far. */
void freed_object(struct tenant *tenant, uint64_t object, void *stream);
void freed_forget_context(struct tenant *tenant, uint64_t context);

/* hook_array.c */
int array_begin(struct hook_call *call, const void *out, const void *descriptor,
		unsigned int number);
int array3d_begin(struct hook_call *call, const void *out, const void *descriptor,
		  unsigned int number);
int mipmap_begin(struct hook_call *call, const void *out, const void *descriptor,
		 unsigned int levels);
int array_end(struct hook_call *call, int status, uint64_t array);
int array_free_begin(struct hook_call *call, uint64_t array);
int array_free_end(struct hook_call *call, int status, uint64_t array);

/* hook_sparse.c */
int object_map_array_begin(struct hook_call *call, const void *list, unsigned int count);
int object_map_array_end(struct hook_call *call, int status, const void *list, unsigned int count,
			 void *stream, bool is_thread);
void sparse_forget_array(uint64_t array);

/* hook_pool.c */
int pool_alloc_begin(struct hook_call *call, const void *out, uint64_t bytes, void *stream,
		     bool is_thread);
int pool_alloc_from_begin(struct hook_call *call, const void *out, uint64_t bytes, void *pool,
			  void *stream, bool is_thread);
int pool_alloc_end(struct hook_call *call, int status, uint64_t *out, uint64_t bytes, void *stream,
		   bool is_thread);
int pool_at_begin(const void *location, int type);
int pool_create_begin(struct hook_call *call, const void *out, const void *properties);
int pool_create_end(struct hook_call *call, int status, uint64_t handle);
int pool_destroy_begin(struct hook_call *call, void *handle);
int pool_destroy_end(struct hook_call *call, int status);
int graph_node_begin(struct hook_call *call, const struct graph_place *place,
		     const void *parameters);
int graph_any_node_begin(struct hook_call *call, const struct graph_place *place,
			 const void *parameters);
int graph_any_node_end(int status, uint64_t node, const void *parameters);

int pool_select_begin(struct hook_call *call);
int pool_select_end(struct hook_call *call, int status);
int pool_set_attribute(void *pool, int attribute, void *value);
int pool_get_end(int status, void *pool, int attribute, void *value);

/* Around a call of the program that takes memory away from pools: a trim. */
int pools_begin(struct hook_call *call);
int pools_given_end(struct hook_call *call, int status);
/* Around a plain free of what may be a pool's. */
int pools_free_begin(struct hook_call *call);
int pools_freed_end(struct hook_call *call, int status);

/* After a wait for the card: pools give back what they keep beyond what the program lets them. */
void pools_waited(struct tenant *tenant);

/* After whatever else may have made a pool smaller or larger: a launch. */
int pools_end(int status);
void pools_settle(struct tenant *tenant);

/* Gives back what the pools keep and nobody uses; false if there is no pool. */
bool pools_trim_for(struct tenant *tenant);

/* Reserves what the driver is about to be asked for. Before a refusal pools give back what they
 * keep and nobody uses. */
bool pools_reserve(struct tenant *tenant, uint32_t card, uint64_t bytes);

/* Reserves by how much the memory of its device's graphs can grow when the call's graph is launched
 * in the stream; false if it does not fit. graph_memory_settle must follow if it is true. */
bool graph_memory_charge(struct hook_call *call, struct tenant *tenant, void *stream);
void graph_memory_settle(struct tenant *tenant, struct hook_call *call);
void graphs_forget_stream(struct tenant *tenant, uint64_t stream);

/* hook_streams.c */
/* No two streams have the same, but for the threads' own default ones. */
uint64_t stream_name(const void *stream);

/* Before memory that may be a pool's is freed in the order of a stream, or a graph is launched that
 * allocates. */
void streams_note(struct tenant *tenant, void *stream);

/* One call of the program waits for a second at most before it is refused, whatever it waits for:
 * everything on its way counts in the same `waits`, which begins with 0. False: it has waited
 * enough. */
bool wait_more(int *waits);

/* Waits until the card has come to what has been noted so far in all streams but one (ALL_STREAMS:
 * in every one). False: it has not in time. */
#define ALL_STREAMS ((void *)UINTPTR_MAX)
bool streams_wait(struct tenant *tenant, const void *but, int *waits);

/* The stream ends; or a context, and all its streams with it. */
void streams_forget(void *stream);
void streams_forget_context(struct tenant *tenant, uint64_t context);

/* Waits for an event of ours and then lets the driver know; false: it takes too long. NULL: any
 * time is too long. */
bool event_wait(struct tenant *tenant, void *event, int *waits);

/* hook_local.c */
int launch_begin(struct hook_call *call, void *function, const uint32_t *grid_and_block,
		 void *stream, bool is_thread);
int launch_end(struct hook_call *call, int status);
int launch_config_begin(struct hook_call *call, const void *config, void *function, bool is_thread);
int launch_many_begin(struct hook_call *call, const void *list, unsigned int count);
int context_limit_begin(struct hook_call *call, int limit, uint64_t bytes);
int context_limit_end(struct hook_call *call, int status, int limit, uint64_t bytes);
int local_unload_end(int status);

#define LAUNCH_SHAPE(gx, gy, gz, bx, by, bz) ((const uint32_t[6]){gx, gy, gz, bx, by, bz})

/* launch_sync.c */
int sync_begin(struct hook_call *call);
int event_sync_begin(struct hook_call *call);
int copy_begin(struct hook_call *call);
int query_begin(struct hook_call *call);
int query_end(struct hook_call *call, int status);
int hidden_wait_begin(void);
int hidden_wait_end(int status);
int sync_end(struct hook_call *call, int status);
int context_sync_end(struct hook_call *call, int status);
int stream_sync_end(struct hook_call *call, int status, void *stream, bool is_thread);

/* launch_streams.c */
int stream_destroy_begin(void *stream);
int capture_begin_begin(void *stream, bool is_thread);
int capture_begin_end(int status, void *stream, bool is_thread);
int capture_end_end(int status, void *stream, bool is_thread);

/* hook_graph.c */
int graph_instantiate_begin(struct hook_call *call, const void *out, void *graph);
int graph_instantiate_end(struct hook_call *call, int status, uint64_t instance);
int graph_update_begin(struct hook_call *call, void *instance, void *graph);
int graph_update_end(struct hook_call *call, int status);
int graph_kernel_begin(struct hook_call *call, void *instance, const void *parameters);
int graph_node_set_begin(struct hook_call *call, void *instance, const void *parameters);
int graph_kernel_end(struct hook_call *call, int status);
int graph_with_begin(struct hook_call *call, const void *out, void *graph, const void *parameters,
		     bool is_thread);
int graph_with_end(struct hook_call *call, int status, uint64_t instance);
int graph_enable_begin(struct hook_call *call, void *instance, void *node);
int graph_enable_end(struct hook_call *call, int status, unsigned int enabled);
int graph_destroy_end(int status, void *instance);
int graph_upload_begin(struct hook_call *call, void *instance, void *stream, bool is_thread);
int graph_launch_begin(struct hook_call *call, void *instance, void *stream, bool is_thread);
int graph_launch_end(struct hook_call *call, int status);

/* hook_vmm.c */
void object_drop(struct tenant *tenant, uint64_t object); /* one handle or mapping of it is gone */
int object_create_begin(struct hook_call *call, const void *out, uint64_t bytes,
			const void *properties, uint64_t flags);
int object_create_end(struct hook_call *call, int status, uint64_t handle);
int object_release_begin(struct hook_call *call, uint64_t handle);
int object_release_end(struct hook_call *call, int status);
int object_retain_end(int status, uint64_t handle, uint64_t address);
int object_map_begin(struct hook_call *call, uint64_t address, uint64_t bytes, uint64_t handle);
int object_map_end(struct hook_call *call, int status);
int object_unmap_begin(struct hook_call *call, uint64_t address, uint64_t bytes);
int object_unmap_end(struct hook_call *call, int status, uint64_t address, uint64_t bytes);

/* hook_nvml.c */
int nvml_processes_begin(struct hook_call *call, void *device, const unsigned int *count);
int nvml_processes_end(struct hook_call *call, int status, void *device, unsigned int *count,
		       void *list, unsigned int version);
int nvml_details_begin(struct hook_call *call, void *device, const void *details);
int nvml_details_end(const struct hook_call *call, int status, void *device, void *details);
int nvml_samples_end(int status, void *device, void *samples, unsigned int *count);
int nvml_all_samples_end(int status, void *device, void *samples);
int nvml_utilisation_end(int status, void *device, void *rates);
int nvml_history_end(int status, void *device, int type, const unsigned int *count, void *samples);
int nvml_set_begin(void);
int nvml_no_processes_end(int status, unsigned int *count);
int nvml_attributes_end(int status, void *device, void *attributes, unsigned int version);
int nvml_memory_end(int status, void *device, void *memory, unsigned int version);

/* lookup.c */
int lookup_end(int status, void **address);

#endif
