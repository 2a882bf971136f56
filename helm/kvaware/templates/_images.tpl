{{- define "kvaware.image" -}}
{{- $image := .Values.image -}}
{{- if not $image.repository -}}
  {{- fail "image.repository is not set. No image of kvaware is published yet: build one with `docker build -t REGISTRY/kvaware:TAG .`, push it, and install with --set image.repository=REGISTRY/kvaware --set image.tag=TAG" -}}
{{- end -}}
{{- include "kvaware.reference" (dict "image" $image "tag" (default .Chart.AppVersion $image.tag)) -}}
{{- end }}

{{- define "kvaware.schedulerImage" -}}
{{- $image := .Values.scheduler.image -}}
{{- if or $image.digest $image.tag -}}
  {{- include "kvaware.reference" (dict "image" $image "tag" $image.tag) -}}
{{- else -}}
  {{- include "kvaware.reference" (dict "image" $image "tag" (include "kvaware.schedulerTag" .)) -}}
{{- end -}}
{{- end }}

{{- /*
The upstream release that the cluster's version names. Vendors add to it what no image is tagged with: v1.29.6-eks-1a2b3c
(amalthea#699), v1.29.6+k3s1 (tidb-operator#1243). Upstream's own pre-releases are images and stay.
*/ -}}
{{- define "kvaware.schedulerTag" -}}
{{- $version := .Capabilities.KubeVersion.Version -}}
{{- $release := regexFind "^v?[0-9]+\\.[0-9]+\\.[0-9]+(-(alpha|beta|rc)\\.[0-9]+)?" $version -}}
{{- if not $release -}}
  {{- fail (printf "the cluster's version is %q; expected vX.Y.Z to choose kube-scheduler's image by. Set scheduler.image.tag, for example to v1.37.2" $version) -}}
{{- end -}}
{{- printf "v%s" (trimPrefix "v" $release) -}}
{{- end }}

{{- define "kvaware.reference" -}}
{{- if regexMatch "@|\\s|://|:[^/]*$" .image.repository -}}
  {{- fail (printf "image repository %q: expected registry and path alone, such as registry.example/kvaware; a tag or digest has a value of its own" .image.repository) -}}
{{- end -}}
{{- if .image.digest -}}
  {{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
  {{- printf "%s:%s" .image.repository .tag -}}
{{- end -}}
{{- end }}
