{{- define "bamboo.name" -}}
{{ default .Release.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}-operator
{{- end }}

{{- define "bamboo.labels" -}}
{{ include "bamboo.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: bamboo
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
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
  verbs: [patch]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create]
{{- if .Values.disruptionBudgets }}
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [create, patch, delete]
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
