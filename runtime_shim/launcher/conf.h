/* SPDX-License-Identifier: Apache-2.0
 *
 * The launcher's configuration: "<its own path>.conf", or else /etc/vgpu/runtime.conf.
 *
 * Lines "key=value"; '#' begins a comment line; unknown keys and unusable numbers are ignored, so
 * that no mistake in the file can stop `kill` or `delete`.
 */
#ifndef VGPU_LAUNCHER_CONF_H
#define VGPU_LAUNCHER_CONF_H

#define CONF_PATH "/etc/vgpu/runtime.conf"
#define CONF_AGENT_SOCKET "/run/vgpu/agent.sock"

struct conf {
	const char *source;            /* the file that a correction belongs into */
	const char *low_level_runtime; /* NULL: the built-in search */
	const char *gpu_runtime;       /* NULL: none */
	const char *agent_socket;
	unsigned verdict_ms; /* for the whole verdict; 10 s, far below the engines' own deadlines */
	unsigned absent_ms;  /* for an agent that is not there; 5 s covers its restart */
};

/* Reads the `text` of the file `source` and keeps pointers into it, which it cuts into strings. */
struct conf conf_parse(const char *source, char *text);

/* The strings live as long as the process. */
struct conf conf_load(void);

#endif
