{{- /* The chart is installed once a cluster (RuntimeClass and webhooks are the cluster's), so that names
       are fixed: docs, agents and people find them. */ -}}

{{- define "vgpu.selector" -}}
app.kubernetes.io/name: vgpu
app.kubernetes.io/component: {{ . }}
{{- end }}

{{- define "vgpu.labels" -}}
{{ include "vgpu.selector" .component }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "vgpu.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "vgpu.pullSecrets" -}}
{{- with .Values.image.pullSecrets -}}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{- /* A table as TOML, whose strings, numbers, booleans and lists are JSON's. Values first: what comes
       after a table's head is that table's. */ -}}
{{- define "vgpu.toml" -}}
{{- $path := .path }}
{{- range $key, $value := .table }}
{{- if not (kindIs "map" $value) }}
{{ $key }} = {{ toJson $value }}
{{- end }}
{{- end }}
{{- range $key, $value := .table }}
{{- if kindIs "map" $value }}
{{- $inner := ternary (printf "%s.%s" $path $key) $key (ne $path "") }}

[{{ $inner }}]
{{- include "vgpu.toml" (dict "table" $value "path" $inner) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Containers of ours that need nothing of the node. */ -}}
{{- define "vgpu.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "vgpu.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* Every name by which the cache may be called. */ -}}
{{- define "vgpu.serverNames" -}}
{{- $names := list }}
{{- range list "vgpu-scheduler-cache" "vgpu-scheduler-cache-leader" }}
{{- $names = concat $names (list . (printf "%s.%s" . $.Release.Namespace) (printf "%s.%s.svc" . $.Release.Namespace) (printf "%s.%s.svc.cluster.local" . $.Release.Namespace)) }}
{{- end }}
{{- toJson (concat $names .Values.tls.extraNames) }}
{{- end }}

{{- define "vgpu.serverName" -}}
vgpu-scheduler-cache-leader.{{ .Release.Namespace }}.svc
{{- end }}

{{- define "vgpu.keysSecret" -}}
{{ .Values.keys.existingSecret | default "vgpu-keys" }}
{{- end }}

{{- define "vgpu.servesExtender" -}}
{{- if or .Values.scheduler.enabled .Values.scheduler.serveExtender -}}
true
{{- end }}
{{- end }}

{{- define "vgpu.hasPolicy" -}}
{{- $policy := toString .Values.admission.policy }}
{{- if or (eq $policy "true") (and (eq $policy "auto") (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version)) -}}
true
{{- end }}
{{- end }}

{{- define "vgpu.issuer" -}}
{{- if not .Values.tls.certManager.issuerRef }}
{{- fail "cert-manager needs tls.certManager.issuerRef, such as {name: my-ca, kind: ClusterIssuer}" }}
{{- end }}
{{- toYaml .Values.tls.certManager.issuerRef }}
{{- end }}
