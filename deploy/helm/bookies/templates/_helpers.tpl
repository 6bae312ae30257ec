{{- define "bookies.labels" -}}
app.kubernetes.io/name: bookies
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* (list $ "bookie") */ -}}
{{- define "bookies.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: bookies
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "bookies.tlsSecret" -}}
{{- if .Values.tls.secret }}{{ .Values.tls.secret }}{{ else if .Values.tls.issuer }}{{ .Release.Name }}-tls{{ end -}}
{{- end }}

{{- define "bookies.domain" -}}
{{ .Release.Name }}-bookie.{{ .Release.Namespace }}.svc
{{- end }}

{{- define "bookies.scheme" -}}
{{ if include "bookies.tlsSecret" . }}https{{ else }}http{{ end }}
{{- end }}

{{- /* The StatefulSets of bookies, as JSON: name, replicas, zone. */ -}}
{{- define "bookies.sets" -}}
{{- $sets := list -}}
{{- range .Values.bookie.zones -}}
{{- $sets = append $sets (dict "name" (printf "%s-bookie-%s" $.Release.Name .name) "replicas" (int .replicas) "zone" .name) -}}
{{- else -}}
{{- $sets = append $sets (dict "name" (printf "%s-bookie" .Release.Name) "replicas" (int .Values.bookie.replicas) "zone" "") -}}
{{- end -}}
{{- toJson $sets -}}
{{- end }}

{{- define "bookies.check" -}}
{{- if not .Values.metadata.uri -}}
{{- fail "metadata.uri is empty: name the metadata store, such as --set metadata.uri=zk://zk:2181/ledgers" -}}
{{- end -}}
{{- if and .Values.tls.secret .Values.tls.issuer -}}
{{- fail "tls.secret and tls.issuer: name one of them" -}}
{{- end -}}
{{- if not .Values.insecure -}}
{{- if not (include "bookies.tlsSecret" .) -}}
{{- fail "no TLS: name tls.secret or tls.issuer, or allow plain text for a trial with --set insecure=true" -}}
{{- end -}}
{{- if not .Values.users.secret -}}
{{- fail "no users: name users.secret, made of a file that `bk token add` wrote, or do without for a trial with --set insecure=true" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.gateway.replicas (not .Values.users.secret) -}}
{{- fail "a gateway needs users: name users.secret, made of a file that `bk token add` wrote" -}}
{{- end -}}
{{- if and .Values.bookie.zones (eq .Values.bookie.updateStrategy "RollingUpdate") -}}
{{- fail "bookie.updateStrategy: RollingUpdate restarts a bookie of every zone at the same time, so all replicas of a ledger could be away: use OnDelete with bookie.zones" -}}
{{- end -}}
{{- if not .Values.bookie.ledgers -}}
{{- fail "bookie.ledgers is empty: a bookie needs at least one volume for ledgers" -}}
{{- end -}}
{{- end }}

{{- /* bk.toml */ -}}
{{- define "bookies.toml" -}}
{{- $http := dict "http_host" "0.0.0.0" "http_port" 8080 -}}
{{- if .Values.users.secret }}{{ $_ := set $http "users_file" "/etc/bookies/users/users" }}{{ end -}}
{{- $files := dict "tls_certificate" "/etc/bookies/tls/tls.crt" "tls_key" "/etc/bookies/tls/tls.key" "tls_authority" "/etc/bookies/tls/ca.crt" -}}
{{- $client := dict -}}
{{- $server := dict -}}
{{- if include "bookies.tlsSecret" . -}}
{{- $_ := set $http "http_tls" true -}}
{{- $client = merge (dict "tls" true) $files -}}
{{- $server = merge (dict "tls_required" true) $files -}}
{{- end -}}
{{- if or (not $server) (not .Values.users.secret) }}{{ $_ := set $http "http_insecure" true }}{{ end -}}
{{- $ledgers := list -}}
{{- range $number, $_ := .Values.bookie.ledgers }}{{ $ledgers = append $ledgers (printf "/ledgers-%d/bk" $number) }}{{ end -}}
{{- $bookie := merge (dict "host" "0.0.0.0" "journal_directories" (list "/journal/bk") "ledger_directories" $ledgers) $server $http -}}
{{- if .Values.bookie.allowStorageExpansion }}{{ $_ := set $bookie "allow_storage_expansion" true }}{{ end -}}
{{- $service := printf "%s-gateway" .Release.Name -}}
{{- $names := list $service (printf "%s.%s" $service .Release.Namespace) (printf "%s.%s.svc" $service .Release.Namespace) -}}
{{- range until (int .Values.gateway.replicas) }}{{ $names = append $names (printf "%s-%d.%s.%s.svc" $service . $service $.Release.Namespace) }}{{ end -}}
{{- $gateway := merge (dict "http_port" 8081 "http_names" (concat $names .Values.gateway.names)) $http -}}
{{- $tables := dict "bookie" $bookie "recovery" $http "gateway" $gateway "client" $client -}}
[metadata]
uri = {{ .Values.metadata.uri | toJson }}
{{- range $table := list "bookie" "recovery" "gateway" "client" }}

[{{ $table }}]
{{- range $name, $value := merge (dict) (index $.Values.settings $table) (index $tables $table) }}
{{ $name }} = {{ $value | toRawJson }}
{{- end }}
{{- end }}
{{ end }}

{{- define "bookies.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "bookies.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* (list $ "bookie"): what every pod has */ -}}
{{- define "bookies.pod" -}}
{{- $root := index . 0 -}}
serviceAccountName: {{ $root.Release.Name }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
securityContext: {{- toYaml $root.Values.podSecurityContext | nindent 2 }}
{{- end }}

{{- /* Of hooks, which run before the chart's own objects exist. */ -}}
{{- define "bookies.hookPod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
restartPolicy: Never  # pods of failed jobs stay, with their logs
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
securityContext: {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- end }}

{{- define "bookies.hookResources" -}}
requests: {cpu: 100m, memory: 128Mi, ephemeral-storage: 16Mi}
limits: {cpu: "1", memory: 512Mi, ephemeral-storage: 128Mi}
{{- end }}

{{- /* (list $ "name of the ConfigMap") */ -}}
{{- define "bookies.configVolumes" -}}
{{- $root := index . 0 -}}
- name: config
  configMap: {name: {{ index . 1 }}, items: [{key: bk.toml, path: bk.toml}]}
{{- with $root.Values.metadata.secret }}
- name: store
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end }}

{{- define "bookies.secretVolumes" -}}
{{- with include "bookies.tlsSecret" . }}
- name: tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with .Values.users.secret }}
- name: users
  secret: {secretName: {{ . }}, defaultMode: 0440, items: [{key: users, path: users}]}
{{- end }}
{{- end }}

{{- define "bookies.configMounts" -}}
- {name: config, mountPath: /etc/bookies/config, readOnly: true}
{{- if .Values.metadata.secret }}
- {name: store, mountPath: /etc/bookies/store, readOnly: true}
{{- end }}
{{- end }}

{{- define "bookies.secretMounts" -}}
{{- if include "bookies.tlsSecret" . }}
- {name: tls, mountPath: /etc/bookies/tls, readOnly: true}
{{- end }}
{{- if .Values.users.secret }}
- {name: users, mountPath: /etc/bookies/users, readOnly: true}
{{- end }}
{{- end }}

{{- /* (list $ "livez" seconds): probes of the HTTP server, which runs before the bookie serves */ -}}
{{- define "bookies.probes" -}}
{{- $root := index . 0 -}}
{{- $scheme := include "bookies.scheme" $root | upper -}}
startupProbe:
  httpGet: {path: /startupz, port: http, scheme: {{ $scheme }}}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ div (index . 1 | int) 5 }}
livenessProbe:
  httpGet: {path: /livez, port: http, scheme: {{ $scheme }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: http, scheme: {{ $scheme }}}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}
