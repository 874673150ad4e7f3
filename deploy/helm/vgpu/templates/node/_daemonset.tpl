{{- /* The DaemonSet that installs and is the agent, or the one that takes back what the former did. */ -}}
{{- define "vgpu.daemonset" -}}
{{- $remove := .remove }}
{{- with .root }}
{{- $node := .Values.node }}
{{- $host := .Values.cache.leaderService.clusterIP | default "$(VGPU_SCHEDULER_CACHE_LEADER_SERVICE_HOST)" }}
{{- if contains ":" $host }}
{{- $host = printf "[%s]" $host }}
{{- end }}
{{- $address := $node.cacheAddress | default (printf "%s:%s" $host (ternary "9402" "9400" (eq $node.proof "token"))) }}
{{- $image := include "vgpu.image" (dict "root" . "image" .Values.image.node) }}
{{- $install := list "vgpuctl" "node-install" "--prefix" $node.prefix "--engine" $node.engine }}
{{- if $node.restartCommand }}
{{- $install = concat $install (list "--restart-command" $node.restartCommand) }}
{{- end }}
{{- if $remove }}
{{- $install = append $install "--undo" }}
{{- else }}
{{- if $node.engineFile }}
{{- $install = concat $install (list "--engine-file" $node.engineFile) }}
{{- end }}
{{- if $node.runtime }}
{{- $install = concat $install (list "--launcher-conf" "/proc/self/fd/100/etc/vgpu/runtime.conf") }}
{{- end }}
{{- end }}
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: vgpu-node
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "vgpu.labels" (dict "root" . "component" "node") | nindent 4 }}
spec:
  selector:
    matchLabels:
      {{- include "vgpu.selector" "node" | nindent 6 }}
  updateStrategy:
    {{- if $remove }}
    # A node that cannot be cleared yet holds up no other.
    type: RollingUpdate
    rollingUpdate: {maxUnavailable: 100%}
    {{- else }}
    {{- toYaml $node.updateStrategy | nindent 4 }}
    {{- end }}
  template:
    metadata:
      labels:
        {{- include "vgpu.labels" (dict "root" . "component" "node") | nindent 8 }}
      annotations:
        kubectl.kubernetes.io/default-container: {{ ternary "removed" "agent" $remove }}
        vgpu.dev/config: {{ include (print .Template.BasePath "/node/configmap.yaml") . | sha256sum | trunc 16 }}
        {{- with $node.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: vgpu-node-agent
      automountServiceAccountToken: false
      {{- with include "vgpu.pullSecrets" . }}
      {{- . | nindent 6 }}
      {{- end }}
      priorityClassName: {{ $node.priorityClassName }}
      {{- with $node.runtimeClassName }}
      runtimeClassName: {{ . }}
      {{- end }}
      # The host's processes: of which container they are is the agent's business, and the first of them
      # leads to the host's mount namespace, in which installation and agent run.
      hostPID: true
      nodeSelector:
        {{- toYaml $node.nodeSelector | nindent 8 }}
      {{- with $node.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      initContainers:
        - name: {{ ternary "remove" "install" $remove }}
          image: {{ $image }}
          imagePullPolicy: {{ .Values.image.node.pullPolicy }}
          command: [vgpu-on-host]
          args: {{ toJson $install }}
          env:
            - {name: VGPU_CONFIG, value: /proc/self/fd/100/etc/vgpu/agent.toml}
          securityContext: {privileged: true, readOnlyRootFilesystem: true}
          volumeMounts:
            - {name: config, mountPath: /etc/vgpu, readOnly: true}
      containers:
        {{- if $remove }}
        # Ready once the node is as it was.
        - name: removed
          image: {{ $image }}
          imagePullPolicy: {{ .Values.image.node.pullPolicy }}
          command: [sleep, infinity]
          securityContext:
            runAsNonRoot: true
            runAsUser: 65532
            {{- include "vgpu.containerSecurity" . | nindent 12 }}
        {{- else }}
        - name: agent
          image: {{ $image }}
          imagePullPolicy: {{ .Values.image.node.pullPolicy }}
          command: [vgpu-on-host]
          args: [vgpu-node-agent, run, --log-format, json]
          env:
            - {name: VGPU_CONFIG, value: /proc/self/fd/100/etc/vgpu/agent.toml}
            - name: VGPU_NODE_NAME
              valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
            # An address, since the host does not know the cluster's names.
            - name: VGPU_CACHE_ADDRESS
              value: {{ $address | quote }}
          ports:
            - {name: metrics, containerPort: 9482}
          readinessProbe:
            tcpSocket: {port: metrics}
            periodSeconds: 5
          securityContext: {privileged: true, readOnlyRootFilesystem: true}
          resources:
            {{- toYaml $node.resources | nindent 12 }}
          volumeMounts:
            - {name: config, mountPath: /etc/vgpu, readOnly: true}
            - {name: identity, mountPath: /run/secrets/vgpu, readOnly: true}
        {{- end }}
      volumes:
        - name: config
          configMap: {name: vgpu-node}
        {{- if not $remove }}
        # Whom the agent believes, and by what it is believed.
        - name: identity
          projected:
            sources:
              - secret:
                  name: {{ .Values.tls.secretName }}
                  items: [{key: ca.crt, path: ca.crt}]
              {{- if eq $node.proof "token" }}
              - serviceAccountToken: {path: token, audience: vgpu-scheduler-cache, expirationSeconds: 3600}
              {{- end }}
        {{- end }}
{{- end }}
{{- end }}
