// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package helm pins the helm that the end-to-end tier builds.
package helm

import _ "helm.sh/helm/v3/cmd/helm"
