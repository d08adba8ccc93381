{{- define "rallypoint.selector" -}}
app.kubernetes.io/name: rallypoint
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "rallypoint.peers" -}}
{{- $peers := list }}
{{- range $i := until (int .Values.replicas) }}
{{- $peers = append $peers (printf "%s-%d.%s-peers:29400" $.Release.Name $i $.Release.Name) }}
{{- end }}
{{- join "," $peers }}
{{- end }}

{{- define "rallypoint.labels" -}}
{{ include "rallypoint.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
