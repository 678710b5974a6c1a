{{- /* What one value needs of another: rendering ends with the sentence. */ -}}
{{- define "rackgate.checks" -}}
{{- $components := .Values.components -}}
{{- if and $components.nativeGangs (not $components.gangs) -}}
{{- fail "components.nativeGangs: true needs components.gangs: true" -}}
{{- end -}}
{{- if and $components.gangsWebhook (not $components.gangs) -}}
{{- fail "components.gangsWebhook: true needs components.gangs: true" -}}
{{- end -}}
{{- if and (eq .Values.certificates.source "provided") (not .Values.certificates.secretName) -}}
{{- fail "certificates.source: provided needs certificates.secretName: the name of a Secret with tls.crt, tls.key and ca.crt" -}}
{{- end -}}
{{- if and (ne .Values.certificates.source "provided") .Values.certificates.secretName -}}
{{- fail (printf "certificates.secretName: %q is used only with certificates.source: provided, found %s" .Values.certificates.secretName .Values.certificates.source) -}}
{{- end -}}
{{- if and .Values.webhook.config.manageJobsWithoutQueueName (not $components.unlabelled) -}}
{{- fail "webhook.config.manageJobsWithoutQueueName: true needs components.unlabelled: true" -}}
{{- end -}}
{{- $retention := dig "objectRetentionPolicies" "workloads" "afterDeactivatedByKueue" nil .Values.assigner.config -}}
{{- if and (not (kindIs "invalid" $retention)) (not $components.retention) -}}
{{- fail "assigner.config.objectRetentionPolicies.workloads.afterDeactivatedByKueue needs components.retention: true" -}}
{{- end -}}
{{- range $service := list "webhook" "assigner" -}}
{{- if hasKey (index $.Values $service).config "managedJobsNamespaceSelector" -}}
{{- fail (printf "%s.config.managedJobsNamespaceSelector: set managedJobsNamespaceSelector instead; it is one for webhook, assigner, webhook configurations and policies" $service) -}}
{{- end -}}
{{- end -}}
{{- end }}
