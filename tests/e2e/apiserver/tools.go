// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package apiserver pins what the end-to-end tier builds.
package apiserver

import _ "k8s.io/kubernetes/cmd/kube-apiserver"
