{{/* The settings of the deployment: those of docker/kubernetes/base, and the site's. */}}
{{- define "sdp.settings" -}}
{{- $found := dict }}
{{- range .Files.Lines "files/base/settings.env" }}
{{- if contains "=" . }}{{ $_ := set $found (splitn "=" 2 .)._0 (splitn "=" 2 .)._1 }}{{ end }}
{{- end }}
{{- range $name, $value := .Values.settings }}
{{- /* Helm reads a number as a float, and would write 1e+10. */}}
{{- $_ := set $found $name (kindIs "float64" $value | ternary ($value | int64 | toString) (toString $value)) }}
{{- end }}
{{- toYaml $found }}
{{- end }}


{{/*
One object as the release has it. Of a workload (.one), `role` names the file with what all processes of its kind have
in common, as for kustomize; empty: it has all of it.
*/}}
{{- define "sdp.object" -}}
{{- $one := .one }}{{ $root := .root }}{{ $values := .root.Values }}
{{- $part := dict "app.kubernetes.io/part-of" "sdp-tango-facade" }}
{{- $_ := set $one.metadata "labels" (merge $part ($one.metadata.labels | default dict)) }}
{{- if hasKey ($one.spec | default dict) "template" }}
{{- $name := index $one.metadata.labels "app.kubernetes.io/name" }}
{{- $template := $one.spec.template }}
{{- $_ := set $template.metadata "labels" (merge $part $template.metadata.labels) }}
{{- $pod := $template.spec }}
{{- $container := first $pod.containers }}
{{- if .role }}
{{- $common := (printf "files/process/%s.yaml" .role | $root.Files.Get | fromYaml).spec.template }}
{{- $container = mergeOverwrite (first $common.spec.containers) $container }}
{{- $own := dict }}
{{- range $pod.volumes }}{{ $_ := set $own .name . }}{{ end }}
{{- $volumes := list }}
{{- range $common.spec.volumes }}
{{- $volumes = append $volumes (get $own .name | default .) }}{{ $_ := unset $own .name }}
{{- end }}
{{- $volumes = concat $volumes (values $own) }}
{{- $pod = mergeOverwrite $common.spec $pod (dict "volumes" $volumes) }}
{{- $_ := set $template "metadata" (mergeOverwrite ($common.metadata | default dict) $template.metadata) }}
{{- end }}
{{- range $pod.volumes }}
{{- if and .secret (eq .name "settings") }}
{{- $_ := set .secret "secretName" (get $values.secrets $name | default $values.secret) }}
{{- end }}
{{- end }}
{{- $_ := set $container "image" (printf "%s:%s" $values.image.repository ($values.image.tag | default $root.Chart.AppVersion)) }}
{{- with $values.image.pullPolicy }}{{ $_ := set $container "imagePullPolicy" . }}{{ end }}
{{- with $values.image.pullSecrets }}{{ $_ := set $pod "imagePullSecrets" . }}{{ end }}
{{- with get $values.resources $name }}{{ $_ := set $container "resources" . }}{{ end }}
{{- $_ := set $pod "containers" (list $container) }}
{{- $_ := set $template "spec" $pod }}
{{- /* A change of the settings replaces the pods, as they read them at their start. */}}
{{- $sum := dict "checksum/settings" (include "sdp.settings" $root | sha256sum) }}
{{- $_ := set $template.metadata "annotations" (merge $sum ($template.metadata.annotations | default dict)) }}
{{- end }}
{{- toYaml $one }}
{{- end }}

{{/* Keeps one pod of several while nodes are drained. */}}
{{- define "sdp.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ . }}
  labels: {app.kubernetes.io/part-of: sdp-tango-facade}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {app.kubernetes.io/name: {{ . }}}
{{- end }}
