{{- /*
Names are fixed, not made of the release's name: there is one kvaware scheduler in a cluster. A second release ends with
Helm's message that the objects belong to the first, instead of two schedulers that fill the same GPUs.
*/ -}}

{{- define "kvaware.selector" -}}
app.kubernetes.io/name: kvaware
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "kvaware.labels" -}}
{{ include "kvaware.selector" . }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: kvaware
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* The extender and kube-scheduler share a pod, and with it this account. */ -}}
{{- define "kvaware.schedulerAccount" -}}
system:serviceaccount:{{ .Release.Namespace }}:kvaware-scheduler
{{- end }}

{{- define "kvaware.extenderUrl" -}}
http://kvaware-extender.{{ .Release.Namespace }}.svc:{{ .Values.extender.apiPort | int }}
{{- end }}
