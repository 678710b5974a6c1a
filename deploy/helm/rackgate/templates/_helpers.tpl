{{- /* The image of the services; a digest counts more than a tag. */ -}}
{{- define "rackgate.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end }}

{{- /* The whole configuration of a service: what deploy/ has, then the values, those of the service last. */ -}}
{{- define "rackgate.config" -}}
{{- $values := .root.Values -}}
{{- $config := include (printf "rackgate.%s.defaults" .service) .root | fromYaml -}}
{{- if $values.featureGates -}}
{{- $_ := set $config "featureGates" (deepCopy $values.featureGates) -}}
{{- end -}}
{{- if eq .service "webhook" -}}
{{- if eq $values.certificates.source "cert-manager" -}}
{{- $_ := set $config "certificates" (include "rackgate.certManager" .root | fromYaml) -}}
{{- else if eq $values.certificates.source "provided" -}}
{{- $_ := set $config "certificates" (dict "source" "provided" "secretName" $values.certificates.secretName) -}}
{{- end -}}
{{- end -}}
{{- mergeOverwrite $config (deepCopy (index $values .service).config) | toYaml -}}
{{- end }}

{{- /* The Secret that the webhook only reads. */ -}}
{{- define "rackgate.certificateSecret" -}}
{{- (include "rackgate.config" (dict "root" . "service" "webhook") | fromYaml).certificates.secretName | quote -}}
{{- end }}

{{- /* The namespaces with managed jobs, for webhooks and policies. */ -}}
{{- define "rackgate.namespaceSelector" -}}
{{- with .Values.managedJobsNamespaceSelector.matchLabels -}}
matchLabels: {{- toYaml . | nindent 2 }}
{{ end -}}
matchExpressions:
  - key: kubernetes.io/metadata.name
    operator: NotIn
    values: [kube-system, {{ .Release.Namespace | quote }}]
{{- with .Values.managedJobsNamespaceSelector.matchExpressions }}
{{ toYaml . | indent 2 }}
{{- end }}
{{- end }}

{{- /* The list of users that may create parts of managed jobs, as CEL. */ -}}
{{- define "rackgate.operators" -}}
['{{ join "', '" .Values.operators }}']
{{- end }}

{{- /* Each port that serves metrics, once. */ -}}
{{- define "rackgate.metricsPorts" -}}
{{- $ports := list -}}
{{- range list "webhook" "assigner" "ungater" -}}
{{- $config := include "rackgate.config" (dict "root" $ "service" .) | fromYaml -}}
{{- $ports = append $ports ($config.health.port | int) -}}
{{- end -}}
{{- range uniq $ports }}
- {protocol: TCP, port: {{ . }}}
{{- end }}
{{- end }}
