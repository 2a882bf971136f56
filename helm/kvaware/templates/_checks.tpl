{{- /* What the schema cannot say well. */ -}}
{{- define "kvaware.checks" -}}
{{- if gt (int .Values.scheduler.replicas) 1 -}}
  {{- fail (printf "scheduler.replicas is %d, and 1 is the most: the extender keeps reservations and quotas in its memory, so two of them would give the same HBM away twice" (int .Values.scheduler.replicas)) -}}
{{- end -}}
{{- $instead := dict "apiHost" "extender.apiHost" "apiPort" "extender.apiPort" "schedulerPort" "extender.schedulerPort" -}}
{{- range $key, $value := $instead -}}
  {{- if hasKey $.Values.extender.config $key -}}
    {{- fail (printf "extender.config.%s: set %s, which Services, probes and kube-scheduler's configuration follow too" $key $value) -}}
  {{- end -}}
{{- end -}}
{{- if hasKey .Values.extender.config "schedulerHost" -}}
  {{- fail "extender.config.schedulerHost: the scheduler's verbs stay on the pod's loopback, since whoever reaches bind can place pods" -}}
{{- end -}}
{{- if hasKey (.Values.extender.config.engine | default dict) "schedulerName" -}}
  {{- fail "extender.config.engine.schedulerName: set schedulerName, which kube-scheduler's profile and the admission policy follow too" -}}
{{- end -}}
{{- if and .Values.extender.gatewayTokens.secretName (hasKey (.Values.extender.config.gateway | default dict) "tokenFile") -}}
  {{- fail "extender.config.gateway.tokenFile: set either it or extender.gatewayTokens.secretName, which mounts the file and names it" -}}
{{- end -}}
{{- range $key := list "host" "port" -}}
  {{- if hasKey $.Values.operator.config $key -}}
    {{- fail (printf "operator.config.%s: set operator.%s, which the Service and probes follow too" $key $key) -}}
  {{- end -}}
{{- end -}}
{{- if hasKey .Values.operator.config "extenderUrl" -}}
  {{- fail "operator.config.extenderUrl: the chart's operator asks the chart's extender, by the Service kvaware-extender" -}}
{{- end -}}
{{- range $key := list "enabled" "name" "namespace" -}}
  {{- if hasKey ($.Values.operator.config.lease | default dict) $key -}}
    {{- fail (printf "operator.config.lease.%s: the operator always acts by the Lease kvaware-operator of its own namespace, which is what it has the right to; during an update there are two operators" $key) -}}
  {{- end -}}
{{- end -}}
{{- range $part := list "extender" "operator" -}}
  {{- $names := list -}}
  {{- range (index $.Values $part).extraVolumes -}}
    {{- $names = append $names .name -}}
  {{- end -}}
  {{- range (index $.Values $part).extraVolumeMounts -}}
    {{- if not (has .name $names) -}}
      {{- fail (printf "%s.extraVolumeMounts: %s is none of %s.extraVolumes" $part .name $part) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- if eq (int .Values.extender.apiPort) (int .Values.extender.schedulerPort) -}}
  {{- fail (printf "extender.apiPort and extender.schedulerPort are both %d; they are two listeners" (int .Values.extender.apiPort)) -}}
{{- end -}}
{{- end }}
