/* SPDX-License-Identifier: Apache-2.0
 *
 * What the launcher and the agent say to each other on the agent's socket.
 *
 * SOCK_SEQPACKET, one request and one reply a connection, each one packet: a header, then fields
 * "key=value", each ended by a NUL. Unknown keys are ignored, so that minor versions interoperate;
 * another major version is refused by a reply that names both.
 *
 * Request: the bundle directory (O_PATH) travels as the one SCM_RIGHTS descriptor. Keys:
 *   command   create | run | restore
 *   id        the container id
 *   root      the value of --root made absolute, absent when not given
 *   runtime_dir  XDG_RUNTIME_DIR where root is absent: runtimes may keep their state below it
 *   bundle    the absolute path of the bundle, for messages and claims
 *   pid_file  the value of --pid-file made absolute, absent when not given
 * Reply keys:
 *   verdict   low-level | gpu | refuse    (exec the low-level runtime, the GPU runtime, or nothing)
 *   message   for refuse: one line, ready for the engine
 *
 * runtime_shim/verdict.py is the agent's half.
 */
#ifndef VGPU_LAUNCHER_PROTOCOL_H
#define VGPU_LAUNCHER_PROTOCOL_H

#include <stdint.h>

#define VGPU_LAUNCHER_MAGIC 0x4b504756u /* "VGPK" */
#define VGPU_LAUNCHER_MAJOR 1
#define VGPU_LAUNCHER_MINOR 0
#define VGPU_LAUNCHER_PACKET_BYTES 65536u /* the largest packet, header included */

struct launcher_header {
	uint32_t magic;
	uint16_t major;
	uint16_t minor;
	uint32_t length; /* of the fields, bytes */
	uint32_t reserved;
};

#endif
