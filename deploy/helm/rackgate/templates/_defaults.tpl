{{- /* Generated from deploy/services by `make chart`. Do not edit. */ -}}
{{- define "rackgate.webhook.defaults" -}}
apiVersion: config.rackgate.dev/v1alpha1
kind: WebhookConfiguration
health:
  port: 8081
serving:
  port: 9443
{{- end }}
{{- define "rackgate.assigner.defaults" -}}
apiVersion: config.rackgate.dev/v1alpha1
kind: AssignerConfiguration
health:
  port: 8081
leaderElection:
  leaseDuration: 15
  stateDir: /var/lib/rackgate
visibility:
  port: 8443
{{- end }}
{{- define "rackgate.ungater.defaults" -}}
apiVersion: config.rackgate.dev/v1alpha1
kind: UngaterConfiguration
health:
  port: 8081
leaderElection:
  leaseDuration: 15
  stateDir: /var/lib/rackgate
{{- end }}
{{- define "rackgate.console.defaults" -}}
apiVersion: config.rackgate.dev/v1alpha1
kind: ConsoleConfiguration
health:
  port: 8081
page:
  port: 8090
{{- end }}
{{- define "rackgate.certManager" -}}
source: provided
secretName: rackgate-webhook-certificate
writeBundle: false
{{- end }}
