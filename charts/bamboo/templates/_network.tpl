{{- /* The parts of an address as numbers, 8 bits each of IPv4 and 16 of IPv6; empty: it is none. */ -}}
{{- define "bamboo.addressParts" -}}
{{- $parts := list }}
{{- if not (contains ":" .) }}
{{- range splitList "." . }}{{ $parts = append $parts (int64 .) }}{{ end }}
{{- else }}
{{- $halves := splitList "::" . }}
{{- $all := list }}
{{- range $halves }}{{ $all = append $all (ternary (list) (splitList ":" .) (eq . "")) }}{{ end }}
{{- $words := first $all }}
{{- if gt (len $halves) 1 }}
{{- $last := index $all 1 }}
{{- range until (int (max 0 (sub 8 (add (len $words) (len $last))))) }}{{ $words = append $words "0" }}{{ end }}
{{- $words = concat $words $last }}
{{- end }}
{{- if and (le (len $halves) 2) (eq (len $words) 8) }}
{{- range $words }}
{{- if regexMatch "^[0-9a-fA-F]{1,4}$" . }}{{ $parts = append $parts (int64 (printf "0x%s" .)) }}{{ end }}
{{- end }}
{{- end }}
{{- $parts = ternary $parts (list) (eq (len $parts) 8) }}
{{- end }}
{{- join "," $parts }}
{{- end }}

{{- /* The parts of a CIDR without the bits behind its prefix; empty: it is none. bits: of the prefix,
       in place of its own. */ -}}
{{- define "bamboo.networkParts" -}}
{{- $powers := list 1 2 4 8 16 32 64 128 256 512 1024 2048 4096 8192 16384 32768 65536 }}
{{- $width := ternary 16 8 (contains ":" .cidr) }}
{{- $masked := list }}
{{- with include "bamboo.addressParts" (first (splitList "/" .cidr)) }}
{{- range $index, $part := splitList "," . }}
{{- $kept := int (min $width (max 0 (sub (int $.bits) (mul $index $width)))) }}
{{- $step := index $powers (int (sub $width $kept)) }}
{{- $masked = append $masked (mul (div (int64 $part) $step) $step) }}
{{- end }}
{{- end }}
{{- join "," $masked }}
{{- end }}

{{- /* Refuses a CIDR that names no network, as the API server does. place: where it is. */ -}}
{{- define "bamboo.checkCidr" -}}
{{- $bits := last (splitList "/" .cidr) }}
{{- $parts := include "bamboo.addressParts" (first (splitList "/" .cidr)) }}
{{- if not $parts }}
{{- fail (printf "%s: %s is no CIDR" .place .cidr) }}
{{- end }}
{{- if ne $parts (include "bamboo.networkParts" (dict "cidr" .cidr "bits" $bits)) }}
{{- fail (printf "%s: %s has bits behind its prefix; set them to zero, or use a longer prefix" .place .cidr) }}
{{- end }}
{{- end }}

{{- define "bamboo.checkPeers" -}}
{{- $place := .place }}
{{- range .peers }}
{{- with .ipBlock }}
{{- $block := . }}
{{- $bits := last (splitList "/" .cidr) }}
{{- include "bamboo.checkCidr" (dict "place" $place "cidr" .cidr) }}
{{- range .except }}
{{- include "bamboo.checkCidr" (dict "place" $place "cidr" .) }}
{{- $own := last (splitList "/" .) }}
{{- $isInside := and (eq (contains ":" .) (contains ":" $block.cidr)) (gt (int $own) (int $bits)) }}
{{- $within := include "bamboo.networkParts" (dict "cidr" . "bits" $bits) }}
{{- if or (not $isInside) (ne $within (include "bamboo.networkParts" (dict "cidr" $block.cidr "bits" $bits))) }}
{{- fail (printf "%s: the exception %s must be a part of %s, and smaller" $place . $block.cidr) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Refuses network policies that the API server would, and that no schema can tell. */ -}}
{{- define "bamboo.checkNetwork" -}}
{{- $policy := .Values.networkPolicy }}
{{- if $policy.enabled }}
{{- range $place, $peers := dict "metricsFrom" $policy.metricsFrom "apiServer.to" $policy.apiServer.to "dns.to" $policy.dns.to }}
{{- include "bamboo.checkPeers" (dict "place" (printf "networkPolicy.%s" $place) "peers" $peers) }}
{{- end }}
{{- range $policy.metadataServer.cidrs }}
{{- include "bamboo.checkCidr" (dict "place" "networkPolicy.metadataServer.cidrs" "cidr" .) }}
{{- end }}
{{- range $name, $part := dict "operator" $policy.operator "agents" $policy.agents }}
{{- $place := printf "networkPolicy.%s.extraEgress" $name }}
{{- range $part.extraEgress }}
{{- include "bamboo.checkPeers" (dict "place" $place "peers" .to) }}
{{- range .ports }}
{{- if and (hasKey . "endPort") (lt (int .endPort) (int .port)) }}
{{- fail (printf "%s: endPort %d is below port %d" $place (int .endPort) (int .port)) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
