/* SPDX-License-Identifier: Apache-2.0
 *
 * How a failure reaches people: containerd and docker show the last error line of the --log file,
 * podman, buildah and CRI-O show stderr. So the line goes to both, as runc itself writes it.
 */
#ifndef VGPU_LAUNCHER_REPORT_H
#define VGPU_LAUNCHER_REPORT_H

#include "argv.h"

/* `message` is one clean line (text_clean). */
void report_failure(const struct command_line *line, const char *message);

#endif
