{{- define "bamboo.name" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride }}
{{- else -}}
{{ default .Release.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}-operator
{{- end -}}
{{- end }}

{{- define "bamboo.labels" -}}
{{ include "bamboo.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: bamboo
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- include "bamboo.commonLabels" . }}
{{- end }}

{{- /* Begins with a new line. The schema refuses the names that the chart itself sets. */ -}}
{{- define "bamboo.commonLabels" -}}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* The annotations of an object's metadata, from a dict of root and own: those of `own` win. It begins with a new line. */ -}}
{{- define "bamboo.annotations" -}}
{{- with merge (dict) (default (dict) .own) (default (dict) .root.Values.commonAnnotations) }}
  annotations:
    {{- toYaml . | nindent 4 }}
{{- end }}
{{- end }}

{{- define "bamboo.selector" -}}
app.kubernetes.io/name: bamboo-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* The operator's Service must not select the node watchers, so their name differs. */ -}}
{{- define "bamboo.watcherSelector" -}}
app.kubernetes.io/name: bamboo-node-watcher
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "bamboo.watcherLabels" -}}
{{ include "bamboo.watcherSelector" . }}
app.kubernetes.io/component: node-watcher
app.kubernetes.io/part-of: bamboo
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- include "bamboo.commonLabels" . }}
{{- end }}

{{- define "bamboo.serviceAccount" -}}
{{ default (include "bamboo.name" .) .Values.serviceAccount.name }}
{{- end }}

{{- define "bamboo.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end }}

{{- /* Variables of the operator that the chart sets; extraEnv must not repeat them. */ -}}
{{- define "bamboo.env" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_UID
  valueFrom: {fieldRef: {fieldPath: metadata.uid}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: POD_SERVICE_ACCOUNT
  valueFrom: {fieldRef: {fieldPath: spec.serviceAccountName}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: BAMBOO_GRPC_PORT
  value: {{ .Values.ports.agents | quote }}
- name: BAMBOO_METRICS_PORT
  value: {{ .Values.ports.metrics | quote }}
- name: BAMBOO_HEALTH_PORT
  value: {{ .Values.ports.health | quote }}
{{- if eq .Values.advertise "service" }}
- name: BAMBOO_ADVERTISE_ADDRESS
  value: "{{ include "bamboo.name" . }}.{{ .Release.Namespace }}.svc:{{ .Values.ports.agents }}"
{{- end }}
- name: BAMBOO_NAMESPACES
  value: {{ join "," .Values.namespaces | quote }}
- name: BAMBOO_LOG_LEVEL
  value: {{ .Values.logLevel }}
- name: BAMBOO_WORKERS
  value: {{ .Values.workers | quote }}
- name: BAMBOO_DISRUPTION_BUDGETS
  value: {{ .Values.disruptionBudgets | quote }}
- name: BAMBOO_MOST_TASKS
  value: {{ int .Values.tasks.most | quote }}
- name: BAMBOO_MOST_TASKS_OF_NAMESPACE
  value: {{ int .Values.tasks.mostOfNamespace | quote }}
- name: BAMBOO_KUEUE
  value: {{ .Values.kueue.enabled | quote }}
- name: BAMBOO_TRUST_POD_TEMPLATES
  value: {{ .Values.podTemplate.trusted | quote }}
- name: BAMBOO_JOB_SECRETS
  value: {{ join "," .Values.podTemplate.secrets | quote }}
- name: BAMBOO_JOB_SERVICE_ACCOUNTS
  value: {{ join "," .Values.podTemplate.serviceAccounts | quote }}
- name: BAMBOO_JOB_CSI_DRIVERS
  value: {{ join "," .Values.podTemplate.csiDrivers | quote }}
{{- with .Values.prices }}
- name: BAMBOO_PRICES
  value: {{ toJson . | quote }}
{{- end }}
{{- with .Values.agents.eventLogDirectory }}
- name: BAMBOO_AGENT_EVENT_LOGS
  value: {{ . | quote }}
{{- end }}
{{- end }}

{{- /* What the operator may do in namespaces where jobs are. */ -}}
{{- define "bamboo.jobRules" -}}
- apiGroups: [bamboo.dev]
  resources: [bamboojobs]
  verbs: [get, list, watch, delete]
- apiGroups: [bamboo.dev]
  resources: [bamboojobs/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [configmaps]
  resourceNames: [bamboo-operator-ca]
  verbs: [get, patch, delete]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create]
{{- if .Values.disruptionBudgets }}
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list, create, patch, delete]
{{- end }}
{{- if .Values.kueue.enabled }}
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, list, watch, create, delete]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [update]
{{- end }}
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- end }}

{{- /* The seconds of a duration of one unit, such as 15m. */ -}}
{{- define "bamboo.seconds" -}}
{{ mul (regexFind "^[0-9]+" .) (get (dict "s" 1 "m" 60 "h" 3600 "d" 86400) (regexFind "[smhd]$" .)) }}
{{- end }}

{{- /* An alert with values in place of its marks: ${window} is a value, ${window.s} its seconds. */ -}}
{{- define "bamboo.alert" -}}
{{- $text := toYaml .rule }}
{{- range $key, $value := .values }}
{{- $mark := printf "${%s.s}" $key }}
{{- if contains $mark $text }}
{{- $text = replace $mark (include "bamboo.seconds" $value) $text }}
{{- end }}
{{- $text = replace (printf "${%s}" $key) (toString $value) $text }}
{{- end }}
{{- $text }}
{{- end }}

{{- /* A quantity of Kubernetes as a number; empty: it is none. Helm reads large numbers as floats. */ -}}
{{- define "bamboo.amount" -}}
{{- $text := toString . -}}
{{- $number := regexFind "^[0-9.]+([eE][+]?[0-9]+)?" $text -}}
{{- $scales := dict "" 1.0 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 -}}
{{- $suffix := trimPrefix $number $text -}}
{{- if and $number (hasKey $scales $suffix) -}}
{{- mulf (float64 $number) (get $scales $suffix) | printf "%.3f" -}}
{{- end -}}
{{- end }}
