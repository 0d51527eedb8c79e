package dialect

import (
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/blackhole/blackhole/pkg/instance"
)

// Target is a target group of the HTTP service discovery of Prometheus.
type Target struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// Targets renders each instance with an address and a port as a group, because their labels differ.
//
// The metadata metrics_port, metrics_path and metrics_scheme override the port of the instance,
// /metrics and http. One that is none, callers may write anything, is left out.
func Targets(list []*instance.Instance) []Target {
	targets := make([]Target, 0, len(list))
	for _, i := range list {
		port := strconv.Itoa(i.Spec.Port)
		if n, err := strconv.ParseUint(i.Spec.Metadata["metrics_port"], 10, 16); err == nil && n > 0 {
			port = strconv.FormatUint(n, 10)
		}
		if i.Spec.Host != "" && port != "0" {
			targets = append(targets, Target{[]string{net.JoinHostPort(i.Spec.Host, port)}, labels(i)})
		}
	}
	return targets
}

// labels returns the labels before relabelling: __meta_blackhole_ and the name of the field. Of
// two metadata keys with the same label name the last in byte order wins.
func labels(i *instance.Instance) map[string]string {
	const prefix = "__meta_blackhole_"
	l := make(map[string]string, 16+len(i.Spec.Metadata))
	for _, k := range slices.Sorted(maps.Keys(i.Spec.Metadata)) {
		l[prefix+"metadata_"+sanitized(k)] = i.Spec.Metadata[k]
	}
	maps.Copy(l, map[string]string{
		prefix + "service": i.Service, prefix + "namespace": i.Namespace, prefix + "id": i.ID,
		prefix + "health": i.Status.String(), prefix + "weight": strconv.Itoa(max(i.Spec.Weight, instance.DefaultWeight)),
		prefix + "version": i.Spec.Version, prefix + "zone": i.Spec.Zone, prefix + "environment": i.Spec.Environment,
		prefix + "region": i.Spec.Region, prefix + "owner": i.Spec.Owner, prefix + "tags": wrapped(i.Spec.Tags),
		"__metrics_path__": i.Spec.Metadata["metrics_path"], "__scheme__": i.Spec.Metadata["metrics_scheme"],
	})
	if u, err := url.Parse(l["__metrics_path__"]); err != nil || !strings.HasPrefix(u.Path, "/") || u.Host != "" || u.Scheme != "" {
		delete(l, "__metrics_path__")
	}
	if s := l["__scheme__"]; s != "http" && s != "https" {
		delete(l, "__scheme__")
	}
	maps.DeleteFunc(l, func(_, value string) bool { return value == "" })
	return l
}

// wrapped puts a comma on both sides of each tag, so that one pattern finds any tag.
func wrapped(tags []string) string {
	if len(tags) == 0 {
		return ""
	}
	return "," + strings.Join(tags, ",") + ","
}

// sanitized returns a valid label name.
func sanitized(name string) string {
	return strings.Map(func(c rune) rune {
		if c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' {
			return c
		}
		return '_'
	}, name)
}
